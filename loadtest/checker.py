"""The judge of fault tests: from what was promised, promoted and run, says what went wrong. Pure.

    Promise     what producers were told about one job           from their log of answers
    Promotion   one entry of a ready stream                      from the server's own stream, kept by retention
    Run         one start of a handler                           from the workers' logs

What must hold: every promised job ran; none was promoted before its due time; each was promoted once; none that was
cancelled ran. Runs may be repeated (at-least-once), and are counted: whether they may depends on what was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Promise:
    """What a producer knows about one job for sure."""

    earliest_ms: int
    """No promotion may come before: the due time, or the least of several that may hold after an unknown outcome."""
    must_run: bool
    """It was scheduled for sure, and neither cancelled nor perhaps cancelled."""
    may_run: bool = True
    """False: a cancellation was confirmed."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """One entry of a ready stream, for the first attempt."""

    id: str
    due_ms: int
    promoted_ms: int
    """The server's clock, from the entry's id."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a handler."""

    id: str
    entry_id: str
    started_ms: float
    worker: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong, by job id, and how late promotions were."""

    promised: int
    ran: int
    lost: list[str] = field(default_factory=list)
    """Promised, and never run."""
    early: list[str] = field(default_factory=list)
    """Promoted or started before they were due."""
    doubled: list[str] = field(default_factory=list)
    """Promoted more than once."""
    risen: list[str] = field(default_factory=list)
    """Run although a cancellation was confirmed."""
    unknown: list[str] = field(default_factory=list)
    """Run although nobody scheduled them."""
    reruns: int = 0
    """Starts beyond the first of each promotion."""
    lateness_ms: list[int] = field(default_factory=list)
    """From due to promoted, of each promotion, sorted."""

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept (repeated runs are allowed)."""
        return not (self.lost or self.early or self.doubled or self.risen or self.unknown)

    def __str__(self) -> str:
        late = self.lateness_ms
        spread = (
            f"lateness p50 {late[len(late) // 2]} p99 {late[len(late) * 99 // 100]} max {late[-1]} ms" if late else ""
        )
        wrong = {
            name: getattr(self, name)
            for name in ("lost", "early", "doubled", "risen", "unknown")
            if getattr(self, name)
        }
        found = "; ".join(f"{len(ids)} {name}, such as {ids[:3]}" for name, ids in wrong.items()) or "clean"
        return f"{self.promised} promised, {self.ran} ran, {self.reruns} reruns: {found}; {spread}"


def judge(promises: Mapping[str, Promise], promotions: Iterable[Promotion], runs: Iterable[Run]) -> Verdict:
    """Compare what was promised with what happened."""
    promoted: defaultdict[str, list[Promotion]] = defaultdict(list)
    for promotion in promotions:
        promoted[promotion.id].append(promotion)
    started: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        started[run.id].append(run)
    starts_per_entry = Counter(run.entry_id for found in started.values() for run in found)
    return Verdict(
        promised=sum(promise.must_run for promise in promises.values()),
        ran=len(started),
        lost=[id for id, promise in promises.items() if promise.must_run and id not in started],
        early=[id for id, promise in promises.items() if _is_early(promise, promoted[id], started[id])],
        doubled=[id for id, found in promoted.items() if len(found) > 1],
        risen=[id for id, promise in promises.items() if not promise.may_run and (id in started or promoted[id])],
        unknown=[id for id in {*started, *promoted} if (started[id] or promoted[id]) and id not in promises],
        reruns=sum(starts - 1 for starts in starts_per_entry.values()),
        lateness_ms=sorted(one.promoted_ms - one.due_ms for found in promoted.values() for one in found),
    )


def _is_early(promise: Promise, promotions: Iterable[Promotion], runs: Iterable[Run]) -> bool:
    promoted_early = any(one.promoted_ms < max(one.due_ms, promise.earliest_ms) for one in promotions)
    # A worker only estimates the server's clock; what it says may be off by the length of a round trip.
    return promoted_early or any(run.started_ms < promise.earliest_ms - 5 for run in runs)
