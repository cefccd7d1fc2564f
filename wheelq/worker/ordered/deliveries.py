"""The deliveries of one shard that runs in order: each starts in its turn, and keeps its place after a failure.

`Sequence`, which is pure, tells which of them may start, so that those of one key run one at a time and in order:

    key A   ▶ a1   a2  a3      a1 runs: a2 and a3 wait for it
    key B   ◷ b1   b2          b1 failed and waits for its next run: b2 waits behind it
    key C     c1   c2          c1 may start

With a single key this is a queue that runs one at a time. Between calls each key is either running one delivery, or
*open*: its first one may start as soon as its time has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import insort
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import order as calls
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.calls.worker import Entry
from wheelq.reminders import Loop
from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.places import SharedPlaces
from wheelq.worker.delivery.pool import Pool

logger = logging.getLogger("wheelq.worker")

PATIENCE = 1.0
"""How many seconds ready jobs wait for an overdue job that is not promoted."""
ONE_KEY = ""
READ_AHEAD = 100
"""How many deliveries of a shard are held if it runs one at a time."""
READ_AHEAD_BY_KEY = 1_000
"""How many are held if the shard runs by key. If so many wait behind busy keys, all other keys wait too."""


@dataclass(slots=True, eq=False)
class OrderedState:
    """The state that the shards of one ordered lane share."""

    parts: WorkerParts
    pool: Pool[Delivery] | LimitedRuns
    places: SharedPlaces
    regroup: Regroup
    is_by_key: bool
    handle: Callable[[Delivery, asyncio.Task[None]], Coroutine[Any, Any, None]]
    """Runs and settles one delivery."""
    advance: Callable[[], None]
    """Starts the deliveries of all shards of the lane whose turn it is."""
    lacks_places: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a delivery could start if a place were free."""
    started: int = 0
    running: int = 0
    """How many deliveries are in the pool."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one of them has left it."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    holds: int = 0
    """How many of the shards are held."""
    next_pass_at: float = 0.0
    """The earliest time at which the next shard may be passed on, by the monotonic clock."""

    @property
    def read_ahead(self) -> int:
        """The most deliveries held of a shard."""
        return READ_AHEAD_BY_KEY if self.is_by_key else READ_AHEAD


class OrderedDeliveries:
    """The held deliveries of one shard, in order. It is the `TurnKeeper` of each."""

    def __init__(
        self,
        shard: ServedShard,
        state: OrderedState,
        may_begin: Callable[[], bool],
        tell_end: Callable[[], None],
    ) -> None:
        """`may_begin()` is asked before each start; `tell_end()` is called when one has ended, or runs again later."""
        self.overdue_ms: int | None = None
        """The due time of the first overdue job that is not promoted, as last read; None if there is none."""
        self.finished: list[str] = []
        """Entry ids of postponed deliveries that have ended, which Redis does not know yet."""
        self._shard = shard
        self._parts = state.parts
        self._state = state
        self._lacks_since = float("inf")  # a place, by the monotonic clock
        self._may_begin = may_begin
        self._tell_end = tell_end
        self._sequence: Sequence[Delivery] = Sequence()
        self._overdue_since = 0.0
        self._put_off: set[str] = set()
        self._cancel_timer: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._sequence)

    @property
    def is_running(self) -> bool:
        return self._sequence.is_running

    @property
    def lacks_for_s(self) -> float:
        """For how many seconds some could have started if a place had been free; at most 0 if none could."""
        return self._parts.clock.monotonic() - self._lacks_since

    def wait_for(self, overdue_ms: int | None) -> None:
        """Make jobs due later than `overdue_ms` wait a while for an overdue job that is not promoted."""
        if overdue_ms != self.overdue_ms:
            self._overdue_since = self._parts.clock.monotonic()
        self.overdue_ms = overdue_ms

    def add(self, delivery: Delivery, put_off: calls.PutOff | None) -> None:
        """Give a delivery its place; `put_off` is its next due time and record, if it failed before."""
        parts, entry = self._parts, delivery.entry
        if entry.group is not None and entry.group != parts.group:  # a retry that concerns another group
            parts.settler.done(delivery)
            return
        delivery.turn_keeper = self
        rank = _rank(entry)
        if put_off is not None:
            self._put_off.add(entry.entry_id)
            delivery.entry = _next_run(entry, put_off.due_ms, put_off.record)
        key = _key(entry) if self._state.is_by_key else ONE_KEY
        self._sequence.add(delivery, key, rank, put_off.due_ms if put_off and self._is_put_off(delivery) else 0)

    def give_up(self) -> list[Delivery]:
        """Remove and return the deliveries that have not started or wait for their next run."""
        waiting = self._sequence.give_up()
        self._put_off.difference_update(one.entry.entry_id for one in waiting if not one.is_cancelled)  # else see `end`
        return waiting

    async def run(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        state = self._state
        state.started += 1
        try:
            await self._parts.ending.finish(partial(self._prepare, delivery))
            if self.may_run(delivery):  # else this worker was frozen after the delivery was chosen
                try:
                    await state.handle(delivery, task)
                finally:  # not before, because no other suspect may start before one whose start was counted has run
                    self._parts.recovery.ended(delivery)
        finally:
            state.running -= 1
            state.ended.set()
            asyncio.get_running_loop().call_soon(state.advance)  # its place is free after this coroutine

    async def _prepare(self, delivery: Delivery) -> None:
        """Wait until a delivery is due, and count the first start of one that was taken over: most only wait here."""
        await self.until_due(delivery)
        if self._is_first_start(delivery) and not delivery.is_counted and not self._must_wait(delivery):
            asking = Loop(self._parts.clock, logger, f"the start of job {delivery.entry.id} waits")
            await asking.insist(partial(self._parts.recovery.count, delivery))
            delivery.is_counted = True

    def _is_first_start(self, delivery: Delivery) -> bool:
        return delivery.is_redelivered and not delivery.run and not delivery.is_cancelled

    def _must_wait(self, delivery: Delivery) -> bool:
        return self._parts.recovery.is_second_suspect(delivery, delivery.entry.deliveries + 1)

    async def until_due(self, delivery: Delivery) -> None:
        """Wait until a postponed delivery is due by the server's clock, which this worker only estimates.

        Also renews it. Returns at once if it was not postponed, or is cancelled.
        """
        parts, entry = self._parts, delivery.entry
        if not self._is_put_off(delivery):
            return

        async def left() -> float:
            call = worker_calls.keep(self._shard.keys, parts.group, parts.name, [entry.entry_id])
            server_us, _ = await parts.transport.send(call)
            return entry.due_ms / 1000 - server_us / 1e6

        asking = Loop(parts.clock, logger, f"the next run of job {entry.id} waits")
        while self._is_put_off(delivery) and (pause := await asking.attempt(left)) > 0:
            await parts.clock.sleep(min(pause, parts.settings.renew_ms / 1000))  # the server's clock may be stepped

    def _is_put_off(self, delivery: Delivery) -> bool:
        return delivery.entry.entry_id in self._put_off and not delivery.is_cancelled

    def advance(self, reserved: int | None = None) -> int:
        """Start the deliveries whose turn it is, in free places, or in reserved ones. Returns how many started."""
        if not self._may_begin():
            self._lacks_since = float("inf")
            return 0
        parts, state, begun = self._parts, self._state, 0
        most = state.places.spare if reserved is None else reserved
        if most <= 0 and state.lacks_places.is_set():  # the lane has queued up, and looks at all its shards then
            return 0
        now, now_ms = parts.clock.monotonic(), parts.server.now_ms()
        overdue_ms = self.overdue_ms if now - self._overdue_since < PATIENCE else None
        while started := self._sequence.start(now_ms, overdue_ms, most - begun):
            for delivery in started:
                if delivery in parts.held:
                    state.pool.add([delivery])
                    begun += 1
                else:  # another worker has taken it meanwhile, or it was delivered here once more
                    self._sequence.end(delivery)
        state.running += begun
        if not self._sequence.lacks_room:
            self._lacks_since = float("inf")
        else:
            self._lacks_since = now if begun else min(self._lacks_since, now)
            state.lacks_places.set()
        next_ms = self._sequence.next_ms(now_ms)
        self._cancel_timer()
        if next_ms is not None:
            self._cancel_timer = parts.clock.call_at(now + max(0.001, (next_ms - now_ms) / 1000), self.advance)
        return begun

    def may_run(self, delivery: Delivery) -> bool:
        if delivery not in self._parts.held:
            self._sequence.end(delivery)
            return False
        if not self._may_begin():
            self._sequence.again(delivery, 0)
            return False
        if self._is_first_start(delivery) and self._must_wait(delivery):
            self._sequence.again(delivery, int(self._parts.server.now_ms()) + self._parts.settings.renew_ms)
            return False
        return True

    def stop(self) -> None:
        self._cancel_timer()

    def next_ms(self) -> int | None:
        """When the first failed job runs again."""
        return self._sequence.next_ms(self._parts.server.now_ms())

    def put_off(self, delivery: Delivery, pause_ms: int, record: bytes, counted: worker_calls.Counted) -> Call[int]:
        parts = self._parts
        return calls.put_off(self._shard.keys, parts.group, parts.name, delivery.entry, pause_ms, record, counted)

    def again(self, delivery: Delivery, record: bytes, due_ms: int) -> None:
        delivery.entry = _next_run(delivery.entry, due_ms, record)
        self._put_off.add(delivery.entry.entry_id)
        self._sequence.again(delivery, 0 if delivery.is_cancelled else due_ms)
        self._tell_end()
        self.advance()

    def hasten(self, delivery: Delivery) -> None:
        self._sequence.hasten(delivery)
        self.advance()

    def end(self, delivery: Delivery) -> None:
        entry_id = delivery.entry.entry_id
        if entry_id in self._put_off:
            self._put_off.discard(entry_id)
            self.finished.append(entry_id)
        self._sequence.end(delivery)
        self._tell_end()
        self.advance()


def _key(entry: Entry) -> str:
    """Returns the key that orders a job; without a partition key it is the job's id."""
    with contextlib.suppress(codec.UnreadableRecord):
        if (key := codec.decode(entry.record).partition_key) is not None:
            return key
    return f"\x1f{entry.id}"


def _next_run(entry: Entry, due_ms: int, record: bytes) -> Entry:
    return entry._replace(due_ms=due_ms, record=record, attempt=codec.attempt_of(record))


def _rank(entry: Entry) -> Rank:
    ms, _, sequence = entry.entry_id.partition("-")
    return (entry.due_ms, int(ms), int(sequence))


T = TypeVar("T", bound=Hashable)
Rank = tuple[int, int, int]
"""Due time, then the two numbers of the entry id: deliveries of one key run in this order."""


@dataclass(slots=True, eq=False)
class _Turn(Generic[T]):
    item: T
    key: str
    rank: Rank
    not_before_ms: int


class Sequence(Generic[T]):
    """Deliveries by key, each key in order."""

    def __init__(self) -> None:
        self._places: dict[T, _Turn[T]] = {}
        self._waiting: dict[str, list[_Turn[T]]] = {}
        self._running: dict[str, _Turn[T]] = {}
        self.lacks_room = False
        """Whether the last `start` found more deliveries than `most`."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_running(self) -> bool:
        """Whether any delivery has started and not ended."""
        return bool(self._running)

    def add(self, item: T, key: str, rank: Rank, not_before_ms: int = 0) -> None:
        """Add a delivery in its place."""
        self._enqueue(_Turn(item, key, rank, not_before_ms))

    def start(self, now_ms: float, overdue_ms: int | None, most: int) -> list[T]:
        """Returns up to `most` deliveries that may start now, one of each key; they count as running.

        `overdue_ms`: a job with this due time is still to come, and later ones wait for it.
        """
        heads = [queue[0] for key, queue in self._waiting.items() if key not in self._running]
        may_start = [
            head
            for head in heads
            if head.not_before_ms <= now_ms and (overdue_ms is None or head.rank[0] <= overdue_ms)
        ]
        may_start.sort(key=_turn_rank)
        started = may_start[: max(0, most)]
        self.lacks_room = len(started) < len(may_start)
        for place in started:
            self._dequeue(place)
            self._running[place.key] = place
        return [place.item for place in started]

    def end(self, item: T) -> None:
        """Remove a delivery that has ended: the next one of its key may start."""
        place = self._places.pop(item, None)
        if place is not None and self._running.get(place.key) is place:
            del self._running[place.key]

    def again(self, item: T, not_before_ms: int) -> None:
        """Return a failed delivery to its place; it may start again at `not_before_ms`."""
        place = self._places[item]
        del self._running[place.key]
        self._enqueue(_Turn(item, place.key, place.rank, not_before_ms))

    def hasten(self, item: T) -> None:
        """Let a delivery start as soon as it is its turn."""
        if (place := self._places.get(item)) is not None:
            place.not_before_ms = 0

    def next_ms(self, now_ms: float) -> int | None:
        """When the first delivery that waits for its time may start; None if none does."""
        times = [queue[0].not_before_ms for key, queue in self._waiting.items() if key not in self._running]
        return min((time for time in times if time > now_ms), default=None)

    def give_up(self) -> list[T]:
        """Remove and return all waiting deliveries."""
        waiting = [place.item for queue in self._waiting.values() for place in queue]
        self._waiting.clear()
        for item in waiting:
            del self._places[item]
        return waiting

    def _enqueue(self, place: _Turn[T]) -> None:
        self._places[place.item] = place
        insort(self._waiting.setdefault(place.key, []), place, key=_turn_rank)

    def _dequeue(self, place: _Turn[T]) -> None:
        queue = self._waiting[place.key]
        del queue[0]
        if not queue:
            del self._waiting[place.key]


def _turn_rank(place: _Turn[T]) -> Rank:
    return place.rank
