"""The judge of fault tests: every kind of wrong is found, and what may happen is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from loadtest.torture.checker import EVERYONE, Hurt, Promise, Promotion, Run, Verdict, judge
from loadtest.torture.promises import Answer, Asked, Told, promise, promises

DUE = 1_000_000
SURE = Promise(DUE, must_run=True)


def promoted(at_ms: int = DUE, due_ms: int = DUE, attempt: int = 1, id: str = "a") -> Promotion:
    return Promotion(id, due_ms, at_ms, attempt, f"{at_ms}-0")


def ran(promoted_ms: int = DUE, after_ms: float = 2, worker: str = "w1", attempt: int = 1, id: str = "a") -> Run:
    return Run(id, f"{promoted_ms}-0", promoted_ms + after_ms, worker, attempt)


def verdict(
    promise: Promise | None,
    promotions: Iterable[Promotion] = (),
    runs: Iterable[Run] = (),
    hurts: Sequence[Hurt] | None = (),
) -> Verdict:
    return judge({} if promise is None else {"a": promise}, promotions, runs, hurts)


def wrong(
    promise: Promise | None,
    promotions: Iterable[Promotion] = (),
    runs: Iterable[Run] = (),
    hurts: Sequence[Hurt] | None = (),
) -> list[str]:
    """The names of what went wrong."""
    return list(verdict(promise, promotions, runs, hurts).wrong)


class TestJudge:
    """From a promise, promotions, runs and hurts to what went wrong."""

    def test_a_job_promoted_and_run_once_is_as_it_should_be(self) -> None:
        """Its lateness is from due to promoted."""
        found = verdict(SURE, [promoted(DUE + 7)], [ran(DUE + 7)])
        assert found.is_clean
        assert found.lateness_ms == [7]
        assert (found.promised, found.ran, found.reruns) == (1, 1, 0)

    def test_a_promised_job_that_never_ran_is_lost(self) -> None:
        """Also when it was promoted."""
        assert wrong(SURE) == ["lost"]
        assert wrong(SURE, [promoted()]) == ["lost"]

    def test_a_job_that_is_not_sure_may_run_or_not(self) -> None:
        """The reply to its schedule call, or to its cancellation, was lost."""
        perhaps = Promise(DUE, must_run=False)
        assert wrong(perhaps) == []
        assert wrong(perhaps, [promoted()], [ran()]) == []

    @pytest.mark.parametrize(
        ("promise", "promotion"),
        [
            pytest.param(SURE, promoted(DUE - 1), id="before the due time in its entry"),
            pytest.param(SURE, promoted(DUE - 1, due_ms=DUE - 1), id="before the due time that was promised"),
            pytest.param(Promise(DUE, must_run=False), promoted(DUE - 1, due_ms=DUE - 1), id="even if it is not sure"),
        ],
    )
    def test_a_millisecond_before_the_due_time_is_early(self, promise: Promise, promotion: Promotion) -> None:
        """By the server's clock there is no tolerance."""
        assert wrong(promise, [promotion], [ran(DUE - 1, after_ms=2)]) == ["early"]

    def test_a_run_before_the_due_time_is_early(self) -> None:
        """Beyond what a worker's clock may be off."""
        assert wrong(SURE, [promoted()], [ran(after_ms=-5)]) == []
        assert wrong(SURE, [promoted()], [ran(after_ms=-6)]) == ["early"]

    def test_two_promotions_of_one_job_are_one_too_many(self) -> None:
        """Whether both ran or not."""
        assert wrong(SURE, [promoted(), promoted(DUE + 5)], [ran()]) == ["doubled"]

    def test_a_second_life_allows_and_demands_a_second_promotion(self) -> None:
        """The id was free again, and a new job took it."""
        twice = Promise(DUE + 50, must_run=True, before=(SURE,))
        both = [promoted(), promoted(DUE + 50, DUE + 50)]
        assert wrong(twice, both, [ran(), ran(DUE + 50)]) == []
        assert wrong(twice, both[:1], [ran()]) == ["lost"]
        assert wrong(twice, [*both, promoted(DUE + 60)], [ran(), ran(DUE + 50), ran(DUE + 60)]) == ["doubled"]
        assert wrong(twice, [promoted(), promoted(DUE + 49)], [ran(), ran(DUE + 49)]) == ["early"]

    def test_a_cancelled_job_that_runs_has_risen(self) -> None:
        """A confirmed cancellation is final."""
        cancelled = Promise(DUE, must_run=False, may_run=False)
        assert wrong(cancelled) == []
        assert wrong(cancelled, [promoted()]) == ["risen"]
        assert wrong(cancelled, [promoted()], [ran()]) == ["risen"]

    def test_a_refused_job_that_runs_was_denied(self) -> None:
        """ "Refused" and "unavailable" say that nothing was done."""
        refused = Promise(DUE, must_run=False, may_run=False, was_refused=True)
        assert wrong(refused) == []
        assert wrong(refused, [promoted()], [ran()]) == ["denied"]

    def test_a_job_nobody_scheduled_is_unknown(self) -> None:
        """It cannot come from anywhere."""
        assert wrong(None, [promoted()], [ran()]) == ["unknown"]

    def test_a_job_that_fails_must_run_again(self) -> None:
        """Its promise tells which attempt succeeds; the retry has an entry of its own."""
        failing = Promise(DUE, must_run=True, last_attempt=2)
        first, second = promoted(), promoted(DUE + 300, DUE + 300, attempt=2)
        assert wrong(failing, [first], [ran()]) == ["lost"]
        assert wrong(failing, [first, second], [ran(), ran(DUE + 300, attempt=2)]) == []
        third = promoted(DUE + 400, DUE + 300, attempt=2)
        assert wrong(failing, [first, second, third], [ran(), ran(DUE + 300, attempt=2)]) == ["doubled"]

    def test_without_record_of_hurts_every_repeated_run_is_allowed(self) -> None:
        """They are counted only."""
        found = verdict(SURE, [promoted()], [ran(), ran(after_ms=9, worker="w2")], hurts=None)
        assert found.is_clean
        assert found.reruns == 1

    def test_a_repeated_run_without_a_cause_is_unexplained(self) -> None:
        """Nobody was hurt, or others were, or at another time."""
        runs = [ran(), ran(after_ms=4_000, worker="w2")]
        others = Hurt("kill-worker", "w3", DUE, DUE + 10)
        before = Hurt("kill-worker", "w1", DUE - 500, DUE - 1)
        after = Hurt("kill-worker", "w1", DUE + 4_001, DUE + 4_002)
        assert wrong(SURE, [promoted()], runs) == ["unexplained"]
        assert wrong(SURE, [promoted()], runs, [others, before, after]) == ["unexplained"]

    @pytest.mark.parametrize(
        "hurt",
        [
            pytest.param(Hurt("kill-worker", "w1", DUE + 20, DUE + 20), id="the first was killed before its ack"),
            pytest.param(
                Hurt("freeze-worker", "w2", DUE - 5, DUE + 3_900), id="the second read it, froze, ran it late"
            ),
            pytest.param(Hurt("crash-server", EVERYONE, DUE + 1, DUE + 900), id="the server went away for all"),
        ],
    )
    def test_a_repeated_run_is_explained_by_what_was_done_to_either_worker(self, hurt: Hurt) -> None:
        """The cause is counted by its kind."""
        found = verdict(SURE, [promoted()], [ran(), ran(after_ms=4_000, worker="w2")], [hurt])
        assert found.is_clean
        assert found.causes == {hurt.kind: 1}

    def test_a_run_that_a_failover_has_undone_keeps_no_promise_and_breaks_none(self) -> None:
        """Its promotion does not stand: the job must run again, and is then neither doubled nor run without cause."""
        failover = Hurt("fail-over", EVERYONE, DUE + 10, DUE + 5_000, may_undo=True)
        again = promoted(DUE + 3_000)
        assert wrong(SURE, [], [ran()], [failover]) == ["lost"]
        found = verdict(SURE, [again], [ran(), ran(DUE + 3_000)], [failover])
        assert found.is_clean
        assert (found.undone, found.reruns) == (1, 0)
        cancelled = Promise(DUE, must_run=False, may_run=False)
        assert wrong(cancelled, [], [ran()], [failover]) == [], "by a server that was replaced already"
        assert wrong(None, [], [ran()], [failover]) == ["unknown"]

    @pytest.mark.parametrize(
        "hurt",
        [
            pytest.param(Hurt("crash-server", EVERYONE, DUE - 10, DUE + 10), id="the same server came back"),
            pytest.param(Hurt("fail-over", EVERYONE, DUE + 2_001, DUE + 9_000, may_undo=True), id="later"),
            pytest.param(Hurt("fail-over", EVERYONE, DUE - 9_000, DUE - 1, may_undo=True), id="over by then"),
        ],
    )
    def test_a_run_whose_promotion_nobody_knows_has_vanished(self, hurt: Hurt) -> None:
        """No failover near can have undone it."""
        assert wrong(SURE, [promoted(DUE + 5)], [ran(), ran(DUE + 5)], [hurt]) == ["vanished"]


def told(asked: Asked, answer: Answer, due_ms: int = DUE, lost: int = 0) -> Told:
    return Told(asked, "a", answer, due_ms, lost)


CREATED = told(Asked.SCHEDULE, Answer.CREATED)


class TestPromise:
    """From a producer's answers about one job to what may and must happen."""

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([CREATED], SURE, id="created"),
            pytest.param([CREATED, told(Asked.SCHEDULE, Answer.KEPT, DUE + 9)], SURE, id="kept"),
            pytest.param(
                [CREATED, told(Asked.REPLACE, Answer.REPLACED, DUE + 9)], Promise(DUE + 9, must_run=True), id="replaced"
            ),
            pytest.param(
                [CREATED, told(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)],
                Promise(DUE + 9, must_run=True),
                id="moved to later",
            ),
            pytest.param(
                [CREATED, told(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="moved to sooner",
            ),
            pytest.param([CREATED, told(Asked.RESCHEDULE, Answer.RUNNING, DUE - 9)], SURE, id="too late to be moved"),
            pytest.param(
                [CREATED, told(Asked.RUN_NOW, Answer.PROMOTED, DUE - 9)], Promise(DUE - 9, must_run=True), id="run now"
            ),
            pytest.param(
                [CREATED, told(Asked.CANCEL, Answer.CANCELLED)],
                Promise(DUE, must_run=False, may_run=False),
                id="cancelled",
            ),
            pytest.param([CREATED, told(Asked.CANCEL, Answer.NOT_FOUND)], SURE, id="too late to be cancelled"),
            pytest.param([CREATED, told(Asked.CANCEL, Answer.REFUSED)], SURE, id="cancellation refused"),
            pytest.param(
                [told(Asked.SCHEDULE, Answer.REFUSED)],
                Promise(DUE, must_run=False, may_run=False, was_refused=True),
                id="refused",
            ),
            pytest.param(
                [told(Asked.SCHEDULE, Answer.UNAVAILABLE)],
                Promise(DUE, must_run=False, may_run=False, was_refused=True),
                id="unavailable",
            ),
        ],
    )
    def test_a_definite_answer_makes_a_definite_promise(self, answers: list[Told], expected: Promise) -> None:
        """In the order they came."""
        assert promise(answers) == expected

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([told(Asked.SCHEDULE, Answer.UNKNOWN)], Promise(DUE, must_run=False), id="schedule"),
            pytest.param([CREATED, told(Asked.CANCEL, Answer.UNKNOWN)], Promise(DUE, must_run=False), id="cancel"),
            pytest.param(
                [CREATED, told(Asked.RESCHEDULE, Answer.UNKNOWN, DUE - 9)],
                Promise(DUE - 9, must_run=True),
                id="reschedule to sooner",
            ),
            pytest.param([CREATED, told(Asked.RESCHEDULE, Answer.UNKNOWN, DUE + 9)], SURE, id="reschedule to later"),
            pytest.param(
                [CREATED, told(Asked.RUN_NOW, Answer.UNKNOWN, DUE - 9)], Promise(DUE - 9, must_run=True), id="run now"
            ),
        ],
    )
    def test_a_lost_answer_leaves_open_what_happened(self, answers: list[Told], expected: Promise) -> None:
        """Whatever it was, it may have happened or not."""
        assert promise(answers) == expected

    def test_a_repeated_schedule_call_may_make_a_second_life(self) -> None:
        """The first call happened, its reply was lost, and the job had finished before the call was repeated."""
        found = promise([told(Asked.SCHEDULE, Answer.CREATED, DUE + 9, lost=1)])
        assert found == Promise(DUE + 9, must_run=True, before=(Promise(DUE + 9, must_run=False),))

    def test_a_second_life_may_have_been_due_sooner(self) -> None:
        """A delay counts from when the server is asked, and it was asked twice."""
        found = promise([replace(CREATED, due_ms=DUE + 750, lost=1, could_be_due_ms=DUE)])
        assert [life.earliest_ms for life in found.lives] == [DUE, DUE + 750]

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            pytest.param([CREATED], Promise(DUE, must_run=False), id="created"),
            pytest.param([CREATED, told(Asked.CANCEL, Answer.CANCELLED)], Promise(DUE, must_run=False), id="cancelled"),
            pytest.param(
                [CREATED, told(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)],
                Promise(DUE, must_run=False),
                id="moved to later",
            ),
            pytest.param(
                [CREATED, told(Asked.REPLACE, Answer.REPLACED, DUE - 9)],
                Promise(DUE - 9, must_run=False),
                id="replaced by a sooner one",
            ),
        ],
    )
    def test_what_no_replica_confirmed_may_have_been_undone(self, answers: list[Told], expected: Promise) -> None:
        """It was answered, and a failover may have taken it back."""
        assert promise([replace(one, is_confirmed=False) for one in answers]) == expected

    def test_what_was_confirmed_is_not_weakened_by_what_was_not(self) -> None:
        """The job must run, only the time is open; the next confirmed change settles it."""
        moved = told(Asked.RESCHEDULE, Answer.RESCHEDULED, DUE + 9)
        assert promise([CREATED, replace(moved, is_confirmed=False)]) == SURE
        assert promise([CREATED, replace(moved, is_confirmed=False), moved]) == Promise(DUE + 9, must_run=True)

    def test_a_repeated_replacement_may_have_replaced_or_followed(self) -> None:
        """ "Created", after a lost reply: the old job was replaced by the first call, or had finished before it."""
        found = promise([CREATED, told(Asked.REPLACE, Answer.CREATED, DUE + 9, lost=1)])
        assert [life.must_run for life in found.lives] == [False, False, True]

    def test_an_id_that_is_free_again_begins_another_life(self) -> None:
        """ "Created" for an id that was created before says that the job before has finished."""
        found = promise([CREATED, told(Asked.SCHEDULE, Answer.CREATED, DUE + 99)])
        assert found == Promise(DUE + 99, must_run=True, before=(SURE,))

    def test_a_cancelled_job_can_be_scheduled_again(self) -> None:
        """Then one of two lives must run, and one must not."""
        found = promise([CREATED, told(Asked.CANCEL, Answer.CANCELLED), told(Asked.SCHEDULE, Answer.CREATED, DUE + 9)])
        assert judge({"a": found}, [promoted(DUE + 9, DUE + 9)], [ran(DUE + 9)], []).is_clean
        assert list(judge({"a": found}, [promoted()], [ran()], []).wrong) == ["early"]

    def test_jobs_do_not_mix(self) -> None:
        """Each id has its own promise."""
        found = promises([CREATED, Told(Asked.SCHEDULE, "b", Answer.UNKNOWN, DUE)])
        assert found == {"a": SURE, "b": Promise(DUE, must_run=False)}
