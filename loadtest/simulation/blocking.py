"""A producer with the blocking client, whose calls and outbox live in simulated threads; see `threads`.

Its sockets are one end of a pair whose other end has what the simulated network brought: libraries may look at them.
"""

from __future__ import annotations

import asyncio
import functools
import select
import socket
from typing import TYPE_CHECKING, Any

from loadtest.simulation.network import Link, Network
from loadtest.simulation.operations import Actor, Cancel, Reschedule, Schedule, ScheduleMany, operation
from loadtest.simulation.process import Process, current
from loadtest.simulation.threads import SimThread, in_thread, this_thread
from wheelq import Client
from wheelq.settings import OutboxSettings, Settings

if TYPE_CHECKING:
    from loadtest.simulation.fleet import Fleet, Part

BLUNT = "blunt-0"


class SimSocket:
    """A connected socket; what would block waits in virtual time."""

    def __init__(self, process: Process, link: Link) -> None:
        self._process, self._link = process, link
        self._near, self._far = socket.socketpair()
        self._timeout: float | None = None
        self._reader: SimThread | None = None

    def __hash__(self) -> int:
        return self._link.number

    # --- what the client does ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """For those who poll."""
        return self._near.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """How long `recv_into` waits."""
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        """Never waits: the network takes everything."""
        if not self._link.is_open:
            raise ConnectionResetError(104, "Connection reset by peer")
        self._link.to_server(bytes(data))

    def recv_into(self, buffer: bytearray) -> int:
        """Raises: TimeoutError."""
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
        """For those who look whether it is open: never waits."""
        return self._near.recv(size, flags)

    def shutdown(self, how: int) -> None:
        """Part of `close`."""

    def close(self) -> None:
        """End the connection."""
        if self._near.fileno() >= 0:
            self._process.connections.pop(self, None)  # type: ignore[call-overload]
            self._link.finish(by_server=False)
            self._near.close()
            self._far.close()

    # --- what the network does ---------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have come."""
        self._process.deliver(self._take, data)

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._process.deliver(self._take, b"")

    def vanish(self) -> None:
        """The process is no more: the server is told by the kernel."""
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
    """In place of redis-py's own way to a socket. Raises: OSError, TimeoutError."""
    process, thread = current[-1], this_thread()
    assert thread is not None, "a loop connects"
    network: Network = process.network
    address = f"{connection.host}:{connection.port}"
    link = Link(network, process, address, network.next_number())
    thread.sleep(link.latency())
    if (process.name, address) in network.cut:
        thread.sleep(connection.socket_connect_timeout)
        raise TimeoutError("timed out")
    link.session = network.accept(link)
    link.transport = made = SimSocket(process, link)  # type: ignore[assignment]
    made.settimeout(connection.socket_timeout)
    network.links[link] = None
    process.connections[made] = None  # type: ignore[index]
    thread.sleep(link.latency())
    return made


class Threaded:
    """The blocking client, for operations that await: each call has a thread of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name.startswith("_"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await in_thread(functools.partial(found, *args, **options))

        return call


async def produce(fleet: Fleet, part: Part, process: Process) -> None:
    """The producer's process."""
    client = Client.connect(fleet.url, Settings(outbox=OutboxSettings(path="outbox-blunt.db")))
    done = asyncio.Event()
    part.stop = done.set
    part.actor = Actor(part.name, Threaded(client), fleet, fleet.ledger)  # type: ignore[arg-type]
    await done.wait()
    part.actor = None
    await in_thread(client.close)


for name, weight, like in (
    ("blunt-schedule", 50, Schedule),
    ("blunt-many", 4, ScheduleMany),
    ("blunt-cancel", 5, Cancel),
    ("blunt-reschedule", 5, Reschedule),
):
    operation(name, weight, trait="blocking", who=BLUNT)(like)
