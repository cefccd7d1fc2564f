"""The timing wheel: holds ids until their tick has come, for about the cost of a dictionary entry.

A heap pays O(log n) to add and cannot cancel cheaply. A wheel puts ids that are due near each other into one *slot* and
separates them only when their time draws near. The digits of two numbers tell where an id goes.

Here is a wheel of 16 slots a turn, so that a hexadecimal digit is a level, at tick 000, with three ids:

    >>> wheel = Wheel(0x000, slots=16)
    >>> wheel.insert("a", 0x005)
    >>> wheel.insert("b", 0x02A)
    >>> wheel.insert("c", 0x2A7)

The first digit, from the left, in which `due` differs from `now` is the *level*, and `due` with the digits after it
set to zero is the *slot*: the first tick of the stretch of time that the slot stands for.

    now 000    level 0, 1 tick a slot    level 1, 16 ticks a slot    level 2, 256 ticks a slot
    ├─────────── 005 ──────────────────────── 020 ──────────────────────── 200 ──────────────────▶ ticks
                  a                            b                            c

When `now` reaches a slot, `now` and the ids in it agree in one more digit, so the ids not due at that very tick fall to
a lower level. This *cascade* is all that happens to an id between its insertion and its expiry:

    c, due 2A7:    level 2, slot 200  ──at 200──▶  level 1, slot 2A0  ──at 2A0──▶  level 0, slot 2A7  ──at 2A7──▶  out

    >>> while (tick := wheel.next_tick()) is not None:
    ...     print(f"{tick:03X}", [id for id, due in wheel.advance(tick)])
    005 ['a']
    020 []
    02A ['b']
    200 []
    2A0 []
    2A7 ['c']

A jump skips what lies between: `advance(0x2A7)` at the start empties three slots and cascades nothing.

**Where it comes from.** Varghese & Lauck, "Hashed and Hierarchical Timing Wheels" (1987); finding the level with one
exclusive-or is tokio's; keeping only the occupied slots in order, so that empty ticks cost nothing, is Kafka's.
Both have a fixed number of levels, each an array. Here a slot is named by its first tick. Every slot of a level comes
before every slot of the next, so one sorted list of these ticks serves all levels, as many as needed.

**Costs.** `insert` and `cancel` are O(1), plus a binary search among the occupied slots (at most 63 a level) when a
slot is added or removed. An id cascades at most once a level: 4 levels of 64 reach four hours, 7 reach a century in
milliseconds. The cost of `advance` depends on the ids it moves, not on the distance. With 100,000 ids over 60,000 ticks
the whole life of an id takes about 2 µs. A cascade moves a whole slot at once, at 0.3 µs an id: with very many ids that
tick is noticeable.

**Invariants** (asserted by `check`): every id is in the slot that its due tick and `now` determine, so no index of ids
is needed; no slot is empty; each slot begins after `now`, except the slots of ids inserted overdue, one for each due
tick. Hence ids with the same due tick always share a slot, in insertion order.

**Left to the caller.** The wheel reads no clock, does not sleep, and knows neither milliseconds nor jobs: the caller
decides what a tick is and when to call `advance`. It is not thread-safe, and forgets an id once it has expired.
"""

from collections import defaultdict
from operator import itemgetter

from sortedcontainers import SortedList

_by_due = itemgetter(1)
FEW = 8
"""So many ids `next_due` looks at."""


class Wheel:
    """Ids, each with the tick at which it is due; the module's docstring describes the structure.

    `now` is the tick to start from. `slots` is the number of slots in one turn of each level: a power of two, so that a
    digit is a group of bits. With 64 there are few levels, and each is short.

    Raises:
        ValueError: `now` is negative, or `slots` is not a power of two from 2 up.
    """

    __slots__ = ("_digit_bits", "_due_of", "_now", "_slots", "_starts")

    def __init__(self, now: int, *, slots: int = 64) -> None:
        if now < 0:
            raise ValueError(f"now must not be negative, got {now}")
        if slots < 2 or slots & (slots - 1):
            raise ValueError(f"slots must be a power of two, 2 or more, got {slots}")
        self._now = now
        self._digit_bits = slots.bit_length() - 1
        self._due_of: dict[str, int] = {}
        self._slots: dict[int, dict[str, int]] = {}  # first tick of the slot -> its ids, each with due
        self._starts: SortedList[int] = SortedList()  # these ticks; a SortedDict would cost 1.2 KB more in every shard

    @property
    def now(self) -> int:
        """The latest tick that the wheel has been advanced to."""
        return self._now

    def __len__(self) -> int:
        return len(self._due_of)

    def __contains__(self, id: object) -> bool:
        return id in self._due_of

    def due_of(self, id: str) -> int | None:
        """The tick at which `id` is due, None if the wheel does not hold it. O(1)."""
        return self._due_of.get(id)

    def insert(self, id: str, due: int) -> None:
        """Hold `id` until the tick `due`, however far away; if that is past, the next `advance` returns the id. O(1).

        An id that is already here moves to its new due tick, and counts as inserted now.
        """
        if id in self._due_of:
            self.cancel(id)
        self._due_of[id] = due
        start = self._slot_start(due)
        slot = self._slots.get(start)
        if slot is None:
            self._slots[start] = {id: due}
            self._starts.add(start)
        else:
            slot[id] = due

    def cancel(self, id: str) -> bool:
        """Forget `id`; False if the wheel does not hold it. O(1)."""
        due = self._due_of.pop(id, None)
        if due is None:
            return False
        start = self._slot_start(due)
        slot = self._slots[start]
        del slot[id]
        if not slot:
            del self._slots[start]
            self._starts.remove(start)
        return True

    def advance(self, now: int) -> list[tuple[str, int]]:
        """Move to the tick `now` and return all ids with due <= `now`, as (id, due), by due and then by insertion.

        The cost depends on the ids moved, not on the distance. Time never goes back: for a tick before the wheel's own,
        the wheel stays where it is, and returns only ids inserted overdue that are due by that tick.
        """
        expired: list[tuple[str, int]] = []
        cascaded: defaultdict[int, dict[str, int]] = defaultdict(dict)
        slots, starts, due_of = self._slots, self._starts, self._due_of
        self._now = max(now, self._now)  # first, because cascading ids are placed relative to the new tick
        while starts and starts[0] <= now:
            for id, due in slots.pop(starts.pop(0)).items():
                if due <= now:
                    del due_of[id]
                    expired.append((id, due))
                else:
                    cascaded[self._slot_start(due)][id] = due
        if cascaded:
            slots.update(cascaded)  # all are new slots: those below the cascading one were just emptied
            starts.update(cascaded)
        expired.sort(key=_by_due)  # stable and fast: only a jump into or over a wide slot leaves ids unsorted
        return expired

    def next_tick(self) -> int | None:
        """The earliest tick at which `advance` has work; None if the wheel is empty. O(1).

        It is never later than the earliest due tick, but may be earlier, if a cascade comes first. `advance` at this
        tick always makes progress: it expires ids or moves them at least one level down. For an id inserted overdue it
        is that id's due tick, which is in the past.
        """
        return self._starts[0] if self._starts else None

    def next_due(self) -> int | None:
        """The earliest due tick, or `next_tick` if many ids are in its slot; None if the wheel is empty. O(1).

        For callers to whom a look at a few ids costs less than waking for a cascade.
        """
        if not self._starts:
            return None
        start = self._starts[0]
        slot = self._slots[start]
        return min(slot.values()) if len(slot) <= FEW else start

    def check(self) -> None:
        """Assert the invariants. For tests: O(n)."""
        assert list(self._starts) == sorted(self._slots), "slots are in order"
        assert all(self._slots.values()), "no slot is empty"
        placed = [(id, due, start) for start, slot in self._slots.items() for id, due in slot.items()]
        assert len(placed) == len(self._due_of), "every id is in one slot"
        for id, due, start in placed:
            assert self._due_of.get(id) == due, f"{id} is due at {self._due_of.get(id)}, its slot says {due}"
            assert start == self._slot_start(due), f"{id}, due at {due}, is in slot {start} at {self._now}"
            assert self._now < start <= due or start == due, f"slot {start} should have cascaded by {self._now}"

    def _slot_start(self, due: int) -> int:
        """The slot of `due` at `now`: `due` with all digits after the first that differs set to zero."""
        if due <= self._now:
            return due
        level = ((due ^ self._now).bit_length() - 1) // self._digit_bits
        low_bits = level * self._digit_bits
        return due >> low_bits << low_bits
