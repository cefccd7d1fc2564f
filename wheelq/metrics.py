"""Counting lateness without keeping every value.

`Histogram` has buckets that grow by an eighth (two significant digits, nearly), so that a percentile is right within an
eighth however many values went in; below 16 ms a bucket is one millisecond wide.
The idea is Gil Tene's HdrHistogram.

`Lateness` is what a script counts: by powers of two, small enough to be told with every promotion and heartbeat.
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
        """Upper edge in milliseconds and count of every bucket that holds something, in order."""
        return [(_upper_edge(bucket), self._counts[bucket]) for bucket in sorted(self._counts)]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late jobs were: counts by powers of two. Adding two gives that of all their jobs."""

    total_ms: int = 0
    """Of all jobs together; of each, whole milliseconds rounded down."""
    counts: tuple[int, ...] = ()
    """At place n the jobs that were less than 2**n ms late, and are not counted before."""

    @property
    def jobs(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def __add__(self, other: Lateness) -> Lateness:
        counts = tuple(map(sum, zip_longest(self.counts, other.counts, fillvalue=0)))
        return Lateness(self.total_ms + other.total_ms, counts)

    def percentile(self, share: float) -> int:
        """A bound in ms, less than which a `share` (0 to 1) of the jobs were late: a power of two. 0 without jobs."""
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
