"""The judge of fault tests: from what was promised, promoted and run, says what went wrong. Pure.

    Promise     what producers were told about one job           from their log of answers (see `promises`)
    Promotion   one entry of a ready stream                      from the server's own stream, kept by retention
    Run         one start of a handler                           from the workers' logs
    Hurt        what was done to a worker or to all, and when    from the log of faults

What must hold: every promised job ran; none was promoted before its due time; each was promoted once; none that was
cancelled, and none that was refused, ran. Runs may be repeated (at-least-once): where hurts are given, each repeated
run must have one that explains it, and a job that failed must have run again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

EVERYONE = ""
"""The name of whoever a hurt concerns, when it concerns all."""
RUN_CLOCK_ERROR_MS = 5
"""A worker only estimates the server's clock; what it says of its runs may be off by the length of a round trip."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a producer knows about one job for sure."""

    earliest_ms: int
    """No promotion may come before: the due time, or the least of several that may hold after an unknown outcome."""
    must_run: bool
    """It was scheduled for sure, and neither cancelled nor perhaps cancelled."""
    may_run: bool = True
    """False: a cancellation was confirmed, or the server refused it."""
    was_refused: bool = False
    """The producer was told that nothing was done."""
    last_attempt: int = 1
    """Its handler fails until this attempt, which must be seen."""
    before: tuple[Promise, ...] = ()
    """Earlier lives of the same id, which is free again when its job has finished."""

    @property
    def lives(self) -> tuple[Promise, ...]:
        """All lives of the id, in order."""
        return (*self.before, self)


@dataclass(frozen=True, slots=True)
class Promotion:
    """One entry of a ready stream."""

    id: str
    due_ms: int
    promoted_ms: int
    """The server's clock, from the entry's id."""
    attempt: int = 1
    """Greater in the entry of a retry."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a handler."""

    id: str
    entry_id: str
    started_ms: float
    worker: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Hurt:
    """Something was done to a worker (or to everyone) that may let a job run twice."""

    kind: str
    whom: str
    from_ms: float
    to_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong, by job id, and how late promotions were."""

    promised: int
    ran: int
    lost: list[str] = field(default_factory=list)
    """Promised, and never run (or not to the attempt that succeeds)."""
    early: list[str] = field(default_factory=list)
    """Promoted or started before they were due."""
    doubled: list[str] = field(default_factory=list)
    """Promoted more often than they were scheduled."""
    risen: list[str] = field(default_factory=list)
    """Run although a cancellation was confirmed."""
    denied: list[str] = field(default_factory=list)
    """Run although the producer was told that nothing was done."""
    unknown: list[str] = field(default_factory=list)
    """Run although nobody scheduled them."""
    unexplained: list[str] = field(default_factory=list)
    """Run twice although nothing was done to the workers that ran them."""
    reruns: int = 0
    """Starts beyond the first of each promotion."""
    causes: dict[str, int] = field(default_factory=dict)
    """How many of the repeated starts each kind of hurt explains (the latest, where there are several)."""
    lateness_ms: list[int] = field(default_factory=list)
    """From due to promoted, of each promotion, sorted."""

    @property
    def wrong(self) -> dict[str, list[str]]:
        """What went wrong, by name; empty when every promise was kept."""
        names = ("lost", "early", "doubled", "risen", "denied", "unknown", "unexplained")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept (repeated runs that are explained are allowed)."""
        return not self.wrong

    def __str__(self) -> str:
        late = self.lateness_ms
        spread = (
            f"lateness p50 {late[len(late) // 2]} p99 {late[len(late) * 99 // 100]} max {late[-1]} ms" if late else ""
        )
        found = "; ".join(f"{len(ids)} {name}, such as {ids[:3]}" for name, ids in self.wrong.items()) or "clean"
        return f"{self.promised} promised, {self.ran} ran, {self.reruns} reruns: {found}; {spread}"


def judge(
    promises: Mapping[str, Promise],
    promotions: Iterable[Promotion],
    runs: Iterable[Run],
    hurts: Sequence[Hurt] | None = None,
) -> Verdict:
    """Compare what was promised with what happened; without `hurts`, every repeated run is allowed."""
    promoted: defaultdict[str, list[Promotion]] = defaultdict(list)
    for promotion in promotions:
        promoted[promotion.id].append(promotion)
    started: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        started[run.id].append(run)
    again = list(_reruns(started))
    causes = [_cause(reruns, hurts or ()) for reruns in again]
    seen = {*started, *promoted}
    return Verdict(
        promised=sum(promise.must_run for promise in promises.values()),
        ran=len(started),
        lost=[id for id, promise in promises.items() if _is_lost(promise, started.get(id, ()))],
        early=[id for id, promise in promises.items() if _is_early(promise, promoted.get(id, ()), started.get(id, ()))],
        doubled=[id for id, found in promoted.items() if _is_doubled(promises.get(id), found)],
        risen=[id for id, promise in promises.items() if id in seen and _must_not(promise) and not promise.was_refused],
        denied=[id for id, promise in promises.items() if id in seen and _must_not(promise) and promise.was_refused],
        unknown=[id for id in seen if id not in promises],
        unexplained=[]
        if hurts is None
        else [pair[1].id for pair, cause in zip(again, causes, strict=True) if not cause],
        reruns=len(again),
        causes=dict(Counter(cause for cause in causes if cause)),
        lateness_ms=sorted(one.promoted_ms - one.due_ms for found in promoted.values() for one in found),
    )


def _is_lost(promise: Promise, runs: Sequence[Run]) -> bool:
    finished = {run.entry_id for run in runs if run.attempt >= promise.last_attempt}
    return len(finished) < sum(life.must_run for life in promise.lives)


def _is_early(promise: Promise, promotions: Iterable[Promotion], runs: Iterable[Run]) -> bool:
    first = sorted(one.promoted_ms for one in promotions if one.attempt == 1)
    # The n-th promotion is at the earliest that of the n-th life that may have run.
    earliest = [life.earliest_ms for life in promise.lives if life.may_run] or [promise.earliest_ms]
    return (
        any(one.promoted_ms < one.due_ms for one in promotions)
        or any(promoted_ms < least for promoted_ms, least in zip(first, sorted(earliest), strict=False))
        or any(run.started_ms < min(earliest) - RUN_CLOCK_ERROR_MS for run in runs)
    )


def _is_doubled(promise: Promise | None, promotions: Iterable[Promotion]) -> bool:
    """A cancelled or refused job may not be promoted at all; that is told apart."""
    lives = sum(life.may_run for life in promise.lives) if promise else 1
    return max(Counter(one.attempt for one in promotions).values()) > max(lives, 1)


def _must_not(promise: Promise) -> bool:
    return not any(life.may_run for life in promise.lives)


def _reruns(started: Mapping[str, Iterable[Run]]) -> Iterable[tuple[Run, Run]]:
    """Every start of an entry that was started before, after the start before it."""
    for runs in started.values():
        by_entry: defaultdict[str, list[Run]] = defaultdict(list)
        for run in runs:
            by_entry[run.entry_id].append(run)
        for entry_runs in by_entry.values():
            yield from pairwise(sorted(entry_runs, key=lambda run: run.started_ms))


def _cause(reruns: tuple[Run, Run], hurts: Iterable[Hurt]) -> str | None:
    """What explains that an entry was started again.

    Either of the two workers was hurt between the promotion and the second start: the first before it could
    acknowledge, or the second after it had read the entry, so that it was given to the first and ran late.
    """
    first, second = reruns
    promoted_ms = int(first.entry_id.partition("-")[0])
    whom = {first.worker, second.worker, EVERYONE}
    found = [one for one in hurts if one.whom in whom and one.from_ms <= second.started_ms and one.to_ms >= promoted_ms]
    return max(found, key=lambda one: one.from_ms).kind if found else None
