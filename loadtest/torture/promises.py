"""What producers were told, and what follows from it for the judge. Pure.

    Told        one answer about one job, in the order a producer got them
    promise     all answers about one id, folded into a `Promise`

A job id belongs to one producer, which asks one thing after the other: so what it knows grows in order. After an
answer that never came it leaves the job alone, and what may have happened is allowed, and nothing more:

| asked, and the answer was lost | what may be                                                           |
|--------------------------------|-----------------------------------------------------------------------|
| schedule                       | it may run, not before it was asked plus its delay                    |
| cancel                         | it may run, or not                                                    |
| reschedule, run now            | it runs, at the earliest at the earlier of both times                 |

Where servers replicate, producers have every change confirmed by a replica (`durability="replicated"` for what they
schedule, a WAIT behind each cancel, reschedule and run now). A confirmed change survives a failover, and is promised as
on one server. A change that was answered but not confirmed in time may be undone by a failover; less is promised:

| answered, and not confirmed | what may be                                                                        |
|-----------------------------|------------------------------------------------------------------------------------|
| created                     | it may run, or not                                                                 |
| replaced, rescheduled       | it runs, at the earliest at the earlier of both times                              |
| cancelled                   | it may run, or not                                                                 |

Promotion itself is not confirmed by replicas. One that a failover undoes is made again by the new master, once: the
servers' streams, which the judge reads at the end, went back together with the waiting jobs. Only a worker's log can
tell of the first; see `checker` for what it allows.

A schedule call whose reply was lost is repeated by the client itself, with the same id. Where the first call had
happened and its job had finished meanwhile, the repeated one cannot know that, and the job runs a second time: a call
with lost replies allows as many lives more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from loadtest.torture.checker import Promise


class Asked(StrEnum):
    """What a producer wanted."""

    SCHEDULE = "schedule"
    REPLACE = "replace"
    """Schedule, with `on_duplicate="replace"`."""
    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"


class Answer(StrEnum):
    """What it was told."""

    CREATED = "created"
    KEPT = "kept"
    """A live job has the id: nothing was changed."""
    REPLACED = "replaced"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    PROMOTED = "promoted"
    RUNNING = "running"
    """Too late."""
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    """Nothing was done, the server said."""
    UNAVAILABLE = "unavailable"
    """Nothing was done, for nobody could be asked."""
    UNKNOWN = "unknown"
    """Nobody knows."""


@dataclass(frozen=True, slots=True)
class Told:
    """One answer about one job."""

    asked: Asked
    id: str
    answer: Answer
    due_ms: int
    """From the receipt; where there is none, the earliest that this call can have made the job due."""
    lost: int = 0
    """Replies that were lost within the call."""
    fails: int = 0
    """How many attempts of this job's handler fail."""
    could_be_due_ms: int | None = None
    """Where replies were lost: the earliest that the calls without an answer can have made the job due."""
    is_confirmed: bool = True
    """False: there are replicas, and none has said in time that it has the change."""


def promises(log: Iterable[Told]) -> dict[str, Promise]:
    """The promise for every id."""
    by_id: defaultdict[str, list[Told]] = defaultdict(list)
    for told in log:
        by_id[told.id].append(told)
    return {id: promise(told) for id, told in by_id.items()}


def promise(told: Iterable[Told]) -> Promise:
    """What follows from all answers about one id, in order."""
    lives: list[Promise] = []
    fails = 0
    for one in told:
        fails = one.fails
        _take(lives, one)
    return replace(lives[-1], before=tuple(lives[:-1]), last_attempt=fails + 1)


def _take(lives: list[Promise], told: Told) -> None:
    """Let one answer change what is known; the last of `lives` is the one that lives now."""
    if not told.is_confirmed and told.answer in _CHANGES:
        _take_unconfirmed(lives, told)
        return
    match told.answer:
        case Answer.CREATED:
            if told.lost and lives and told.asked is Asked.REPLACE:  # perhaps replaced by the call without an answer
                lives[-1] = replace(lives[-1], must_run=False)
            lives += [*_made_by_lost_calls(told), Promise(told.due_ms, must_run=True)]
        case Answer.REPLACED:
            lives[-1:] = [Promise(told.due_ms, must_run=True)]
        case Answer.CANCELLED:
            lives[-1] = replace(lives[-1], must_run=False, may_run=False)
        case Answer.RESCHEDULED:
            lives[-1] = replace(lives[-1], earliest_ms=told.due_ms)
        case Answer.PROMOTED:
            lives[-1] = _sooner(lives[-1], told.due_ms)
        case Answer.REFUSED | Answer.UNAVAILABLE if not lives:
            lives.append(Promise(told.due_ms, must_run=False, may_run=False, was_refused=True))
        case Answer.UNKNOWN:
            _take_unknown(lives, told)
        case _:  # kept, running, not found: nothing was changed
            if not lives:
                lives.append(Promise(told.due_ms, must_run=False))


_CHANGES = (Answer.CREATED, Answer.REPLACED, Answer.RESCHEDULED, Answer.CANCELLED)


def _take_unconfirmed(lives: list[Promise], told: Told) -> None:
    """It happened, or a failover has undone it."""
    match told.answer:
        case Answer.CREATED:
            lives += [*_made_by_lost_calls(told), Promise(told.due_ms, must_run=False)]
        case Answer.REPLACED | Answer.RESCHEDULED:
            lives[-1] = _sooner(lives[-1], told.due_ms)
        case Answer.CANCELLED:
            lives[-1] = replace(lives[-1], must_run=False)


def _made_by_lost_calls(told: Told) -> list[Promise]:
    """What the same call may have made before, when its replies were lost."""
    due_ms = told.due_ms if told.could_be_due_ms is None else min(told.due_ms, told.could_be_due_ms)
    return [Promise(due_ms, must_run=False)] * told.lost


def _take_unknown(lives: list[Promise], told: Told) -> None:
    match told.asked:
        case Asked.SCHEDULE | Asked.REPLACE:
            if lives and told.asked is Asked.REPLACE:
                lives[-1] = _sooner(lives[-1], told.due_ms)
            lives += [Promise(told.due_ms, must_run=False)] * max(told.lost, 1)
        case Asked.CANCEL:
            lives[-1] = replace(lives[-1], must_run=False)
        case Asked.RESCHEDULE | Asked.RUN_NOW:
            lives[-1] = _sooner(lives[-1], told.due_ms)


def _sooner(life: Promise, due_ms: int) -> Promise:
    return replace(life, earliest_ms=min(life.earliest_ms, due_ms))
