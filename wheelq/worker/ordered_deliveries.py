"""The deliveries of one shard that runs in order: each starts in its turn, and keeps its place when it failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import order as calls
from wheelq.protocol.calls.worker import Entry
from wheelq.worker.course import Course
from wheelq.worker.ground import Ground
from wheelq.worker.held import Delivery, Line
from wheelq.worker.pool import Pool
from wheelq.worker.sequence import Rank, Sequence

PATIENCE = 1.0
"""Seconds that ready jobs wait for one that is overdue and not promoted."""
ONE_KEY = ""


class OrderedDeliveries:
    """What is held of one shard, and its order. It is the `Order` of each delivery."""

    def __init__(
        self,
        line: Line,
        ground: Ground,
        course: Course,
        pool: Pool[Delivery],
        may_begin: Callable[[], bool],
        tell_end: Callable[[], None],
    ) -> None:
        """`may_begin()` is asked before any starts; `tell_end()` is called when one has ended."""
        self.overdue_ms: int | None = None
        """Due time of the first job that is overdue and not promoted, as last read; None: there is none."""
        self.finished: list[str] = []
        """Entry ids of those that had been put off and have ended, which Redis is still to be told."""
        self._line = line
        self._ground = ground
        self._course = course
        self._pool = pool
        self._may_begin = may_begin
        self._tell_end = tell_end
        self._sequence: Sequence[Delivery] = Sequence()
        self._overdue_since = 0.0
        self._put_off: set[str] = set()
        self._cancel_timer: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return len(self._sequence)

    @property
    def is_running(self) -> bool:
        """Whether any has begun and not ended."""
        return self._sequence.is_running

    def wait_for(self, overdue_ms: int | None) -> None:
        """A job due then is overdue and not promoted: those due after it wait a while."""
        if overdue_ms != self.overdue_ms:
            self._overdue_since = self._ground.clock.monotonic()
        self.overdue_ms = overdue_ms

    def add(self, delivery: Delivery, put_off: calls.PutOff | None) -> None:
        """Give a delivery its place; `put_off`: it failed before, and has kept this."""
        ground, entry = self._ground, delivery.entry
        if entry.group is not None and entry.group != ground.group:  # a retry that concerns another group
            ground.settler.done(delivery)
            return
        delivery.order = self
        rank = _rank(entry)
        if put_off is not None:
            self._put_off.add(entry.entry_id)
            delivery.entry = _next_run(entry, put_off.due_ms, put_off.record)
        key = _key(entry) if self._course.is_by_key else ONE_KEY
        self._sequence.add(delivery, key, rank, put_off.due_ms if put_off else 0)

    def give_up(self) -> list[Delivery]:
        """Forget those that have not begun; which they are."""
        return self._sequence.give_up()

    def advance(self) -> None:
        """Start what may start."""
        if not self._may_begin():
            return
        ground = self._ground
        now, now_ms = ground.clock.monotonic(), ground.server.now_ms()
        overdue_ms = self.overdue_ms if now - self._overdue_since < PATIENCE else None
        held = ground.held.of(self._line)
        while started := self._sequence.start(now_ms, overdue_ms, self._pool.free):
            for delivery in started:
                if delivery.entry.entry_id in held:
                    self._pool.add([delivery])
                else:  # it was given to another worker meanwhile
                    self._sequence.end(delivery)
        next_ms = self._sequence.next_ms(now_ms)
        self._cancel_timer()
        if next_ms is not None:
            self._cancel_timer = ground.clock.call_at(now + max(0.001, (next_ms - now_ms) / 1000), self.advance)

    def stop(self) -> None:
        """Set no timer off any more."""
        self._cancel_timer()

    def next_ms(self) -> int | None:
        """When the first job that failed runs again."""
        return self._sequence.next_ms(self._ground.server.now_ms())

    def put_off(self, delivery: Delivery, pause_ms: int, record: bytes) -> Call[int]:
        """See `Order`."""
        ground = self._ground
        return calls.put_off(self._line.keys, ground.group, ground.consumer, delivery.entry.entry_id, pause_ms, record)

    def again(self, delivery: Delivery, record: bytes, due_ms: int) -> None:
        """See `Order`."""
        delivery.entry = _next_run(delivery.entry, due_ms, record)
        self._put_off.add(delivery.entry.entry_id)
        self._sequence.again(delivery, due_ms)
        self.advance()

    def end(self, delivery: Delivery) -> None:
        """See `Order`."""
        entry_id = delivery.entry.entry_id
        if entry_id in self._put_off:
            self._put_off.discard(entry_id)
            self.finished.append(entry_id)
        self._sequence.end(delivery)
        self._tell_end()
        self.advance()


def _key(entry: Entry) -> str:
    """The key a job is ordered by; one without a partition key is alone with its own."""
    with contextlib.suppress(codec.UnreadableRecord):
        if (key := codec.decode(entry.record).partition_key) is not None:
            return key
    return f"\x1f{entry.id}"


def _next_run(entry: Entry, due_ms: int, record: bytes) -> Entry:
    return entry._replace(due_ms=due_ms, record=record, attempt=record[1])


def _rank(entry: Entry) -> Rank:
    ms, _, sequence = entry.entry_id.partition("-")
    return (entry.due_ms, int(ms), int(sequence))


def _nothing() -> None:
    """No timer runs."""
