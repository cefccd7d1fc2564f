"""Cancels or moves all jobs that are due in a range. Each call is repeated until it is done."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.jobs import drawn_job, schedule_all
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq.errors import ServerError, TopicNotFound
from wheelq.model.job import BulkProgress

EARLIER_S = -8.0


def _draw_due_range(draft: Draft) -> Args | None:
    if draft.jobs:
        return None
    random, topic = draft.random, draft.topics[0]
    jobs = [{**drawn_job(draft, topic), "delay": round(random.uniform(20, 30), 3)} for _ in range(20)]
    return {"topic": topic.name, "jobs": jobs, "is_move": random.random() < 0.5, "pause": random.uniform(0.5, 8)}


@operation("due-range", weight=3, draw=_draw_due_range, trait="bulk")
async def due_range(actor: Actor, step: Step) -> None:
    """Schedule jobs that are due in half a minute, and change them. A seed has one such step, so none interferes."""
    made = await schedule_all(actor, step)
    await asyncio.sleep(step.args["pause"])
    before_us = actor.ledger.server.clock_us()
    sent = actor.ledger.world.now
    changed = [Call(step, one.topic, one.id, sent, before_us) for one in made]
    actor.ledger.calls += changed
    progress = await until_done(actor, step)
    if progress is None or not all(one.outcome == "created" for one in made):
        return
    reached_ms = actor.ledger.server.clock_us() / 1000
    due = [one.due_ms + (EARLIER_S * 1000 if step.args["is_move"] else 0) for one in made]
    if reached_ms > min(due) or before_us / 1000 > reached_ms:
        return  # some may have been promoted before, or the clock was set back
    for one, due_ms in zip(changed, due, strict=True):
        one.answered, one.due_ms = actor.ledger.world.now, int(due_ms)
        one.outcome = "moved" if step.args["is_move"] else "cancelled"
    actor.ledger.counted.append((changed[0], progress.jobs, len(made)))


async def until_done(actor: Actor, step: Step) -> BulkProgress | None:
    """Repeat the call under its name until it is done. Returns None if it fails for long."""
    topic, client = step.args["topic"], actor.client
    which: dict[str, Any] = {"until": datetime(2100, 1, 1, tzinfo=UTC), "name": f"change-{step.number}", "rounds": 1}
    for _ in range(60):
        try:
            if step.args["is_move"]:
                progress = await client.reschedule_due(topic, by=EARLIER_S, **which)
            else:
                progress = await client.cancel_due(topic, **which)
        except (ServerError, TopicNotFound) as error:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {type(error).__name__}")
            await asyncio.sleep(0.5)
        else:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {progress}")
            if progress.is_done:
                return progress
    return None
