"""Changes beside jobs in special states: dead, waiting for a retry, with a priority, finished by one of two groups."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.due_ranges import until_done
from loadtest.simulation.operations.jobs import drawn_job, schedule_all, schedule_as
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.terms import schedule_with
from loadtest.simulation.operations.topics import change
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step

DIES_S = 2.0
MOVED_BY_S = 4.0


def _jobs(draft: Draft, topic: str, count: int, **same: Any) -> list[dict[str, Any]]:
    """Draw jobs of a topic that have some things in common."""
    plan = next(one for one in draft.topics if one.name == topic)
    return [{**drawn_job(draft, plan), "partition_key": None, **same} for _ in range(count)]


def _is_first(draft: Draft, what: str) -> bool:
    """Whether the seed has no such step yet; two would disturb each other."""
    is_first = what not in draft.names
    draft.names.add(what)
    return is_first


def _draw_buried(draft: Draft) -> Args | None:
    random = draft.random
    if not _is_first(draft, "buried"):
        return None
    jobs = [
        *_jobs(draft, "buried", random.randint(3, 8), delay=random.choice((0, 0.5)), payload=[0, 99, "bury"]),
        *_jobs(draft, "buried", 8, delay=1.0, payload=[0, 0, "error"]),
    ]
    return {"topic": "buried", "jobs": jobs, "shards": random.choice((1, 1, 1, 2))}


@operation("bury-and-reshard", weight=4, draw=_draw_buried, trait="alters")
async def bury_and_reshard(actor: Actor, step: Step) -> None:
    """Let jobs die, and change the number of shards: the former shards count as long as they have dead jobs."""
    ledger, topic = actor.ledger, step.args["topic"]
    await schedule_all(actor, step)
    await asyncio.sleep(DIES_S)
    ledger.trouble("reshard", topic, 2.0)
    await change(actor, step, lambda: actor.client.set_shards(topic, step.args["shards"]))
    ledger.trouble("reshard", topic, 2.0)


def _draw_cancelled(draft: Draft) -> Args | None:
    random = draft.random
    if not _is_first(draft, "cancelled"):
        return None
    jobs = [
        *_jobs(draft, "failing", 8, delay=0, payload=[0, random.randint(1, 3), "error"]),
        *_jobs(draft, "failing", 4, delay=round(random.uniform(15, 20), 3)),
    ]
    return {"topic": "failing", "jobs": jobs, "is_move": False, "pause": round(random.uniform(0.2, 7), 2)}


@operation("cancel-beside-retries", weight=4, draw=_draw_cancelled, trait="alters")
async def cancel_beside_retries(actor: Actor, step: Step) -> None:
    """Cancel all that waits in a topic, once in a seed. Jobs that have failed, and wait for a retry, stay."""
    ledger, topic = actor.ledger, step.args["topic"]
    made = await schedule_all(actor, step)
    await asyncio.sleep(step.args["pause"])
    begun = {run.id for run in ledger.runs if run.topic == topic and not ledger.undone}
    sent, asked_us = ledger.world.now, ledger.server.clock_us()
    waiting = [Call(step, one.topic, one.id, sent, asked_us) for one in made if one.id not in begun]
    ledger.calls += waiting
    progress = await until_done(actor, step)
    if ledger.undone:  # those that had begun may wait for their first run again
        ledger.calls += [Call(step, one.topic, one.id, sent, asked_us) for one in made if one.id in begun]
    late = [one for one in made if one.id not in begun and one.due_ms <= ledger.server.clock_us() / 1000]
    if progress is None or late or len(ledger.clock) > 1 or not all(one.outcome == "created" for one in made):
        return
    for one in waiting:
        one.answered, one.outcome = ledger.world.now, "cancelled"
    ledger.counted += [(one, progress.jobs, len(waiting)) for one in waiting[:1]]


def _draw_ranked(draft: Draft) -> Args:
    ranks = ("high", "normal", "low")
    jobs = [{**job, "priority": draft.random.choice(ranks)} for job in _jobs(draft, "moved", 6, delay=MOVED_BY_S)]
    return {"topic": "moved", "jobs": [{**job, "payload": [0, 0, "error"]} for job in jobs], "is_move": True}


@operation("ranked-moves", weight=4, draw=_draw_ranked, trait="alters")
async def ranked_moves(actor: Actor, step: Step) -> None:
    """Schedule jobs of several priorities in a topic with a rate, and put each off to the same later time."""
    args, server = step.args, actor.ledger.server
    await schedule_with(actor, step, [{"priority": job["priority"]} for job in args["jobs"]], "")
    at_ms = server.clock_us() // 1000 + int(2_000 * MOVED_BY_S)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    for job in args["jobs"]:
        async with actor.recording(step, args["topic"], job["id"]) as call:
            outcome = str(await actor.client.reschedule(args["topic"], job["id"], at=at))
            call.outcome, call.due_ms = ("moved", at_ms) if outcome == "rescheduled" else (outcome, 0)


def _draw_paired(draft: Draft) -> Args:
    random = draft.random
    job = _jobs(draft, "paired", 1, delay=0, payload=[0.01, random.randint(1, 2), random.choice(("audit", "error"))])
    return {**job[0], "pauses": [round(random.uniform(0.3, 3), 2) for _ in range(3)]}


@operation("again-beside-a-retry", weight=8, draw=_draw_paired, trait="alters")
async def again_beside_a_retry(actor: Actor, step: Step) -> None:
    """Schedule a job that one of two groups fails, and its id again and again while that group waits for its retry."""
    await schedule_as(actor, step, "keep")
    for pause in step.args["pauses"]:
        await asyncio.sleep(pause)
        await schedule_as(actor, replace(step), "keep")
