"""`Routes` and `AsyncRoutes`: send each call to the server that serves its key, in a cluster or behind sentinels.

How a call finds its node:

    call.key ──CRC16──▶ slot ──map──▶ node ──▶ its connection ──▶ reply, or a refusal that tells where else (`journey`)
                                └─ `chart`: read from any node, again when a call lost its way

Each node has a connection of its own (a pool of them, where calls block), opened when first needed; those to nodes
that serve nothing any more are closed. A script is loaded into each node that turns out not to know it. What any node
can answer (TIME, PUBLISH) goes to the first slot's; so times are one node's as long as that lives. Each shard's times
are those of its own node: a cluster's clocks must agree, to within what lateness may be, as NTP holds them.

What replication has not carried is lost when a master fails over; what the old one did not answer is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from wheelq.clock import Clock
from wheelq.errors import NotPrimary, OutcomeUnknown, ServerBusy, ServerError, Unavailable, WheelqError
from wheelq.protocol.call import Call
from wheelq.transport.address import Address
from wheelq.transport.chart import AsyncChart, Chart
from wheelq.transport.failures import Redirected, ScriptUnknown
from wheelq.transport.journey import Detour, Journey
from wheelq.transport.pipe import Pipe
from wheelq.transport.server import Server
from wheelq.transport.slots import Node, SlotMap

T = TypeVar("T")


class AsyncRoutes:
    """One connection to each server."""

    def __init__(
        self, address: Address, chart: AsyncChart, clock: Clock, on_map: Callable[[SlotMap], None] = lambda slots: None
    ) -> None:
        """`on_map` is given the map whenever it was read for a call of these."""
        self._address = address
        self._clock = clock
        self._pipes: dict[Node, Pipe] = {}
        self._on_map = on_map
        self._keeping_up: asyncio.Task[None] | None = None
        self.chart = chart

    def pipe(self, node: Node) -> Pipe:
        """The connection to a node, perhaps not yet open."""
        found = self._pipes.get(node)
        if found is None:  # one that is silent is not waited for: another may have been promoted
            found = self._pipes[node] = Pipe(
                self._address.at(node), self._clock, self._address.settings.connect_timeout_ms
            )
        return found

    @property
    def pipes(self) -> dict[Node, Pipe]:
        """The connections in use."""
        return self._pipes

    async def ask(self, call: Call[Any]) -> Any:
        """The reply to one call. Raises: Unavailable, Refused, OutcomeUnknown."""
        journey = _journey(call, self._clock, self._address)
        chart = self.chart
        while not journey.is_over:
            try:
                if chart.is_old:
                    await self._keep_up()
                stop = journey.stop(chart.slots)
                failure = journey.came(await self.pipe(stop.node).ask(journey.call, is_asking=stop.is_asking))
            except OutcomeUnknown:
                raise
            except ServerError as error:
                failure = error
            if failure is not None:
                await self._detour(journey.failed(failure, self._clock.monotonic()), call.key, failure)
        return journey.reply

    async def close(self) -> None:
        """Close all connections."""
        if self._keeping_up is not None:
            self._keeping_up.cancel()
            await asyncio.gather(self._keeping_up, return_exceptions=True)
        for pipe in list(self._pipes.values()):
            await pipe.close()

    async def _detour(self, detour: Detour, key: str | None, error: ServerError) -> None:
        if detour.pause:
            await self._clock.sleep(detour.pause)
        if detour.reads_map:
            await self._read_map()
        if isinstance(error, Redirected) and not error.is_ask and key is not None and error.node.host:
            self.chart.slots.moved(key, error.node)

    async def _keep_up(self) -> None:
        """Read an old map anew, beside the calls: these wait only while nothing is known at all."""
        if not self.chart.slots.nodes:
            await self._read_map()
        elif self._keeping_up is None or self._keeping_up.done():
            self._keeping_up = asyncio.create_task(self._read_map(), name="wheelq transport")

    async def _read_map(self) -> None:
        """Read the map; when nobody tells it just now, what is known has to do."""
        try:
            await self.chart.refresh()
        except ServerError:
            if not self.chart.slots.nodes:
                raise
        self._on_map(self.chart.slots)
        for node in self._pipes.keys() - set(self.chart.slots.nodes):
            if self._pipes[node].is_idle:
                await self._pipes.pop(node).close()


class Routes:
    """A pool of connections to each server. Safe for threads."""

    def __init__(self, address: Address, chart: Chart, clock: Clock) -> None:
        self._address = address
        self._chart = chart
        self._clock = clock
        self._servers: dict[Node, Server] = {}
        self._lock = threading.Lock()

    def ask(self, call: Call[Any]) -> Any:
        """The reply to one call. Raises: Unavailable, Refused, OutcomeUnknown."""
        return self._travel(_journey(call, self._clock, self._address), call.key)

    def _travel(self, journey: Journey, key: str | None) -> Any:
        while not journey.is_over:
            try:
                if self._chart.is_old:
                    self._read_map()
                stop = journey.stop(self._chart.slots)
                failure = journey.came(self._server(stop.node).ask(journey.call, is_asking=stop.is_asking))
            except OutcomeUnknown:
                raise
            except ServerError as error:
                failure = error
            if failure is not None:
                self._detour(journey.failed(failure, self._clock.monotonic()), key, failure)
        return journey.reply

    def stream(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        """The answers to many calls, in order: see `Transport.stream`. Different nodes work at the same time."""
        lanes: dict[Node, Any] = {}
        under_way: deque[tuple[Call[T], Callable[[], Any]]] = deque()
        failure: WheelqError | None = None
        remaining = iter(calls)
        try:
            while True:
                try:
                    call = next(remaining)
                except StopIteration:
                    break
                except WheelqError as error:  # the next call cannot be made: read what is still to come, then say so
                    failure = error
                    break
                under_way.append((call, self._begin(call, lanes)))
                if len(under_way) > 1:
                    yield self._finish(under_way)
            while under_way:
                yield self._finish(under_way)
            if failure is not None:
                raise failure
        finally:
            for node, connection in lanes.items():
                if under_way:  # replies are still to come that nobody will read
                    connection.disconnect()
                self._server(node).release(connection)

    def close(self) -> None:
        """Close all connections."""
        for server in list(self._servers.values()):
            server.close()

    def _begin(self, call: Call[T], lanes: dict[Node, Any]) -> Callable[[], Any]:
        """Send a call over the stream's own connection to the call's node; returns what fetches the reply."""
        node = self._chart.slots.owner(call.key)
        if node is None:
            return lambda: self.ask(call)
        server = self._server(node)
        if node in lanes:
            server.write(lanes[node], call, *(part.words() for part in call.parts))
            return lambda: self._or_ask(call, lambda: server.read(lanes[node], call))
        try:
            lanes[node] = server.connect()
        except Unavailable:
            return lambda: self.ask(call)
        # The first one alone, so that a script unknown to the node is loaded before others need it.
        reply = self._or_ask(call, lambda: server.ask_over(lanes[node], call))
        return lambda: reply

    def _finish(self, under_way: deque[tuple[Call[T], Callable[[], Any]]]) -> T:
        call, fetch = under_way[0]
        reply = fetch()
        under_way.popleft()
        return call.read(reply)

    def _or_ask(self, call: Call[Any], fetch: Callable[[], Any]) -> Any:
        """The reply; a call that has lost its way is sent again, on its own."""
        journey = _journey(call, self._clock, self._address)
        with suppress(NotPrimary, ServerBusy, ScriptUnknown):
            journey.came(fetch())
        return self._travel(journey, call.key)

    def _server(self, node: Node) -> Server:
        with self._lock:
            found = self._servers.get(node)
            if found is None:
                found = self._servers[node] = Server(self._address.at(node))
            return found

    def _detour(self, detour: Detour, key: str | None, error: ServerError) -> None:
        if detour.pause:
            time.sleep(detour.pause)
        if detour.reads_map:
            self._read_map()
        if isinstance(error, Redirected) and not error.is_ask and key is not None and error.node.host:
            self._chart.slots.moved(key, error.node)

    def _read_map(self) -> None:
        """Read the map; when nobody tells it just now, what is known has to do."""
        try:
            self._chart.refresh()
        except ServerError:
            if not self._chart.slots.nodes:
                raise
        with self._lock:
            gone = [self._servers.pop(node) for node in self._servers.keys() - set(self._chart.slots.nodes)]
        for server in gone:
            server.close_idle()


def _journey(call: Call[Any], clock: Clock, address: Address) -> Journey:
    """It ends, wherever it has got to, when a reply has been waited for long enough."""
    return Journey(call, clock.monotonic() + address.settings.reply_timeout_ms / 1000)
