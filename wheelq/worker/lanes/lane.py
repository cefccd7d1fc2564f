"""The lanes of a worker: the ways of deliveries from their shards to their handlers.

    topics with a single handler     one shared lane:     readers ──▶ Pool ──▶ handler(job)
    a handler with concurrency=      its own lane:        readers ──▶ LimitedRuns ──▶ the same Pool
    a topic that runs in order       its own lane:        see `ordering` ──▶ the same Pool
    a topic with a batch handler     its own lane:        readers ──▶ Batcher ──▶ handler(jobs)

Each lane has its own connections. The pool is the limit of the worker: the lanes take its places in turn. Batches have
a limit of their own, so that single jobs do not starve them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.places import LimitedPlaces
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.batch import BatchTerms
from wheelq.worker.handlers.handler import Handler, Handlers, Run
from wheelq.worker.lanes.batching import Batcher, run_batch
from wheelq.worker.lanes.reader import ReadingLane
from wheelq.worker.ordered.ordering import OrderedLane

Lane = ReadingLane | OrderedLane


class Lanes:
    """All lanes of a worker; each topic has one."""

    def __init__(
        self,
        parts: WorkerParts,
        handlers: Handlers,
        running: Running,
        regroup: Regroup,
    ) -> None:
        self.pool: Pool[Delivery] = Pool(parts.settings.concurrency, self._run, running.held_loop, parts.clock)
        """Runs all deliveries but those of batches."""
        self._parts = parts
        self._handlers = handlers
        self._running = running
        self._regroup = regroup
        self._default = ReadingLane(parts, parts.settings, self.pool, regroup)
        self._of_topic: dict[str, Lane] = {}
        self._new: asyncio.Queue[Lane] = asyncio.Queue()  # lanes that `run` has not started yet
        self._new.put_nowait(self._default)
        self._limited: dict[str, LimitedRuns] = {}  # by topic

    def bind(self, bind: Callable[[Handler], Run]) -> None:
        """Prepare lanes for topics with a new handler; `bind` wraps the hooks around it."""
        for topic in set(self._handlers.topics) - set(self._running.runs):
            handler = self._handlers[topic]
            self._running.runs[topic] = bind(handler)
            if handler.batch is not None:
                self._of_topic[topic] = self._batch_lane(handler.batch)
            elif handler.ordered or handler.concurrency is not None:
                self._of_topic[topic] = self._lane_in_pool(handler)
            if topic in self._of_topic:
                self._new.put_nowait(self._of_topic[topic])

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        """Tell each lane the shards of its topics."""
        for lane in self._all():
            await lane.follow([shard for shard in shards if self._of(shard) is lane], block_ms)

    async def run(self) -> None:
        """Read until cancelled, also in lanes of handlers that come later."""
        async with asyncio.TaskGroup() as lanes:
            while True:
                lanes.create_task((await self._new.get()).run(), name="wheelq reading")

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
        await asyncio.gather(*(lane.stop() for lane in self._all()))

    async def idle(self) -> None:
        """Wait until all read deliveries have run."""
        await asyncio.gather(*(lane.idle() for lane in self._all()))

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        self._parts.ending.begin()
        await asyncio.gather(*(lane.abandon() for lane in self._all()))

    async def close(self) -> None:
        for lane in self._all():
            await lane.close()

    def _run(self, delivery: Delivery, task: asyncio.Task[None]) -> Coroutine[Any, Any, None]:
        keeper = delivery.turn_keeper
        run = self._running.handle(delivery, task) if keeper is None else keeper.run(delivery, task)
        limited = self._limited.get(delivery.shard.keys.topic)
        return run if limited is None else limited.counted(run)

    def _of(self, shard: ServedShard) -> Lane:
        return self._of_topic.get(shard.keys.topic, self._default)

    def _all(self) -> list[Lane]:
        return [self._default, *self._of_topic.values()]

    def _lane_in_pool(self, handler: Handler) -> Lane:
        """Returns the lane of a topic that shares the places of the pool."""
        parts, settings, pool = self._parts, self._parts.settings, self._default.places
        pool.other_lanes += 1
        limited = None
        runs: Pool[Delivery] | LimitedRuns = self.pool
        if handler.concurrency is not None:
            settings = replace(settings, concurrency=handler.concurrency)
            runs = self._limited[handler.topic] = LimitedRuns(self.pool, handler.concurrency)
            limited = LimitedPlaces(runs, pool, settings, parts.clock)
        if handler.ordered:
            is_by_key = handler.ordered == "key"
            return OrderedLane(parts, self._running, runs, limited or pool, self._regroup, is_by_key=is_by_key)
        return ReadingLane(parts, settings, runs, self._regroup, limited)

    def _batch_lane(self, terms: BatchTerms) -> ReadingLane:
        batcher = Batcher(terms, partial(run_batch, self._running), self._running.held_loop, self._parts.clock)
        settings = replace(self._parts.settings, concurrency=terms.max_size)
        return ReadingLane(self._parts, settings, batcher, self._regroup)
