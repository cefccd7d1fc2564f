"""The ledger and the verdict: compares what the producer was told with what the worker ran. Pure.

The receipts, as changed by the answers to `cancel` and `reschedule`, say what must run and when. The worker reports
each start of its handler. Nothing in the demo explains a second run of the same attempt.
"""

from __future__ import annotations

import math
from collections import defaultdict
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

    def lateness(self) -> dict[str, float]:
        """Returns how many milliseconds after their due times the runs so far started, as exact percentiles."""
        ordered = sorted(max(0.0, run.started_ms - self.expected_ms(run)) for run in self.runs) or [0.0]
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {name: round(ordered[math.ceil(share * len(ordered)) - 1], 1) for name, share in shares.items()}

    def burst(self) -> dict[str, float]:
        """Returns the most jobs due at one instant, and how many milliseconds after it the last one started."""
        started: defaultdict[int, list[float]] = defaultdict(list)
        for run in self.runs:
            if run.attempt == 1:
                started[self.expected_ms(run)].append(run.started_ms)
        due_ms, starts = max(started.items(), key=lambda one: len(one[1]), default=(0, []))
        return {"jobs": len(starts), "last_started_ms": round(max(0.0, max(starts, default=0) - due_ms), 1)}

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

    def verdict(self) -> dict[str, Any]:
        """Returns the verdict, as scripts get it."""
        jobs, faults = {what: len(names) for what, names in self.jobs().items()}, self.faults()
        first = [{"kind": fault, "topic": topic, "id": id} for fault in FAULTS for topic, id in faults[fault]]
        return {
            "clean": not first,
            "scheduled": len(self.due_ms),
            "ran": jobs.pop("handled"),
            **jobs,
            "too_late": len(self.cancels) + len(self.moves) - jobs["cancelled"] - jobs["moved"],
            **{fault: len(names) for fault, names in faults.items()},
            "lateness_ms": self.lateness(),
            "burst": self.burst(),
            "faults": first[:SHOWN_FAULTS],
        }


def in_words(verdict: dict[str, Any]) -> list[str]:
    """Returns a verdict in words, its last line in a sentence."""
    return [
        "{scheduled:,} scheduled: {ran:,} ran, {cancelled} cancelled; {moved} moved, {retried} failed once and were "
        "retried, {too_late} changes came too late".format_map(verdict),
        ", ".join(f"{fault.replace('_', ' ')} {verdict[fault]}" for fault in FAULTS),
        "lateness p50 {p50} ms, p99 {p99} ms, max {max} ms".format_map(verdict["lateness_ms"]),
        "burst of {jobs} at one instant, the last started {last_started_ms} ms after it".format_map(verdict["burst"]),
        *(f"{fault['kind'].replace('_', ' ')}: {fault['topic']}/{fault['id']}" for fault in verdict["faults"]),
        f"verdict: {'every' if verdict['clean'] else 'NOT every'} order ran as promised",
    ]
