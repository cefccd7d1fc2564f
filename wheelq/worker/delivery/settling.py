"""Reports the outcomes of deliveries to Redis: acks in batches, retries and burials one by one; or hands them back.

Every delivery of this worker is in `Held`, and renewed, until Redis has confirmed its outcome. All three calls may be
repeated after a lost reply: they change nothing for a delivery that is no longer this consumer's.

Each shard's acks are sent separately: while its cluster node is away, those of the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from wheelq.base.plural import counted
from wheelq.errors import GroupNotFound, InvalidInput
from wheelq.model.dead import Reason
from wheelq.model.state import Attempt
from wheelq.protocol import attempts, codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import state
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.worker import Burial, Counted, Entry
from wheelq.reminders import Loop
from wheelq.worker.delivery.held import Consumer, Delivery, ServedShard, TurnKeeper
from wheelq.worker.outcome import Again, Buried, error_line

logger = logging.getLogger("wheelq.worker")

FIRST_PAUSE = 0.05
"""Seconds until a call without an answer is repeated for the first time; see `Loop`."""
HAND_BACK_IDLE_MS = 86_400_000
"""The idle time given to a delivery that is handed back, so that any worker's next look claims it."""
HAND_BACK_AT_ONCE = 500


@dataclass(slots=True, eq=False)
class _Acks:
    """The unsent acks of one shard."""

    shard: ServedShard
    waiting: list[Delivery] = field(default_factory=list)
    any: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are unsent acks."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is time to send them."""
    next_at: float = float("-inf")
    """They wait for others until this monotonic time: `ack_ms` after the answer to the last call."""


class Settler:
    """Acks, retries and buries for one consumer of one group."""

    def __init__(self, consumer: Consumer) -> None:
        self._me = consumer
        self.cancelled = 0
        """Jobs buried because a client cancelled them."""
        self._acks: dict[ServedShard, _Acks] = {}
        self._new: asyncio.Queue[_Acks] = asyncio.Queue()  # shards that `run` does not handle yet

    def done(self, delivery: Delivery) -> None:
        """Acknowledge a finished job with the next batch."""
        acks = self._acks.get(delivery.shard) or self._add(delivery.shard)
        acks.waiting.append(delivery)
        count = len(acks.waiting)
        if count == 1:
            acks.any.set()
            if self._me.clock.monotonic() >= acks.next_at:
                acks.enough.set()  # together with others that finish before the loop runs
        if count >= self._me.settings.ack_batch or delivery.turn_keeper is not None:  # another waits for it
            acks.enough.set()

    def _add(self, shard: ServedShard) -> _Acks:
        acks = self._acks[shard] = _Acks(shard)
        self._new.put_nowait(acks)
        return acks

    async def settle(self, delivery: Delivery, outcome: Again | Buried, took_ms: float | None = None) -> None:
        """Report an outcome to Redis until it succeeds. `took_ms` is the handler's duration; None: it did not run."""
        entry, keys = delivery.entry, delivery.shard.keys
        attempt = None if took_ms is None else self._attempt(delivery, outcome, took_ms)
        match outcome:
            case Again(pause_ms, error, counts, mismatched_ms):
                counted: Counted = "retried" if mismatched_ms is None else "mismatched"
                attempt = attempt if mismatched_ms is None else None
                record = codec.again(
                    entry.record, entry.due_ms, error, counts=counts, attempt=attempt, mismatched_ms=mismatched_ms
                )
                if delivery.turn_keeper is not None:
                    await self._put_off(delivery, delivery.turn_keeper, pause_ms, record, counted)
                    return
                call = calls.retry(keys, self._me.group, self._me.name, entry, pause_ms, record, counted=counted)
            case Buried():
                self.cancelled += outcome.reason is Reason.CANCELLED
                burial = _burial(entry, outcome, attempt)
                call = calls.bury(keys, self._me.group, self._me.name, entry, burial, delivery.shard.topic)
        await self._insist(call, delivery)
        self._drop(delivery.shard, [delivery])

    def _attempt(self, delivery: Delivery, outcome: Again | Buried, took_ms: float) -> Attempt:
        error = attempts.cut_error(outcome.error) if outcome.error else None
        return Attempt(int(delivery.started_ms), max(round(took_ms), 0), self._me.name, error)

    async def _put_off(
        self, delivery: Delivery, turn_keeper: TurnKeeper, pause_ms: int, record: bytes, counted: Counted
    ) -> None:
        due_ms = await self._insist(turn_keeper.put_off(delivery, pause_ms, record, counted), delivery)
        if due_ms:
            turn_keeper.again(delivery, record, due_ms)
        else:
            self._drop(delivery.shard, [delivery])

    async def _insist(self, call: Call[Any], delivery: Delivery) -> int:
        """Repeats a call until it is answered; returns the answer, or 0 if the group no longer exists."""

        async def report() -> int:
            try:
                with self._span("bury" if call.name == "bury" else "retry", [delivery]):
                    return int(await self._me.transport.send(call))
            except GroupNotFound:
                return 0

        what = f"{call.name} of job {delivery.entry.id} waits"
        return await Loop(self._me.clock, logger, what, FIRST_PAUSE).insist(report)

    def _span(self, name: str, deliveries: Sequence[Delivery]) -> AbstractContextManager[None]:
        """The span of one call, if such spans are asked for and a tracer provider is set."""
        if not self._me.settings.trace_settling or all(delivery.span is None for delivery in deliveries):
            return contextlib.nullcontext()
        from wheelq.worker.delivery import tracing  # imports OpenTelemetry

        return tracing.settling(self._me, name, deliveries)

    async def hand_back(self, shard: ServedShard, entry_ids: Sequence[str]) -> None:
        """Hand these deliveries to other workers now, unsettled. Raises: ServerError.

        Those whose cancellation was requested are buried, because no other worker knows of that.
        """
        cancelled = [one for one in map(self._me.held.of(shard).get, entry_ids) if one is not None and one.is_cancelled]
        for delivery in cancelled:
            if not self._has_ended(delivery):
                await self._bury_cancelled(delivery)
        for first in range(0, len(entry_ids), HAND_BACK_AT_ONCE):
            part = entry_ids[first : first + HAND_BACK_AT_ONCE]
            call = calls.hand_back(shard.keys, self._me.group, self._me.name, HAND_BACK_IDLE_MS, part)
            await self._me.transport.send(call)

    def _has_ended(self, delivery: Delivery) -> bool:
        """Whether its acknowledgement waits."""
        return delivery.shard in self._acks and delivery in self._acks[delivery.shard].waiting

    async def _bury_cancelled(self, delivery: Delivery) -> None:
        entry, shard = delivery.entry, delivery.shard
        burial = _burial(entry, Buried(Reason.CANCELLED, "cancelled before its worker stopped or let it go"), None)
        with contextlib.suppress(GroupNotFound):
            await self._me.transport.send(
                calls.bury(shard.keys, self._me.group, self._me.name, entry, burial, shard.topic)
            )
        self.cancelled += 1
        logger.info("job %s of %s is not handed back, but buried: it was cancelled", entry.id, shard.keys.topic)
        self._drop(shard, [delivery])

    def _drop(self, shard: ServedShard, deliveries: Sequence[Delivery]) -> None:
        held = self._me.held.of(shard)
        for delivery in deliveries:
            held.pop(delivery.entry.entry_id, None)
            if delivery.turn_keeper is not None:
                delivery.turn_keeper.end(delivery)

    async def run(self) -> None:
        """Send acks until cancelled: at once after a quiet moment, else `ack_ms` after the last, or a full batch."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                acks = await self._new.get()
                tasks.create_task(self._run(acks), name=f"wheelq acks {acks.shard.keys.ready}")

    async def _run(self, acks: _Acks) -> None:
        async def step() -> None:
            await acks.any.wait()
            if not acks.enough.is_set():
                await self._me.clock.wait(acks.enough, acks.next_at - self._me.clock.monotonic())
            if acks.waiting:
                await self._send(acks)

        def what() -> str:
            return counted(len(acks.waiting), "ack waits", "acks wait")

        loop = Loop(self._me.clock, logger, what, FIRST_PAUSE)
        await loop.run(step, is_over=lambda: acks.shard.is_gone and not acks.waiting)
        del self._acks[acks.shard]  # a job that ends later adds it again

    def leave(self, shard: ServedShard) -> None:
        """Let the acks of a shard that is gone end: what waits is sent, and nothing of it stays."""
        if acks := self._acks.get(shard):
            acks.any.set()
            acks.enough.set()

    async def flush(self) -> None:
        """Send all acks. Raises: ServerError; unanswered ones stay queued."""
        results = await asyncio.gather(*(self._flush(acks) for acks in self._acks.values()), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _flush(self, acks: _Acks) -> None:
        while acks.waiting:
            await self._send(acks)

    async def _send(self, acks: _Acks) -> None:
        acks.enough.clear()
        shard, batch = acks.shard, acks.waiting[: self._me.settings.ack_batch]
        try:
            with self._span("ack", batch):
                await self._me.transport.send(self._ack(shard, batch))
        except GroupNotFound:
            pass  # then the deliveries belong to no consumer
        del acks.waiting[: len(batch)]
        acks.next_at = self._me.clock.monotonic() + self._me.settings.ack_ms / 1000
        self._drop(shard, batch)
        if not acks.waiting:
            acks.any.clear()
        elif len(acks.waiting) >= self._me.settings.ack_batch:
            acks.enough.set()

    def _ack(self, shard: ServedShard, batch: Sequence[Delivery]) -> Call[int]:
        topic = shard.topic
        dropped = sum([delivery.is_dropped for delivery in batch])
        if dropped:
            batch = sorted(batch, key=attrgetter("is_dropped"))
        if topic.keep_done_ms > 0 or _leave_something(batch):
            concluded = [_concluded(delivery) for delivery in batch]
            return state.conclude(
                shard.keys,
                self._me.group,
                self._me.name,
                topic.retention_ms,
                topic.keep_done_ms,
                concluded,
                dropped,
            )
        return calls.ack(
            shard.keys,
            self._me.group,
            self._me.name,
            min([delivery.safe_until_ms for delivery in batch]),
            topic.retention_ms,
            [(delivery.entry.entry_id, delivery.entry.member) for delivery in batch],
            dropped,
        )


def _leave_something(deliveries: Sequence[Delivery]) -> bool:
    """Whether the end of some takes more than an acknowledgement: they, or earlier runs, may have reported progress."""
    return any(one.has_progress or one.is_redelivered or one.entry.attempt > 1 for one in deliveries)


def _concluded(delivery: Delivery) -> state.Concluded:
    entry, record, earlier = delivery.entry, b"", b""
    keeps = delivery.shard.topic.keep_done_ms > 0
    if keeps and delivery.returned is not None:
        delivery.result, delivery.returned = _packed_result(delivery, delivery.returned), None
    if keeps and (entry.group is not None or entry.attempt > 1):
        with contextlib.suppress(codec.UnreadableRecord):
            record = codec.original(entry.record)
            earlier = attempts.pack(codec.decode(entry.record).attempts)
    promoted_ms = int(entry.entry_id.partition("-")[0])  # by the server's clock, which this worker only estimates
    started_ms = max(int(delivery.started_ms), promoted_ms)
    return state.Concluded(entry.entry_id, entry.member, started_ms, delivery.result, record, earlier)


def _burial(entry: Entry, buried: Buried, ran: Attempt | None) -> Burial:
    attempt, first_due_ms, its_record = entry.attempt, entry.due_ms, b""
    with contextlib.suppress(codec.UnreadableRecord):
        record = codec.decode(entry.record)
        attempt, first_due_ms = record.attempt, record.first_due_ms or entry.due_ms
        its_record = codec.attempted(entry.record, ran) if ran else b""
    return Burial(buried.reason, buried.error, buried.traceback, attempt, first_due_ms, its_record)


def _packed_result(delivery: Delivery, result: Any) -> bytes:
    """Returns the packed result of a handler; empty, with a warning, if it is too large or cannot be a payload."""
    if result is None:
        return b""
    try:
        return codec.encode_result(result, delivery.shard.topic.result_max_bytes)
    except Exception as error:  # noqa: BLE001  # the job has succeeded, whatever its result does while it is packed
        entry, topic = delivery.entry, delivery.shard.keys.topic
        problem = error.problem if isinstance(error, InvalidInput) else error_line(error)
        logger.warning("the result of job %s of %s is not kept: %s", entry.id, topic, problem)
        return b""
