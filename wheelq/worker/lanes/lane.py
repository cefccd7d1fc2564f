"""The lanes of a worker: the ways of deliveries from their shards to their handlers.

    topics with a single handler     one shared lane:     readers ──▶ Pool ──▶ handler(job)
    plain ones beside async ones     one shared lane:     readers ──▶ LimitedRuns ──▶ the same Pool
    a handler with concurrency=      its own lane:        readers ──▶ LimitedRuns ──▶ the same Pool
    a topic that runs in order       its own lane:        see `ordering` ──▶ the same Pool
    a topic with a batch handler     its own lane:        readers ──▶ Batcher ──▶ handler(jobs)

Each lane has its own connections. The pool is the limit of the worker: the lanes take its places in turn. Batches have
a limit of their own, so that single jobs do not starve them.

A plain handler needs a thread, and there may be fewer threads than places. A job that waited here for a thread would
count as started, and no other worker could run it. So the threads limit the plain handlers; and the whole pool, which
is cheaper, as long as all of its handlers are plain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from wheelq.base.clock import Clock
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.places import LimitedPlaces, SharedPlaces
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.batch import BatchTerms
from wheelq.worker.handlers.handler import Handler, Handlers, Run
from wheelq.worker.lanes.batching import Batcher, run_batch
from wheelq.worker.lanes.reader import ReadingLane
from wheelq.worker.ordered.ordering import OrderedLane

Lane = ReadingLane | OrderedLane


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of the pool that some handlers may fill, or all of it."""

    runs: Pool[Delivery] | LimitedRuns
    places: SharedPlaces
    settings: WorkerSettings
    """With its limit as their concurrency."""
    limits: tuple[LimitedRuns, ...] = ()
    """The limits that count its deliveries."""

    def limited(self, limit: int, clock: Clock) -> _Share:
        """Returns a part of it, of so many places."""
        runs, settings = LimitedRuns(self.runs, limit), replace(self.settings, concurrency=limit)
        return _Share(runs, LimitedPlaces(runs, self.places, settings, clock), settings, (*self.limits, runs))


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
        self._limits: dict[str, tuple[LimitedRuns, ...]] = {}  # by topic
        self._whole = _Share(self.pool, self._default.places, parts.settings)
        self._threads = min(parts.settings.threads, parts.settings.concurrency)  # that plain handlers may fill
        self._plain = self._whole.limited(self._threads, parts.clock)
        self._plain_lane: ReadingLane | None = None  # beside async handlers
        self._is_plain: bool | None = None  # whether all handlers of the pool are plain; None: there are none yet

    def bind(self, bind: Callable[[Handler], Run]) -> None:
        """Prepare lanes for topics with a new handler; `bind` wraps the hooks around it."""
        new = [self._handlers[topic] for topic in set(self._handlers.topics) - set(self._running.runs)]
        self._limit_pool([handler.has_thread for handler in new if handler.batch is None])
        for handler in new:
            self._running.runs[handler.topic] = bind(handler)
            lane = self._batch_lane(handler.batch) if handler.batch is not None else self._lane_in_pool(handler)
            if lane not in self._all():
                self._new.put_nowait(lane)
            if lane is not self._default:
                self._of_topic[handler.topic] = lane

    def _limit_pool(self, are_plain: Sequence[bool]) -> None:
        """Limit the pool to the threads if all handlers are plain; `are_plain`: whether the new ones are.

        If an async one is registered while the worker runs, only plain ones that come with it or after it are limited
        to the threads.
        """
        if not are_plain or self._is_plain is False:
            return
        self._is_plain = all(are_plain) and not self._handlers.may_get_more
        self._resize()

    def lack(self, threads: int) -> None:
        """Let plain handlers have so many threads fewer, because functions that hang keep these."""
        settings = self._parts.settings
        self._threads = max(0, min(settings.threads - threads, settings.concurrency))
        for limit in self._plain.limits:
            limit.resize(self._threads)
        self._resize()

    def _resize(self) -> None:
        places = self._threads if self._is_plain else self._parts.settings.concurrency
        self.pool.resize(places)
        self._default.resize(places)

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
        for limit in self._limits.get(delivery.shard.keys.topic, ()):
            run = limit.counted(run)
        return run

    def _of(self, shard: ServedShard) -> Lane:
        return self._of_topic.get(shard.keys.topic, self._default)

    def _all(self) -> list[Lane]:
        return list(dict.fromkeys((self._default, *self._of_topic.values())))

    def _lane_in_pool(self, handler: Handler) -> Lane:
        """Returns the lane of a topic that shares the places of the pool."""
        parts = self._parts
        share = base = self._plain if handler.has_thread and not self._is_plain else self._whole
        if handler.concurrency is not None:
            share = base.limited(handler.concurrency, parts.clock)
        self._limits[handler.topic] = share.limits
        if share is base and not handler.ordered:
            if base is self._whole:
                return self._default
            if self._plain_lane is not None:
                return self._plain_lane
        self._default.places.other_lanes += 1
        if handler.ordered:
            is_by_key = handler.ordered == "key"
            return OrderedLane(parts, self._running, share.runs, share.places, self._regroup, is_by_key=is_by_key)
        lane = ReadingLane(parts, share.settings, share.runs, self._regroup, share.places)
        if share is base:
            self._plain_lane = lane
        return lane

    def _batch_lane(self, terms: BatchTerms) -> ReadingLane:
        batcher = Batcher(terms, partial(run_batch, self._running), self._running.held_loop, self._parts.clock)
        settings = replace(self._parts.settings, concurrency=terms.max_size)
        return ReadingLane(self._parts, settings, batcher, self._regroup)
