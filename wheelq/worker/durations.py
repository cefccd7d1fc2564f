"""`Durations`: how late jobs start, and how long their handlers run.

Values are collected, and counted together on request or when there are a thousand: with a quick handler, counting each
one separately would take an eighth of the time of the job.
"""

from __future__ import annotations

from collections import defaultdict

from wheelq.base.metrics import Histogram
from wheelq.base.observations import Measured, Observations

MOST_KEPT = 1_000


class Durations:
    """The durations that one worker measures."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lateness = Histogram()
        self._observations = Observations()
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
        return self._observations

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
        for topic, late_ms in self._late_ms.items():
            self._lateness.add_all(late_ms)
            self._observations.add(Measured.START, topic, self._group, [ms / 1000 for ms in late_ms])
            late_ms.clear()
        for topic, seconds in self._seconds.items():
            self._observations.add(Measured.HANDLER, topic, self._group, seconds)
            seconds.clear()
