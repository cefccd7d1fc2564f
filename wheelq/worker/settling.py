"""Tells Redis what came of deliveries: acks in batches, retries and burials one by one.

Every delivery this worker holds is in `Held` until Redis has answered for it, and is renewed as long. All three calls
may be repeated after a lost reply: they change nothing for a delivery that is no longer this consumer's.

Each shard's acks are sent on their own: while its cluster node is away, those of the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class _Acks:
    """The acks of one shard that wait to be sent."""

    line: Line
    waiting: list[Delivery] = field(default_factory=list)
    any: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while any wait."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is time to send them."""
    is_unsure: bool = False
    """Whether the reply to the last call was lost."""


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
        self._acks: dict[Line, _Acks] = {}
        self._new: asyncio.Queue[_Acks] = asyncio.Queue()  # those that `run` does not look after yet
        self.lost = 0
        """Deliveries that had been given to another worker when this one wanted to settle them."""

    def done(self, delivery: Delivery) -> None:
        """A job is finished: acknowledge it with the next batch."""
        acks = self._acks.get(delivery.line)
        if acks is None:
            acks = self._acks[delivery.line] = _Acks(delivery.line)
            self._new.put_nowait(acks)
        acks.waiting.append(delivery)
        acks.any.set()
        if len(acks.waiting) >= self._settings.ack_batch:
            acks.enough.set()

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
        async with asyncio.TaskGroup() as shards:
            while True:
                shards.create_task(self._run(await self._new.get()))

    async def _run(self, acks: _Acks) -> None:
        pause = 0.0
        while True:
            await acks.any.wait()
            cancel = self._clock.call_at(self._clock.monotonic() + self._settings.ack_ms / 1000, acks.enough.set)
            await acks.enough.wait()
            cancel()
            try:
                await self._send(acks)
                pause = 0.0
            except ServerError as error:
                pause = min(pause * 2 + 0.05, LONGEST_PAUSE)
                logger.warning("%d acks wait: %s", len(acks.waiting), error)
                await self._clock.sleep(pause)

    async def flush(self) -> None:
        """Send all acks that wait. Raises: ServerError; what has no answer still waits."""
        results = await asyncio.gather(*(self._flush(acks) for acks in self._acks.values()), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _flush(self, acks: _Acks) -> None:
        while acks.waiting:
            await self._send(acks)

    async def _send(self, acks: _Acks) -> None:
        """Send up to a batch."""
        acks.enough.clear()
        line, batch = acks.line, acks.waiting[: self._settings.ack_batch]
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
            acks.is_unsure = True
            raise
        del acks.waiting[: len(batch)]
        if not acks.is_unsure:  # else it may have been acknowledged by the call whose reply was lost
            self.lost += len(batch) - acked
        acks.is_unsure = False
        held = self._held.of(line)
        for delivery in batch:
            held.pop(delivery.entry.entry_id, None)
        if not acks.waiting:
            acks.any.clear()
        elif len(acks.waiting) >= self._settings.ack_batch:
            acks.enough.set()
