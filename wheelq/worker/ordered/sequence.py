"""`Sequence`: which deliveries of a shard may start, so that those of one key run one at a time and in order. Pure.

    key A   ▶ a1   a2  a3      a1 runs: a2 and a3 wait for it
    key B   ◷ b1   b2          b1 failed and waits for its next run: b2 waits behind it
    key C     c1   c2          c1 may start

With a single key this is a queue that runs one at a time. Between calls each key is either running one delivery, or
*open*: its first one may start as soon as its time has come.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

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
        if most <= 0 or not self._waiting:
            return []
        heads = [queue[0] for key, queue in self._waiting.items() if key not in self._running]
        may_start = [
            head
            for head in heads
            if head.not_before_ms <= now_ms and (overdue_ms is None or head.rank[0] <= overdue_ms)
        ]
        may_start.sort(key=_rank)
        started = may_start[:most]
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
        insort(self._waiting.setdefault(place.key, []), place, key=_rank)

    def _dequeue(self, place: _Turn[T]) -> None:
        queue = self._waiting[place.key]
        del queue[0]
        if not queue:
            del self._waiting[place.key]


def _rank(place: _Turn[T]) -> Rank:
    return place.rank
