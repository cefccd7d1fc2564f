"""How much happened in the last minute, from the figures that schedulers and workers report. Pure.

A process counts from its start, so the difference of two readings is what happened between them. For a process that was
restarted in between, the later reading is the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from wheelq.admin import NodeInfo, WorkerInfo
from wheelq.base.metrics import Lateness


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The figures of every scheduler and worker at one moment."""

    at_ms: int
    promoted: Mapping[str, int]
    lateness: Mapping[str, Lateness]
    handled: Mapping[str, int]
    failed: Mapping[str, int]

    @classmethod
    def of(cls, at_ms: int, nodes: Sequence[NodeInfo], workers: Sequence[WorkerInfo]) -> Self:
        """Returns the reading of these heartbeats."""
        return cls(
            at_ms,
            {node.name: node.promoted for node in nodes},
            {node.name: node.lateness for node in nodes},
            {worker.name: worker.handled for worker in workers},
            {worker.name: worker.failed for worker in workers},
        )


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened within some seconds."""

    seconds: float
    """0: there is only one reading yet, and no rate is known."""
    promoted: int
    handled: int
    failed: int
    lateness: Lateness

    def rate(self, count: int) -> float | None:
        """Returns `count` as a rate per second; None if there is only one reading yet."""
        return count / self.seconds if self.seconds else None


def flow(readings: Sequence[FleetReading]) -> Flow:
    """Returns what happened between the first reading and the last."""
    if len(readings) < 2:
        return Flow(0.0, 0, 0, 0, Lateness())
    first, last = readings[0], readings[-1]
    lateness = Lateness()
    for name, after in last.lateness.items():
        lateness += _since(first.lateness.get(name), after)
    return Flow(
        max(0.001, (last.at_ms - first.at_ms) / 1000),
        _grown(first.promoted, last.promoted),
        _grown(first.handled, last.handled),
        _grown(first.failed, last.failed),
        lateness,
    )


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """Returns the sum over all processes of how much each has grown; a new process counts from zero."""
    return sum(count - before[name] if 0 <= before.get(name, -1) <= count else count for name, count in after.items())


def _since(before: Lateness | None, after: Lateness) -> Lateness:
    if before is None or before.jobs > after.jobs:
        return after
    pairs = zip_longest(after.counts, before.counts, fillvalue=0)
    return Lateness(after.total_ms - before.total_ms, tuple(max(0, now - then) for now, then in pairs))
