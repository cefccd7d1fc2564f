"""What the oracle excuses, and what it does not."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from loadtest.simulation import faults, run
from loadtest.simulation.drawing import draw
from loadtest.simulation.faults import Stage
from loadtest.simulation.fleet import Fleet
from loadtest.simulation.ledger import Call, Ledger, Promotion, Run
from loadtest.simulation.oracle import Seen, answers, runs, sort, times
from loadtest.simulation.plan import Plan, Step
from loadtest.simulation.world import EPOCH_S, World

ARGS = {"topic": "plain", "id": "p1", "delay": 0, "partition_key": None, "payload": [0, 0, "error"]}
SCHEDULE = Step(0, 0.0, "schedule", "producer-4", ARGS)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(World(1))
    ledger.clock.append((0.0, 0.0, 1.0))
    return ledger


def test_one_node_that_is_frozen_excuses_a_moment_only(ledger: Ledger) -> None:
    """Each fault of a node was taken for a second fault at the same time, and so excused everything."""
    fleet = Fleet(ledger.world, draw(1), ledger)
    freeze = Step(0, 0.0, "freeze-node", "", {"seconds": 9.0, "salt": 1})
    faults.begin(Stage(ledger.world, fleet, ledger), freeze)
    assert ledger.is_explained(0.1, 0.2)
    assert not ledger.is_explained(1.0, 8.0)
    faults.begin(Stage(ledger.world, fleet, ledger), replace(freeze, args={"seconds": 9.0, "salt": 2}))
    assert ledger.is_explained(1.0, 8.0)  # leader and standby of a shard may both be frozen


@pytest.mark.parametrize(("at", "is_late"), [(65.2, False), (67.0, True)])
def test_a_job_is_due_later_if_the_clock_is_set_back_before_its_promotion(
    ledger: Ledger, at: float, is_late: bool
) -> None:
    ledger.clock.append((5.0005, -60.0, 1.0))
    ledger.promotions.append(_promotion(due=5.0, at=at, since=1.0))
    assert bool(list(times.late(_seen(ledger)))) == is_late


@pytest.mark.parametrize(("begins", "is_late"), [(3.1, False), (7.0, True)])
def test_a_fault_that_begins_after_a_job_was_due_does_not_excuse_its_lateness(
    ledger: Ledger, begins: float, is_late: bool
) -> None:
    ledger.promotions.append(_promotion(due=3.0, at=8.0, since=1.0))
    ledger.trouble("freeze-node", "node-1", 12.0, since=begins)
    assert bool(list(times.late(_seen(ledger)))) == is_late


def test_a_lost_reply_does_not_excuse_a_second_promotion(ledger: Ledger) -> None:
    call = Call(SCHEDULE, "plain", "p1", 1.0, 0, answered=1.1, outcome="kept")
    ledger.trouble("server-away", "", 20.0, since=0.0)
    ledger.calls.append(call)
    ledger.losses.append(("producer-4", 5.5))
    ledger.promotions += [_promotion(due=5.0, at=5.0, since=5.0), _promotion(due=6.0, at=6.0, since=6.0, entry="6-0")]
    ledger.runs.append(_run(5.0, ended=5.2))
    assert list(answers.doubled(_seen(ledger)))


@pytest.mark.parametrize(("again", "is_repeated"), [(5.5, True), (7.5, False)])
def test_a_step_of_the_clock_does_not_excuse_that_a_living_workers_job_runs_twice(
    ledger: Ledger, again: float, is_repeated: bool
) -> None:
    ledger.trouble("clock", "", 12.0, since=4.0)
    ledger.runs += [_run(5.0, ended=6.0, outcome="ValueError"), _run(again, ended=8.0)]
    assert bool(list(runs.repeated(_seen(ledger)))) == is_repeated


@pytest.mark.parametrize(("late_ms", "is_misdated"), [(0, False), (100, False), (900, True), (-900, True)])
def test_a_job_in_an_outbox_is_due_when_it_was_asked_for(ledger: Ledger, late_ms: int, is_misdated: bool) -> None:
    asked_ms = int(EPOCH_S * 1000) + 1_000
    call = Call(SCHEDULE, "plain", "p1", 1.0, asked_ms * 1000, answered=1.1, outcome="kept", due_ms=asked_ms + late_ms)
    ledger.calls.append(call)
    assert bool(list(times.misdated(_seen(ledger)))) == is_misdated


@pytest.mark.timeout(300)
def test_how_fast_the_machine_is_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 13: httpcore closed a receiver's connection that was idle for five seconds by the machine's own clock."""
    plan = _with_callbacks()
    first = run.run(plan)
    seconds, real = count(0, 10), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(seconds))
    assert run.run(plan).story.digest == first.story.digest
    assert len([line for line in first.story.lines if "called/c" in line]) >= 3


def _with_callbacks() -> Plan:
    """Three calls of a receiver, and nothing else."""
    plan = next(plan for seed in range(1, 99) if "web" in (plan := draw(seed)).traits)
    target: dict[str, Any] = {"service": "shop", "path": "/due"}
    steps = [
        Step(
            n,
            10.0 + 2 * n,
            "http-schedule",
            "web-0",
            {**ARGS, "topic": "called", "id": f"c{n}", "target": target, "repeats": False},
        )
        for n in range(3)
    ]
    return replace(plan, steps=tuple(steps), traits=frozenset({"web"}))


def _seen(ledger: Ledger) -> Seen:
    return sort(ledger, draw(1))


def _promotion(*, due: float, at: float, since: float, entry: str = "5-0") -> Promotion:
    due_ms, at_us = int((EPOCH_S + due) * 1000), int((EPOCH_S + at) * 1_000_000)
    return Promotion("plain", 0, "p1", entry, due_ms, 1, "", at, at_us, 1, since)


def _run(began: float, *, ended: float, outcome: str = "done") -> Run:
    return Run("default", "plain", "p1", "5-0", 1, "worker-1", began, 0, 0, "p1", ended, outcome)
