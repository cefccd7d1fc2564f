"""Promises about dead and kept jobs, terms, and callers over HTTP: what they see, and what they let pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.simulation import promises
from loadtest.simulation.ledger import Call, Keyed, Ledger, Promotion, Run, Trouble
from loadtest.simulation.oracle import Seen
from loadtest.simulation.oracle.excuses import Excuses
from loadtest.simulation.oracle.retries import put_off
from loadtest.simulation.plan import OWN_TOPICS, Plan, Step
from loadtest.simulation.world import EPOCH_S, World


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(World(1))
    ledger.clock.append((0.0, 0.0, 1.0))
    return ledger


@pytest.mark.parametrize(("answers", "times", "is_broken"), [(1, 1, False), (1, 0, True), (1, 2, True), (0, 1, False)])
def test_a_replayed_job_runs_once_more(ledger: Ledger, answers: int, times: int, is_broken: bool) -> None:
    ledger.dead["grave", "g1"].append(3.0)
    replay = Step(1, 5.0, "replay-one", "producer-1", {"topic": "grave"})
    ledger.calls += [Call(replay, "grave", "g1", 5.0, 0, 5.1, "replayed") for _ in range(answers)]
    ledger.promotions += [_promotion("grave", "g1", at=6.0 + n, group="default") for n in range(times)]
    assert bool(list(promises.replayed(_seen(ledger)))) == is_broken


@pytest.mark.parametrize(("times", "is_broken"), [(1, False), (2, True)])
def test_a_rerun_runs_an_entry_once(ledger: Ledger, times: int, is_broken: bool) -> None:
    ledger.promotions += [_promotion("lives", "l1", at=1.0)]
    ledger.promotions += [_promotion("lives", "l1", at=6.0 + n, group="default") for n in range(times)]
    seen = _seen(ledger, Step(1, 5.0, "rerun", "producer-1", {"topic": "lives"}))
    assert bool(list(promises.rerun(seen))) == is_broken


@pytest.mark.parametrize(("began", "is_broken"), [(6.0, False), (7.1, False), (7.5, True)])
def test_a_job_does_not_begin_after_it_has_expired(ledger: Ledger, began: float, is_broken: bool) -> None:
    step = Step(1, 5.0, "expiring", "producer-1", {"topic": "brief", "jobs": [{"id": "b1", "expires": 2.0}]})
    ledger.calls.append(Call(step, "brief", "b1", 5.0, 0, 5.1, "may expire", due_ms=_ms(5.0)))
    ledger.runs.append(_run("brief", "b1", began, due=5.0))
    assert bool(list(promises.expired(_seen(ledger, step)))) == is_broken


@pytest.mark.parametrize(("began", "is_broken"), [(5.6, False), (6.2, True)])
def test_a_job_does_not_begin_after_its_grace(ledger: Ledger, began: float, is_broken: bool) -> None:
    ledger.runs.append(_run("strict", "s1", began, due=5.0))
    assert bool(list(promises.misfired(_seen(ledger)))) == is_broken


@pytest.mark.parametrize(("first", "is_broken"), [("r1", False), ("r2", True)])
def test_jobs_of_higher_priority_are_promoted_first(ledger: Ledger, first: str, is_broken: bool) -> None:
    jobs = [{"id": "r1", "priority": "high"}, {"id": "r2", "priority": "low"}]
    step = Step(1, 2.0, "ranked", "producer-1", {"topic": "ranked", "jobs": jobs})
    for place, id in enumerate([first, "r1" if first == "r2" else "r2"]):
        ledger.promotions.append(_promotion("ranked", id, at=5.0, place=place))
    assert bool(list(promises.ranked(_seen(ledger, step)))) == is_broken


@pytest.mark.parametrize(
    ("after_s", "stopped", "is_broken"), [(3.0, 7.0, False), (1.5, 7.0, True), (1.5, 6.2, False), (0.1, 6.2, False)]
)
def test_a_failed_job_waits_out_its_pause_with_the_next_holder(
    ledger: Ledger, after_s: float, stopped: float, is_broken: bool
) -> None:
    """Unless the holder was stopped before it can have told that the job has failed."""
    ledger.troubles.append(Trouble("restart-worker", "worker-1", stopped, stopped + 2.0, stopped + 2.0))
    failed = replace(_run("lined", "l1", 5.5, due=5.0), worker="worker-1", ended=6.0, outcome="ValueError")
    ledger.runs += [failed, replace(_run("lined", "l1", 6.0 + after_s, due=5.0), worker="worker-2")]
    assert bool(list(put_off(_seen(ledger)))) == is_broken


MADE = {"id": "a", "due_ms": 5}


@pytest.mark.parametrize(
    ("answers", "seen_ids", "is_broken"),
    [
        ([(201, MADE), (201, MADE)], {"a"}, False),
        ([(201, MADE), (201, MADE)], {"a", "b"}, True),
        ([(201, MADE), (201, {**MADE, "id": "b"})], {"a"}, True),
        ([(201, MADE), (201, {**MADE, "due_ms": 6})], {"a"}, True),
        ([(504, {}), (201, MADE)], {"a"}, False),
        ([(504, {}), (503, {})], {"a"}, False),
        ([(503, {}), (503, {})], {"a"}, True),
    ],
)
def test_a_request_that_is_repeated_under_a_key_makes_one_job_and_has_one_answer(
    ledger: Ledger, answers: list[Any], seen_ids: set[str], is_broken: bool
) -> None:
    step = Step(1, 5.0, "asked-keyed", "web-0", {"topic": "asked", "again": (0, 0)})
    ledger.keyed.append(Keyed(step, 5.0, 0, ["mark"], answers))
    ledger.marked["mark"] |= seen_ids
    assert bool(list(promises.once(_seen(ledger)))) == is_broken


@pytest.mark.parametrize(("times", "is_broken"), [(1, False), (2, True)])
def test_a_leased_job_is_acknowledged_once(ledger: Ledger, times: int, is_broken: bool) -> None:
    ledger.acknowledged["asked", "a1", "0.5-0"] = times
    assert bool(list(promises.acknowledged(_seen(ledger)))) == is_broken


def _seen(ledger: Ledger, *steps: Step) -> Seen:
    seen = Seen(ledger, Plan(1, OWN_TOPICS, False, steps), 100.0, Excuses(ledger.troubles))
    records: list[tuple[str, Any]] = [("calls", one) for one in ledger.calls]
    records += [*(("promotions", one) for one in ledger.promotions), *(("runs", one) for one in ledger.runs)]
    for name, one in records:
        getattr(seen.jobs[one.topic, one.id], name).append(one)
    return seen


def _ms(at: float) -> int:
    return int((EPOCH_S + at) * 1000)


def _promotion(topic: str, id: str, *, at: float, group: str = "", place: int = 0) -> Promotion:
    return Promotion(topic, 0, id, f"{at:.0f}-{place}", _ms(5.0), 1, group, at, _ms(at) * 1000, place, 1.0)


def _run(topic: str, id: str, began: float, *, due: float) -> Run:
    return Run("default", topic, id, "5-0", 1, "worker-1", began, _ms(began) * 1000, _ms(due), id)
