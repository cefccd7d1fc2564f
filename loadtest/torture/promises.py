"""Derives promises for the judge from the answers that producers got. Pure.

    Call        one call about one job, and its answer
    promise     all answers about one id, combined into a `Promise`

A job id belongs to one producer, which makes one call after the other, so its knowledge grows in order. After a lost
answer it leaves the job alone. Then everything that the call may have done is allowed, and nothing more:

| call whose answer was lost     | allowed                                                               |
|--------------------------------|-----------------------------------------------------------------------|
| schedule                       | it may run, not before it was asked plus its delay                    |
| cancel                         | it may run, or not                                                    |
| reschedule, run now            | it runs, at the earliest at the earlier of both times                 |

If servers replicate, producers ask for a replica's confirmation of every change (`durability="replicated"` for schedule
calls, a WAIT behind each cancel, reschedule and run now). A confirmed change survives a failover, and is promised as on
one server. A failover may undo a change that was answered but not confirmed in time; less is promised for it. If the
client repeated a schedule call, two servers may have carried it out, and either job may stay: so it is due at the
earliest when it was asked for plus its delay, which may be before the time in its receipt.

| answered, and not confirmed | allowed                                                                            |
|-----------------------------|------------------------------------------------------------------------------------|
| created                     | it may run, or not                                                                 |
| replaced, rescheduled       | it runs, at the earliest at the earlier of both times                              |
| cancelled                   | it may run, or not                                                                 |

Replicas do not confirm promotions. A promotion that a failover undoes is made again, once: the streams that the judge
reads at the end were set back together with the waiting jobs. Only the workers' logs show the first promotion;
`loadtest.judge` describes what it allows.

The client itself repeats a schedule call whose reply was lost, with the same tag: on one server both make one job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from loadtest.judge import Promise


class Asked(StrEnum):
    """The call that a producer made."""

    SCHEDULE = "schedule"
    REPLACE = "replace"
    """Schedule, with `on_duplicate="replace"`."""
    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"


class Answer(StrEnum):
    """The answer to the call."""

    CREATED = "created"
    KEPT = "kept"
    """A live job has the id: nothing was changed."""
    REPLACED = "replaced"
    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    PROMOTED = "promoted"
    HELD_BACK = "held_back"
    RUNNING = "running"
    """Too late."""
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    """The server said that nothing was done."""
    UNAVAILABLE = "unavailable"
    """Nothing was done, because no server could be reached."""
    UNKNOWN = "unknown"
    """The outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call about one job, and its answer."""

    asked: Asked
    id: str
    answer: Answer
    due_ms: int
    """From the receipt; without one, or if it is not confirmed, the earliest due time that this call can have set."""
    fails: int = 0
    """How many attempts of this job's handler fail."""
    is_confirmed: bool = True
    """False: there are replicas, and none has confirmed the change in time."""


def promises(log: Iterable[Call]) -> dict[str, Promise]:
    """The promise for every id."""
    by_id: defaultdict[str, list[Call]] = defaultdict(list)
    for call in log:
        by_id[call.id].append(call)
    return {id: promise(calls) for id, calls in by_id.items()}


def promise(calls: Iterable[Call]) -> Promise:
    """Returns the promise that follows from all answers about one id, in order."""
    lives: list[Promise] = []
    fails = 0
    for one in calls:
        fails = one.fails
        _take(lives, one)
    return replace(lives[-1], before=tuple(lives[:-1]), last_attempt=fails + 1)


def _take(lives: list[Promise], call: Call) -> None:
    """Add what one answer says; the last of `lives` is the present one."""
    if not call.is_confirmed and call.answer in _CHANGES:
        _take_unconfirmed(lives, call)
        return
    match call.answer:
        case Answer.CREATED:
            lives.append(Promise(call.due_ms, must_run=True))
        case Answer.REPLACED:
            lives[-1:] = [Promise(call.due_ms, must_run=True)]
        case Answer.CANCELLED:
            lives[-1] = replace(lives[-1], must_run=False, may_run=False)
        case Answer.RESCHEDULED:
            lives[-1] = replace(lives[-1], earliest_ms=call.due_ms)
        case Answer.PROMOTED | Answer.HELD_BACK:
            lives[-1] = _sooner(lives[-1], call.due_ms)
        case Answer.REFUSED | Answer.UNAVAILABLE if not lives:
            lives.append(Promise(call.due_ms, must_run=False, may_run=False, was_refused=True))
        case Answer.UNKNOWN:
            _take_unknown(lives, call)
        case _:  # kept, running, not found: nothing was changed
            if not lives:
                lives.append(Promise(call.due_ms, must_run=False))


_CHANGES = (Answer.CREATED, Answer.REPLACED, Answer.RESCHEDULED, Answer.CANCELLED)


def _take_unconfirmed(lives: list[Promise], call: Call) -> None:
    """Take an answer whose change stands, or was undone by a failover."""
    match call.answer:
        case Answer.CREATED:
            lives.append(Promise(call.due_ms, must_run=False))
        case Answer.REPLACED | Answer.RESCHEDULED:
            lives[-1] = _sooner(lives[-1], call.due_ms)
        case Answer.CANCELLED:
            lives[-1] = replace(lives[-1], must_run=False)


def _take_unknown(lives: list[Promise], call: Call) -> None:
    match call.asked:
        case Asked.SCHEDULE | Asked.REPLACE:
            if lives and call.asked is Asked.REPLACE:
                lives[-1] = _sooner(lives[-1], call.due_ms)
            lives.append(Promise(call.due_ms, must_run=False))
        case Asked.CANCEL:
            lives[-1] = replace(lives[-1], must_run=False)
        case Asked.RESCHEDULE | Asked.RUN_NOW:
            lives[-1] = _sooner(lives[-1], call.due_ms)


def _sooner(life: Promise, due_ms: int) -> Promise:
    return replace(life, earliest_ms=min(life.earliest_ms, due_ms))
