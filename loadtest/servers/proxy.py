"""A TCP proxy between the parts of wheelq and one or several servers, which simulates the faults of networks.

    scheduler-1 ──▶ door of "scheduler-1" ──┐
    worker-2    ──▶ door of "worker-2"    ──┼──▶ server (unix socket, or loopback port)
    producer-0  ──▶ door of "producer-0"  ──┘

A door is a listening port. Every part has a door of its own to every server, so a fault can affect a single part.
Nodes of a cluster and sentinels name the addresses of other servers; in their answers, these are replaced by the
addresses of the part's own doors. The faults of a door:

| `cut`      | its connections end                                                                                 |
| `shut`     | new connections are closed as soon as they are made                                                 |
| `delay`    | bytes are delayed in both directions, and stay in order                                             |
| `swallow`  | requests go through and replies do not: the call was done, and the caller does not learn it         |
| `silence`  | existing connections carry nothing, and neither side notices: a cable was pulled                    |

Always true: bytes of one direction stay in order; a connection that has missed bytes never carries others (it is closed
when the swallowing ends); when one side closes, bytes that were still delayed for the other are dropped, so that no
request reaches the server after its sender has given up.

The proxy runs on an event loop in its own thread. Its methods may be called from any thread, and return when the change
is in force.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

T = TypeVar("T")
CHUNK_BYTES = 64 * 1024
ADDRESS = re.compile(rb"(127\.0\.0\.1(?::|\r\n:|\r\n\$5\r\n))(\d{5})")
"""An address in MOVED, ASK, the answer to CLUSTER SLOTS, and answers of sentinels. All ports have five digits."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Held = asyncio.Queue[tuple[float, bytes]]
"""Bytes that were received and not passed on yet, each with the time of arrival."""


class Connection:
    """One client's connection and the one made to the server for it."""

    def __init__(self, door: Door, client: Streams, server: Streams) -> None:
        self._door = door
        self._client, self._server = client, server
        self._done = asyncio.Event()
        self.is_silent = False
        self.has_missed = False
        """Whether a reply was swallowed: the next reply would be taken for it."""

    async def carry(self) -> None:
        """Carry bytes both ways until either side ends or `end` is called."""
        held_up: tuple[Held, Held] = asyncio.Queue(), asyncio.Queue()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._read(self._client[0], held_up[0]),
                self._write(self._server[1], held_up[0], is_reply=False),
                self._read(self._server[0], held_up[1]),
                self._write(self._client[1], held_up[1], is_reply=True),
            )
        ]
        await self._done.wait()
        for task in tasks:
            task.cancel()
        for _, writer in (self._client, self._server):
            writer.transport.abort()  # not `close`, which would still write what is held up

    def end(self) -> None:
        """Close both sides."""
        self._done.set()

    async def _read(self, reader: asyncio.StreamReader, held_up: Held) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                held_up.put_nowait((asyncio.get_running_loop().time(), chunk))
        self.end()

    async def _write(self, writer: asyncio.StreamWriter, held_up: Held, *, is_reply: bool) -> None:
        with suppress(OSError):
            while True:
                came_at, chunk = await held_up.get()
                if (wait := came_at + self._door.delay_s - asyncio.get_running_loop().time()) > 0:
                    await asyncio.sleep(wait)
                if self.is_silent:
                    continue
                if is_reply and (self._door.swallows or self.has_missed):
                    self.has_missed = True
                    continue
                writer.write(self._door.translate(chunk) if is_reply else chunk)
                await writer.drain()
        self.end()


class Door:
    """One listening port, and the faults of its connections."""

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, Streams]],
        translate: Callable[[bytes], bytes] = lambda reply: reply,
    ) -> None:
        """`translate` rewrites a reply of the server for the part."""
        self._connect = connect
        self._connections: set[Connection] = set()
        self.translate = translate
        self.is_shut = False
        self.delay_s = 0.0
        self.swallows = False

    async def open(self) -> str:
        """Listen on a free port; returns host and port."""
        server = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End the connections of this moment."""
        for connection in list(self._connections):
            connection.end()

    def silence(self) -> None:
        """Make the connections of this moment carry nothing."""
        for connection in self._connections:
            connection.is_silent = True

    def swallow(self, swallows: bool) -> None:
        """Throw replies away, or end that: then the connections that missed any are closed."""
        self.swallows = swallows
        for connection in list(self._connections):
            if connection.has_missed and not swallows:
                connection.end()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.is_shut:
                raise ConnectionResetError
            server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(self, (reader, writer), server)
        self._connections.add(connection)
        try:
            await connection.carry()
        finally:
            self._connections.discard(connection)


class Proxy:
    """Doors by name. A context manager."""

    def __init__(self, *upstreams: str) -> None:
        """`upstreams` are servers' URLs without password: `unix:///path` or `redis://host:port`."""
        self._upstreams = [urlsplit(upstream) for upstream in upstreams]
        self._doors: dict[str, list[Door]] = {}
        self._addresses: dict[str, list[str]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._run(_end_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def addresses(self, name: str) -> Sequence[str]:
        """Returns the addresses of the doors with this name, one for each server; the first call makes the doors."""
        if name not in self._doors:
            ports: dict[bytes, bytes] = {}

            def translate(reply: bytes) -> bytes:
                return ADDRESS.sub(lambda found: found[1] + ports.get(found[2], found[2]), reply)

            doors = [Door(partial(_connect, upstream), translate) for upstream in self._upstreams]
            found = [self._run(door.open()) for door in doors]
            for upstream, address in zip(self._upstreams, found, strict=True):
                ports[str(upstream.port).encode()] = address.partition(":")[2].encode()
            self._addresses[name], self._doors[name] = found, doors
        return self._addresses[name]

    def url(self, name: str) -> str:
        """Where the door of this name to the first server listens."""
        return f"redis://{self.addresses(name)[0]}"

    def cut(self, *names: str) -> None:
        """End the connections through these doors (through all, without a name)."""
        self._each(names, Door.cut)

    def shut(self, shut: bool, *names: str) -> None:
        """Whether new connections are closed as soon as they are made."""
        self._each(names, lambda door: setattr(door, "is_shut", shut))

    def delay(self, seconds: float, *names: str) -> None:
        """Delay bytes by this many seconds; 0 passes them on at once."""
        self._each(names, lambda door: setattr(door, "delay_s", seconds))

    def swallow(self, swallows: bool, *names: str) -> None:
        """Whether replies are thrown away. When it ends, the connections that missed any are closed."""
        self._each(names, lambda door: door.swallow(swallows))

    def silence(self, *names: str) -> None:
        """Make the present connections carry nothing from now on; new ones work."""
        self._each(names, Door.silence)

    def _each(self, names: tuple[str, ...], change: Callable[[Door], None]) -> None:
        async def change_all() -> None:
            for name, doors in self._doors.items():
                if name in names or not names:
                    for door in doors:
                        change(door)

        self._run(change_all())

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)


async def _connect(upstream: SplitResult) -> Streams:
    if upstream.scheme == "unix":
        return await asyncio.open_unix_connection(unquote(upstream.path))
    return await asyncio.open_connection(upstream.hostname, upstream.port)


async def _end_all_tasks() -> None:
    for _ in range(2):
        await asyncio.sleep(0)  # connections that were cut close their sides
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
