"""Reports the outcomes of deliveries to Redis: acks in batches, retries and burials one by one; or hands them back.

Every delivery of this worker is in `Held`, and renewed, until Redis has confirmed its outcome. All three calls may be
repeated after a lost reply: they change nothing for a delivery that is no longer this consumer's.

Acks of all shards wait for the same moment and share a call, in a cluster those of one slot. A shard has calls of its
own while some of its jobs leave more than an ack, such as a result; if its jobs run in order, because each waits for
the ack before it; if calls have spans; and after a shared call has failed, so that what is wrong with one shard keeps
no other from its acks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from wheelq.base.plural import counted
from wheelq.errors import GroupNotFound, InvalidInput, Refused, ServerError
from wheelq.model.dead import Reason
from wheelq.model.state import Attempt
from wheelq.protocol import attempts, codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import state
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.bundles import bundle_of
from wheelq.protocol.calls.outgoing import BYTES_IN_A_CALL, MOST_IN_A_CALL
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
MOST_SHARDS = 100
"""The most shards whose acks share a call, which takes the server about 2.5 ms then."""


@dataclass(slots=True, eq=False)
class _Acks:
    """The unsent acks of one slot, or of a shard that has calls of its own."""

    shard: ServedShard | None = None
    """None: of all shards of the slot that have none of their own."""
    is_passing: bool = False
    """Whether the shard has calls of its own only until these are answered."""
    waiting: list[Delivery] = field(default_factory=list)
    any: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are unsent acks."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is time to send them."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a batch is sent, which is removed by its place."""
    next_at: float = float("-inf")
    """They wait for others until this monotonic time: `ack_ms` after the answer to the last call."""


class Settler:
    """Acks, retries and buries for one consumer of one group."""

    def __init__(self, consumer: Consumer) -> None:
        self._me = consumer
        self.cancelled = 0
        """Jobs buried because a client cancelled them."""
        self._interruptions = 0
        self._acks: dict[ServedShard | int, _Acks] = {}  # by slot; those of shards with calls of their own by shard
        self._new: asyncio.Queue[_Acks] = asyncio.Queue()  # those that `run` does not handle yet

    def done(self, delivery: Delivery) -> None:
        """Acknowledge a finished job with the next batch."""
        acks = self._acks.get(delivery.shard) or self._acks_for(delivery)
        acks.waiting.append(delivery)
        count = len(acks.waiting)
        if count == 1:
            acks.any.set()
            if self._me.clock.monotonic() >= acks.next_at:
                acks.enough.set()  # together with others that finish before the loop runs
        if count >= self._me.settings.ack_batch or delivery.others_may_wait:
            acks.enough.set()

    def _acks_for(self, delivery: Delivery) -> _Acks:
        """Returns the acks among which a delivery waits whose shard has no calls of its own so far."""
        shard = delivery.shard
        stays = delivery.turn_keeper is not None or self._me.settings.trace_settling or shard.topic.keep_done_ms > 0
        if stays or _leave_something([delivery]):
            return self._add(shard, _Acks(shard, is_passing=not stays))
        slot = self._me.transport.slot(shard.keys.ready)
        return self._acks.get(slot) or self._add(slot, _Acks())

    def _add(self, place: ServedShard | int, acks: _Acks) -> _Acks:
        self._acks[place] = acks
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
                burial = _burial(entry, outcome, attempt)
                call = calls.bury(keys, self._me.group, self._me.name, entry, burial, delivery.shard.topic)
        if await self._insist(call, delivery) and isinstance(outcome, Buried):
            self.cancelled += outcome.reason is Reason.CANCELLED
        self._drop([delivery])

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
            self._drop([delivery])

    async def _insist(self, call: Call[Any], delivery: Delivery) -> int:
        """Repeats a call until it is answered; returns the answer, or 0 if the delivery was given to another worker.

        Also 0 if the group no longer exists.
        """

        async def report() -> int:
            if delivery not in self._me.held:
                return 0
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
        held = [one for one in map(self._me.held.of(shard).get, entry_ids) if one is not None]
        for delivery in [one for one in held if one.is_cancelled]:
            if not self._has_ended(delivery):
                await self._bury_cancelled(delivery)
        uncounted = {one.entry.entry_id for one in held if not one.is_counted}
        for first in range(0, len(entry_ids), HAND_BACK_AT_ONCE):
            part = entry_ids[first : first + HAND_BACK_AT_ONCE]
            call = calls.hand_back(shard.keys, self._me.group, self._me.name, HAND_BACK_IDLE_MS, part, uncounted)
            await self._me.transport.send(call)

    def _has_ended(self, delivery: Delivery) -> bool:
        """Whether its acknowledgement waits."""
        return any(delivery in acks.waiting for acks in self._acks.values())

    async def _bury_cancelled(self, delivery: Delivery) -> None:
        entry, shard = delivery.entry, delivery.shard
        burial = _burial(entry, Buried(Reason.CANCELLED, "cancelled before its worker stopped or let it go"), None)
        with contextlib.suppress(GroupNotFound):
            await self._me.transport.send(
                calls.bury(shard.keys, self._me.group, self._me.name, entry, burial, shard.topic)
            )
        self.cancelled += 1
        logger.info("job %s of %s is not handed back, but buried: it was cancelled", entry.id, shard.keys.topic)
        self._drop([delivery])

    def _drop(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._me.held.drop(delivery)
            if delivery.turn_keeper is not None:
                delivery.turn_keeper.end(delivery)

    async def run(self) -> None:
        """Send acks until cancelled: at once after a quiet moment, else `ack_ms` after the last, or a full batch."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                acks = await self._new.get()
                of = acks.shard.keys.ready if acks.shard else "of many shards"
                tasks.create_task(self._run(acks), name=f"wheelq acks {of}")

    async def _run(self, acks: _Acks) -> None:
        async def step() -> None:
            await acks.any.wait()
            if not acks.enough.is_set():
                await self._me.clock.wait(acks.enough, acks.next_at - self._me.clock.monotonic())
            await self._send(acks)

        def what() -> str:
            return counted(len(acks.waiting), "ack waits", "acks wait")

        def is_over() -> bool:
            return acks.shard is not None and not acks.waiting and (acks.is_passing or acks.shard.is_gone)

        await Loop(self._me.clock, logger, what, FIRST_PAUSE).run(step, is_over=is_over)
        if acks.shard is not None:
            del self._acks[acks.shard]  # a job that ends later adds it again

    def leave(self, shard: ServedShard) -> None:
        """Let the acks of a shard that is gone end: what waits is sent, and nothing of it stays."""
        if acks := self._acks.get(shard):
            acks.any.set()
            acks.enough.set()

    async def flush(self) -> None:
        """Send all acks. Raises: ServerError; unanswered ones stay queued."""
        for is_shared in (True, False):  # in this order, because a shared call that fails leaves its acks to the others
            some = [acks for acks in self._acks.values() if (acks.shard is None) == is_shared]
            results = await asyncio.gather(*map(self._flush, some), return_exceptions=True)
            for result in results:
                if result is not None:
                    raise result

    async def _flush(self, acks: _Acks) -> None:
        while acks.waiting:
            await self._send(acks)

    async def _send(self, acks: _Acks) -> None:
        async with acks.sending:
            acks.enough.clear()
            held: list[Delivery] = []
            if batch := _sent_together(acks.waiting, self._me.settings.ack_batch):
                mine = self._mine(batch)
                held = await (self._send_shared(mine) if acks.shard is None else self._send_own(acks.shard, mine))
                acks.waiting[: len(batch)] = []
                acks.waiting += held  # behind those that have no followers, or fewer
                acks.next_at = self._me.clock.monotonic() + self._me.settings.ack_ms / 1000
            if not acks.waiting:
                acks.any.clear()
            elif len(acks.waiting) >= self._me.settings.ack_batch:
                acks.enough.set()
        if held:
            outgoing = held[0].shard.keys.outgoing
            raise Refused(f"{outgoing} has no room for the followers of {counted(len(held), 'job')}")

    def _mine(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """Returns those that this worker holds still; drops the others, which were given to other workers."""
        if self._interruptions != self._me.transport.interruptions:
            self._interruptions = self._me.transport.interruptions
            self._me.held.mistrust()
        mine = [delivery for delivery in batch if delivery in self._me.held]
        if len(mine) < len(batch):
            self._drop(delivery for delivery in batch if delivery not in self._me.held)
        return mine

    async def _send_own(self, shard: ServedShard, batch: list[Delivery]) -> list[Delivery]:
        """Send the acks of one shard; returns those whose followers have no room."""
        held: list[Delivery] = []
        if not batch:
            return held
        try:
            with self._span("ack", batch):
                held = await self._settle_all(shard, batch)
        except GroupNotFound:
            pass  # then the deliveries belong to no consumer
        self._drop([delivery for delivery in batch if delivery not in held])
        return held

    async def _send_shared(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """Send the acks of several shards; those that fail are left to calls of their own."""
        by_shard: dict[ServedShard, list[Delivery]] = {}
        for delivery in batch:
            by_shard.setdefault(delivery.shard, []).append(delivery)
        shards = list(by_shard)
        for first in range(0, len(shards), MOST_SHARDS):
            await self._send_some({shard: by_shard[shard] for shard in shards[first : first + MOST_SHARDS]})
        return []

    async def _send_some(self, by_shard: dict[ServedShard, list[Delivery]]) -> None:
        answers: Sequence[int | str] = ["no answer"] * len(by_shard)
        try:
            if len(by_shard) == 1:
                [(shard, batch)] = by_shard.items()
                await self._send_own(shard, batch)
                return
            acks = [self._acks_of(shard, batch) for shard, batch in by_shard.items()]
            answers = await self._me.transport.send(calls.ack_some(acks, self._me.group, self._me.name))
        except ServerError as error:
            logger.debug("the acks of %d shards are sent again, shard by shard: %s", len(by_shard), error)
        for (shard, batch), answer in zip(by_shard.items(), answers, strict=True):
            if isinstance(answer, int):
                self._drop(batch)
            else:
                self._leave_alone(shard, batch)

    def _leave_alone(self, shard: ServedShard, batch: list[Delivery]) -> None:
        acks = self._acks.get(shard) or self._add(shard, _Acks(shard, is_passing=True))
        acks.waiting += batch
        acks.any.set()
        acks.enough.set()

    async def _settle_all(self, shard: ServedShard, batch: list[Delivery]) -> list[Delivery]:
        """Acknowledges deliveries, and has their followers carried; returns those whose followers have no room."""
        topic = shard.topic
        if not (topic.keep_done_ms > 0 or _leave_something(batch)):
            keys, safe_until_ms, retention_ms, deliveries, dropped = self._acks_of(shard, batch)
            await self._me.transport.send(
                calls.ack(keys, self._me.group, self._me.name, safe_until_ms, retention_ms, deliveries, dropped)
            )
            return []
        batch, dropped = _dropped_last(batch)
        followers = [self._me.carrier.placed(one.notes.followers) if one.notes is not None else [] for one in batch]
        call = state.conclude(
            shard.keys,
            self._me.group,
            self._me.name,
            topic.retention_ms,
            topic.keep_done_ms,
            [_concluded(delivery) for delivery in batch],
            dropped,
            followers,
            _safe_until_ms(batch),
        )
        settled = await self._me.transport.send(call)
        if settled.outgoing:
            self._me.carrier.carry(shard.keys, settled.outgoing)
        return [batch[number] for number in settled.held]

    def _acks_of(self, shard: ServedShard, batch: list[Delivery]) -> calls.Acks:
        batch, dropped = _dropped_last(batch)
        deliveries = [(delivery.entry.entry_id, delivery.entry.member) for delivery in batch]
        return calls.Acks(shard.keys, _safe_until_ms(batch), shard.topic.retention_ms, deliveries, dropped)


def _safe_until_ms(batch: list[Delivery]) -> int:
    return min([delivery.safe_until_ms for delivery in batch])


def _dropped_last(batch: list[Delivery]) -> tuple[list[Delivery], int]:
    """Returns the deliveries, with those that were dropped at the end, and how many these are."""
    dropped = sum([delivery.is_dropped for delivery in batch])
    return (sorted(batch, key=attrgetter("is_dropped")) if dropped else batch), dropped


def _sent_together(waiting: Sequence[Delivery], most: int) -> list[Delivery]:
    """Returns the deliveries that one call settles: the first ones, with as many followers as it may have."""
    batch = list(waiting[:most])
    followers = size = 0
    for n, delivery in enumerate(batch):
        if delivery.notes is not None:
            followers += len(delivery.notes.followers)
            size += delivery.notes.size
            if n and (followers > MOST_IN_A_CALL or size > BYTES_IN_A_CALL):
                return batch[:n]
    return batch


def _leave_something(deliveries: Sequence[Delivery]) -> bool:
    """Whether the end of some takes more than an acknowledgement: they, or earlier runs, may have reported progress; or
    a bundle counts them."""
    return any(
        one.notes is not None or one.has_progress or one.is_redelivered or one.entry.attempt > 1 or _is_member(one)
        for one in deliveries
    )


def _is_member(delivery: Delivery) -> bool:
    return bundle_of(delivery.entry.record) is not None


def _concluded(delivery: Delivery) -> state.Concluded:
    entry, record, earlier = delivery.entry, b"", b""
    life = entry.record[codec.LIFE] if _is_member(delivery) else b""
    if not delivery.shard.topic.keep_done_ms > 0:
        return state.Concluded(entry.entry_id, entry.member, 0, b"", life=life)
    if delivery.returned is not None:
        delivery.result, delivery.returned = _packed_result(delivery, delivery.returned), None
    if entry.group is not None or entry.attempt > 1 or delivery.turn_keeper is not None:
        with contextlib.suppress(codec.UnreadableRecord):
            record = codec.original(entry.record)
            earlier = attempts.pack(codec.decode(entry.record).attempts)
    promoted_ms = int(entry.entry_id.partition("-")[0])  # by the server's clock, which this worker only estimates
    started_ms = max(int(delivery.started_ms), promoted_ms)
    concluded = entry.entry_id, entry.member, started_ms, delivery.result, record, earlier, entry.attempt, life
    return state.Concluded(*concluded)


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
