"""The network: TCP connections from processes to servers, and their faults.

process ──write──▶ link ──latency──▶ server        in order within a connection, not between connections

reset      both ends notice; data in flight is lost
deaf       replies are lost unnoticed, although the server has run the commands
half-open  nothing arrives in either direction, and neither end notices
held       nothing arrives until it is released; then everything does, because TCP repeats it
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from loadtest.simulation.world import World

SLOWEST_PACKET_S = 0.045
"""The longest that a packet takes while nothing is slow."""


class Host(Protocol):
    """The process that a connection belongs to."""

    name: str
    connections: dict[ProcessEnd, None]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Its event loop."""

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """Call something in its loop, in its next turn."""


class ProcessEnd(Protocol):
    """The process's end of a link."""

    def receive(self, data: bytes) -> None:
        """Take data from the network."""

    def lost(self, error: Exception | None) -> None:
        """Take the end of the connection."""

    def vanish(self) -> None:
        """Close the connection as the kernel does after the process was killed."""


class ServerEnd(Protocol):
    """The server's end of a link."""

    def receive(self, data: bytes) -> None:
        """Take data from the network."""

    def gone(self) -> None:
        """Take the end of the connection."""


class Listener(Protocol):
    """Accepts connections."""

    def accept(self, link: Link) -> ServerEnd | None:
        """Returns the server's end of a link; None if nothing listens."""


class Network:
    """All servers by address, all links, and their speed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[str, Listener] = {}
        self.links: dict[Link, None] = {}
        self.cut: set[tuple[str, str]] = set()
        """Pairs of a process and an address that are cut off from each other."""
        self.slowness = 1.0
        self.unheard: set[str] = set()
        """Processes that hear, and are not heard: no server gets what they send."""
        self.unhearing: set[str] = set()
        """Processes that are heard, and do not hear."""
        self.slow: dict[str, float] = {}
        """How many times slower than others a process gets and sends its data."""
        self.losses: list[tuple[str, float]] = []
        """Processes that may have missed a reply, and when: a reply was lost, or a connection ended."""
        self._numbers = iter(range(1 << 62))
        self.pids = iter(range(1 << 62))

    async def connect(self, process: Host, address: str, protocol_factory: Callable[[], Any]) -> SimTransport:
        """Open a connection. Waits until it is cancelled if the address is cut off. Raises: OSError."""
        link = Link(self, process, address, self.next_number())
        await asyncio.sleep(link.latency())
        if (process.name, address) in self.cut:
            await asyncio.get_running_loop().create_future()
        link.session = self.accept(link)
        await asyncio.sleep(link.latency())
        if not link.is_open:
            raise ConnectionResetError("reset while it was made")
        link.transport = transport = SimTransport(process, link, protocol_factory())
        transport.get_protocol().connection_made(transport)
        self.links[link] = None
        process.connections[transport] = None
        return transport

    def next_number(self) -> int:
        """Returns the number of a new link."""
        return next(self._numbers)

    def accept(self, link: Link) -> ServerEnd:
        """Returns the server's end of a link. Raises: OSError."""
        server = self.servers.get(link.address)
        session = server.accept(link) if server is not None else None
        if session is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('{link.address}')")
        return session

    def links_of(self, process: str = "", address: str = "") -> list[Link]:
        """Returns the open links of a process, or to an address, or both."""
        return [
            link
            for link in self.links
            if link.is_open and process in ("", link.process.name) and address in ("", link.address)
        ]

    def part(self, process: str, address: str) -> None:
        """Cut a process off from an address."""
        self.cut.add((process, address))
        for link in self.links_of(process, address):
            link.hold()

    def join(self, process: str, address: str) -> None:
        """Reconnect a process with an address."""
        self.cut.discard((process, address))
        for link in self.links_of(process, address):
            link.release()


class Link:
    """One connection."""

    def __init__(self, network: Network, process: Host, address: str, number: int) -> None:
        self.network, self.process, self.address, self.number = network, process, address, number
        self.session: ServerEnd | None = None
        self.transport: ProcessEnd | None = None
        self.is_open, self.is_deaf, self.is_mute = True, False, False
        self._random = network.world.random(f"link {number}")
        self._base = self._random.choice((0.0001, 0.0003, 0.001, 0.003))
        self._arrivals = [0.0, 0.0]
        self._held: list[Callable[[], None]] | None = None

    def __hash__(self) -> int:
        return self.number

    def latency(self) -> float:
        """Returns how long the next packet takes, at most `SLOWEST_PACKET_S` if nothing is slow."""
        random = self._random.random
        extra = self._random.uniform(0.005, 0.04) if random() < 0.005 else 0.0
        slowness = self.network.slowness * self.network.slow.get(self.process.name, 1.0)
        return (self._base * (0.7 + (1.6 - 0.7) * random()) + extra) * slowness

    def to_server(self, data: bytes) -> None:
        """Send data from the process."""

        def arrive() -> None:
            if self.session is not None:
                self.session.receive(data)

        self._send(0, arrive)

    def to_process(self, data: bytes) -> None:
        """Send data from the server."""

        def arrive() -> None:
            if self.transport is not None:
                self.transport.receive(data)

        if self.is_deaf or not self.is_open:
            self._lost()
        else:
            self._send(1, arrive)

    def _lost(self) -> None:
        self.network.losses.append((self.process.name, self.network.world.now))

    def hold(self) -> None:
        """Hold back all data from now on."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Send the data that was held back."""
        held, self._held = self._held, None
        for send in held or ():
            send()

    def reset(self) -> None:
        """Break the connection; both ends notice at once."""
        if self.is_open:
            self.is_open = False
            self._lost()
            self.network.links.pop(self, None)
            if self.session is not None:
                self.session.gone()
            if self.transport is not None:
                self.transport.lost(ConnectionResetError(104, "Connection reset by peer"))

    def go_half_open(self) -> None:
        """Drop all data from now on, unnoticed by both ends."""
        self.is_deaf = self.is_mute = True

    def finish(self, by_server: bool) -> None:
        """Close one end; the other end notices after the data that was written before."""
        self._lost()
        if by_server:
            self._send(1, self._end)
        else:
            self._send(0, self._end)

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self.network.links.pop(self, None)
            if self.session is not None:
                self.session.gone()
            if self.transport is not None:
                self.transport.lost(None)

    def _send(self, direction: int, arrive: Callable[[], Any]) -> None:
        def go() -> None:
            if self._held is not None:
                self._held.append(go)
                return
            world = self.network.world
            when = max(self._arrivals[direction], world.now + self.latency())
            self._arrivals[direction] = when
            world.at(when, come)

        def come() -> None:
            if self._held is not None:
                self._held.append(come)
            elif self.is_open and not (self.is_deaf if direction else self.is_mute):
                arrive()
            elif direction:
                self._lost()

        lost = self.network.unhearing if direction else self.network.unheard
        if self.process.name in lost:
            self._lost()
        elif self.is_open:
            go()


class _Socket:
    """The socket of a transport, for libraries that look at it; none reads or writes it."""

    family = socket.AF_INET
    _never_readable, _kept_open = os.pipe()

    def fileno(self) -> int:
        """Returns a file that is never readable."""
        return self._never_readable

    def getpeername(self) -> tuple[str, int]:
        """Returns some address."""
        return "10.0.0.1", 1

    getsockname = getpeername

    def setsockopt(self, *_: object) -> None:
        """Ignores options of the kernel."""


class SimTransport(asyncio.Transport):
    """The process's end of a link."""

    def __init__(self, process: Host, link: Link, protocol: Any) -> None:
        super().__init__()
        self._process, self._link, self._protocol = process, link, protocol
        self._is_closing = self._is_lost = False

    def __hash__(self) -> int:
        return self._link.number

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket() if name == "socket" else default

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._link.to_server(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.finish(by_server=False)
            self._lose(None)

    def abort(self) -> None:
        self.close()

    def receive(self, data: bytes) -> None:
        """Take data from the network."""
        self._process.deliver(self._take, data)

    def lost(self, error: Exception | None) -> None:
        """Take the end of the connection."""
        self._process.deliver(self._lose, error)

    def vanish(self) -> None:
        """Close the connection as the kernel does after the process was killed."""
        self._is_closing = self._is_lost = True
        self._link.finish(by_server=False)

    def _take(self, data: bytes) -> None:
        if not self._is_lost and not self._is_closing:
            self._protocol.data_received(data)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._process.connections.pop(self, None)
            self._process.loop.call_soon(self._protocol.connection_lost, error)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
