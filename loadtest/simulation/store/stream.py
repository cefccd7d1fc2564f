"""`Stream`: entries in order, consumer groups, and what is pending in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Id = tuple[int, int]
FIRST: Id = (0, 0)
LAST: Id = (2**64 - 1, 2**64 - 1)


def id_text(id: Id) -> bytes:
    """Returns an id as Redis writes it."""
    return b"%d-%d" % id


def parse_id(text: bytes, missing_sequence: int = 0) -> Id:
    """Returns an id from text, with or without a sequence. Raises: ValueError."""
    ms, dash, sequence = text.partition(b"-")
    return int(ms), int(sequence) if dash else missing_sequence


@dataclass(slots=True)
class Pending:
    """One delivery."""

    consumer: bytes
    delivered_ms: int
    deliveries: int


@dataclass(slots=True)
class Group:
    """A consumer group."""

    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    order: list[Id] = field(default_factory=list)
    """The ids of `pending`, sorted."""
    consumers: dict[bytes, list[int]] = field(default_factory=dict)
    """When each consumer was last seen, and when it last got an entry (-1: never)."""

    def deliver(self, id: Id, pending: Pending) -> None:
        """Make an entry pending."""
        if id not in self.pending:
            insort(self.order, id)
        self.pending[id] = pending

    def settle(self, id: Id) -> bool:
        """Remove a pending entry. Returns whether it was pending."""
        if self.pending.pop(id, None) is None:
            return False
        del self.order[bisect_left(self.order, id)]
        return True

    def between(self, first: Id, last: Id) -> Iterator[Id]:
        """The pending ids of a range."""
        return iter(self.order[bisect_left(self.order, first) : bisect_right(self.order, last)])

    def see(self, consumer: bytes, now_ms: int) -> list[int]:
        """Returns the consumer, and makes it if it is new."""
        found = self.consumers.setdefault(consumer, [now_ms, -1])
        found[0] = now_ms
        return found


class Stream:
    """Entries in order."""

    __slots__ = ("added", "entries", "groups", "has_gaps", "ids", "last")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.entries: dict[Id, Sequence[bytes]] = {}
        self.groups: dict[bytes, Group] = {}
        self.last: Id = FIRST
        self.added = 0
        self.has_gaps = False

    def __len__(self) -> int:
        return len(self.ids)

    def next_id(self, now_ms: int) -> Id:
        """Returns the id for `*`; after the clock was set back, it continues from the last one."""
        return (now_ms, 0) if now_ms > self.last[0] else (self.last[0], self.last[1] + 1)

    def add(self, id: Id, fields: Sequence[bytes]) -> None:
        """Append an entry, whose id must be greater than the last one."""
        self.ids.append(id)
        self.entries[id] = fields
        self.last = id
        self.added += 1

    def remove(self, id: Id) -> bool:
        """Delete an entry. Returns whether it was there."""
        if self.entries.pop(id, None) is None:
            return False
        place = bisect_left(self.ids, id)
        self.has_gaps = self.has_gaps or place > 0
        del self.ids[place]
        return True

    def remove_first(self, count: int) -> int:
        """Delete the oldest entries."""
        gone, self.ids = self.ids[:count], self.ids[count:]
        for id in gone:
            del self.entries[id]
        return len(gone)

    def before(self, id: Id) -> int:
        """Returns how many entries are older."""
        return bisect_left(self.ids, id)

    def between(self, first: Id, last: Id, limit: int = -1) -> list[Id]:
        """Returns the ids of a range, the oldest first."""
        start, end = bisect_left(self.ids, first), bisect_right(self.ids, last)
        return self.ids[start : end if limit < 0 else min(end, start + limit)]

    def after(self, id: Id, limit: int = -1) -> list[Id]:
        """Returns the ids after an id."""
        start = bisect_right(self.ids, id)
        return self.ids[start:] if limit < 0 else self.ids[start : start + limit]
