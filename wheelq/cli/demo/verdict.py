"""The ledger and the verdict: compares what the producer was told with what the worker ran. Pure.

The receipts, as changed by the answers to `cancel` and `reschedule`, say what must run and when. The worker reports
each start of its handler. Nothing in the demo explains a second run of the same attempt.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wheelq.model.job import CancelOutcome, RescheduleOutcome

CLOCK_ERROR_MS = 50
"""The most that a worker's estimate of the server's clock may be off. `promoted_ms` is by that clock itself."""
FAULTS = ("lost", "early", "doubled", "cancelled_but_ran", "unknown")
SHOWN_FAULTS = 20

Name = tuple[str, str]
"""Topic and job id."""


class DemoRun(NamedTuple):
    """One start of the handler, as the worker reports it. Times are by the server's clock."""

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


class LatenessFigures(NamedTuple):
    """Milliseconds from due to start."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> LatenessFigures:
        """Exact percentiles by nearest rank; zeros when there is nothing."""
        ordered = sorted(values) or [0.0]
        return cls(*(round(ordered[math.ceil(share * len(ordered)) - 1], 1) for share in (0.5, 0.99, 1.0)))


@dataclass(slots=True)
class DemoLedger:
    """What the producer was told, and what ran."""

    due_ms: dict[Name, int] = field(default_factory=dict)
    """From the receipts."""
    cancels: dict[Name, CancelOutcome] = field(default_factory=dict)
    moves: dict[Name, tuple[RescheduleOutcome, int]] = field(default_factory=dict)
    """The answer, and the requested due time."""
    runs: list[DemoRun] = field(default_factory=list)

    def jobs(self) -> dict[str, set[Name]]:
        """Returns the jobs that ran well, were cancelled, were moved, or needed a second attempt."""
        return {
            "handled": {run.name for run in self.runs if not run.failed} & self.due_ms.keys(),
            "cancelled": {name for name, outcome in self.cancels.items() if outcome is CancelOutcome.CANCELLED},
            "moved": {name for name, (outcome, _) in self.moves.items() if outcome is RescheduleOutcome.RESCHEDULED},
            "retried": {run.name for run in self.runs if run.attempt > 1},
        }

    def lateness(self) -> LatenessFigures:
        """Returns how late the runs so far started."""
        return LatenessFigures.of([max(0.0, run.started_ms - self.expected_ms(run)) for run in self.runs])

    def burst(self) -> tuple[int, float]:
        """Returns the most jobs due at one instant, and how many milliseconds after it the last one started."""
        due = Counter(self.expected_ms(run) for run in self.runs if run.attempt == 1)
        if not due:
            return 0, 0.0
        [(due_ms, jobs)] = due.most_common(1)
        last_ms = max(run.started_ms for run in self.runs if run.attempt == 1 and self.expected_ms(run) == due_ms)
        return jobs, round(max(0.0, last_ms - due_ms), 1)

    def expected_ms(self, run: DemoRun) -> int:
        """Returns the due time that the producer was given; for a retry, the due time in its worker's report."""
        if run.attempt > 1 or run.name not in self.due_ms:
            return run.due_ms
        outcome, due_ms = self.moves.get(run.name, (None, 0))
        return due_ms if outcome is RescheduleOutcome.RESCHEDULED else self.due_ms[run.name]

    def faults(self) -> dict[str, list[Name]]:
        """Returns the jobs that each of FAULTS concerns."""
        found: dict[str, list[Name]] = {fault: [] for fault in FAULTS}
        runs: defaultdict[Name, list[DemoRun]] = defaultdict(list)
        for run in self.runs:
            runs[run.name].append(run)
        cancelled = self.jobs()["cancelled"]
        for name in self.due_ms:
            theirs = runs.pop(name, [])
            if name in cancelled:
                found["cancelled_but_ran"] += [name] if theirs else []
                continue
            attempts = [run.attempt for run in theirs]
            succeeded = [run.attempt for run in theirs if not run.failed]
            if not succeeded:
                found["lost"].append(name)
            if any(self._is_early(run) for run in theirs):
                found["early"].append(name)
            if len(set(attempts)) < len(attempts) or max(attempts, default=0) > min(succeeded, default=math.inf):
                found["doubled"].append(name)
        found["unknown"] += runs
        return found

    def _is_early(self, run: DemoRun) -> bool:
        due_ms = self.expected_ms(run)
        return run.promoted_ms < due_ms or run.started_ms < due_ms - CLOCK_ERROR_MS


class DemoVerdict:
    """The verdict on a ledger, as JSON and in words."""

    def __init__(self, ledger: DemoLedger) -> None:
        jobs = {what: len(names) for what, names in ledger.jobs().items()}
        self.counts = {"scheduled": len(ledger.due_ms), "ran": jobs.pop("handled"), **jobs}
        self.too_late = len(ledger.cancels) + len(ledger.moves) - jobs["cancelled"] - jobs["moved"]
        """Cancels and moves that came too late; these jobs ran unchanged."""
        self.lateness = ledger.lateness()
        self.burst = ledger.burst()
        self.faults = ledger.faults()
        self.is_clean = not any(self.faults.values())
        self._first_faults = [(fault, name) for fault in FAULTS for name in self.faults[fault]][:SHOWN_FAULTS]

    def lines(self) -> list[str]:
        """Returns the verdict in words, its last line in a sentence."""
        count, late, (jobs, last_ms) = self.counts, self.lateness, self.burst
        return [
            f"{count['scheduled']:,} scheduled: {count['ran']:,} ran, {count['cancelled']} cancelled; {count['moved']} "
            f"moved, {count['retried']} failed once and were retried, {self.too_late} changes came too late",
            ", ".join(f"{fault.replace('_', ' ')} {len(names)}" for fault, names in self.faults.items()),
            f"lateness p50 {late.p50} ms, p99 {late.p99} ms, max {late.max} ms",
            f"burst of {jobs} at one instant, the last started {last_ms} ms after it",
            *(f"{fault.replace('_', ' ')}: {topic}/{id}" for fault, (topic, id) in self._first_faults),
            f"verdict: {'every' if self.is_clean else 'NOT every'} order ran as promised",
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns the verdict for scripts."""
        return {
            "clean": self.is_clean,
            **self.counts,
            "too_late": self.too_late,
            **{fault: len(names) for fault, names in self.faults.items()},
            "lateness_ms": self.lateness._asdict(),
            "burst": dict(zip(("jobs", "last_started_ms"), self.burst, strict=True)),
            "faults": [{"kind": fault, "topic": topic, "id": id} for fault, (topic, id) in self._first_faults],
        }
