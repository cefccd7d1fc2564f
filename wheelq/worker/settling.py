"""Tells Redis what came of deliveries: acks in batches, retries and burials one by one.

Every delivery this worker holds is in `Held` until Redis has answered for it, and is renewed as long. All three calls
may be repeated after a lost reply: they change nothing for a delivery that is no longer this consumer's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from wheelq.clock import Clock
from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import TopicSettings, WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.outcome import Again, Buried, Done, Outcome

logger = logging.getLogger("wheelq.worker")

LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One shard of a topic, as a worker serves it."""

    keys: ShardKeys
    topic: TopicSettings


@dataclass(slots=True, eq=False)
class Delivery:
    """One entry that this worker holds."""

    line: Line
    entry: Entry
    safe_until_ms: int
    """Until then, by the server's clock, nobody else can have claimed it."""
    is_redelivered: bool = False
    """Another worker had it before."""


class Held:
    """The deliveries this worker holds, by shard and entry id."""

    def __init__(self) -> None:
        self._by_line: dict[Line, dict[str, Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        self._by_line.setdefault(delivery.line, {})[delivery.entry.entry_id] = delivery

    def of(self, line: Line) -> dict[str, Delivery]:
        """Those of one shard, by entry id."""
        return self._by_line.setdefault(line, {})

    def drop(self, delivery: Delivery) -> None:
        self._by_line[delivery.line].pop(delivery.entry.entry_id, None)

    def lines(self) -> Iterable[Line]:
        """The shards of which any was ever held."""
        return list(self._by_line)


class Settler:
    """Acks, retries and buries for one consumer of one group."""

    def __init__(
        self,
        transport: AsyncTransport,
        group: str,
        consumer: str,
        settings: WorkerSettings,
        held: Held,
        clock: Clock,
    ) -> None:
        self._transport = transport
        self._group = group
        self._consumer = consumer
        self._settings = settings
        self._held = held
        self._clock = clock
        self._done: dict[Line, list[Delivery]] = {}
        self._unsure: set[Line] = set()  # of which the reply to the last ack was lost
        self._waiting = 0
        self._any = asyncio.Event()
        self._full = asyncio.Event()
        self.lost = 0
        """Deliveries that had been given to another worker when this one wanted to settle them."""

    def done(self, delivery: Delivery) -> None:
        """A job is finished: acknowledge it with the next batch."""
        self._done.setdefault(delivery.line, []).append(delivery)
        self._waiting += 1
        self._any.set()
        if self._waiting >= self._settings.ack_batch:
            self._full.set()

    async def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell Redis, however often it takes."""
        entry, keys = delivery.entry, delivery.line.keys
        match outcome:
            case Done():
                self.done(delivery)
                return
            case Again(pause_ms):
                call = calls.retry(keys, self._group, self._consumer, entry, pause_ms)
            case Buried(reason, error):
                retention_ms = delivery.line.topic.retention_ms
                call = calls.bury(keys, self._group, self._consumer, entry, reason, error, retention_ms)
        pause = 0.05
        is_unsure = False
        while True:
            try:
                was_ours = await self._transport.send(call)
            except ServerError as problem:
                is_unsure |= isinstance(problem, OutcomeUnknown)
                logger.warning("%s of job %s waits: %s", call.name, entry.id, problem)
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.lost += not was_ours and not is_unsure
                self._held.drop(delivery)
                return

    async def run(self) -> None:
        """Send acks until cancelled: when `ack_batch` have come together, or the first has waited `ack_ms`."""
        pause = 0.0
        while True:
            await self._any.wait()
            cancel = self._clock.call_at(self._clock.monotonic() + self._settings.ack_ms / 1000, self._full.set)
            await self._full.wait()
            cancel()
            try:
                await self.step()
                pause = 0.0
            except ServerError as error:
                pause = min(pause * 2 + 0.05, LONGEST_PAUSE)
                logger.warning("%d acks wait: %s", self._waiting, error)
                await self._clock.sleep(pause)

    async def step(self) -> None:
        """Send the acks that wait, up to a batch of each shard; what has no answer still waits.

        Raises: ServerError, the last one, when all shards have been tried.
        """
        self._full.clear()
        problem: ServerError | None = None
        for line in [line for line, waiting in self._done.items() if waiting]:
            try:
                await self._ack(line)
            except ServerError as error:
                problem = error
        if not self._waiting:
            self._any.clear()
        elif self._waiting >= self._settings.ack_batch:
            self._full.set()
        if problem is not None:
            raise problem

    async def _ack(self, line: Line) -> None:
        batch = self._done[line][: self._settings.ack_batch]
        call = calls.ack(
            line.keys,
            self._group,
            self._consumer,
            min(delivery.safe_until_ms for delivery in batch),
            line.topic.retention_ms,
            [(delivery.entry.entry_id, delivery.entry.member) for delivery in batch],
        )
        try:
            acked = await self._transport.send(call)
        except OutcomeUnknown:
            self._unsure.add(line)
            raise
        del self._done[line][: len(batch)]
        if line not in self._unsure:  # else it may have been acknowledged by the call whose reply was lost
            self.lost += len(batch) - acked
        self._unsure.discard(line)
        self._waiting -= len(batch)
        held = self._held.of(line)
        for delivery in batch:
            held.pop(delivery.entry.entry_id, None)

    async def flush(self) -> None:
        """Send all acks that wait. Raises: ServerError."""
        while self._waiting:
            await self.step()
