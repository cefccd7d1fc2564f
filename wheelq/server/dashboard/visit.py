"""`Visit`: one request of a viewer of the dashboard, and `PagePlace`: a path, its action and the right it needs.

`Form` holds what a viewer has written; below it, times and payloads as viewers write them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from wheelq.admin.figures import Fleet
from wheelq.base.as_json import parse
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration
from wheelq.model.topic import TopicInfo
from wheelq.protocol.calls.server import server_time_us
from wheelq.server import problems
from wheelq.server.access import Caller, Verb
from wheelq.server.dashboard.rendering import render
from wheelq.server.problems import Problem
from wheelq.server.service import Service

NOTE = "wheelq_note"
"""The cookie that carries one sentence to the next page."""
NOTE_CHARS = 400
WRITES = (Verb.SCHEDULE, Verb.CHANGE, Verb.MANAGE)
FIELDS = 2_000
"""The most fields of one form."""


class Form:
    """The fields of a form or of a query string; empty fields count as left out.

    What the dashboard itself has written there, such as ids, is read as it is: `a ` is another job than `a`. What
    people type is read by `typed`, without the spaces around it.
    """

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = [(name, value) for name, value in pairs if value]
        self.names = {name for name, _ in pairs}
        """The names of all fields, also of empty ones."""

    @classmethod
    def parse(cls, text: str) -> Form:
        """Returns the fields. Raises: InvalidInput."""
        try:
            return cls(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS))
        except ValueError as error:
            raise InvalidInput("form", f"has more than {FIELDS:,} fields") from error

    def get(self, name: str) -> str | None:
        """The first field with this name; None if it is missing or empty."""
        return next((value for key, value in self._pairs if key == name), None)

    def typed(self, name: str) -> str | None:
        """The first field with this name, which people type; None if it is missing or blank."""
        return (self.get(name) or "").strip() or None

    def text(self, name: str, default: str = "") -> str:
        """The first field with this name, or the default."""
        return self.get(name) or default

    def needed(self, name: str) -> str:
        """The first field with this name. Raises: InvalidInput."""
        found = self.get(name)
        if found is None:
            raise InvalidInput(name, "is missing")
        return found

    def one_of(self, name: str, *choices: str) -> str:
        """The first field with this name, which has one of these values. Raises: InvalidInput."""
        found = self.needed(name)
        if found not in choices:
            raise InvalidInput(name, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        return found

    def some(self, *names: str) -> dict[str, str]:
        """Those of these fields that are not missing or empty."""
        return {name: value for name in names if (value := self.get(name)) is not None}

    def all(self, name: str) -> list[str]:
        """Every field with this name."""
        return [value for key, value in self._pairs if key == name]

    def without(self, *names: str) -> list[tuple[str, str]]:
        """Every field but these."""
        return [(key, value) for key, value in self._pairs if key not in names]

    def number(self, name: str) -> float | None:
        """A number; None if it is missing. Raises: InvalidInput."""
        found = self.typed(name)
        if found is None:
            return None
        try:
            return float(found.replace(",", ""))
        except ValueError as error:
            raise InvalidInput(name, f"must be a number, not {found!r:.40}") from error

    def whole(self, name: str, least: int = 0, most: int = 2**53) -> int | None:
        """A whole number within limits; None if it is missing. Raises: InvalidInput."""
        found = self.number(name)
        if found is None:
            return None
        if not least <= found <= most or found != int(found):  # the first catches NaN
            raise InvalidInput(name, f"must be a whole number from {least:,} to {most:,}")
        return int(found)


@dataclass(slots=True)
class Visit:
    """One request: its viewer, its content, and how to answer it."""

    request: Request
    service: Service
    caller: Caller
    is_signed_in: bool
    token: str
    """The token for the forms of the page."""
    form: Form = field(default_factory=lambda: Form([]))
    """The fields of a POST."""
    only_asks: bool = False
    """Whether the answer asks the viewer something, and nothing was changed."""

    @property
    def query(self) -> Form:
        """The query string. Raises: InvalidInput."""
        return Form.parse(self.request.url.query)

    @property
    def topic(self) -> str:
        name: str = self.request.path_params["topic"]
        return name

    @property
    def shows_payloads(self) -> bool:
        """Whether payloads, headers and results may be shown."""
        return self.service.settings.server.show_payloads

    def may(self, verb: str, topic: str | None = None) -> bool:
        """Whether the viewer may do this with the topic; None: with any topic."""
        return self.caller.may(Verb(verb), topic)

    def readable(self, seen: Fleet) -> list[TopicInfo]:
        return [info for info in seen.topics if self.may(Verb.READ, info.name)]

    async def now_ms(self) -> int:
        """The server's time. Raises: ServerError."""
        return await self.service.transport.send(server_time_us()) // 1000

    def url(self, path: str, **query: Any) -> str:
        """The path as browsers reach it, with the query fields that are not None or empty."""
        asked = urlencode({name: value for name, value in query.items() if value not in (None, "")})
        return f"{self.service.settings.server.base_path}{path}{'?' if asked else ''}{asked}"

    def page(self, template: str, status: int = 200, **context: Any) -> Response:
        """A page, with what every page needs around it."""
        settings = self.service.settings.server
        note = _note_of(self.request)
        shared = {
            "url": self.url,
            "may": self.may,
            "token": self.token,
            "here": self.request.url.path,
            "environment": settings.environment,
            "is_read_only": bool(self.caller.id) and not any(map(self.may, WRITES)),
            "is_signed_in": self.is_signed_in,
            "note": note,
        }
        response = HTMLResponse(render(template, {**shared, **context}), status)
        if note:
            response.delete_cookie(NOTE, path=cookie_path(self.service), httponly=True, samesite="strict")
        return response

    def check_still(self, shown: object) -> None:
        """Raises: Problem, if the form was sent from a page that showed something else than this. See `mark_of`."""
        mark = self.form.get("shown")
        if mark is not None and mark != mark_of(shown):
            raise Problem(problems.OUTDATED)

    def ask(self, question: str, *answered: str) -> Response:
        """Returns a page that asks, and whose form sends these fields again, without those that are answered by it."""
        self.only_asks = True
        fields, path = self.form.without("token", *answered), self.request.scope["path"]
        return self.page("ask.html", question=question, action=self.url(path), fields=fields, before=self._before())

    def _before(self) -> str:
        """The page with the form; the overview, if the browser does not say."""
        found = urlsplit(self.request.headers.get("referer", ""))
        is_ours = found.netloc == self.request.headers.get("host") and not found.path.startswith("//")
        return found._replace(scheme="", netloc="", fragment="").geturl() if is_ours else self.url("/")

    def back(self, path: str, note: str = "", **query: Any) -> Response:
        """Returns a redirect to a page after an action, with one sentence to show there."""
        response = RedirectResponse(self.url(path, **query), 303)
        if note:
            packed = base64.urlsafe_b64encode(note[:NOTE_CHARS].encode(errors="replace")).decode()
            set_cookie(self.service, self.request, response, NOTE, packed, max_age=30)
        return response


def mark_of(shown: object) -> str:
    """What a form sends back as `shown`, so that it does not undo what others have changed meanwhile."""
    return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PagePlace:
    """A path, its action, and the right that a viewer needs."""

    path: str
    handle: Handler
    verb: Verb
    is_action: bool = False


def shows(path: str, handle: Handler, verb: Verb = Verb.READ) -> PagePlace:
    """A page."""
    return PagePlace(path, handle, verb)


def does(path: str, handle: Handler, verb: Verb) -> PagePlace:
    """An action: a form is posted there."""
    return PagePlace(path, handle, verb, is_action=True)


def cookie_path(service: Service) -> str:
    """The path that cookies are for."""
    return service.settings.server.base_path or "/"


def set_cookie(
    service: Service, request: Request, response: Response, name: str, value: str, max_age: int | None = None
) -> None:
    """Set a cookie that no script can read and no other site can make a browser send.

    It is for HTTPS alone if the page came by that, also by way of a proxy that ends TLS.
    """
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=cookie_path(service),
        secure=bool(service.settings.server.tls_cert) or _is_https(request),
        httponly=True,
        samesite="strict",
    )


def _is_https(request: Request) -> bool:
    """Whether a proxy or the browser says that the page came by HTTPS. A lie harms only its own cookie."""
    told = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return told == "https" or request.headers.get("origin", "").startswith("https://")


def _note_of(request: Request) -> str:
    try:
        return base64.urlsafe_b64decode(request.cookies.get(NOTE, "")).decode()[:NOTE_CHARS]
    except ValueError:
        return ""


def moment(text: str, field: str) -> datetime:
    """Returns a moment in ISO 8601; one without a time zone is in UTC. Raises: InvalidInput."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInput(field, f"{text!r:.60} is not a time: write 2030-01-31 09:00, which is UTC") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def moment_of(form: Form, field: str) -> datetime | None:
    """Returns the moment in a field; None if it is empty. Raises: InvalidInput."""
    text = form.typed(field)
    return None if text is None else moment(text, field)


def payload_of(form: Form, field: str = "payload") -> Any:
    """Returns the JSON in a field; None if it is empty. Raises: InvalidInput."""
    text = form.typed(field)
    if text is None:
        return None
    try:
        return parse(text.encode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field, f"is not JSON ({error})") from error


def when_of(form: Form) -> dict[str, Any]:
    """Returns `delay` or `at`, as the client takes them. Raises: InvalidInput."""
    delay, at = form.typed("delay"), form.typed("at")
    if (delay is None) == (at is None):
        raise InvalidInput("delay", "give either a delay or a time")
    return {"delay": parse_duration(delay, "delay")} if delay is not None else {"at": moment(at or "", "at")}
