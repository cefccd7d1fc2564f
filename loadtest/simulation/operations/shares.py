"""Jobs of a few partition keys in topics with limits per key, and changes of these limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step

CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("shared", {"key_concurrency": 1}),
    ("shared", {"key_concurrency": 3}),
    ("shared", {"key_concurrency": 0}),
    ("shared", {"key_rate": 5.0}),
    ("paced", {"key_rate": 2.0}),
    ("paced", {"key_rate": 0.0}),
)


def _draw_share(draft: Draft) -> Args:
    job = jobs.drawn_job(draft)
    key = draft.random.choice(("big", "big", "big", "small", "other", None))
    draft.jobs[-1] = replace(draft.jobs[-1], partition_key=key)
    return {**job, "delay": draft.random.choice((0, 0, 0.5, 2.0, 6.0)), "partition_key": key}


def _draw_burst(draft: Draft) -> Args:
    topic, random = draft.topic(), draft.random
    found = [jobs.drawn_job(draft, topic) for _ in range(random.randint(6, 14))]
    delay, takes = random.choice((0, 1.0)), random.choice((0, 0, 0.01, 0.3))
    same = {"delay": delay, "partition_key": "big", "payload": [takes, 0, "error"]}
    draft.jobs[-len(found) :] = [replace(one, partition_key="big") for one in draft.jobs[-len(found) :]]
    return {"topic": topic.name, "jobs": [{**job, **same} for job in found]}


def _draw_limits(draft: Draft) -> Args:
    topic, wanted = draft.random.choice(CHANGES)
    return {"topic": topic, "change": wanted}


async def limits(actor: Actor, step: Step) -> None:
    """Change a limit."""
    topic, wanted = step.args["topic"], step.args["change"]
    actor.ledger.trouble("reshard", topic, 2.0)
    await change(actor, step, lambda: actor.client.configure(topic, **wanted))
    actor.ledger.trouble("reshard", topic, 2.0)


def _draw_reshard(draft: Draft) -> Args:
    return {"topic": "shared", "shards": draft.random.choice((1, 2, 3))}


async def reshard(actor: Actor, step: Step) -> None:
    """Change the number of shards while jobs are held back."""
    actor.ledger.trouble("reshard", "shared", 2.0)
    await change(actor, step, lambda: actor.client.set_shards("shared", step.args["shards"]))
    actor.ledger.trouble("reshard", "shared", 2.0)


for name, weight, draw, do in (
    ("share", 45, _draw_share, jobs.schedule),
    ("share-burst", 5, _draw_burst, jobs.schedule_many),
    ("share-cancel", 6, jobs.draw_known, jobs.cancel),
    ("share-reschedule", 5, jobs.draw_reschedule, jobs.reschedule),
    ("share-run-now", 4, jobs.draw_known, jobs.run_now),
    ("share-limits", 3, _draw_limits, limits),
    ("share-reshard", 2, _draw_reshard, reshard),
):
    operation(name, weight, draw=draw, trait="shares")(do)
