"""The verdict: compares promises with runs. Pure; it trusts no counter of wheelq.

The promises are the receipts, as changed by the answers to `cancel` and `reschedule`. The runs are the reports of the
worker process, one `DemoRun` for each start of the handler. An order must run unless `cancel` answered CANCELLED; not
before its due time, which is the new one if `reschedule` answered RESCHEDULED; and once, not counting failed attempts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from wheelq.model.job import CancelOutcome, RescheduleOutcome

CLOCK_ERROR_MS = 50
"""The most that a worker's estimate of the server's clock may be off. `promoted_ms` is by that clock itself, and
exact."""
SHOWN_FAULTS = 20

Name = tuple[str, str]
"""Topic and job id."""


class DemoRun(NamedTuple):
    """One start of the handler, as the worker process reports it. Times are by the server's clock."""

    topic: str
    id: str
    due_ms: int
    promoted_ms: int
    started_ms: float
    attempt: int
    failed: bool

    @property
    def name(self) -> Name:
        return self.topic, self.id


@dataclass(slots=True)
class DemoLedger:
    """All promises and all runs."""

    due_ms: dict[Name, int] = field(default_factory=dict)
    """From the receipts."""
    cancels: dict[Name, CancelOutcome] = field(default_factory=dict)
    moves: dict[Name, tuple[RescheduleOutcome, int]] = field(default_factory=dict)
    """The answer, and the requested due time."""
    runs: list[DemoRun] = field(default_factory=list)

    def expected_ms(self, name: Name) -> int | None:
        """The earliest time at which a job must run; None if it must not run, or was never scheduled."""
        if self.cancels.get(name) is CancelOutcome.CANCELLED:
            return None
        outcome, due_ms = self.moves.get(name, (None, 0))
        return due_ms if outcome is RescheduleOutcome.RESCHEDULED else self.due_ms.get(name)


class FaultKind(StrEnum):
    """Violations of a promise."""

    LOST = "lost"
    """It should have run, and no run of it succeeded."""
    EARLY = "early"
    """It was promoted or started before it was due."""
    DOUBLED = "doubled"
    """It ran again without being a retry, or was retried after it had succeeded."""
    CANCELLED_BUT_RAN = "cancelled_but_ran"
    """It ran although `cancel` said that it would not."""
    UNKNOWN = "unknown"
    """It ran without being scheduled."""

    @property
    def words(self) -> str:
        """Its name for people."""
        return self.value.replace("_", " ")


class Fault(NamedTuple):
    """One job that was not treated as promised."""

    kind: FaultKind
    topic: str
    id: str


class LatenessFigures(NamedTuple):
    """Milliseconds from due to start."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> LatenessFigures:
        """Exact percentiles by nearest rank; zeros when there is nothing."""
        ordered = sorted(values) or [0.0]
        return cls(*(round(ordered[math.ceil(share * len(ordered)) - 1], 1) for share in (0.5, 0.99, 1.0)))


class Burst(NamedTuple):
    """The most jobs due at one instant, and how long after it the last one started."""

    jobs: int
    last_started_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for all jobs."""

    scheduled: int
    ran: int
    """Jobs with a successful run."""
    cancelled: int
    moved: int
    too_late: int
    """Cancels and moves answered with "running" or "not found"; these jobs ran unchanged."""
    retried: int
    """Jobs that needed a second attempt."""
    lateness: LatenessFigures
    burst: Burst
    faults: tuple[Fault, ...]

    @property
    def is_clean(self) -> bool:
        return not self.faults

    @property
    def words(self) -> str:
        """The verdict in a sentence."""
        return "every order ran as promised" if self.is_clean else "NOT every order ran as promised"

    @property
    def examples(self) -> list[str]:
        """The first faults, in words."""
        return [f"{fault.kind.words}: {fault.topic}/{fault.id}" for fault in self.faults[:SHOWN_FAULTS]]

    def count(self, kind: FaultKind) -> int:
        """How many jobs have this fault."""
        return sum(fault.kind is kind for fault in self.faults)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        counts = {
            name: getattr(self, name) for name in ("scheduled", "ran", "cancelled", "moved", "too_late", "retried")
        }
        return {
            "clean": self.is_clean,
            **counts,
            **{kind.value: self.count(kind) for kind in FaultKind},
            "lateness_ms": {"p50": self.lateness.p50_ms, "p99": self.lateness.p99_ms, "max": self.lateness.max_ms},
            "burst": self.burst._asdict(),
            "faults": [fault._asdict() for fault in self.faults[:SHOWN_FAULTS]],
        }


def judge(ledger: DemoLedger) -> Verdict:
    """Compare the promises with the runs."""
    runs: defaultdict[Name, list[DemoRun]] = defaultdict(list)
    for run in ledger.runs:
        runs[run.name].append(run)
    names = [*ledger.due_ms, *(name for name in runs if name not in ledger.due_ms)]
    cancelled = sum(outcome is CancelOutcome.CANCELLED for outcome in ledger.cancels.values())
    moved = sum(outcome is RescheduleOutcome.RESCHEDULED for outcome, _ in ledger.moves.values())
    return Verdict(
        scheduled=len(ledger.due_ms),
        ran=sum(any(not run.failed for run in runs[name]) for name in ledger.due_ms),
        cancelled=cancelled,
        moved=moved,
        too_late=len(ledger.cancels) + len(ledger.moves) - cancelled - moved,
        retried=sum(any(run.attempt > 1 for run in found) for found in runs.values()),
        lateness=LatenessFigures.of([lateness_ms(ledger, run) for run in ledger.runs]),
        burst=_burst(ledger),
        faults=tuple(Fault(kind, *name) for name in names for kind in _faults(ledger, name, runs[name])),
    )


def lateness_ms(ledger: DemoLedger, run: DemoRun) -> float:
    """From the due time to the start of the handler."""
    return max(0.0, run.started_ms - _due_ms(ledger, run))


def _due_ms(ledger: DemoLedger, run: DemoRun) -> int:
    """Returns the due time that the producer was given; for a retry, the due time in its worker's report."""
    expected_ms = ledger.expected_ms(run.name)
    return run.due_ms if run.attempt > 1 or expected_ms is None else expected_ms


def _faults(ledger: DemoLedger, name: Name, runs: Sequence[DemoRun]) -> Iterator[FaultKind]:
    if name not in ledger.due_ms:
        yield FaultKind.UNKNOWN
        return
    if ledger.expected_ms(name) is None:
        if runs:
            yield FaultKind.CANCELLED_BUT_RAN
        return
    ended_well = sum(not run.failed for run in runs)
    if not ended_well:
        yield FaultKind.LOST
    if ended_well > 1 or len({run.attempt for run in runs}) < len(runs):
        yield FaultKind.DOUBLED
    if any(_is_early(run, _due_ms(ledger, run)) for run in runs):
        yield FaultKind.EARLY


def _is_early(run: DemoRun, due_ms: int) -> bool:
    return run.promoted_ms < due_ms or run.started_ms < due_ms - CLOCK_ERROR_MS


def _burst(ledger: DemoLedger) -> Burst:
    first_runs = [run for run in ledger.runs if run.attempt == 1]
    if not first_runs:
        return Burst(0, 0.0)
    due_ms, jobs = Counter(_due_ms(ledger, run) for run in first_runs).most_common(1)[0]
    last_ms = max(run.started_ms for run in first_runs if _due_ms(ledger, run) == due_ms)
    return Burst(jobs, round(max(0.0, last_ms - due_ms), 1))
