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


class TestPromise:
    """From a producer's answers about one job to what may and must happen."""

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([CREATED], SURE, id="created"),
            pytest.param([CREATED, call(Asked.SCHEDULE, Answer.KEPT, DUE + 9)], SURE, id="kept"),
            pytest.param(
                [CREATED, call(Asked.REPLACE, Answer.REPLACED, DUE + 9)],
                Promise(DUE + 9, must_run=True),
                id="replaced",
            ),
            pytest.param(
                [CREATED, call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)],
                Promise(DUE + 9, must_run=True),
                id="moved to later",
            ),
            pytest.param(
                [CREATED, call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="moved to sooner",
            ),
            pytest.param([CREATED, call(Asked.RESCHEDULE, Answer.RUNNING, DUE - 9)], SURE, id="too late to be moved"),
            pytest.param(
                [CREATED, call(Asked.RUN_NOW, Answer.PROMOTED, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="run now",
            ),
            pytest.param(
                [CREATED, call(Asked.CANCEL, Answer.CANCELLED)],
                Promise(DUE, must_run=False, may_run=False),
                id="cancelled",
            ),
            pytest.param([CREATED, call(Asked.CANCEL, Answer.NOT_FOUND)], SURE, id="too late to be cancelled"),
            pytest.param([CREATED, call(Asked.CANCEL, Answer.REFUSED)], SURE, id="cancellation refused"),
            pytest.param(
                [call(Asked.SCHEDULE, Answer.REFUSED)],
                Promise(DUE, must_run=False, may_run=False, was_refused=True),
                id="refused",
            ),
            pytest.param(
                [call(Asked.SCHEDULE, Answer.UNAVAILABLE)],
                Promise(DUE, must_run=False, may_run=False, was_refused=True),
                id="unavailable",
            ),
        ],
    )
    def test_a_definite_answer_makes_a_definite_promise(self, answers: list[Call], expected: Promise) -> None:
        """In the order they came."""
        assert promise(answers) == expected

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([call(Asked.SCHEDULE, Answer.UNKNOWN)], Promise(DUE, must_run=False), id="schedule"),
            pytest.param([CREATED, call(Asked.CANCEL, Answer.UNKNOWN)], Promise(DUE, must_run=False), id="cancel"),
            pytest.param(
                [CREATED, call(Asked.RESCHEDULE, Answer.UNKNOWN, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="reschedule to sooner",
            ),
            pytest.param([CREATED, call(Asked.RESCHEDULE, Answer.UNKNOWN, DUE + 9)], SURE, id="reschedule to later"),
            pytest.param(
                [CREATED, call(Asked.RUN_NOW, Answer.UNKNOWN, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="run now",
            ),
        ],
    )
    def test_a_lost_answer_leaves_open_what_happened(self, answers: list[Call], expected: Promise) -> None:
        """Whatever it was, it may have happened or not."""
        assert promise(answers) == expected

    def test_a_repeated_schedule_call_may_make_a_second_life(self) -> None:
        """The first call happened, its reply was lost, and the job had finished before the call was repeated."""
        found = promise([call(Asked.SCHEDULE, Answer.CREATED, DUE + 9, lost=1)])
        assert found == Promise(DUE + 9, must_run=True, before=(Promise(DUE + 9, must_run=False),))

    def test_a_second_life_may_have_been_due_sooner(self) -> None:
        """A delay counts from when the server is asked, and it was asked twice."""
        found = promise([replace(CREATED, due_ms=DUE + 750, lost=1, could_be_due_ms=DUE)])
        assert [life.earliest_ms for life in found.lives] == [DUE, DUE + 750]

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([CREATED], Promise(DUE, must_run=False), id="created"),
            pytest.param([CREATED, call(Asked.CANCEL, Answer.CANCELLED)], Promise(DUE, must_run=False), id="cancelled"),
            pytest.param(
                [CREATED, call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)],
                Promise(DUE, must_run=False),
                id="moved to later",
            ),
            pytest.param(
                [CREATED, call(Asked.REPLACE, Answer.REPLACED, DUE - 9)],
                Promise(DUE - 9, must_run=False),
                id="replaced by a sooner one",
            ),
        ],
    )
    def test_what_no_replica_confirmed_may_have_been_undone(self, answers: list[Call], expected: Promise) -> None:
        """It was answered, and a failover may have taken it back."""
        assert promise([replace(one, is_confirmed=False) for one in answers]) == expected

    def test_what_was_confirmed_is_not_weakened_by_what_was_not(self) -> None:
        """The job must run, only the time is open; the next confirmed change settles it."""
        moved = call(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)
        assert promise([CREATED, replace(moved, is_confirmed=False)]) == SURE
        assert promise([CREATED, replace(moved, is_confirmed=False), moved]) == Promise(DUE + 9, must_run=True)

    def test_a_repeated_replacement_may_have_replaced_or_followed(self) -> None:
        """ "Created", after a lost reply: the old job was replaced by the first call, or had finished before it."""
        found = promise([CREATED, call(Asked.REPLACE, Answer.CREATED, DUE + 9, lost=1)])
        assert [life.must_run for life in found.lives] == [False, False, True]

    def test_an_id_that_is_free_again_begins_another_life(self) -> None:
        """ "Created" for an id that was created before says that the job before has finished."""
        found = promise([CREATED, call(Asked.SCHEDULE, Answer.CREATED, DUE + 99)])
        assert found == Promise(DUE + 99, must_run=True, before=(SURE,))

    def test_a_cancelled_job_can_be_scheduled_again(self) -> None:
        """Then the second of two lives must run, and the first must not."""
        found = promise([CREATED, call(Asked.CANCEL, Answer.CANCELLED), call(Asked.SCHEDULE, Answer.CREATED, DUE + 9)])
        assert found == Promise(DUE + 9, must_run=True, before=(Promise(DUE, must_run=False, may_run=False),))

    def test_jobs_do_not_mix(self) -> None:
        """Each id has its own promise."""
        found = promises([CREATED, Call(Asked.SCHEDULE, "b", Answer.UNKNOWN, DUE)])
        assert found == {"a": SURE, "b": Promise(DUE, must_run=False)}
