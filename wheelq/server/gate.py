"""`Gate`: what every request passes first, whatever its path. Plain ASGI, because it is on the way of each.

It bounds what one request may take (bytes, and time until its body is there) and how many may be worked on at once:
beyond that the answer is a 503 at once, instead of a queue without end. And it puts safe headers on every answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.words import counted

Tell = Callable[[str, Problem], Response]
BODY_S = 30.0
"""How long a body may take to come."""
_SAFE: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'"),
    (b"cache-control", b"no-store"),
)
_HSTS = (b"strict-transport-security", b"max-age=31536000")


class Gate:
    """Lets requests in, a bounded number at a time."""

    def __init__(
        self,
        app: ASGIApp,
        tell: Tell,
        answered: Counter[int],
        body_max_bytes: int,
        max_in_flight: int,
        is_tls: bool,
    ) -> None:
        """`tell` makes the answer for a path and a problem; `answered` counts the answers by status."""
        self._app = app
        self._tell = tell
        self._answered = answered
        self._body_max_bytes = body_max_bytes
        self._max_in_flight = max_in_flight
        self._headers: Sequence[tuple[bytes, bytes]] = (*_SAFE, _HSTS) if is_tls else _SAFE
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered[message["status"]] += 1
                message["headers"] = [*message["headers"], *self._headers]
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

    def _refuse(self, scope: Scope) -> Problem | None:
        if self.in_flight >= self._max_in_flight:
            return Problem(
                problems.OVERLOADED, f"{counted(self._max_in_flight, 'request is', 'requests are')} under way."
            )
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self._body_max_bytes:
            return self._too_large()
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """`receive`, with an end: what says no length may still be too long, or never end."""
        received = 0
        is_complete = False

        async def bounded() -> Message:
            nonlocal received, is_complete
            if is_complete:  # what comes now is only that the caller has gone
                return await receive()
            try:
                async with asyncio.timeout(BODY_S):
                    message = await receive()
            except TimeoutError as error:
                raise Problem(problems.TOO_SLOW, f"It had {BODY_S:.0f} s.") from error
            is_complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._body_max_bytes:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> Problem:
        return Problem(problems.TOO_LARGE, f"The body has more than {self._body_max_bytes:,} bytes.", "body")
