"""A server in this process: `memory://name`, for tests. Needs the extra `testing` (fakeredis, which runs the scripts).

    Client.connect("memory://tests")      all users of this name in this process share one server

The server's clock is the system's until another one is set. Then TIME, expiry and stream ids follow the new clock, so a
test can make a week pass. Other uses of fakeredis in the process keep the system's clock.

The modules of fakeredis call `time.time()`. They get a replacement for the module `time`, which asks the server that
executes the current command. Beyond that only public classes of fakeredis are used; a test fails if a release of it
reads the time in another way.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fakeredis import FakeAsyncRedisConnection, FakeRedisConnection, FakeServer

from wheelq.base.clock import Clock, SystemClock

_asked: ContextVar[MemoryServer | None] = ContextVar("the server that executes the current command", default=None)


class MemoryServer(FakeServer):
    """A server of this process, with a clock that can be set."""

    def __init__(self) -> None:
        super().__init__(version=(7,))
        self.clock: Clock = SystemClock()

    def reset(self) -> None:
        """Forget all data, and follow the system's clock. Connections stay open."""
        with self.lock:
            for database in self.dbs.values():
                database.clear()
        self.clock = SystemClock()

    def seconds(self) -> float:
        """Its time, in the form of `time.time()`; its whole milliseconds are exactly the clock's."""
        ms = self.clock.wall_ms()
        seconds = ms / 1000
        return seconds if int(seconds * 1000) == ms else math.nextafter(seconds, math.inf)

    @contextmanager
    def at_its_time(self) -> Iterator[None]:
        """Use this server's clock for commands within this context."""
        token = _asked.set(self)
        try:
            yield
        finally:
            _asked.reset(token)


class _Time:
    """Replaces the module `time` for fakeredis."""

    def time(self) -> float:
        server = _asked.get()
        return time.time() if server is None else server.seconds()

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class _Connection(FakeRedisConnection):
    """Executes commands as it sends them."""

    def __init__(self, *args: Any, server: MemoryServer, **options: Any) -> None:
        self._memory = server
        super().__init__(*args, server=server, **options)

    def send_packed_command(self, command: Any, check_health: bool = True) -> Any:
        sending: Any = super()  # its method has no types
        with self._memory.at_its_time():
            return sending.send_packed_command(command, check_health)


class _AsyncConnection(FakeAsyncRedisConnection):
    """The asyncio counterpart of `_Connection`."""

    def __init__(self, *args: Any, server: MemoryServer, **options: Any) -> None:
        self._memory = server
        super().__init__(*args, server=server, **options)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        with self._memory.at_its_time():
            await super().send_packed_command(command, check_health)


_servers: dict[str, MemoryServer] = {}


def memory_server(url: str) -> MemoryServer:
    """Returns the server with this name; creates it at the first call."""
    return _servers.setdefault(url, MemoryServer())


def connection_options(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of blocking and asyncio connections that replace host and port."""
    server = memory_server(url)
    return (
        {"connection_class": _Connection, "server": server},
        {"connection_class": _AsyncConnection, "server": server},
    )


def _give_the_time() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fakeredis" and getattr(module, "time", None) is time:
            module.time = _Time()  # type: ignore[attr-defined]  # as every module that says `import time`


_give_the_time()
