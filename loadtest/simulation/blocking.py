"""A producer with the blocking client. Its calls and its outbox run in simulated threads (see `threads`).

Its sockets are real socket pairs, filled by the simulated network, because libraries look at them.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import select
import socket
from dataclasses import replace
from math import inf
from typing import Any

from loadtest.simulation.ledger import Ledger
from loadtest.simulation.network import Link
from loadtest.simulation.parts import Actor, Part
from loadtest.simulation.process import Process, current
from loadtest.simulation.threads import SimThread, in_thread, this_thread
from wheelq import Client
from wheelq.settings import OutboxSettings, Settings

LOOK_S = 0.005
"""How often a thread looks for a free connection."""


class SimSocket:
    """A connected socket. Blocking calls wait in virtual time."""

    def __init__(self, process: Process, link: Link) -> None:
        self._process, self._link = process, link
        self._near, self._far = socket.socketpair()
        self._timeout: float | None = None
        self._reader: SimThread | None = None

    def __hash__(self) -> int:
        return self._link.number

    # --- what the client does ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Returns a file to poll."""
        return self._near.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out of `recv_into`."""
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        """Send data. Never waits."""
        if not self._link.is_open:
            raise ConnectionResetError(104, "Connection reset by peer")
        self._link.to_server(bytes(data))

    def recv_into(self, buffer: bytearray) -> int:
        """Wait for data. Raises: TimeoutError."""
        thread = this_thread()
        assert thread is not None, "a loop reads a socket"
        until = None if self._timeout is None else self._process.monotonic() + self._timeout
        while not select.select([self._near], [], [], 0)[0]:
            left = None if until is None else until - self._process.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self._reader = thread
            thread.pause(left)
            self._reader = None
        return self._near.recv_into(buffer)

    def recv(self, size: int, flags: int) -> bytes:
        """Look whether the connection is open. Never waits."""
        return self._near.recv(size, flags)

    def shutdown(self, how: int) -> None:
        """Does nothing: `close` ends the connection."""

    def close(self) -> None:
        """Close the connection."""
        if self._near.fileno() >= 0:
            self._process.connections.pop(self, None)
            self._link.finish(by_server=False)
            self._near.close()
            self._far.close()

    # --- what the network does ---------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take data from the network."""
        self._process.deliver(self._take, data)

    def lost(self, error: Exception | None) -> None:
        """Take the end of the connection."""
        self._process.deliver(self._take, b"")

    def vanish(self) -> None:
        """Close the connection as the kernel does after the process was killed."""
        self._link.finish(by_server=False)

    def _take(self, data: bytes) -> None:
        if self._far.fileno() < 0:
            return
        if data:
            self._far.sendall(data)
        else:
            self._far.shutdown(socket.SHUT_WR)
        if self._reader is not None:
            self._reader.go_on()


def connect(connection: Any) -> SimSocket:
    """Replaces redis-py's function that connects a socket. Raises: OSError, TimeoutError."""
    process, thread = current[-1], this_thread()
    assert thread is not None, "a loop connects"
    network = process.network
    address = f"{connection.host}:{connection.port}"
    link = Link(network, process, address, network.next_number())
    thread.sleep(link.latency())
    if (process.name, address) in network.cut:
        thread.sleep(connection.socket_connect_timeout)
        raise TimeoutError("timed out")
    link.session = network.accept(link)
    link.transport = made = SimSocket(process, link)
    made.settimeout(connection.socket_timeout)
    network.links[link] = None
    process.connections[made] = None
    thread.sleep(link.latency())
    return made


def take(pool: queue.LifoQueue[Any], block: bool = True, timeout: float | None = None) -> Any:
    """`LifoQueue.get`: wait for a free connection in virtual time."""
    thread, until = this_thread(), inf
    if thread is not None and timeout is not None:
        until = thread.process.monotonic() + timeout
    while block and thread is not None and pool.empty() and thread.process.monotonic() < until:
        thread.sleep(LOOK_S)
    return queue.Queue.get(pool, block=False)


class Threaded:
    """The blocking client with awaitable methods; each call runs in its own thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name.startswith("_"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await in_thread(functools.partial(found, *args, **options))

        return call


async def produce(url: str, settings: Settings, ledger: Ledger, part: Part) -> None:
    """Run the producer's process."""
    client = Client.connect(url, replace(settings, outbox=OutboxSettings(path="outbox-blunt.db")))
    done = asyncio.Event()
    part.stop = done.set
    part.actor = Actor(part.name, Threaded(client), ledger)  # type: ignore[arg-type]
    await done.wait()
    part.actor = None
    await in_thread(client.close)
