"""`Routes` and `AsyncRoutes`: send each call to the server that serves its key, in a cluster or behind sentinels.

How a call finds its node:

    call.key ──CRC16──▶ slot ──map──▶ node ──▶ its connection ──▶ reply, or a refusal (`redirects`)
                                └─ `topology`: read from any node, and again after a call has found the wrong one

Each node has its own connection (a pool of them, where calls block), opened when first needed; connections to nodes
that no longer serve slots are closed. A script is loaded into each node that turns out not to have it. A call that any
node can answer (TIME, PUBLISH) goes to the node of the first slot, so its times come from one node as long as that
lives. Each shard uses the clock of its own node: the clocks of a cluster must agree, as NTP keeps them, to within the
acceptable lateness.

A failover loses writes that were not replicated; calls that the old master did not answer end in `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from wheelq.base.clock import Clock, sleep
from wheelq.errors import NotPrimary, OutcomeUnknown, ServerBusy, ServerError, Unavailable
from wheelq.protocol.call import Call
from wheelq.transport.address import Address
from wheelq.transport.failures import Redirected, ScriptUnknown
from wheelq.transport.pipe import Pipe
from wheelq.transport.redirects import Detour, Redirects
from wheelq.transport.server import Server
from wheelq.transport.slots import Node, SlotMap
from wheelq.transport.streams import CallStream
from wheelq.transport.topology import AsyncTopology, Topology

T = TypeVar("T")


class AsyncRoutes:
    """One connection to each server."""

    def __init__(
        self,
        address: Address,
        topology: AsyncTopology,
        clock: Clock,
        on_map: Callable[[SlotMap], None] = lambda slots: None,
    ) -> None:
        """`on_map` receives the map whenever one of these calls has read it."""
        self._address = address
        self._clock = clock
        self.pipes: dict[Node, Pipe] = {}
        """The connections in use."""
        self._on_map = on_map
        self._interruptions = 0
        self._keeping_up: asyncio.Task[None] | None = None
        self.topology = topology

    def pipe(self, node: Node) -> Pipe:
        """The connection to a node, perhaps not yet open."""
        found = self.pipes.get(node)
        if found is None:  # do not wait for a silent node: another may have been promoted
            found = self.pipes[node] = Pipe(
                self._address.at(node), self._clock, self._address.settings.connect_timeout_ms
            )
        return found

    @property
    def interruptions(self) -> int:
        """How many connections have broken, and how often shards may have got another server."""
        return self._interruptions + sum([pipe.interruptions for pipe in self.pipes.values()])

    async def ask(self, call: Call[Any]) -> Any:
        """The reply to one call. Raises: Unavailable, Refused, OutcomeUnknown."""
        redirects = _redirects(call, self._clock, self._address)
        topology = self.topology
        while not redirects.is_over:
            try:
                if topology.is_old:
                    await self._keep_up()
                stop = redirects.stop(topology.slots)
                failure = redirects.came(await self.pipe(stop.node).ask(redirects.call, is_asking=stop.is_asking))
            except OutcomeUnknown:
                raise
            except ServerError as error:
                failure = error
            if failure is not None:
                await self._detour(redirects.failed(failure, self._clock.monotonic()), call.key, failure)
        return redirects.reply

    async def close(self) -> None:
        if self._keeping_up is not None:
            self._keeping_up.cancel()
            await asyncio.gather(self._keeping_up, return_exceptions=True)
        for pipe in list(self.pipes.values()):
            await pipe.close()

    async def _detour(self, detour: Detour, key: str | None, error: ServerError) -> None:
        if detour.pause:
            await self._clock.sleep(detour.pause)
        if detour.reads_map:
            await self._read_map()
        if isinstance(error, Redirected) and not error.is_ask and key is not None and error.node.host:
            self.topology.slots.moved(key, error.node)

    async def _keep_up(self) -> None:
        """Refresh an old map in the background: calls wait only while there is no map at all."""
        if not self.topology.slots.nodes:
            await self._read_map()
        elif self._keeping_up is None or self._keeping_up.done():
            self._keeping_up = asyncio.create_task(self._read_map(), name="wheelq transport")

    async def _read_map(self) -> None:
        """Read the map; if no node answers, keep the known one."""
        try:
            await self.topology.refresh()
        except ServerError:
            if not self.topology.slots.nodes:
                raise
        self._on_map(self.topology.slots)
        self._interruptions += 1
        for node in self.pipes.keys() - set(self.topology.slots.nodes):
            pipe = self.pipes.get(node)  # None: another call has closed it meanwhile
            if pipe is not None and pipe.is_idle:
                del self.pipes[node]
                self._interruptions += pipe.interruptions
                await pipe.close()


class Routes:
    """A pool of connections to each server. Safe for threads."""

    def __init__(self, address: Address, topology: Topology, clock: Clock) -> None:
        self._address = address
        self._topology = topology
        self._clock = clock
        self._servers: dict[Node, Server] = {}
        self._lock = threading.Lock()

    def ask(self, call: Call[Any]) -> Any:
        """The reply to one call. Raises: Unavailable, Refused, OutcomeUnknown."""
        return self._travel(_redirects(call, self._clock, self._address), call.key)

    def slot(self, key: str) -> int:
        return self._topology.slots.slot(key)

    def try_to_listen(self, channel: str) -> None:
        """Listen to a channel of any node for a moment. Raises: Unavailable, Refused, OutcomeUnknown."""
        if self._topology.is_old:
            self._read_map()
        self._server(self._topology.slots.nodes[0]).try_to_listen(channel)

    def _travel(self, redirects: Redirects, key: str | None) -> Any:
        while not redirects.is_over:
            try:
                if self._topology.is_old:
                    self._read_map()
                stop = redirects.stop(self._topology.slots)
                failure = redirects.came(self._server(stop.node).ask(redirects.call, is_asking=stop.is_asking))
            except OutcomeUnknown:
                raise
            except ServerError as error:
                failure = error
            if failure is not None:
                self._detour(redirects.failed(failure, self._clock.monotonic()), key, failure)
        return redirects.reply

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None) -> Iterator[T]:
        """The answers to many calls, in order: see `Transport.stream`. Different nodes work at the same time."""
        lanes: dict[Node, Any] = {}
        under_way: deque[tuple[Call[T], Callable[[], Any]]] = deque()
        stream = CallStream(calls, refused)
        try:
            for call in stream:
                under_way.append((call, self._begin(call, lanes)))
                if len(under_way) > 1:
                    with stream.answering():
                        yield self._finish(under_way)
            while under_way:
                with stream.answering():
                    yield self._finish(under_way)
            stream.finish()
        finally:
            for node, connection in lanes.items():
                if under_way:  # pending replies will not be read
                    connection.disconnect()
                self._server(node).release(connection)

    def close(self) -> None:
        for server in list(self._servers.values()):
            server.close()

    def _begin(self, call: Call[T], lanes: dict[Node, Any]) -> Callable[[], Any]:
        """Send a call over the stream's own connection to the call's node. Returns a function that reads the reply."""
        node = self._topology.slots.owner(call.key)
        if node is None:
            return lambda: self.ask(call)
        server = self._server(node)
        if node not in lanes:
            try:
                lanes[node] = server.connect()
            except Unavailable:
                return lambda: self.ask(call)
        server.write(lanes[node], call, *(part.words() for part in call.parts))
        return lambda: self._or_ask(call, lambda: server.read(lanes[node], call))

    def _finish(self, under_way: deque[tuple[Call[T], Callable[[], Any]]]) -> T:
        call, fetch = under_way.popleft()
        return call.read(fetch())

    def _or_ask(self, call: Call[Any], fetch: Callable[[], Any]) -> Any:
        """Returns the reply; a call that reached the wrong node is sent again, on its own."""
        redirects = _redirects(call, self._clock, self._address)
        with suppress(NotPrimary, ServerBusy, ScriptUnknown):
            redirects.came(fetch())
        return self._travel(redirects, call.key)

    def _server(self, node: Node) -> Server:
        with self._lock:
            found = self._servers.get(node)
            if found is None:
                found = self._servers[node] = Server(self._address.at(node))
            return found

    def _detour(self, detour: Detour, key: str | None, error: ServerError) -> None:
        if detour.pause:
            sleep(detour.pause)
        if detour.reads_map:
            self._read_map()
        if isinstance(error, Redirected) and not error.is_ask and key is not None and error.node.host:
            self._topology.slots.moved(key, error.node)

    def _read_map(self) -> None:
        """Read the map; if no node answers, keep the known one."""
        try:
            self._topology.refresh()
        except ServerError:
            if not self._topology.slots.nodes:
                raise
        with self._lock:
            gone = [self._servers.pop(node) for node in self._servers.keys() - set(self._topology.slots.nodes)]
        for server in gone:
            server.close_idle()


def _redirects(call: Call[Any], clock: Clock, address: Address) -> Redirects:
    """Returns the redirects of a call, which end at the latest when a reply would time out."""
    return Redirects(call, clock.monotonic() + address.settings.reply_timeout_ms / 1000)
