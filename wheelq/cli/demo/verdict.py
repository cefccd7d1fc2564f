"""The verdict: puts the promises and the runs before the judge (`wheelq.admin.judge`), and counts. Pure.

The promises are the receipts, as changed by the answers to `cancel` and `reschedule`. The runs are the reports of the
worker process, one `DemoRun` for each start of the handler, and each of them stands for a promotion: nothing happens in
the demo that would explain a second run of the same one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wheelq.admin.judge import FaultKind, JobRun, Promise, Promotion, Verdict, judge
from wheelq.model.job import CancelOutcome, RescheduleOutcome

CLOCK_ERROR_MS = 50
"""The most that a worker's estimate of the server's clock may be off. `promoted_ms` is by that clock itself, and
exact."""
FAULT_KINDS = (FaultKind.LOST, FaultKind.EARLY, FaultKind.DOUBLED, FaultKind.CANCELLED_BUT_RAN, FaultKind.UNKNOWN)
"""The faults that can be told here: nothing is refused or undone, and no disruption is known."""
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

    def expected_ms(self, run: DemoRun) -> int:
        """Returns the due time that the producer was given; for a retry, the due time in its worker's report."""
        known = run.attempt == 1 and run.name in self.due_ms
        return self._promised_ms(run.name) if known else run.due_ms

    def lateness_ms(self, run: DemoRun) -> float:
        """From the due time to the start of the handler."""
        return max(0.0, run.started_ms - self.expected_ms(run))

    def promise(self, name: Name, runs: Sequence[DemoRun]) -> Promise:
        """Returns the promise for a scheduled job. It must not run again after the first of its runs that succeeded."""
        is_wanted = self.cancels.get(name) is not CancelOutcome.CANCELLED
        succeeded = [run.attempt for run in runs if not run.failed]
        last = min(succeeded) if succeeded else max((run.attempt for run in runs), default=1)
        return Promise(self._promised_ms(name), is_wanted, is_wanted, last_attempt=last)

    def _promised_ms(self, name: Name) -> int:
        outcome, due_ms = self.moves.get(name, (None, 0))
        return due_ms if outcome is RescheduleOutcome.RESCHEDULED else self.due_ms[name]


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
class DemoVerdict:
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
    judged: Verdict

    @classmethod
    def of(cls, ledger: DemoLedger) -> DemoVerdict:
        """Compare the promises with the runs."""
        cancelled = sum(outcome is CancelOutcome.CANCELLED for outcome in ledger.cancels.values())
        moved = sum(outcome is RescheduleOutcome.RESCHEDULED for outcome, _ in ledger.moves.values())
        return cls(
            scheduled=len(ledger.due_ms),
            ran=len({run.name for run in ledger.runs if not run.failed} & ledger.due_ms.keys()),
            cancelled=cancelled,
            moved=moved,
            too_late=len(ledger.cancels) + len(ledger.moves) - cancelled - moved,
            retried=len({run.name for run in ledger.runs if run.attempt > 1}),
            lateness=LatenessFigures.of([ledger.lateness_ms(run) for run in ledger.runs]),
            burst=_burst(ledger),
            judged=_judge(ledger),
        )

    @property
    def is_clean(self) -> bool:
        return self.judged.is_clean

    @property
    def words(self) -> str:
        """The verdict in a sentence."""
        return "every order ran as promised" if self.is_clean else "NOT every order ran as promised"

    @property
    def faults(self) -> list[tuple[FaultKind, str]]:
        """The first faults: what is wrong with which job (topic/id)."""
        return [(kind, name) for kind, names in self.judged.wrong.items() for name in names][:SHOWN_FAULTS]

    @property
    def examples(self) -> list[str]:
        """The first faults, in words."""
        return [f"{kind.words}: {name}" for kind, name in self.faults]

    @property
    def counts(self) -> list[str]:
        """How many jobs have each kind of fault, in words."""
        return [f"{kind.words} {self.judged.count(kind)}" for kind in FAULT_KINDS]

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        counts = ("scheduled", "ran", "cancelled", "moved", "too_late", "retried")
        faults = [(kind, *name.split("/", 1)) for kind, name in self.faults]
        return {
            "clean": self.is_clean,
            **{name: getattr(self, name) for name in counts},
            **{kind.value: self.judged.count(kind) for kind in FAULT_KINDS},
            "lateness_ms": {"p50": self.lateness.p50_ms, "p99": self.lateness.p99_ms, "max": self.lateness.max_ms},
            "burst": self.burst._asdict(),
            "faults": [{"kind": kind, "topic": topic, "id": id} for kind, topic, id in faults],
        }


def _judge(ledger: DemoLedger) -> Verdict:
    runs: defaultdict[Name, list[DemoRun]] = defaultdict(list)
    for run in ledger.runs:
        runs[run.name].append(run)
    return judge(
        {_text(name): ledger.promise(name, runs[name]) for name in ledger.due_ms},
        [Promotion(_text(run.name), ledger.expected_ms(run), run.promoted_ms, run.attempt) for run in ledger.runs],
        [
            JobRun(
                _text(run.name), f"{run.promoted_ms}-{number}", run.started_ms, attempt=run.attempt, failed=run.failed
            )
            for number, run in enumerate(ledger.runs)
        ],
        run_clock_error_ms=CLOCK_ERROR_MS,
    )


def _text(name: Name) -> str:
    return "/".join(name)


def _burst(ledger: DemoLedger) -> Burst:
    first_runs = [run for run in ledger.runs if run.attempt == 1]
    if not first_runs:
        return Burst(0, 0.0)
    due_ms, jobs = Counter(map(ledger.expected_ms, first_runs)).most_common(1)[0]
    last_ms = max(run.started_ms for run in first_runs if ledger.expected_ms(run) == due_ms)
    return Burst(jobs, round(max(0.0, last_ms - due_ms), 1))
