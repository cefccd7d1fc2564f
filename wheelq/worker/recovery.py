"""Renews the deliveries that run here, and takes over those that nobody renews any more.

A worker that lives renews everything it holds every `renew_ms`. So a delivery that was not renewed for `abandoned_ms`
belongs to a worker that died, or that was stopped and handed it back; whoever sees it first claims it. A worker that
was only frozen finds out when it renews or settles: the scripts compare the owner.

Each shard is looked after on its own: while its cluster node is away, those on others are renewed in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from wheelq.clock import Clock, ServerClock
from wheelq.dead import Reason
from wheelq.errors import ServerError
from wheelq.protocol.calls import worker as calls
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.words import counted
from wheelq.worker.held import Delivery, Held, Line, Start
from wheelq.worker.outcome import Buried
from wheelq.worker.settling import Settler

logger = logging.getLogger("wheelq.worker")

Turn = Callable[[Line], AbstractAsyncContextManager[int]]
"""Waits until a delivery of the shard could start; how many could."""

BATCH = 500
START = "0-0"
SAFETY_MS = 200
"""Taken off a bound on the server's clock, which this worker only estimates."""


class Recovery:
    """Keeps what is held, claims what is abandoned."""

    def __init__(
        self,
        transport: AsyncTransport,
        group: str,
        consumer: str,
        settings: WorkerSettings,
        held: Held,
        settler: Settler,
        clock: Clock,
        server_clock: ServerClock,
    ) -> None:
        self._transport = transport
        self._group = group
        self._consumer = consumer
        self._settings = settings
        self._held = held
        self._settler = settler
        self._clock = clock
        self._server = server_clock
        self._cursors: dict[Line, str] = {}

    async def run(self, lines: Callable[[], Sequence[Line]], turn: Turn, start: Start) -> None:
        """Keep and claim until cancelled. `turn(line)` waits for room, `start(deliveries)` starts what was claimed.

        Keeping does not wait for claiming, which where all places are taken may have to wait for long.
        """
        keeping: dict[Line, asyncio.Task[None]] = {}
        claiming: dict[Line, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as shards:
            while True:
                await self._clock.sleep(self._settings.renew_ms / 1000)
                served = lines()
                for line in {*served, *self._held.lines()}:
                    if line not in keeping or keeping[line].done():
                        keeping[line] = shards.create_task(self._look_after(line))
                for line in served:
                    if line not in claiming or claiming[line].done():
                        claiming[line] = shards.create_task(self._take_over(line, turn, start))

    async def _look_after(self, line: Line) -> None:
        try:
            await self._keep(line)
        except ServerError as error:
            logger.warning("deliveries of %s are not renewed until the server is back: %s", line.keys.ready, error)

    async def _take_over(self, line: Line, turn: Turn, start: Start) -> None:
        try:
            async with turn(line) as places:
                if places:
                    start(await self.claim(line, min(places, BATCH)))
        except ServerError as error:
            logger.warning("%s is not looked through until the server is back: %s", line.keys.ready, error)

    async def keep(self) -> None:
        """Renew everything held; what was given to another worker is held no more. Raises: ServerError."""
        for line in self._held.lines():
            await self._keep(line)

    async def _keep(self, line: Line) -> None:
        held = self._held.of(line)
        entry_ids = list(held)
        for first in range(0, len(entry_ids), BATCH):
            asked_at = self._clock.monotonic()
            part = entry_ids[first : first + BATCH]
            server_us, lost = await self._transport.send(calls.keep(line.keys, self._group, self._consumer, part))
            self._server.observe(asked_at, server_us)
            for entry_id in lost:
                if held.pop(entry_id, None):
                    logger.warning("delivery %s of %s was given to another worker", entry_id, line.keys.topic)
            safe_until_ms = server_us // 1000 + self._settings.abandoned_ms - SAFETY_MS
            for entry_id in part:
                if entry_id in held:
                    held[entry_id].safe_until_ms = safe_until_ms

    async def claim(self, line: Line, count: int) -> list[Delivery]:
        """Take over up to `count` abandoned deliveries of a shard; those delivered too often are buried instead."""
        asked_ms = int(self._server.now_ms())
        claimed = await self._transport.send(
            calls.claim(
                line.keys,
                self._group,
                self._consumer,
                self._settings.abandoned_ms,
                self._cursors.get(line, START),
                count,
            )
        )
        self._cursors[line] = claimed.cursor
        return await self.adopt(line, claimed.entry_ids, asked_ms)

    async def adopt(self, line: Line, entry_ids: Sequence[str], asked_ms: int) -> list[Delivery]:
        """The deliveries of a shard that this worker was given by a call at `asked_ms`, but for those it held before.

        Those delivered too often are buried. Raises: ServerError.
        """
        new = [entry_id for entry_id in entry_ids if entry_id not in self._held.of(line)]
        if not new:
            return []
        entries = await self._transport.send(calls.adopt(line.keys, self._group, self._consumer, new))
        deliveries = []
        for entry in entries:
            delivery = Delivery(line, entry, asked_ms + self._settings.abandoned_ms - SAFETY_MS, is_redelivered=True)
            self._held.add(delivery)
            if entry.deliveries > self._settings.max_deliveries:
                error = f"delivered {counted(entry.deliveries - 1, 'time')} without an answer"
                await self._settler.settle(delivery, Buried(Reason.DELIVERIES, error))
            else:
                deliveries.append(delivery)
        if deliveries:
            found = counted(len(deliveries), "abandoned delivery", "abandoned deliveries")
            logger.info("took over %s of %s", found, line.keys.topic)
        return deliveries
