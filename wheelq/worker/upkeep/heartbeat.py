"""`Heartbeat`: sends this worker's heartbeats, reports and farewell, and reads those of the others.

One call every `renew_ms` sends the heartbeat and reads the heartbeats of all others; every few seconds it also sends a
report of the worker. It returns the server's time with each report, and while the worker holds deliveries. `peers`
evaluates the heartbeats of the others. Heartbeats run independently of all other work, and are written even when the
server is full.

A worker at rest that knows of no other in its group beats half as often, as long as it hears of workers that start:
they announce themselves, and so are watched from their first heartbeats on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from wheelq.base.metrics import Observations
from wheelq.base.version import __version__
from wheelq.errors import Refused, ServerError
from wheelq.protocol.calls import counts, heartbeats, registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.heartbeats import newcomer
from wheelq.reminders import Loop
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.handler import Handlers

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")

REPORT_EVERY = 5.0
"""Seconds between the worker's reports."""
LAST_PORTIONS = 5
"""The most portions of measurements that a worker sends when it stops."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds until the next attempt after a failed heartbeat: the first, and the longest. A worker that was frozen finds
its connection gone, and until the others hear of it, they take what it reads."""


class Heartbeat:
    """A worker's heartbeat, and its farewell."""

    def __init__(
        self,
        parts: WorkerParts,
        handlers: Handlers,
        running: Running,
        pool: Pool[Delivery],
        hears: Callable[[], bool],
        more: Callable[[], Mapping[str, Any]],
    ) -> None:
        """`hears()`: whether workers that start are heard of. `more()` returns more fields for the report."""
        self._parts = parts
        self._handlers = handlers
        self._running = running
        self._pool = pool
        self._hears = hears
        self._more = more
        self._numbers = itertools.count(1)
        self._report_at = float("-inf")
        self._is_announced = False
        self._newcomer = asyncio.Event()
        self._patience = asyncio.Timeout(None)  # of the farewell

    def look_soon(self) -> None:
        """A worker has started: look at it soon, unless the next look comes soon anyway."""
        if self._parts.peers.is_alone:
            self._newcomer.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""

        async def step() -> float:
            await self.beat()
            if not self._is_announced:
                await self._announce()
            return self._parts.peers.next_look(is_at_rest=self._hears() and not self._parts.held.shards())

        await Loop(self._parts.clock, logger, "no heartbeat", FIRST_PAUSE, LONGEST_PAUSE).run(step, self._newcomer)

    async def _announce(self) -> None:
        """Tell the others, which may look for this worker seldom. Raises: ServerError."""
        with contextlib.suppress(Refused):  # without the right to the channel they find it a little later
            await self._parts.transport.send(registry.announce(self._parts.keys, newcomer(self._parts.group)))
        self._is_announced = True

    async def beat(self) -> None:
        """Write the heartbeat, and read those of all others. Raises: ServerError."""
        parts = self._parts
        asked_at = parts.clock.monotonic()
        reports = asked_at >= self._report_at
        beat = f"{next(self._numbers)} {parts.group}"
        report = self._report() if reports else None
        asks_time = reports or bool(parts.held.shards())
        try:
            call = heartbeats.beat_worker(parts.keys, parts.name, beat, report, asks_time=asks_time)
            answer = await parts.transport.send(call)
        except Refused:  # the server is full, and takes what the script writes
            call = heartbeats.beat_worker_though_full(parts.keys, parts.name, beat, report)
            answer = await parts.transport.send(call)
        if reports:
            self._report_at = asked_at + REPORT_EVERY - parts.settings.renew_ms / 2000
        has_jumped = answer.server_us > 0 and parts.server.observe(asked_at, answer.server_us)
        if self._parts.peers.heard(parts.clock.monotonic(), answer.beats) or has_jumped:
            parts.recovery.look_soon()  # a worker may have died
        await self._send(self._running.durations.counted)  # the last report has counted all until then

    async def _send(self, observations: Observations) -> None:
        """Send a portion of new measurements to the histograms, if there are any. Raises: ServerError."""
        if (found := observations.to_send()) is not None:
            number, increments = found
            await self._parts.transport.send(counts.observe(self._parts.keys, self._parts.name, number, increments))
            observations.sent(number)

    def _report(self) -> dict[str, Any]:
        parts, running = self._parts, self._running
        return {
            "seen_ms": int(parts.server.now_ms()),
            "version": __version__,
            "group": parts.group,
            "topics": self._handlers.topics,
            "running": self._pool.held,
            "handled": running.handled,
            "failed": running.failed,
            "skipped": running.skipped,
            "lateness_p99_ms": running.durations.lateness.percentile(0.99),
            **self._more(),
        }

    async def leave(self, shards: Iterable[ServedShard]) -> None:
        """Send the last acks, hand back unfinished deliveries, and remove this consumer from the lists.

        The last heartbeat says that this worker left, so others find deliveries that it could not hand back. The worker
        gives up once no call has succeeded for as long as one reply may take.
        """
        try:
            async with asyncio.timeout(None) as self._patience:
                self._answered()
                await self._leave(shards)
        except TimeoutError:
            logger.warning("left without a farewell; other workers will find its deliveries abandoned: nobody answers")

    def _answered(self) -> None:
        now = asyncio.get_running_loop().time()
        self._patience.reschedule(now + self._parts.transport.reply_timeout_ms / 1000)

    async def _leave(self, shards: Iterable[ServedShard]) -> None:
        parts = self._parts
        has_left = await self._tried(parts.settler.flush())
        for _ in range(LAST_PORTIONS):
            if not await self._tried(self._send(self._running.durations.observations)):
                break
        for shard in shards:
            has_left &= await self._tried(self._hand_back(shard))
        if has_left:
            await self._tried(parts.transport.send(heartbeats.gone(self._parts.keys.beats, parts.name)))
        else:
            await self._tried(parts.transport.send(heartbeats.report_left(self._parts.keys, parts.name, parts.group)))
        await self._tried(parts.transport.send(heartbeats.gone(self._parts.keys.workers, parts.name)))

    async def _hand_back(self, shard: ServedShard) -> bool:
        """Hand back this consumer's deliveries in a shard. Returns whether nothing of it is left there."""
        parts = self._parts
        held = list(parts.held.of(shard))
        await parts.settler.hand_back(shard, held)
        return await parts.transport.send(calls.leave(shard.keys, parts.group, parts.name)) or not held

    async def _tried(self, farewell: Awaitable[T]) -> bool:
        """Whether a farewell call succeeded and did not return False."""
        try:
            has_succeeded = await farewell is not False
        except ServerError as error:
            logger.warning("left without a farewell; other workers will find its deliveries abandoned: %s", error)
            return False
        self._answered()
        return has_succeeded
