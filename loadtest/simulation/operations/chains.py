"""Jobs that are followed by others, over topics of several shards."""

from __future__ import annotations

from random import Random
from typing import Any

from loadtest.simulation.operations.jobs import drawn_job, note_receipt
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step


def _link(random: Random, topics: list[str], depth: int) -> list[Any]:
    """Draw a payload: how long its handler takes, how often it fails, how, and what follows.

    What follows is a topic, a delay, a payload, and whether the follower has an id of the run that asks for it.
    """
    takes, fails = random.choice((0, 0, 0.01, 0.3, 1.5)), random.choice((0, 0, 0, 0, 1, 2))
    how = random.choice(("error", "error", "again"))
    if random.random() < 0.05:
        fails, how = 99, "bury"
    following = []
    for _ in range(random.choice((0, 1, 1, 2)) if depth else 0):
        delay = random.choice((0, 0, 0, 0.2, 2.0, 10.0))
        following.append([random.choice(topics), delay, _link(random, topics, depth - 1), random.random() < 0.3])
    return [takes, fails, how, following]


def _draw_chain(draft: Draft) -> Args:
    topics = [topic.name for topic in draft.topics]
    job = drawn_job(draft, draft.topics[0])
    delay = draft.random.choice((0, 0, 0.5, 3.0))
    payload = _link(draft.random, topics, 3)
    payload[3] = payload[3] or [[topics[-1], 0, [0, 0, "error", []], False]]
    return {**job, "delay": delay, "payload": payload}


@operation("chain", weight=70, draw=_draw_chain, trait="chains")
async def chain(actor: Actor, step: Step) -> None:
    """Schedule a job that is followed by others."""
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        receipt = await actor.client.schedule(args["topic"], args["payload"], delay=args["delay"], key=args["id"])
        note_receipt(call, receipt)


def _draw_reshard(draft: Draft) -> Args:
    return {"topic": draft.topic().name, "shards": draft.random.choice((1, 2, 3, 4))}


@operation("reshard-chain", weight=2, draw=_draw_reshard, trait="chains")
async def reshard_chain(actor: Actor, step: Step) -> None:
    """Change the number of shards of a topic whose jobs follow, or are followed."""
    topic, shards = step.args["topic"], step.args["shards"]
    actor.ledger.trouble("reshard", topic, 2.0)
    await change(actor, step, lambda: actor.client.set_shards(topic, shards))
