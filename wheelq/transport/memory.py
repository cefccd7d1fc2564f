"""A server in this process: `memory://name`, for tests. Needs the extra `testing` (fakeredis, which runs the scripts).

    Client.connect("memory://tests")      everyone in this process who names it meets on the same server

Its clock is the system's until another one is set: then TIME, expiry and stream ids follow that one, and a week passes
when it is told to. What else in the process uses fakeredis keeps the system's clock.

fakeredis reads `time.time()` in several modules. They are given a stand-in for the module `time`, which asks the server
whose command is being carried out in this context; there is no other place where all of them could be told the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import fakeredis._core._server
import fakeredis._helpers
import fakeredis._socket._base
import fakeredis.commands_mixins.server_mixin
import fakeredis.model._stream
from fakeredis import FakeRedisConnection, FakeServer
from fakeredis.aioredis import FakeAsyncRedisConnection

from wheelq.clock import Clock, SystemClock

_READ_THE_TIME: tuple[Any, ...] = (
    fakeredis._core._server,
    fakeredis._helpers,
    fakeredis._socket._base,
    fakeredis.commands_mixins.server_mixin,
    fakeredis.model._stream,
)
_asked: ContextVar[MemoryServer | None] = ContextVar("the server whose command is carried out", default=None)


class MemoryServer(FakeServer):
    """A server of this process, with a clock that can be set."""

    def __init__(self) -> None:
        super().__init__(version=(7,))
        self.clock: Clock = SystemClock()

    def reset(self) -> None:
        """Forget all data, and go by the system's clock. Connections stay open."""
        with self.lock:
            for database in self.dbs.values():
                database.clear()
        self.clock = SystemClock()

    def seconds(self) -> float:
        """Its time, as `time.time()` gives it; whoever takes whole milliseconds of that gets what the clock says."""
        ms = self.clock.wall_ms()
        seconds = ms / 1000
        return seconds if int(seconds * 1000) == ms else math.nextafter(seconds, math.inf)

    def at_its_time(self, carry_out: Callable[[list[bytes]], None]) -> Callable[[list[bytes]], None]:
        """`carry_out` a command, by this server's clock."""

        def carry_out_then(fields: list[bytes]) -> None:
            token = _asked.set(self)
            try:
                carry_out(fields)
            finally:
                _asked.reset(token)

        return carry_out_then


class _Time:
    """The module `time`, as fakeredis sees it."""

    def time(self) -> float:
        server = _asked.get()
        return time.time() if server is None else server.seconds()

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class _Connection(FakeRedisConnection):
    def _connect(self) -> Any:
        socket: Any = super()._connect()
        socket._process_command = socket._server.at_its_time(socket._process_command)
        return socket


class _AsyncConnection(FakeAsyncRedisConnection):
    async def _connect(self) -> None:
        await super()._connect()
        socket: Any = self._sock
        socket._process_command = socket._server.at_its_time(socket._process_command)


_servers: dict[str, MemoryServer] = {}


def memory_server(url: str) -> MemoryServer:
    """The server of this name; made when first asked for."""
    return _servers.setdefault(url, MemoryServer())


def connection_options(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What leads blocking and asyncio connections there, instead of host and port."""
    server = memory_server(url)
    return (
        {"connection_class": _Connection, "server": server},
        {"connection_class": _AsyncConnection, "server": server},
    )


for _module in _READ_THE_TIME:
    _module.time = _Time()
