"""The connections of one server, and the limits of each: see `connection`."""

from __future__ import annotations

import asyncio
import resource
import ssl
from dataclasses import dataclass, field
from typing import Protocol

from uvicorn.server import ServerState

OTHER_FILES = 0.25
"""The share of the process's file descriptors left for Redis, receivers and logs."""


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(1, int(soft * (1 - OTHER_FILES)))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size and time of requests, before and after a handler sees them."""

    head_s: float = 10.0
    """Seconds for a TLS handshake, for a head, for trailers, and for the rest of a body whose request is answered."""
    head_bytes: int = 65_536
    """The size of a head, and of trailers."""
    newcomers: int = 200
    """The most connections that have not finished their TLS handshake or first head."""
    grace_s: float = 0.5
    """How long a newcomer may stay even if there are too many: a burst of callers is not an attack."""
    write_s: float = 30.0
    """How long a caller may stop reading its answer."""
    linger_s: float = 2.0
    """How long a connection stays open after its last answer while the caller still sends. Closing it at once would
    reset it, and could destroy the answer on its way."""
    parting_s: float = 1.0
    """How long a connection stays open at a stop of the server for a request that is on its way."""
    pipelined: int = 100
    """The most requests that wait behind an unanswered one."""
    connections: int = field(default_factory=_most_connections)
    """The most connections in all."""


class Connected(Protocol):
    """A connection that can be closed if others need its place."""

    loop: asyncio.AbstractEventLoop

    def leave(self) -> None:
        """Close the connection."""


class Connections(ServerState):
    """The connections of one server; in order, those without a first head and the idle ones."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.tls: ssl.SSLContext | None = None
        """The TLS context for `Handshake`; None: callers speak plain HTTP."""
        self.newcomers: dict[Connected, float] = {}
        """Since when, by the event loop's clock."""
        self.idle: dict[Connected, None] = {}
        self._looking: asyncio.TimerHandle | None = None

    def arrived(self, connection: Connected) -> None:
        """A caller has connected."""
        now = connection.loop.time()
        self.newcomers[connection] = now
        self.make_room(now)

    def make_room(self, now: float) -> None:
        """Close the oldest newcomers if there are too many, and the longest idle if there are too many in all."""
        while len(self.connections) > self.limits.connections and (self.idle or self.newcomers):
            are_many = len(self.newcomers) > self.limits.newcomers
            next(iter(self.newcomers if are_many or not self.idle else self.idle)).leave()
        while len(self.newcomers) > self.limits.newcomers:
            oldest, since = next(iter(self.newcomers.items()))
            if now < since + self.limits.grace_s:
                self._look_again(oldest.loop, since + self.limits.grace_s)
                return
            oldest.leave()

    def _look_again(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._looking is None:

            def look() -> None:
                self._looking = None
                self.make_room(loop.time())

            self._looking = loop.call_at(at, look)
