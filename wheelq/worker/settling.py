"""Tells Redis what came of deliveries: acks in batches, retries and burials one by one; or gives them back.

Every delivery this worker holds is in `Held` until Redis has answered for it, and is renewed as long. All three calls
may be repeated after a lost reply: they change nothing for a delivery that is no longer this consumer's.

Each shard's acks are sent on their own: while its cluster node is away, those of the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from wheelq.clock import Clock
from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import state
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.words import counted
from wheelq.worker.held import Delivery, Held, Line, Order
from wheelq.worker.outcome import Again, Buried, Done, Outcome

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")

LONGEST_PAUSE = 1.0
HAND_BACK_IDLE_MS = 86_400_000
"""Idle time shown for a delivery that is handed back, so that any worker's next look claims it."""
HAND_BACK_AT_ONCE = 500


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
        if len(acks.waiting) >= self._settings.ack_batch or delivery.order is not None:  # another waits for this one
            acks.enough.set()

    async def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell Redis, however often it takes."""
        entry, keys = delivery.entry, delivery.line.keys
        match outcome:
            case Done():
                self.done(delivery)
                return
            case Again(pause_ms, error, counts):
                record = codec.again(entry.record, entry.due_ms, error, counts=counts)
                if delivery.order is not None:
                    await self._put_off(delivery, delivery.order, pause_ms, record)
                    return
                call = calls.retry(keys, self._group, self._consumer, entry, pause_ms, record)
            case Buried():
                call = calls.bury(
                    keys, self._group, self._consumer, entry, _burial(entry, outcome), delivery.line.topic
                )
        was_ours, is_sure = await self._insist(call, entry)
        self.lost += not was_ours and is_sure
        self._drop(delivery)

    async def _put_off(self, delivery: Delivery, order: Order, pause_ms: int, record: bytes) -> None:
        due_ms, is_sure = await self._insist(order.put_off(delivery, pause_ms, record), delivery.entry)
        if due_ms:
            order.again(delivery, record, due_ms)
        else:
            self.lost += is_sure
            self._drop(delivery)

    async def _insist(self, call: Call[T], entry: Entry) -> tuple[T, bool]:
        """The answer, however often it takes, and whether it is to the only call that can have arrived."""
        pause = 0.05
        is_sure = True
        while True:
            try:
                return await self._transport.send(call), is_sure
            except ServerError as problem:
                is_sure &= not isinstance(problem, OutcomeUnknown)
                logger.warning("%s of job %s waits: %s", call.name, entry.id, problem)
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def hand_back(self, line: Line, entry_ids: Sequence[str]) -> None:
        """Let other workers have these deliveries now, unsettled. Raises: ServerError."""
        for first in range(0, len(entry_ids), HAND_BACK_AT_ONCE):
            part = entry_ids[first : first + HAND_BACK_AT_ONCE]
            call = calls.hand_back(line.keys, self._group, self._consumer, HAND_BACK_IDLE_MS, part)
            await self._transport.send(call)

    def _drop(self, delivery: Delivery) -> None:
        self._held.drop(delivery)
        if delivery.order is not None:
            delivery.order.end(delivery)

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
                logger.warning("%s: %s", counted(len(acks.waiting), "ack waits", "acks wait"), error)
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
        try:
            acked = await self._transport.send(self._ack(line, batch))
        except OutcomeUnknown:
            acks.is_unsure = True
            raise
        del acks.waiting[: len(batch)]
        if not acks.is_unsure:  # else it may have been acknowledged by the call whose reply was lost
            self.lost += len(batch) - acked
        acks.is_unsure = False
        for delivery in batch:
            self._drop(delivery)
        if not acks.waiting:
            acks.any.clear()
        elif len(acks.waiting) >= self._settings.ack_batch:
            acks.enough.set()

    def _ack(self, line: Line, batch: Sequence[Delivery]) -> Call[int]:
        topic = line.topic
        if any(delivery.leaves_something for delivery in batch):
            concluded = [_concluded(delivery) for delivery in batch]
            return state.conclude(
                line.keys, self._group, self._consumer, topic.retention_ms, topic.keep_done_ms, concluded
            )
        return calls.ack(
            line.keys,
            self._group,
            self._consumer,
            min(delivery.safe_until_ms for delivery in batch),
            topic.retention_ms,
            [(delivery.entry.entry_id, delivery.entry.member) for delivery in batch],
        )


def _concluded(delivery: Delivery) -> state.Concluded:
    entry, record = delivery.entry, b""
    if delivery.line.topic.keep_done_ms and (entry.group is not None or entry.attempt > 1):
        with contextlib.suppress(codec.UnreadableRecord):
            record = codec.original(entry.record)
    promoted_ms = int(entry.entry_id.partition("-")[0])  # by the server's clock, which the worker only estimates
    started_ms = max(int(delivery.started_ms), promoted_ms)
    return state.Concluded(entry.entry_id, entry.member, started_ms, delivery.result, record)


def _burial(entry: Entry, buried: Buried) -> Burial:
    attempt, first_due_ms = entry.attempt, entry.due_ms
    with contextlib.suppress(codec.UnreadableRecord):
        record = codec.decode(entry.record)
        attempt, first_due_ms = record.attempt, record.first_due_ms or entry.due_ms
    return Burial(buried.reason, buried.error, buried.traceback, attempt, first_due_ms)
