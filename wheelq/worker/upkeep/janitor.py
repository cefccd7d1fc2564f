"""`Janitor`: removes leftovers of dead workers, and old dead jobs, once a minute.

    consumers of this group that hold nothing and were silent for an hour          a killed worker leaves one per shard
    heartbeats that have not changed for ten minutes, and workers not heard of for a day
    dead jobs older than the topic's `dead_retention_ms`, or more than `dead_max`   even if no more are buried

Shards are checked and tidied in the same script call, so any number of workers may do it at the same time. That call
also returns when the first waiting job of each shard is due; if one is late, `overdue` looks closer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from wheelq.base.liveness import Watch
from wheelq.base.plural import counted
from wheelq.errors import ServerError
from wheelq.protocol.calls import heartbeats
from wheelq.protocol.calls import worker as calls
from wheelq.worker.delivery.held import ServedShard, in_calls
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.upkeep.overdue import OVERDUE_MS

logger = logging.getLogger("wheelq.worker")

TIDY_MS = 60_000
SILENT_MS = 3_600_000
"""A live consumer reads every few seconds. If it was only away, its next read creates it again."""
FORGOTTEN_MS = 86_400_000
SILENT_S = 600.0
"""Seconds after which the heartbeat of a gone worker is useless, because its deliveries were taken over."""
TIDY_AT_ONCE = 25


class Janitor:
    """Tidies the shards that a worker serves."""

    def __init__(self, parts: WorkerParts, found_late: Callable[[], None] = lambda: None) -> None:
        """`found_late()` is called when a job has been due for `OVERDUE_MS` and was not promoted."""
        self._found_late = found_late
        self._parts = parts
        self._watch = Watch(TIDY_MS / 1000, 2 * TIDY_MS / 1000)

    async def run(self, shards: Callable[[], Sequence[ServedShard]]) -> None:
        """Tidy until cancelled."""
        while True:
            await self._parts.clock.sleep(TIDY_MS / 1000)
            await self.step(shards())

    async def step(self, shards: Sequence[ServedShard]) -> None:
        try:
            for some in in_calls(shards, self._parts.transport.slot, TIDY_AT_ONCE):
                await self._tidy(some)
        except ServerError as error:
            logger.debug("shards were not tidied: %s", error)
        try:
            await self._forget()
        except ServerError as error:
            logger.debug("heartbeats were not tidied: %s", error)

    async def _tidy(self, shards: Sequence[ServedShard]) -> None:
        """Tidy these shards, and again those with more to remove."""
        while shards:
            call = calls.clear_out([(shard.keys, shard.topic) for shard in shards], self._parts.group, SILENT_MS)
            removed = await self._parts.transport.send(call)
            for shard, one in zip(shards, removed, strict=True):
                if one.consumers:
                    what = counted(one.consumers, "consumer")
                    logger.info("removed %s without a worker from %s", what, shard.keys.ready)
                if one.first_due_ms is not None and not shard.topic.paused and self._is_late(one.first_due_ms):
                    self._found_late()
            shards = [shard for shard, one in zip(shards, removed, strict=True) if one.dead]

    def _is_late(self, due_ms: int) -> bool:
        return self._parts.server.is_set and self._parts.server.now_ms() - due_ms > OVERDUE_MS

    async def _forget(self) -> None:
        """Remove workers that have been silent for long from the lists."""
        beats = await self._parts.transport.send(heartbeats.beats(self._parts.keys))
        self._watch.looked(self._parts.clock.monotonic(), beats)
        silent = [worker for worker in beats if self._watch.silent(worker) >= SILENT_S]
        now_ms = self._parts.server.now_ms()
        reports = await self._parts.transport.send(heartbeats.alive(self._parts.keys.workers))
        silent += [name for name, what in reports.items() if now_ms - what.get("seen_ms", 0) > FORGOTTEN_MS]
        for worker in silent:
            await self._parts.transport.send(heartbeats.gone(self._parts.keys.beats, worker))
            await self._parts.transport.send(heartbeats.gone(self._parts.keys.workers, worker))
