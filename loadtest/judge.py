"""The judge of jobs: compares promises, promotions and runs, and says what went wrong. Pure; it trusts no counter.

    Promise     what producers know about one job                from the answers that they got
    Promotion   one entry of a ready stream                      from the server's own stream, or from the workers
    JobRun      one start of a handler                           from the workers
    Disruption  a fault of one worker, or of everything          from the log of the faults that a test has caused

What must hold: every promised job ran; no job was promoted before its due time; each was promoted once, and once for
each attempt that failed; no job that was cancelled or refused ran. Runs may be repeated (at-least-once): if disruptions
are given, one of them must explain each repeated run, and a job that failed must have run again.

A failover undoes writes that were not replicated yet. The streams of the remaining servers are the final record: in it
every promise must be kept, and each promotion exists once, without exception. A run whose promotion is not in the
record was *undone*. Undone runs are counted. A failover nearby must explain each of them (else it has `vanished`). An
undone run keeps no promise: its job must run again, from a promotion in the record. It breaks no promise either: the
server that promoted the job may have been replaced already without knowing it, and may not have known that the job was
moved or cancelled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

EVERYONE = ""
"""The name in a disruption that concerns all processes."""
UNDONE_MS = 2_000
"""The most milliseconds before a failover in which writes may be undone: replicas follow within this time."""
RUN_CLOCK_ERROR_MS = 5
"""A worker only estimates the server's clock; the times of its runs may be off by the length of a round trip."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a producer surely knows about one job."""

    earliest_ms: int
    """The earliest allowed promotion: the due time, or after an unknown outcome the earliest possible one."""
    must_run: bool
    """It was surely scheduled, and not cancelled, not even perhaps."""
    may_run: bool = True
    """False: a cancellation was confirmed, or the server refused it."""
    was_refused: bool = False
    """The producer was told that nothing was done."""
    last_attempt: int = 1
    """Its handler fails until this attempt, which must have run."""
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
    """Above 1 in the entry of a retry."""
    entry_id: str = ""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One start of a handler."""

    id: str
    entry_id: str
    started_ms: float
    worker: str = ""
    attempt: int = 1
    failed: bool = False
    """Its handler is known to have raised: it keeps no promise."""

    @property
    def promoted_ms(self) -> int:
        """The server's clock when its entry was made."""
        return int(self.entry_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Disruption:
    """A fault of a worker (or of everything) after which a job may run twice."""

    kind: str
    whom: str
    from_ms: float
    to_ms: float
    may_undo: bool = False
    """Another server may have taken over that lacked the last writes."""


Thing = TypeVar("Thing", Promotion, JobRun)


class FaultKind(StrEnum):
    """Violations of a promise."""

    LOST = "lost"
    """Promised, and never run (or not up to the attempt that succeeds)."""
    EARLY = "early"
    """Promoted or started before it was due."""
    DOUBLED = "doubled"
    """Promoted more often than it was scheduled, or again after the attempt that succeeds."""
    CANCELLED_BUT_RAN = "cancelled_but_ran"
    """Run although a cancellation was confirmed."""
    REFUSED_BUT_RAN = "refused_but_ran"
    """Run although the producer was told that nothing was done."""
    UNKNOWN = "unknown"
    """Run although no producer scheduled it."""
    UNEXPLAINED = "unexplained"
    """Run twice although no disruption concerned the workers that ran it."""
    VANISHED = "vanished"
    """Run from a promotion that the servers do not know of, with no failover near."""

    @property
    def words(self) -> str:
        """Its name for people."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong, and how late promotions were."""

    promised: int
    ran: int
    wrong: dict[FaultKind, list[str]]
    """The ids of the jobs that each kind of fault concerns, by kind; empty when every promise was kept."""
    undone: int
    """Runs from promotions that a failover has undone."""
    reruns: int
    """Starts beyond the first of each promotion."""
    causes: dict[str, int]
    """How many of the repeated starts each kind of disruption explains (the latest one, if there are several)."""
    lateness_ms: list[int]
    """From due to promoted, of each promotion, sorted."""

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept (repeated runs that are explained are allowed)."""
        return not self.wrong

    def count(self, *kinds: FaultKind) -> int:
        """How many faults of these kinds there are."""
        return sum(len(self.wrong.get(kind, ())) for kind in kinds)

    def __str__(self) -> str:
        late = self.lateness_ms
        spread = (
            f"lateness p50 {late[len(late) // 2]} p99 {late[len(late) * 99 // 100]} max {late[-1]} ms" if late else ""
        )
        found = "; ".join(f"{len(ids)} {kind.words}, such as {ids[:3]}" for kind, ids in self.wrong.items()) or "clean"
        return f"{self.promised} promised, {self.ran} ran, {self.reruns} reruns: {found}; {spread}"


def judge(
    promises: Mapping[str, Promise],
    promotions: Iterable[Promotion],
    runs: Iterable[JobRun],
    disruptions: Sequence[Disruption] | None = None,
    *,
    clock_error_ms: float = 0,
    run_clock_error_ms: float = RUN_CLOCK_ERROR_MS,
) -> Verdict:
    """Compare promises with runs. Without `disruptions`, every repeated run is allowed, and no run is undone.

    `clock_error_ms` is the largest difference between the server's clock and this machine's. Producers use the latter
    for the possible due times of jobs of unknown outcome, and workers for starts, which may be off by another
    `run_clock_error_ms`. Promotions are compared with the due time exactly.
    """
    runs = list(runs)
    promoted, all_runs = _by_id(promotions), _by_id(runs)
    stands = {(one.id, one.entry_id) for found in promoted.values() for one in found}
    undone = [run for run in runs if (run.id, run.entry_id) not in stands] if disruptions is not None else []
    started = _by_id(run for run in runs if disruptions is None or (run.id, run.entry_id) in stands)
    again = list(_reruns(all_runs))
    causes = [_cause(reruns, disruptions or (), clock_error_ms) for reruns in again]
    ran_anyway = {
        id: promise
        for id, promise in promises.items()
        if (id in started or id in promoted) and not any(life.may_run for life in promise.lives)
    }
    wrong = {
        FaultKind.LOST: [id for id, promise in promises.items() if _is_lost(promise, started.get(id, ()))],
        FaultKind.EARLY: [
            id
            for id, promise in promises.items()
            if _is_early(promise, promoted.get(id, ()), started.get(id, ()), clock_error_ms, run_clock_error_ms)
        ],
        FaultKind.DOUBLED: [id for id, found in promoted.items() if _is_doubled(promises.get(id), found)],
        FaultKind.CANCELLED_BUT_RAN: [id for id, promise in ran_anyway.items() if not promise.was_refused],
        FaultKind.REFUSED_BUT_RAN: [id for id, promise in ran_anyway.items() if promise.was_refused],
        FaultKind.UNKNOWN: [id for id in dict.fromkeys([*all_runs, *promoted]) if id not in promises],
        FaultKind.UNEXPLAINED: [
            rerun.id
            for (_, rerun), cause in zip(again, causes, strict=True)
            if disruptions is not None and cause is None
        ],
        FaultKind.VANISHED: [run.id for run in undone if not _is_explained(run, disruptions or ())],
    }
    return Verdict(
        promised=sum(promise.must_run for promise in promises.values()),
        ran=len(all_runs),
        wrong={kind: ids for kind, ids in wrong.items() if ids},
        undone=len(undone),
        reruns=len(again),
        causes=dict(Counter(cause for cause in causes if cause)),
        lateness_ms=sorted(one.promoted_ms - one.due_ms for found in promoted.values() for one in found),
    )


def lost(promises: Mapping[str, Promise], runs: Iterable[JobRun]) -> list[str]:
    """The promised jobs that have not run yet."""
    started = _by_id(runs)
    return [id for id, promise in promises.items() if _is_lost(promise, started.get(id, ()))]


def _by_id(things: Iterable[Thing]) -> dict[str, list[Thing]]:
    found: defaultdict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        found[thing.id].append(thing)
    return found


def _is_explained(undone: JobRun, disruptions: Iterable[Disruption]) -> bool:
    promoted_ms = undone.promoted_ms
    return any(one.may_undo and one.from_ms - UNDONE_MS <= promoted_ms <= one.to_ms for one in disruptions)


def _is_lost(promise: Promise, runs: Sequence[JobRun]) -> bool:
    finished = {run.entry_id for run in runs if run.attempt >= promise.last_attempt and not run.failed}
    return len(finished) < sum(life.must_run for life in promise.lives)


def _is_early(
    promise: Promise,
    promotions: Sequence[Promotion],
    runs: Sequence[JobRun],
    clock_error_ms: float,
    run_clock_error_ms: float,
) -> bool:
    first = sorted(one.promoted_ms for one in promotions if one.attempt == 1)
    # The n-th promotion is at the earliest that of the n-th life that may have run.
    earliest = [life.earliest_ms for life in promise.lives if life.may_run] or [promise.earliest_ms]
    told = [least - clock_error_ms for least in sorted(earliest)]
    return (
        any(one.promoted_ms < one.due_ms for one in promotions)
        or any(promoted_ms < least for promoted_ms, least in zip(first, told, strict=False))
        or any(run.started_ms < told[0] - run_clock_error_ms for run in runs)
    )


def _is_doubled(promise: Promise | None, promotions: Sequence[Promotion]) -> bool:
    """Whether a job was promoted too often. A cancelled or refused job is reported as such instead."""
    attempts = Counter(one.attempt for one in promotions)
    if promise is None:
        return max(attempts.values()) > 1
    lives = sum(life.may_run for life in promise.lives)
    return max(attempts) > promise.last_attempt or max(attempts.values()) > max(lives, 1)


def _reruns(started: Mapping[str, Iterable[JobRun]]) -> Iterable[tuple[JobRun, JobRun]]:
    """Every start of an entry that was started before, after the start before it."""
    for runs in started.values():
        by_entry: defaultdict[str, list[JobRun]] = defaultdict(list)
        for run in runs:
            by_entry[run.entry_id].append(run)
        for entry_runs in by_entry.values():
            yield from pairwise(sorted(entry_runs, key=lambda run: run.started_ms))


def _cause(reruns: tuple[JobRun, JobRun], disruptions: Iterable[Disruption], clock_error_ms: float) -> str | None:
    """Returns the kind of disruption that explains why an entry was started again; None if none does.

    A disruption between the promotion and the second start concerned one of the two workers: the first before it could
    acknowledge, or the second after it had read the entry, which was then given to the first, and ran late.
    """
    first, second = reruns
    whom = {first.worker, second.worker, EVERYONE}
    found = [
        one
        for one in disruptions
        if one.whom in whom and one.from_ms <= second.started_ms and one.to_ms >= first.promoted_ms - clock_error_ms
    ]
    return max(found, key=lambda one: one.from_ms).kind if found else None
