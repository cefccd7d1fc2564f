"""The dashboard's routes, and what surrounds each page: the viewer, the audit log, safe headers, errors as pages.

`/guide` shows the pages of the guide to anyone who reaches the server, without Redis or the internet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from wheelq import guide
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.dashboard.entering import (
    NO_ONE,
    TOKEN,
    VIEWER,
    enter,
    sign_in,
    sign_out,
    token_of,
    viewer_of,
    visit_of,
)
from wheelq.server.dashboard.leaves import Places, leaf
from wheelq.server.dashboard.pages import dead, future, jobs, overview, recurring, topics
from wheelq.server.dashboard.rendering import static
from wheelq.server.dashboard.visit import PagePlace, set_cookie
from wheelq.server.problems import Problem, problem_in
from wheelq.server.service import Service, address_of

SAFE = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "referrer-policy": "same-origin",  # browsers send no Origin with forms under "no-referrer"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
YEAR_S = 31_536_000
PLACES = (*overview.PLACES, *future.PLACES, *topics.PLACES, *jobs.PLACES, *dead.PLACES, *recurring.PLACES)
"""Every place of the dashboard."""
Endpoint = Callable[[Request], Awaitable[Response]]


def install(app: FastAPI, service: Service) -> None:
    for place in PLACES:
        _add(app, place.path, _endpoint(service, place), "POST" if place.is_action else "GET")
    _add(app, "/sign-in", _surrounded(service, sign_in), "GET", "POST")
    _add(app, "/sign-out", _surrounded(service, sign_out), "POST")
    _add(app, "/guide", _surrounded(service, _guide_page), "GET")
    _add(app, "/guide/{page}", _surrounded(service, _guide_page), "GET")
    _add(app, "/guide/images/{name}", _surrounded(service, _guide_picture), "GET")
    _add(app, "/static/{version}/{name}", _static, "GET")


class BasePath:
    """Removes the base path from requests, if a proxy has passed it on."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(self._base_path)
            if path != scope["path"] and (not path or path.startswith("/")):
                scope = {**scope, "path": path or "/"}  # only the gate reads `raw_path`: whether it is UTF-8
        await self._app(scope, receive, send)


def _add(app: FastAPI, path: str, endpoint: Endpoint, *methods: str) -> None:
    app.router.routes.append(Route(path, endpoint, methods=list(methods), include_in_schema=False))


def _endpoint(service: Service, place: PagePlace) -> Endpoint:
    """Returns the function that answers each request to a place."""

    async def answer(service: Service, request: Request) -> Response:
        with service.audit.of(request, place.verb, address_of(request)) as entry:
            visit = await enter(service, request, place)
            entry.caller, entry.topic = visit.caller, request.path_params.get("topic", visit.form.get("topic"))
            try:
                question = visit.form.get("question")  # a script asks it itself, and does not send it then
                response = visit.ask(question, "question") if question else await place.handle(visit)
            finally:
                if place.is_action:  # something was changed: the next page looks again
                    service.snapshot.forget(entry.topic)
                    service.due_counts.forget()
            entry.status = response.status_code
            if visit.only_asks or not place.is_action:
                entry.verb = Verb.READ
            return response

    return _surrounded(service, answer)


def _surrounded(service: Service, handle: Callable[[Service, Request], Awaitable[Response]]) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            response = await handle(service, request)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  # every error becomes a page
            response = _error_page(service, request, error)
        for name, value in SAFE.items():
            response.headers.setdefault(name, value)
        if request.cookies.get(TOKEN) != token_of(request):
            set_cookie(service, request, response, TOKEN, token_of(request))
        return response

    return answer


def _error_page(service: Service, request: Request, error: Exception) -> Response:
    """Returns the page that shows an error, or a redirect to the sign-in for a viewer who has not signed in."""
    problem = problem_in(request.method, error)
    service.log_failure(request, problem, error)
    visit = visit_of(service, request, *request.scope.get(VIEWER, (NO_ONE,)))
    if problem.kind is problems.NO_KEY and service.needs_key and request.scope["path"] != "/events":
        asked = urlencode({"next": _asked(request)})
        response: Response = RedirectResponse(f"{visit.url('/sign-in')}?{asked}", 303)
    else:
        body = problem.body()
        response = visit.page("problem.html", problem.kind.status, title=body["title"], detail=body["detail"])
        for name, value in problem.response().headers.items():
            if name not in ("content-length", "content-type"):
                response.headers[name] = value
    return response


def _asked(request: Request) -> str:
    path: str = request.scope["path"]
    if request.method != "GET":
        return "/"
    return f"{path}?{request.url.query}" if request.url.query else path


async def _static(request: Request) -> Response:
    found = static(request.path_params["name"])
    if found is None:
        raise Problem(problems.NOT_FOUND)
    headers = {**SAFE, "cache-control": f"public, max-age={YEAR_S}, immutable"}
    return Response(found.body, media_type=found.media_type, headers=headers)


_TYPES = {"png": "image/png", "svg": "image/svg+xml"}


async def _guide_page(service: Service, request: Request) -> Response:
    name = request.path_params.get("page", guide.INDEX)
    base = f"{service.settings.server.base_path}/guide"
    places = Places(base, f"{base}/{{}}", f"{base}/images/{{}}")
    try:
        page = leaf(name, places)
    except KeyError:
        raise Problem(problems.NOT_FOUND, f"The guide has no page {name!r:.60}.") from None
    try:
        visit = visit_of(service, request, *await viewer_of(service, request))
    except Problem:  # the guide needs no sign-in
        visit = visit_of(service, request, NO_ONE)
    leaves = [leaf(one, places) for one in guide.names()]
    place = next((place for place, one in enumerate(leaves) if one.name == name), -1)
    return visit.page(
        "guide.html",
        leaf=page,
        leaves=leaves,
        before=leaves[place - 1] if place > 0 else None,
        after=leaves[place + 1] if place + 1 < len(leaves) else None,
        language="zh-CN" if name == "zh" else "en",
    )


async def _guide_picture(service: Service, request: Request) -> Response:
    name = request.path_params["name"]
    try:
        return Response(guide.image(name), media_type=_TYPES[name.rpartition(".")[2]])
    except KeyError:
        raise Problem(problems.NOT_FOUND) from None
