"""The judge of jobs: every kind of wrong is found, and what may happen is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from loadtest.judge import EVERYONE, Disruption, JobRun, Promise, Promotion, Verdict, judge

DUE = 1_000_000
SURE = Promise(DUE, must_run=True)


def promoted(at_ms: int = DUE, due_ms: int = DUE, attempt: int = 1, id: str = "a") -> Promotion:
    return Promotion(id, due_ms, at_ms, attempt, f"{at_ms}-0")


def ran(promoted_ms: int = DUE, after_ms: float = 2, worker: str = "w1", attempt: int = 1, id: str = "a") -> JobRun:
    return JobRun(id, f"{promoted_ms}-0", promoted_ms + after_ms, worker, attempt)


def verdict(
    promise: Promise | None,
    promotions: Iterable[Promotion] = (),
    runs: Iterable[JobRun] = (),
    disruptions: Sequence[Disruption] | None = (),
) -> Verdict:
    return judge({} if promise is None else {"a": promise}, promotions, runs, disruptions)


def wrong(
    promise: Promise | None,
    promotions: Iterable[Promotion] = (),
    runs: Iterable[JobRun] = (),
    disruptions: Sequence[Disruption] | None = (),
) -> list[str]:
    """The names of what went wrong."""
    return list(verdict(promise, promotions, runs, disruptions).wrong)


class TestJudge:
    """From a promise, promotions, runs and disruptions to what went wrong."""

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

    def test_an_uncertain_job_may_run_or_not(self) -> None:
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

    def test_only_the_second_of_two_lives_may_run_if_the_first_was_cancelled(self) -> None:
        """A promotion of the first would be before the due time of the second."""
        again = Promise(DUE + 9, must_run=True, before=(Promise(DUE, must_run=False, may_run=False),))
        assert wrong(again, [promoted(DUE + 9, DUE + 9)], [ran(DUE + 9)]) == []
        assert wrong(again, [promoted()], [ran()]) == ["early"]

    def test_a_cancelled_job_that_runs_is_found(self) -> None:
        """A confirmed cancellation is final."""
        cancelled = Promise(DUE, must_run=False, may_run=False)
        assert wrong(cancelled) == []
        assert wrong(cancelled, [promoted()]) == ["cancelled_but_ran"]
        assert wrong(cancelled, [promoted()], [ran()]) == ["cancelled_but_ran"]

    def test_a_refused_job_that_runs_is_found(self) -> None:
        """ "Refused" and "unavailable" say that nothing was done."""
        refused = Promise(DUE, must_run=False, may_run=False, was_refused=True)
        assert wrong(refused) == []
        assert wrong(refused, [promoted()], [ran()]) == ["refused_but_ran"]

    def test_a_job_nobody_scheduled_is_unknown(self) -> None:
        """It cannot come from anywhere."""
        assert wrong(None, [promoted()], [ran()]) == ["unknown"]

    def test_a_job_that_fails_must_run_again(self) -> None:
        """Its promise tells which attempt succeeds; the retry has an entry of its own."""
        failing = Promise(DUE, must_run=True, last_attempt=2)
        first, second = promoted(), promoted(DUE + 300, DUE + 300, attempt=2)
        assert wrong(failing, [first], [ran()]) == ["lost"]
        assert wrong(failing, [first, second], [ran(), ran(DUE + 300, attempt=2)]) == []
        assert wrong(failing, [first, second], [ran(), replace(ran(DUE + 300, attempt=2), failed=True)]) == ["lost"]
        for attempt in (2, 3):
            third = promoted(DUE + 400, DUE + 300, attempt)
            assert wrong(failing, [first, second, third], [ran(), ran(DUE + 300, attempt=2)]) == ["doubled"]

    def test_without_disruptions_every_repeated_run_is_allowed(self) -> None:
        """They are counted only."""
        found = verdict(SURE, [promoted()], [ran(), ran(after_ms=9, worker="w2")], disruptions=None)
        assert found.is_clean
        assert found.reruns == 1

    def test_a_repeated_run_without_a_cause_is_unexplained(self) -> None:
        """Nobody was disrupted, or others were, or at another time."""
        runs = [ran(), ran(after_ms=4_000, worker="w2")]
        others = Disruption("kill-worker", "w3", DUE, DUE + 10)
        before = Disruption("kill-worker", "w1", DUE - 500, DUE - 1)
        after = Disruption("kill-worker", "w1", DUE + 4_001, DUE + 4_002)
        assert wrong(SURE, [promoted()], runs) == ["unexplained"]
        assert wrong(SURE, [promoted()], runs, [others, before, after]) == ["unexplained"]

    @pytest.mark.parametrize(
        "disruption",
        [
            pytest.param(Disruption("kill-worker", "w1", DUE + 20, DUE + 20), id="the first was killed before its ack"),
            pytest.param(
                Disruption("freeze-worker", "w2", DUE - 5, DUE + 3_900), id="the second read it, froze, ran it late"
            ),
            pytest.param(Disruption("crash-server", EVERYONE, DUE + 1, DUE + 900), id="the server went away for all"),
        ],
    )
    def test_a_repeated_run_is_explained_by_what_was_done_to_either_worker(self, disruption: Disruption) -> None:
        """The cause is counted by its kind."""
        found = verdict(SURE, [promoted()], [ran(), ran(after_ms=4_000, worker="w2")], [disruption])
        assert found.is_clean
        assert found.causes == {disruption.kind: 1}

    def test_a_run_that_a_failover_has_undone_keeps_no_promise_and_breaks_none(self) -> None:
        """Its promotion does not stand: the job must run again, and is then neither doubled nor run without cause."""
        failover = Disruption("fail-over", EVERYONE, DUE + 10, DUE + 5_000, may_undo=True)
        again = promoted(DUE + 3_000)
        assert wrong(SURE, [], [ran()], [failover]) == ["lost"]
        found = verdict(SURE, [again], [ran(), ran(DUE + 3_000)], [failover])
        assert found.is_clean
        assert (found.undone, found.reruns) == (1, 0)
        cancelled = Promise(DUE, must_run=False, may_run=False)
        assert wrong(cancelled, [], [ran()], [failover]) == [], "by a server that was replaced already"
        assert wrong(None, [], [ran()], [failover]) == ["unknown"]

    @pytest.mark.parametrize(
        "disruption",
        [
            pytest.param(Disruption("crash-server", EVERYONE, DUE - 10, DUE + 10), id="the same server came back"),
            pytest.param(Disruption("fail-over", EVERYONE, DUE + 2_001, DUE + 9_000, may_undo=True), id="later"),
            pytest.param(Disruption("fail-over", EVERYONE, DUE - 9_000, DUE - 1, may_undo=True), id="over by then"),
        ],
    )
    def test_a_run_whose_promotion_nobody_knows_has_vanished(self, disruption: Disruption) -> None:
        """No failover near can have undone it."""
        assert wrong(SURE, [promoted(DUE + 5)], [ran(), ran(DUE + 5)], [disruption]) == ["vanished"]
