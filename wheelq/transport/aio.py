"""`AsyncTransport`: sends calls on asyncio, all over one connection to each server, in the order they were made.

The first call finds out what the URL names: one server (`pipe`), or a cluster or sentinels (`routes`). Callers need not
know which it is; `slot` and `unblock` hide the differences for blocking reads. `Spares` holds connections for calls
that block theirs.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakSet

from wheelq.base.clock import Clock, SystemClock
from wheelq.errors import ServerError
from wheelq.protocol.call import Call
from wheelq.protocol.calls.server import is_connected, unblock
from wheelq.transport.address import Address, ServerKind
from wheelq.transport.pipe import Pipe
from wheelq.transport.routes import AsyncRoutes
from wheelq.transport.slots import Node, SlotMap
from wheelq.transport.streams import CallStream
from wheelq.transport.subscription import Subscription
from wheelq.transport.topology import AsyncTopology

T = TypeVar("T")


class AsyncTransport:
    """The way to one server, cluster or service. For one event loop."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._link: Pipe | AsyncRoutes | None = None
        self._topology: AsyncTopology | None = None  # shared with spare transports
        self._first: Pipe | None = None  # finds out what the URL names; None once that is known
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def node(self) -> Node:
        """The server's address in the URL; the first one of a cluster or sentinels."""
        return self._address.nodes[0]

    @property
    def reply_timeout_ms(self) -> int:
        """How long a call waits for its reply."""
        return self._address.reply_timeout_ms

    @property
    def max_connections(self) -> int:
        """How many connections calls share that keep one to themselves."""
        return self._address.max_connections

    def spare(self) -> AsyncTransport:
        """Another transport to the same place, with connections of its own: for calls that wait in the server."""
        spare = AsyncTransport(self._address, self._clock)
        spare._topology = self._topology
        return spare

    def elsewhere(self) -> AsyncTransport:
        """Another transport to the same place that shares nothing with this one: for another event loop."""
        other = self.spare()
        other._topology = None
        return other

    def subscription(self) -> Subscription:
        """A connection that listens to channels of the same server."""
        subscription = Subscription(self._listening_places)
        self._subscriptions.add(subscription)
        return subscription

    async def send(self, call: Call[T]) -> T:
        """Send a call and return its answer.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        link = self._link
        if link is None:
            link = await self._connect()
        return call.read(await link.ask(call))

    async def try_to_listen(self, channel: str) -> None:
        """Listen to a channel for a moment. Raises: Unavailable, Refused."""
        listening = self.subscription()
        try:
            await listening.open([channel])
            await anext(listening.messages())
        finally:
            await listening.close()

    async def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> AsyncIterator[T]:
        """Yield the answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does. After a refusal no more calls are made: `refused` is called in place of the answer, and
        the error is raised when the calls under way are answered. After another error, later calls may have been done.
        """
        under_way: deque[asyncio.Task[T]] = deque()
        stream = CallStream(calls, refused)
        try:
            for call in stream:
                under_way.append(asyncio.create_task(self.send(call)))
                await asyncio.sleep(0)  # let it be written
                if len(under_way) > 1:
                    with stream.answering():
                        yield await under_way.popleft()
            while under_way:
                with stream.answering():
                    yield await under_way.popleft()
            stream.finish()
        finally:
            for task in under_way:
                task.cancel()

    async def close(self) -> None:
        """Close the connections; requests under way end in OutcomeUnknown."""
        for link in (self._link, self._first):
            if link is not None:
                await link.close()

    # --- differences between servers -------------------------------------------------------------------------------

    def slot(self, key: str) -> int:
        """Returns the key's slot: one call may name keys of the same slot. Known after the first answer to any call."""
        return self._link.topology.slots.slot(key) if isinstance(self._link, AsyncRoutes) else 0

    def server_of(self, key: str) -> Node | None:
        """Which of several servers, each with its own clock, serves the key; None if there is only one."""
        return self._link.topology.slots.owner(key) if isinstance(self._link, AsyncRoutes) else None

    @property
    def interruptions(self) -> int:
        """Grows when a connection breaks or the servers change: the server may have lost its latest writes."""
        return 0 if self._link is None else self._link.interruptions

    async def unblock(self, spare: AsyncTransport) -> None:
        """End the blocking reads of a spare at once, as if their time were up. Raises as `send` does."""
        for node, pipe in list(spare._pipes().items()):  # a failover adds one meanwhile
            if pipe.connection_id and not pipe.is_idle:
                await self._pipe(node).ask(unblock(pipe.connection_id))

    async def is_open(self, run_id: str, connection_id: int) -> bool:
        """Whether the connection with this number in the server process `run_id` is open.

        True also if it cannot be determined: in a cluster the process may be any of the masters, it may be gone, or it
        may not permit CLIENT.
        """
        await self._connect()
        for node in self._nodes():
            pipe = self._pipe(node)
            try:
                if await pipe.run_id() == run_id:
                    call = is_connected(connection_id)
                    return call.read(await pipe.ask(call))
            except ServerError:
                continue
        return True

    async def _connect(self) -> Pipe | AsyncRoutes:
        """Find out what the URL names, once for all waiting calls. Raises: Unavailable, Refused."""
        if self._link is None and self._topology is None and self._address.kind is ServerKind.SERVER:
            pipe = self._first = self._first or Pipe(self._address, self._clock)
            await pipe.open()
            if self._link is None and not pipe.is_of_cluster:
                self._link, self._first = pipe, None
        if self._link is None:
            self._topology = self._topology or AsyncTopology(self._address, self._clock)
            self._link = AsyncRoutes(self._address, self._topology, self._clock, self._follow)
            if self._first is not None:
                first, self._first = self._first, None
                await first.close()
        return self._link

    def _follow(self, slots: SlotMap) -> None:
        """Behind sentinels, end subscriptions that lead to a former primary. In a cluster any node will do."""
        if self._address.kind is ServerKind.SENTINEL:
            for subscription in self._subscriptions:
                task = asyncio.create_task(subscription.leave_unless(slots.nodes))
                self._leaving.add(task)  # the event loop itself keeps only a weak reference
                task.add_done_callback(self._leaving.discard)

    def _nodes(self) -> Sequence[Node]:
        return self._link.topology.slots.nodes if isinstance(self._link, AsyncRoutes) else self._address.nodes

    def _pipe(self, node: Node) -> Pipe:
        assert self._link is not None, "nothing was sent yet"
        return self._link.pipe(node) if isinstance(self._link, AsyncRoutes) else self._link

    def _pipes(self) -> dict[Node, Pipe]:
        if isinstance(self._link, AsyncRoutes):
            return self._link.pipes
        return {} if self._link is None else {self._address.nodes[0]: self._link}

    async def _listening_places(self) -> tuple[list[Address], int]:
        link, settings = await self._connect(), self._address.settings
        if isinstance(link, Pipe):
            return [self._address], settings.connect_timeout_ms + settings.reply_timeout_ms
        await link.topology.refresh()
        nodes = link.topology.slots.nodes
        places = [self._address.at(node) for node in random.sample(nodes, len(nodes))]
        return places, settings.connect_timeout_ms  # do not wait for a silent node: another may answer


class Spares:
    """Transports to the same server, each for one caller at a time. Made when needed, kept until closed.

    There are at most `max_connections`; further callers wait their turn.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._idle: list[AsyncTransport] = []
        self._room = asyncio.Semaphore(transport.max_connections)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncTransport]:
        """Lend a transport for exclusive use."""
        async with self._room:
            spare = self._idle.pop() if self._idle else self._transport.spare()
            try:
                yield spare
            except BaseException:  # an abandoned call may still block it
                await spare.close()
                raise
            self._idle.append(spare)

    async def close(self) -> None:
        """Close the idle ones; each of the others is closed after its call."""
        while self._idle:
            await self._idle.pop().close()
