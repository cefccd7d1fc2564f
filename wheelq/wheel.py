"""The timing wheel: holds ids until their tick has come, for about the cost of a dictionary entry.

A heap pays O(log n) to add and cannot cancel cheaply. A wheel puts ids that are due near each other into one *slot*
and sorts them out only when their time draws near. Where to put an id is read off the digits of two numbers.

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

When `now` reaches a slot, `now` and the ids in it agree in one digit more, so those not due at that very tick fall to
a lower level. This is the *cascade*, and it is all that happens between being inserted and expiring:

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
Those have a fixed number of levels, each an array. Here a slot is named by its first tick, and as every slot of a level
comes before every slot of the next, one sorted dictionary holds them all, and there are as many levels as it takes.

**Costs.** `insert` and `cancel` are O(1), plus a binary search among the occupied slots, at most 63 a level, when one
comes or goes. An id cascades at most once a level: 4 levels of 64 reach four hours, 7 reach a century in milliseconds.
`advance` costs what it moves, whatever the distance. With 100,000 ids over 60,000 ticks the whole life of an id takes
about 2 µs. A cascade moves a whole slot at once, at 0.3 µs an id: whoever holds very many ids will notice that tick.

**True at rest** (`check` asserts it): every id is in the one slot that its due tick and `now` name, so nothing needs to
remember where an id is; no slot is empty; each slot begins after `now`, except those of ids that were inserted
overdue: they have a slot for each due tick. Hence ids with the same due tick always share a slot, in insertion order.

**What it leaves to others.** It reads no clock, does not sleep, and knows neither milliseconds nor jobs: what a tick
is, and when to call `advance`, is the driver's. It is not thread-safe, and forgets an id once it has expired.
"""

from collections import defaultdict
from operator import itemgetter

from sortedcontainers import SortedDict

_by_due = itemgetter(1)


class Wheel:
    """Ids, each with the tick it is due at; see the module for how they are kept.

    `now` is the tick to start from, and `slots` the slots in one turn of each level: a power of two, so that a digit
    is a group of bits. 64 gives few levels and short ones.

    Raises:
        ValueError: `now` is negative, or `slots` is not a power of two from 2 up.
    """

    __slots__ = ("_digit_bits", "_due_of", "_now", "_slots")

    def __init__(self, now: int, *, slots: int = 64) -> None:
        if now < 0:
            raise ValueError(f"now must not be negative, got {now}")
        if slots < 2 or slots & (slots - 1):
            raise ValueError(f"slots must be a power of two, 2 or more, got {slots}")
        self._now = now
        self._digit_bits = slots.bit_length() - 1
        self._due_of: dict[str, int] = {}
        self._slots: SortedDict[int, dict[str, int]] = SortedDict()  # first tick of the slot -> its ids, each with due

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
        """Hold `id` until the tick `due`, however far away; if it is past, the next `advance` hands the id out. O(1).

        An id that is already here moves to its new due tick, and counts as inserted now.
        """
        if id in self._due_of:
            self.cancel(id)
        self._due_of[id] = due
        start = self._slot_start(due)
        slot: dict[str, int] | None = self._slots.get(start)
        if slot is None:
            self._slots[start] = {id: due}
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
        return True

    def advance(self, now: int) -> list[tuple[str, int]]:
        """Move to the tick `now` and hand out all with due <= `now`, as (id, due), by due and then by insertion.

        Costs what it moves, not how far it goes. Time never goes back: for a tick before the wheel's own, the wheel
        stays where it is, and only ids that were inserted overdue, and are due at that tick too, come out.
        """
        expired: list[tuple[str, int]] = []
        cascaded: defaultdict[int, dict[str, int]] = defaultdict(dict)
        slots, due_of = self._slots, self._due_of
        self._now = max(now, self._now)  # first, because what cascades is placed as seen from the new tick
        while slots and slots.peekitem(0)[0] <= now:
            _, slot = slots.popitem(0)
            for id, due in slot.items():
                if due <= now:
                    del due_of[id]
                    expired.append((id, due))
                else:
                    cascaded[self._slot_start(due)][id] = due
        if cascaded:
            slots.update(cascaded)  # all are new slots: what was below the one that cascades has just been emptied
        expired.sort(key=_by_due)  # stable, and quick: only a jump into or over a wide slot leaves anything to sort
        return expired

    def next_tick(self) -> int | None:
        """The earliest tick at which `advance` has something to do; None when the wheel is empty. O(1).

        It is never later than the earliest due tick, but may be earlier, when the first thing to do is a cascade.
        `advance` at this tick always makes progress: it expires ids or brings them at least a level lower.
        For an id inserted overdue it is that id's due tick, which lies in the past.
        """
        if not self._slots:
            return None
        start: int = self._slots.peekitem(0)[0]
        return start

    def check(self) -> None:
        """Assert what is true at rest. For tests: O(n)."""
        starts = list(self._slots)
        assert starts == sorted(set(starts)), "slots are in order"
        assert all(self._slots.values()), "no slot is empty"
        placed = [(id, due, start) for start, slot in self._slots.items() for id, due in slot.items()]
        assert len(placed) == len(self._due_of), "every id is in one slot"
        for id, due, start in placed:
            assert self._due_of.get(id) == due, f"{id} is due at {self._due_of.get(id)}, its slot says {due}"
            assert start == self._slot_start(due), f"{id}, due at {due}, is in slot {start} at {self._now}"
            assert self._now < start <= due or start == due, f"slot {start} should have cascaded by {self._now}"

    def _slot_start(self, due: int) -> int:
        """The slot of `due` as seen from `now`: `due` with all digits after the first that differs set to zero."""
        if due <= self._now:
            return due
        level = ((due ^ self._now).bit_length() - 1) // self._digit_bits
        low_bits = level * self._digit_bits
        return due >> low_bits << low_bits
