"""The lanes of a worker: the ways of deliveries from their shards to their handlers.

    topics with a single handler     one shared lane:     readers ──▶ Pool ──▶ handler(job)
    a topic with a batch handler     its own lane:        readers ──▶ Batcher ──▶ handler(jobs)
    a topic that runs in order       its own lane:        see `ordering`

Each lane has its own connections, and reads only what it has room for, so that no topic waits for another's room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.held import Delivery, Held, Regroup, ServedShard
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.batch import BatchTerms
from wheelq.worker.handlers.handler import Handler, Handlers, Run
from wheelq.worker.lanes.batching import Batcher, run_batch
from wheelq.worker.lanes.places import Places
from wheelq.worker.lanes.reader import Reading
from wheelq.worker.ordered.ordering import OrderedLane

LEND_S = 0.02
"""Seconds between checks whether places reserved for a read are free again."""


class Lane(Protocol):
    """What all lanes can do."""

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        """Serve these shards from now on, with reads that wait up to `block_ms`."""
        ...

    async def run(self) -> None:
        """Read until cancelled."""
        ...

    async def once(self) -> int:
        """Read what is there, without waiting for more, and run it to its end; how many deliveries."""
        ...

    def next_ms(self) -> int | None:
        """When the next run that only this lane knows of is due; None if there is none."""
        ...

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Run these as soon as there is room; they are held until settled."""
        ...

    def turn(self, shard: ServedShard) -> AbstractAsyncContextManager[int]:
        """Waits for room for abandoned deliveries of one of its shards. Yields how many fit."""
        ...

    async def stop(self) -> None:
        """Stop reading."""
        ...

    async def idle(self) -> None:
        """Wait until all read deliveries have run."""
        ...

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class Runs(Places, Protocol):
    """Runs deliveries: a `Pool` or a `Batcher`."""

    @property
    def free(self) -> int: ...

    def add(self, deliveries: Iterable[Delivery]) -> None: ...

    async def idle(self) -> None: ...

    async def abandon(self) -> None: ...


class ReadingLane:
    """Readers, and the pool or batcher that runs their deliveries."""

    def __init__(self, reading: Reading, runs: Runs, held: Held) -> None:
        self._reading = reading
        self._runs = runs
        self._held = held
        self._shards: Sequence[ServedShard] = ()

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        self._shards = shards
        await self._reading.follow(shards, block_ms)

    async def run(self) -> None:
        await self._reading.run(self.start)

    async def once(self) -> int:
        started = await self._reading.once(self.start)
        await self._runs.idle()
        return started

    def next_ms(self) -> int | None:
        return None

    def start(self, deliveries: Sequence[Delivery]) -> None:
        self._held.add(*deliveries)
        self._runs.add(deliveries)

    @asynccontextmanager
    async def turn(self, shard: ServedShard) -> AsyncIterator[int]:
        """Yields a fair share of the free places; none while the lane stops.

        If no place is free, it queues with the readers, so that a busy shard cannot starve it. A read may leave its
        reserved places unused, so they are lent a second time.
        """
        free = self._runs.free
        if self._reading.is_stopping or shard not in self._shards:
            yield 0
        elif free:
            yield max(1, free // len(self._shards))
        elif places := await self._queue_up():
            try:
                yield 0 if self._reading.is_stopping else places
            finally:
                self._runs.give_back(places)
        else:
            yield 0 if self._reading.is_stopping else max(1, self._runs.free // len(self._shards))

    async def _queue_up(self) -> int:
        """Returns how many places were reserved; 0 if the free ones are reserved for a read that waits for jobs."""
        taking = asyncio.ensure_future(self._reading.places.take(waits=False))
        try:
            while not taking.done() and not self._runs.free:
                await asyncio.wait([taking], timeout=LEND_S)
            return taking.result() if taking.done() else 0
        finally:
            taking.cancel()

    async def stop(self) -> None:
        await self._reading.stop()

    async def idle(self) -> None:
        await self._runs.idle()

    async def abandon(self) -> None:
        await self._runs.abandon()

    async def close(self) -> None:
        await self._reading.close()


class Lanes:
    """All lanes of a worker; each topic has one."""

    def __init__(
        self,
        parts: WorkerParts,
        handlers: Handlers,
        running: Running,
        runs: Runs,
        regroup: Regroup,
        held_loop: Callable[[Delivery, float], None],
    ) -> None:
        """`runs` runs the deliveries of topics without their own lane; `held_loop` is as for `Pool`."""
        self._parts = parts
        self._handlers = handlers
        self._running = running
        self._regroup = regroup
        self._held_loop = held_loop
        self._default: Lane = self._reading_lane(runs, parts.settings)
        self._of_topic: dict[str, Lane] = {}

    def bind(self, bind: Callable[[Handler], Run]) -> None:
        """Prepare lanes for topics with a new handler; `bind` wraps the hooks around it."""
        for topic in set(self._handlers.topics) - set(self._running.runs):
            handler = self._handlers[topic]
            self._running.runs[topic] = bind(handler)
            if handler.batch is not None:
                self._of_topic[topic] = self._batch_lane(handler.batch)
            elif handler.ordered:
                is_by_key = handler.ordered == "key"
                self._of_topic[topic] = OrderedLane(
                    self._parts, self._running.handle, self._held_loop, self._regroup, is_by_key=is_by_key
                )

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        """Tell each lane the shards of its topics."""
        for lane in self._all():
            await lane.follow([shard for shard in shards if self._of(shard) is lane], block_ms)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Start reading. Returns the tasks, which the caller cancels."""
        return [asyncio.create_task(lane.run(), name="wheelq reading") for lane in self._all()]

    async def once(self) -> int:
        """Read what is there, without waiting for more, and run it to its end; how many deliveries."""
        return sum([await lane.once() for lane in self._all()])

    def next_ms(self) -> int | None:
        """When the next run that only a lane knows of is due; None if there is none."""
        return min((ms for lane in self._all() if (ms := lane.next_ms()) is not None), default=None)

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries of one shard that were taken over."""
        if deliveries:
            self._of(deliveries[0].shard).start(deliveries)

    def turn(self, shard: ServedShard) -> AbstractAsyncContextManager[int]:
        """Waits for room for abandoned deliveries of a shard. Yields how many fit."""
        return self._of(shard).turn(shard)

    async def stop(self) -> None:
        """Stop reading."""
        await asyncio.gather(*(lane.stop() for lane in self._all()))

    async def idle(self) -> None:
        """Wait until all read deliveries have run."""
        await asyncio.gather(*(lane.idle() for lane in self._all()))

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        self._parts.ending.begin()
        await asyncio.gather(*(lane.abandon() for lane in self._all()))

    async def close(self) -> None:
        """Close all connections."""
        for lane in self._all():
            await lane.close()

    def _of(self, shard: ServedShard) -> Lane:
        return self._of_topic.get(shard.keys.topic, self._default)

    def _all(self) -> list[Lane]:
        return [self._default, *self._of_topic.values()]

    def _batch_lane(self, terms: BatchTerms) -> ReadingLane:
        batcher = Batcher(terms, partial(run_batch, self._running), self._held_loop, self._parts.clock)
        return self._reading_lane(batcher, replace(self._parts.settings, concurrency=terms.max_size))

    def _reading_lane(self, runs: Runs, settings: WorkerSettings) -> ReadingLane:
        parts = self._parts
        reading = Reading(parts, settings, runs, self._regroup)
        return ReadingLane(reading, runs, parts.held)
