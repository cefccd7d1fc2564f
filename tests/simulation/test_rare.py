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
from loadtest.simulation.plan import Plan, Step
from loadtest.simulation.plants import plant
from loadtest.simulation.trials import Apart

pytestmark = pytest.mark.timeout(600)
TOPICS = draw(1).topics[:5]


def schedule(number: int, at: float, topic: str, id: str, delay: float, kind: str = "schedule") -> Step:
    args = {"topic": topic, "id": id, "delay": delay, "partition_key": None, "payload": [0, 0, "error"]}
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
    steps += [set_shards(100, 6.0, "limit", 4), schedule(102, 7.0, "limit", "l9", 0.0)]
    steps += [Step(101, 7.999, "lose-reply", "producer-2", {})]
    steps += [schedule(200 + n, 8.0, "limit", f"l{n}", 0.05, "replace") for n in range(6)]
    plan = Plan(1, topics, False, tuple(steps))
    assert runs_and_problems("", plan) == (9, "")
    runs, _ = runs_and_problems("repeated-while-draining", plan)  # the oracle takes a repeated answer for another life
    assert runs > 9
