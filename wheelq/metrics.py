"""Counting lateness without keeping every value.

`Histogram` has buckets that grow by an eighth (two significant digits, nearly), so that a percentile is right within an
eighth however many values went in; below 16 ms a bucket is one millisecond wide.
The idea is Gil Tene's HdrHistogram.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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


def _bucket(value: int) -> int:
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return (shift << _SUB_BITS) + (value >> shift)


def _upper_edge(bucket: int) -> int:
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS) + 1) << shift) - 1
