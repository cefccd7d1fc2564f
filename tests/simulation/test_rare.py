"""Plants that random seeds cannot find, because their interleaving is too rare: short scenarios find them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from loadtest.simulation import run
from loadtest.simulation.drawing import draw
from loadtest.simulation.operations import operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import OWN_TOPICS, Plan, Step
from loadtest.simulation.plants import plant
from loadtest.simulation.trials import Apart

pytestmark = pytest.mark.timeout(600)
TOPICS = draw(1).topics[:5]


def schedule(
    number: int, at: float, topic: str, id: str, delay: float, kind: str = "schedule", takes: float = 0.0
) -> Step:
    args = {"topic": topic, "id": id, "delay": delay, "partition_key": None, "payload": [takes, 0, "error"]}
    return Step(number, at, kind, "producer-1", args)


def set_shards(number: int, at: float, topic: str, shards: int) -> Step:
    return Step(number, at, "set-shards", "producer-2", {"topic": topic, "shards": shards})


def runs_and_problems(name: str, plan: Plan) -> tuple[int, str]:
    """Run a plan in a fork, with a planted defect unless `name` is "". Returns how many jobs ran, and the problems."""

    def do() -> tuple[int, str]:
        if name:
            plant(name)
        result = run.run(plan)
        return result.jobs, "\n".join(result.problems)

    found: tuple[int, str] = Apart(do).result()
    return found


def test_a_call_that_is_repeated_while_its_topic_drains_runs_its_job_once(known: dict[str, Any]) -> None:
    """The reply to a replacement is lost, and the job has run in its former shard before the call is repeated."""

    @operation("lose-reply", weight=0, draw=lambda draft: None, trait="never")
    async def lose_reply(actor: Actor, step: Step) -> None:
        links = [one.link for one in actor.ledger.server.sessions if one.link.process.name == "producer-1"]
        actor.ledger.trouble("lost-replies", "", 3.0)
        for link in links:
            link.is_deaf = True
        await asyncio.sleep(1.0)
        for link in links:
            link.reset()

    limit = replace(TOPICS[3], settings={"shards": 1, "keep_done_ms": 20_000})
    topics = (*TOPICS[:3], limit, TOPICS[4])
    steps = [schedule(n, 4.0 + n / 10, "limit", f"l{n}", 30.0) for n in range(8)]
    steps += [set_shards(100, 6.0, "limit", 4), schedule(102, 7.0, "limit", "l9", 0.0, "replace")]  # loads the script
    steps += [Step(101, 7.999, "lose-reply", "producer-2", {})]
    steps += [schedule(200 + n, 8.0, "limit", f"l{n}", 0.05, "replace") for n in range(6)]
    plan = Plan(1, topics, False, tuple(steps))
    assert runs_and_problems("", plan) == (9, "")
    runs, problems = runs_and_problems("repeated-while-draining", plan)
    assert runs > 9
    assert "promotion" in problems.partition("none of these can be")[2]


@pytest.mark.long
def test_a_job_that_an_outbox_keeps_is_delivered_before_it_is_cancelled() -> None:
    """The server is back, and the courier has not made its next round: when it does depends on the seed."""
    away = Step(500, 10.0, "server-restart", "", {"seconds": 3.0, "salt": 1})
    kept = [replace(schedule(n, 11.0 + n / 20, "plain", f"p{n}", 30.0), who="producer-4") for n in range(20)]
    cancels = [
        Step(100 + n, 13.02 + n / 25, "cancel", "producer-4", {"topic": "plain", "id": f"p{n}", "partition_key": None})
        for n in range(20)
    ]
    plans = [Plan(seed, TOPICS, False, (away, *kept, *cancels)) for seed in range(1, 9)]
    assert runs_and_problems("", plans[0])[1] == ""
    assert any("no order explains its 2 calls" in runs_and_problems("cancel-before-parcel", one)[1] for one in plans)


@pytest.mark.long
def test_jobs_that_a_stopping_worker_hands_back_run_again_at_once() -> None:
    """They are in one of its first shards, and their handler takes longer than its grace."""
    jobs = [schedule(n, 10.0, "plain", f"p{n}", 0.0, takes=8.0) for n in range(12)]
    stops = Step(500, 11.0, "restart-worker", "", {"seconds": 20.0, "salt": 2})
    plan = Plan(1, TOPICS, False, (*jobs, stops))
    assert runs_and_problems("", plan)[1] == ""
    assert "stopped at" in runs_and_problems("last-shard-only", plan)[1]


@pytest.mark.long
def test_a_shard_at_rest_learns_that_the_servers_clock_was_stepped() -> None:
    """Its jobs were due an hour later, and nothing else tells it."""
    jobs = [schedule(n, 6.0 + n / 10, "plain", f"p{n}", 3_000.0) for n in range(4)]
    stepped = Step(100, 30.0, "clock-forward", "", {"seconds": 0.0, "salt": 9})  # by an hour
    plan = Plan(1, TOPICS, False, (*jobs, stepped))
    assert runs_and_problems("", plan) == (4, "")
    assert "s late" in runs_and_problems("steps-not-told", plan)[1]


@pytest.mark.long
def test_a_worker_that_was_frozen_and_is_back_keeps_its_deliveries() -> None:
    """Another worker has found it gone, but had no room; by the time it has, the frozen one is back."""
    jobs = [schedule(n, 9.0, "plain", f"p{n}", 0.0, takes=10.0) for n in range(20)]
    jobs += [schedule(100 + n, 10.2, "plain", f"q{n}", 0.0, takes=15.0) for n in range(5)]
    killed = Step(500, 5.0, "kill-worker", "", {"seconds": 40.0, "salt": 2})
    frozen = Step(501, 10.5, "freeze-worker", "", {"seconds": 6.0, "salt": 1})
    plan = Plan(1, TOPICS, False, (*jobs, killed, frozen))
    assert runs_and_problems("", plan)[1] == ""
    assert "taken: worker-2 took plain/" in runs_and_problems("no-second-look", plan)[1]


@pytest.mark.long
def test_a_run_whose_delivery_another_worker_took_over_leaves_no_followers() -> None:
    """Its worker is frozen, and ends it when the follower of the other run has run and been forgotten."""
    chains = tuple(topic for topic in OWN_TOPICS if topic.trait == "chains")
    payload = [1.0, 0, "error", [["link", 0, [0, 0, "error", []], False]]]
    steps = [Step(n, 10.0, "schedule", "producer-1", _job(f"c{n}") | {"payload": payload}) for n in range(12)]
    frozen = Step(100, 10.6, "freeze-worker", "", {"seconds": 9.0, "salt": 2})
    plan = Plan(1, (*TOPICS, *chains), False, (*steps, frozen))
    runs, problems = runs_and_problems("", plan)
    assert (runs > 24, problems) == (True, "")
    assert "was made 2 times" in runs_and_problems("superseded-follows", plan)[1]


def _job(id: str) -> dict[str, Any]:
    return {"topic": "chain", "id": id, "delay": 0, "partition_key": None}
