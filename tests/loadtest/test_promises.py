"""The answers that producers got about a job, and what must follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.judge import Promise
from loadtest.torture.promises import Answer, Asked, Call, promise, promises

DUE = 1_000_000
SURE = Promise(DUE, must_run=True)


def call(asked: Asked, answer: Answer, due_ms: int = DUE, lost: int = 0) -> Call:
    return Call(asked, "a", answer, due_ms, lost)


CREATED = call(Asked.SCHEDULE, Answer.CREATED)
CANCELLED = call(Asked.CANCEL, Answer.CANCELLED)
LATER = call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)
REFUSED = Promise(DUE, must_run=False, may_run=False, was_refused=True)
OPEN = Promise(DUE, must_run=False)
"""The job may run or not."""


def sure(due_ms: int) -> Promise:
    return Promise(due_ms, must_run=True)


DEFINITE = {
    "created": ([CREATED], SURE),
    "kept": ([CREATED, call(Asked.SCHEDULE, Answer.KEPT, DUE + 9)], SURE),
    "replaced": ([CREATED, call(Asked.REPLACE, Answer.REPLACED, DUE + 9)], sure(DUE + 9)),
    "moved to later": ([CREATED, LATER], sure(DUE + 9)),
    "moved to sooner": ([CREATED, call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE - 9)], sure(DUE - 9)),
    "too late to be moved": ([CREATED, call(Asked.RESCHEDULE, Answer.RUNNING, DUE - 9)], SURE),
    "run now": ([CREATED, call(Asked.RUN_NOW, Answer.PROMOTED, DUE - 9)], sure(DUE - 9)),
    "cancelled": ([CREATED, CANCELLED], Promise(DUE, must_run=False, may_run=False)),
    "too late to be cancelled": ([CREATED, call(Asked.CANCEL, Answer.NOT_FOUND)], SURE),
    "cancellation refused": ([CREATED, call(Asked.CANCEL, Answer.REFUSED)], SURE),
    "refused": ([call(Asked.SCHEDULE, Answer.REFUSED)], REFUSED),
    "unavailable": ([call(Asked.SCHEDULE, Answer.UNAVAILABLE)], REFUSED),
}
LOST = {
    "schedule": ([call(Asked.SCHEDULE, Answer.UNKNOWN)], OPEN),
    "cancel": ([CREATED, call(Asked.CANCEL, Answer.UNKNOWN)], OPEN),
    "reschedule to sooner": ([CREATED, call(Asked.RESCHEDULE, Answer.UNKNOWN, DUE - 9)], sure(DUE - 9)),
    "reschedule to later": ([CREATED, call(Asked.RESCHEDULE, Answer.UNKNOWN, DUE + 9)], SURE),
    "run now": ([CREATED, call(Asked.RUN_NOW, Answer.UNKNOWN, DUE - 9)], sure(DUE - 9)),
}
UNCONFIRMED = {
    "created": ([CREATED], OPEN),
    "cancelled": ([CREATED, CANCELLED], OPEN),
    "moved to later": ([CREATED, LATER], OPEN),
    "replaced by a sooner one": (
        [CREATED, call(Asked.REPLACE, Answer.REPLACED, DUE - 9)],
        Promise(DUE - 9, must_run=False),
    ),
}


@pytest.mark.parametrize(("answers", "expected"), DEFINITE.values(), ids=DEFINITE)
def test_a_definite_answer_makes_a_definite_promise(answers: list[Call], expected: Promise) -> None:
    assert promise(answers) == expected


@pytest.mark.parametrize(("answers", "expected"), LOST.values(), ids=LOST)
def test_a_lost_answer_leaves_open_what_happened(answers: list[Call], expected: Promise) -> None:
    assert promise(answers) == expected


@pytest.mark.parametrize(("answers", "expected"), UNCONFIRMED.values(), ids=UNCONFIRMED)
def test_an_unconfirmed_change_may_have_been_undone(answers: list[Call], expected: Promise) -> None:
    """It was answered, and a failover may have taken it back."""
    assert promise([replace(one, is_confirmed=False) for one in answers]) == expected


def test_a_confirmed_change_is_not_weakened_by_an_unconfirmed_one() -> None:
    """The job must run, only the time is open; the next confirmed change settles it."""
    moved = call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)
    assert promise([CREATED, replace(moved, is_confirmed=False)]) == SURE
    assert promise([CREATED, replace(moved, is_confirmed=False), moved]) == Promise(DUE + 9, must_run=True)


def test_an_id_that_is_free_again_begins_another_life() -> None:
    """ "Created" for an id that was created before says that the job before has finished."""
    found = promise([CREATED, call(Asked.SCHEDULE, Answer.CREATED, DUE + 99)])
    assert found == Promise(DUE + 99, must_run=True, before=(SURE,))


def test_a_cancelled_job_can_be_scheduled_again() -> None:
    """Then the second of two lives must run, and the first must not."""
    found = promise([CREATED, call(Asked.CANCEL, Answer.CANCELLED), call(Asked.SCHEDULE, Answer.CREATED, DUE + 9)])
    assert found == Promise(DUE + 9, must_run=True, before=(Promise(DUE, must_run=False, may_run=False),))


def test_jobs_do_not_mix() -> None:
    """Each id has its own promise."""
    found = promises([CREATED, Call(Asked.SCHEDULE, "b", Answer.UNKNOWN, DUE)])
    assert found == {"a": SURE, "b": Promise(DUE, must_run=False)}
