"""Counts lateness without keeping every value.

`Histogram` has buckets that grow by an eighth (nearly two significant digits), so a percentile is accurate within an
eighth for any number of values; below 16 ms a bucket is one millisecond wide.
The idea is Gil Tene's HdrHistogram.

`Lateness` is counted by a script in powers of two, and is small enough to travel with every promotion and heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

_SUB_BITS = 3  # 8 buckets for each doubling


class Histogram:
    """Counts of values in whole milliseconds, 0 or more."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.max_ms = 0

    def add(self, value_ms: float) -> None:
        """Count one value; negative ones count as 0."""
        whole = max(0, int(value_ms))
        self._counts[_bucket(whole)] += 1
        self.count += 1
        self.max_ms = max(self.max_ms, whole)

    def add_all(self, values_ms: Iterable[float]) -> None:
        """Count many values: cheaper than one by one, because many are the same in whole milliseconds."""
        for value_ms, count in Counter(map(int, values_ms)).items():
            whole = max(0, value_ms)
            self._counts[_bucket(whole)] += count
            self.count += count
            self.max_ms = max(self.max_ms, whole)

    def percentile(self, share: float) -> int:
        """The value that a `share` (0 to 1) of all values do not exceed; the upper edge of its bucket. 0 when empty."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_upper_edge(bucket), self.max_ms)
        return 0

    def rows(self) -> Iterable[tuple[int, int]]:
        """The upper edge in milliseconds and the count of every bucket that is not empty, in order."""
        return [(_upper_edge(bucket), self._counts[bucket]) for bucket in sorted(self._counts)]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late jobs were, counted by powers of two. The sum of two is the lateness of all their jobs."""

    total_ms: int = 0
    """The lateness of all jobs added up, each rounded down to whole milliseconds."""
    counts: tuple[int, ...] = ()
    """At index n: how many jobs were less than 2**n ms late and are not counted at a lower index."""

    @property
    def jobs(self) -> int:
        """How many jobs were counted."""
        return sum(self.counts)

    def __add__(self, other: Lateness) -> Lateness:
        counts = tuple(map(sum, zip_longest(self.counts, other.counts, fillvalue=0)))
        return Lateness(self.total_ms + other.total_ms, counts)

    def percentile(self, share: float) -> int:
        """The power of two, in ms, that the lateness of a `share` (0 to 1) of the jobs is below; 0 without jobs."""
        seen = 0
        for place, count in enumerate(self.counts):
            seen += count
            if seen >= share * self.jobs:
                return 1 << place
        return 0


def _bucket(value: int) -> int:
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return (shift << _SUB_BITS) + (value >> shift)


def _upper_edge(bucket: int) -> int:
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS) + 1) << shift) - 1
