"""`SortedSet`: members by score, and by bytes where scores are equal."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

_LAST = b"\xff" * 300
"""Sorts after every member."""


class SortedSet:
    """A dict for the scores, and a sorted list of (score, member)."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def put(self, member: bytes, score: float) -> bool:
        """Add or move a member. Returns whether it is new."""
        before = self.scores.get(member)
        if before is not None:
            if before == score:
                return False
            self._take_out(before, member)
        self.scores[member] = score
        insort(self.order, (score, member))
        return before is None

    def remove(self, member: bytes) -> bool:
        """Remove a member. Returns whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._take_out(score, member)
        return True

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[float, bytes]]:
        """Yields the members from score `low` to `high`, as Redis writes them: `(5` is exclusive."""
        first, last = self._bounds(low, high)
        return iter(self.order[first:last])

    def count(self, low: bytes, high: bytes) -> int:
        """Returns the number of members between two scores."""
        first, last = self._bounds(low, high)
        return max(last - first, 0)

    def named(self, low: bytes, high: bytes) -> list[bytes]:
        """Returns the members between two, as Redis writes them: `(a`, `[a`, `-` or `+`. All must have one score."""
        score = self.order[0][0] if self.order else 0.0

        def place(edge: bytes, *, is_low: bool) -> int:
            if edge in (b"-", b"+"):
                return 0 if edge == b"-" else len(self.order)
            is_behind = (edge[:1] == b"(") == is_low
            return (bisect_right if is_behind else bisect_left)(self.order, (score, edge[1:]))

        return [member for _, member in self.order[place(low, is_low=True) : place(high, is_low=False)]]

    def _bounds(self, low: bytes, high: bytes) -> tuple[int, int]:
        if low[:1] == b"(":
            first = bisect_right(self.order, (float(low[1:]), _LAST))
        else:
            first = bisect_left(self.order, (float(low), b""))
        if high[:1] == b"(":
            last = bisect_left(self.order, (float(high[1:]), b""))
        else:
            last = bisect_right(self.order, (float(high), _LAST))
        return first, last

    def _take_out(self, score: float, member: bytes) -> None:
        place = bisect_left(self.order, (score, member))
        del self.order[place]
