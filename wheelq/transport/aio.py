"""`AsyncTransport`: sends calls on asyncio, all over one connection to each server, in the order they were made.

What the URL leads to is found out at the first call: one server (`pipe`), or a cluster or sentinels (`routes`). Those
who send need not know which; what differs for a blocking read is behind `slot` and `unblock`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar
from weakref import WeakSet

from wheelq.clock import Clock, SystemClock
from wheelq.errors import ServerError, WheelqError
from wheelq.protocol.call import Call
from wheelq.protocol.calls import registry
from wheelq.transport.address import Address, Kind
from wheelq.transport.chart import AsyncChart
from wheelq.transport.pipe import Pipe
from wheelq.transport.routes import AsyncRoutes
from wheelq.transport.slots import Node, SlotMap
from wheelq.transport.subscription import Subscription

T = TypeVar("T")


class AsyncTransport:
    """The way to one server, cluster or service. For one event loop."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._link: Pipe | AsyncRoutes | None = None
        self._chart: AsyncChart | None = None  # shared with siblings
        self._connecting = asyncio.Lock()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._leaving: set[asyncio.Task[None]] = set()

    def sibling(self) -> AsyncTransport:
        """Another transport to the same place, with connections of its own: for calls that wait in the server."""
        sibling = AsyncTransport(self._address, self._clock)
        sibling._chart = self._chart
        return sibling

    def subscription(self) -> Subscription:
        """A connection that listens to channels of the same server."""
        subscription = Subscription(self._listening_places)
        self._subscriptions.add(subscription)
        return subscription

    async def send(self, call: Call[T]) -> T:
        """The answer to one call.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        link = self._link
        if link is None:
            link = await self._connect()
        return call.read(await link.ask(call))

    async def stream(self, calls: Iterable[Call[T]]) -> AsyncIterator[T]:
        """The answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does, at the first call that fails; of the calls after it, some may have happened.
        """
        under_way: deque[asyncio.Task[T]] = deque()
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
                under_way.append(asyncio.create_task(self.send(call)))
                await asyncio.sleep(0)  # let it be written
                if len(under_way) > 1:
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
            if failure is not None:
                raise failure
        finally:
            for task in under_way:
                task.cancel()

    async def close(self) -> None:
        """Close the connections; requests under way end in OutcomeUnknown."""
        if self._link is not None:
            await self._link.close()

    # --- what depends on the server --------------------------------------------------------------------------------

    def slot(self, key: str) -> int:
        """Keys with the same number may be named in one call. Known once any call was answered."""
        return self._link.chart.slots.slot(key) if isinstance(self._link, AsyncRoutes) else 0

    async def unblock(self, sibling: AsyncTransport) -> None:
        """Let the blocking reads of a sibling end at once, as if nothing had come. Raises as `send` does."""
        for node, pipe in sibling._pipes().items():
            if pipe.connection_id and not pipe.is_idle:
                await self._pipe(node).ask(registry.unblock(pipe.connection_id))

    async def is_open(self, run_id: str, connection_id: int) -> bool:
        """Whether a connection is open, of which this is the number in the server process `run_id`.

        True also when that cannot be told: in a cluster the process may be any of the masters, it may be gone, or it
        may keep CLIENT to itself.
        """
        await self._connect()
        for node in self._nodes():
            pipe = self._pipe(node)
            try:
                if await pipe.run_id() == run_id:
                    call = registry.is_connected(connection_id)
                    return call.read(await pipe.ask(call))
            except ServerError:
                continue
        return True

    async def _connect(self) -> Pipe | AsyncRoutes:
        async with self._connecting:
            if self._link is None:
                self._link = await self._find_out()
            return self._link

    async def _find_out(self) -> Pipe | AsyncRoutes:
        if self._chart is None:
            if self._address.kind is Kind.SERVER:
                pipe = Pipe(self._address, self._clock)
                await pipe.open()
                if not pipe.is_of_cluster:
                    return pipe
                await pipe.close()
            self._chart = AsyncChart(self._address, self._clock)
        return AsyncRoutes(self._address, self._chart, self._clock, self._follow)

    def _follow(self, slots: SlotMap) -> None:
        """Behind sentinels, let subscriptions end that lead to a former primary. In a cluster any node will do."""
        if self._address.kind is Kind.SENTINEL:
            for subscription in self._subscriptions:
                task = asyncio.create_task(subscription.leave_unless(slots.nodes))
                self._leaving.add(task)  # the event loop itself keeps no hold of it
                task.add_done_callback(self._leaving.discard)

    def _nodes(self) -> Sequence[Node]:
        return self._link.chart.slots.nodes if isinstance(self._link, AsyncRoutes) else self._address.nodes

    def _pipe(self, node: Node) -> Pipe:
        assert self._link is not None, "nothing was sent yet"
        return self._link.pipe(node) if isinstance(self._link, AsyncRoutes) else self._link

    def _pipes(self) -> dict[Node, Pipe]:
        if isinstance(self._link, AsyncRoutes):
            return self._link.pipes
        return {} if self._link is None else {self._address.nodes[0]: self._link}

    async def _listening_places(self) -> list[Address]:
        link = await self._connect()
        if isinstance(link, Pipe):
            return [self._address]
        await link.chart.refresh()
        nodes = link.chart.slots.nodes
        return [self._address.at(node) for node in random.sample(nodes, len(nodes))]
