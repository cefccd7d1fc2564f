"""`Gate`: the limits that every request passes first. Plain ASGI, because every request passes it.

It limits the size of a body, the time it may take, and the number of requests at once: further requests get an
immediate 503 instead of an endless queue. Waiting requests do not count: those whose body is still coming (if there are
too many, the oldest is dropped), and leases that wait for a job, which have their own limit. Health checks are always
answered. Every answer gets safe headers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wheelq.base.plural import counted
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.settings import ServerSettings

Tell = Callable[[str, Problem], Response]
BODY_S = 30.0
"""How long a whole body may take to arrive."""
ALWAYS = frozenset({"/healthz", "/readyz"})
"""Paths that are answered under any load, because supervisors restart a server that does not answer them."""
_SAFE: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'"),
    (b"cache-control", b"no-store"),
)
_NAMES = frozenset(name for name, _ in _SAFE)
_HSTS = (b"strict-transport-security", b"max-age=31536000")


class Gate:
    """Lets requests in, a bounded number at a time."""

    def __init__(
        self, app: ASGIApp, tell: Tell, answered: Counter[int], waiting: Callable[[], int], settings: ServerSettings
    ) -> None:
        """`tell` makes the answer for a path and a problem; `answered` counts the answers by status.

        `waiting` returns how many of the current requests only wait for a job.
        """
        self._app = app
        self._tell = tell
        self._answered = answered
        self._waiting = waiting
        self._body_max_bytes = settings.body_max_bytes
        self._max_in_flight = settings.max_in_flight
        self._headers: Sequence[tuple[bytes, bytes]] = (*_SAFE, _HSTS) if settings.tls_cert else _SAFE
        self.in_flight = 0
        """Current requests, without those whose body is still coming."""
        self._receiving: set[asyncio.Timeout] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered[message["status"]] += 1
                message["headers"] = [*message["headers"], *self._missing(message["headers"])]
            await send(message)

        problem = self._refuse(scope)
        if problem is not None:
            await self._tell(scope["path"], problem)(scope, receive, send_safely)
            return
        self.in_flight += 1
        try:
            await self._app(scope, self._bounded(receive), send_safely)
        finally:
            self.in_flight -= 1

    def _missing(self, headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
        """The safe headers that an answer has not set itself, as pages do."""
        given = {name for name, _ in headers}
        if given.isdisjoint(_NAMES):
            return self._headers
        return [pair for pair in self._headers if pair[0] not in given]

    def _refuse(self, scope: Scope) -> Problem | None:
        if self._free() < 1 and scope["path"] not in ALWAYS:
            return self._overloaded()
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self._body_max_bytes:
            return problems.too_large(self._body_max_bytes)
        if not _is_text(scope.get("raw_path") or b"") or not _is_text(scope["query_string"]):
            return Problem(problems.BAD_REQUEST, "Its path and query must be UTF-8, percent-encoded.")
        if "\n" in scope["path"]:  # routes ignore one at the end
            return Problem(problems.BAD_REQUEST, "Its path has a line break (%0A), which no name may have.")
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """Returns `receive` with limits: a body without a length may be too long, or never end."""
        received = 0
        is_complete = False
        deadline: float | None = None

        async def bounded() -> Message:
            nonlocal received, is_complete, deadline
            if is_complete:  # only the end of the connection can come now
                return await receive()
            if deadline is None:
                deadline = asyncio.get_running_loop().time() + BODY_S
            message = await self._part(receive, deadline)
            is_complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._body_max_bytes:
                raise problems.too_large(self._body_max_bytes)
            if is_complete and self._free() < 0:
                raise self._overloaded()
            return message

        return bounded

    async def _part(self, receive: Receive, deadline: float) -> Message:
        """Returns the next part of a body. Raises: Problem, at the deadline, or if others need the place."""
        try:
            async with asyncio.timeout_at(deadline) as timeout:
                self._receiving.add(timeout)
                self.in_flight -= 1
                try:
                    if len(self._receiving) > self._max_in_flight:
                        self._give_one_up()
                    return await receive()
                finally:
                    self.in_flight += 1
                    self._receiving.discard(timeout)
        except TimeoutError as error:
            raise Problem(problems.TOO_SLOW, f"It had {BODY_S:.0f} s at most.", more=problems.CLOSE) from error

    def _give_one_up(self) -> None:
        first = min(self._receiving, key=lambda timeout: timeout.when() or 0.0)
        self._receiving.discard(first)
        first.reschedule(0.0)

    def _free(self) -> int:
        return self._max_in_flight - self.in_flight + self._waiting()

    def _overloaded(self) -> Problem:
        under_way = counted(self._max_in_flight, "request is", "requests are")
        return Problem(problems.OVERLOADED, f"{under_way} under way.")


def _is_text(encoded: bytes) -> bool:
    """Whether this part of a URL is UTF-8. What is not would be read as a name that others have, too."""
    try:
        if b"%" in encoded:
            unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        return False
    return True
