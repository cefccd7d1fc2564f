"""Counts lateness and durations without keeping every value.

`Histogram` has buckets that grow by an eighth (nearly two significant digits), so a percentile is accurate within an
eighth for any number of values; below 16 ms a bucket is one millisecond wide.
The idea is Gil Tene's HdrHistogram.

`Lateness` is counted by a script in powers of two, and is small enough to travel with every promotion and heartbeat.

`Observations` are durations that one process measures, added up until they can be sent. They are sent as numbered
increments. Until Redis confirms a number, the same increments are sent again under it, and later ones wait. So each
increment counts once, even when a reply is lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice, zip_longest

_SUB_BITS = 3  # 8 buckets for each doubling


class Histogram:
    """Counts of values in whole milliseconds, 0 or more."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        """How many values were recorded."""
        self.max_ms = 0
        """The largest of them, in milliseconds."""

    def add_all(self, values_ms: Iterable[float]) -> None:
        """Count values; negative ones count as 0. Cheap, because many are the same in whole milliseconds."""
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
        if not (other.counts or other.total_ms):
            return self
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


class Measured(StrEnum):
    """The kinds of durations that are measured."""

    PROMOTION = "promotion"
    """From a job's due time to its promotion."""
    HELD_BACK = "held_back"
    """From a job's due time to its promotion, if its partition key was at its limit."""
    START = "start"
    """From the due time of a run to the start of its handler."""
    HANDLER = "handler"
    """How long a handler ran."""


LATENESS_BOUNDS = tuple((1 << n) / 1000 for n in range(17))
"""Seconds: .001, .002, .004 … 65.5."""
HANDLER_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
BOUNDS = {kind: HANDLER_BOUNDS if kind is Measured.HANDLER else LATENESS_BOUNDS for kind in Measured}

Series = tuple[Measured, str, str]
"""The kind of duration, the topic, and the group; "" if there is no group."""
Increments = dict[Series, list[int]]
"""For each series the sum in microseconds, then how many values lay up to each bound, and above the last."""

MOST_AT_ONCE = 100
"""The most series that are sent at once, which take about 2 ms of the server's time; the others follow."""
FEW = 8
"""Fewer durations than this are counted one by one, which takes less time than to look for each bound."""
MOST_KEPT = 1_000
"""The most durations that `Durations` keeps uncounted."""


class Observations:
    """The durations of one process that are not in Redis yet."""

    def __init__(self) -> None:
        self._new: Increments = {}
        self._sending: Increments = {}
        self._number = 0

    def add(self, kind: Measured, topic: str, group: str, seconds: Iterable[float]) -> None:
        """Count durations; negative ones count as 0. Many at once are much cheaper than one by one."""
        ordered = sorted(seconds)
        if not ordered:
            return
        figures, bounds = self._figures((kind, topic, group)), BOUNDS[kind]
        figures[0] += int(sum(ordered[bisect_left(ordered, 0.0) :]) * 1_000_000)
        if len(ordered) < FEW:
            for one in ordered:
                figures[1 + bisect_left(bounds, one)] += 1
            return
        below = 0
        for place, bound in enumerate(bounds):
            up_to_it = bisect_right(ordered, bound)
            figures[1 + place] += up_to_it - below
            below = up_to_it
        figures[-1] += len(ordered) - below

    def add_lateness(self, kind: Measured, topic: str, lateness: Lateness) -> None:
        """Count promotions."""
        figures = self._figures((kind, topic, ""))
        figures[0] += 1000 * lateness.total_ms
        for place, count in enumerate(lateness.counts):
            figures[1 + min(place, len(LATENESS_BOUNDS))] += count

    def to_send(self) -> tuple[int, Increments] | None:
        """Returns the number of the increments to send now, and the increments; None when nothing was measured."""
        if not self._sending:
            if not self._new:
                return None
            self._number += 1
            self._sending = dict(islice(self._new.items(), MOST_AT_ONCE))
            for series in self._sending:
                del self._new[series]
        return self._number, self._sending

    def sent(self, number: int) -> None:
        """Record that the increments of this number are in Redis."""
        if number == self._number:
            self._sending = {}

    def _figures(self, series: Series) -> list[int]:
        figures = self._new.get(series)
        if figures is None:
            figures = self._new[series] = [0] * (len(BOUNDS[series[0]]) + 2)
        return figures


class Promotions:
    """Counts how late the jobs were that one node has promoted."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        """From due time to promotion, of all jobs so far."""
        self.observations = Observations()
        """What is not sent yet: the same by topic, also of those that had been held back."""

    def add(self, topic: str, lateness: Lateness) -> None:
        """Count jobs of a topic that were promoted."""
        if lateness.counts:
            self.lateness += lateness
            self.observations.add_lateness(Measured.PROMOTION, topic, lateness)

    def add_held_back(self, topic: str, lateness: Lateness) -> None:
        """Count those among them that had been held back for their keys."""
        if lateness.counts:
            self.observations.add_lateness(Measured.HELD_BACK, topic, lateness)


class Durations:
    """Collects how late the jobs of one worker start, and how long their handlers run.

    Values are collected, and counted together on request or when there are a thousand: with a quick handler, counting
    each one separately would take an eighth of the time of the job.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._lateness = Histogram()
        self.counted = Observations()
        """The observations to send, without the values that are not counted yet."""
        self._late_ms: defaultdict[str, list[float]] = defaultdict(list)  # by topic
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def lateness(self) -> Histogram:
        """Milliseconds from due time to start of the handler, of every delivery."""
        self._count()
        return self._lateness

    @property
    def observations(self) -> Observations:
        """Returns the observations to send."""
        self._count()
        return self.counted

    def started(self, topic: str, late_ms: float) -> None:
        """Record the start of a job of the topic, `late_ms` after its due time."""
        kept = self._late_ms[topic]
        kept.append(late_ms)
        if len(kept) >= MOST_KEPT:
            self._count()

    def ended(self, topic: str, seconds: float) -> None:
        """Record how long a handler of the topic ran."""
        kept = self._seconds[topic]
        kept.append(seconds)
        if len(kept) >= MOST_KEPT:
            self._count()

    def _count(self) -> None:
        self._lateness.add_all(chain.from_iterable(self._late_ms.values()))
        for topic, late_ms in self._late_ms.items():
            self.counted.add(Measured.START, topic, self._group, [ms / 1000 for ms in late_ms])
        for topic, seconds in self._seconds.items():
            self.counted.add(Measured.HANDLER, topic, self._group, seconds)
        self._late_ms.clear()
        self._seconds.clear()
