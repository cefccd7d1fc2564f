"""Dead jobs are listed, replayed and purged. They have a topic of their own, in which many jobs die at least once."""

from __future__ import annotations

import asyncio
from typing import Any

from loadtest.simulation.operations.jobs import drawn_job, schedule_all
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq import DeadJob
from wheelq.errors import WheelqError


def _draw_mortals(draft: Draft) -> Args:
    random, topic = draft.random, draft.topics[0]
    jobs = []
    for _ in range(random.randint(3, 9)):
        how, fails = random.choice((("bury-once", 99), ("bury-once", 99), ("bury", 99), ("error", 99), ("error", 0)))
        jobs.append({**drawn_job(draft, topic), "delay": random.choice((0, 0, 1.0)), "payload": [0, fails, how]})
    return {"topic": topic.name, "jobs": jobs}


@operation("mortals", weight=8, draw=_draw_mortals, trait="dead")
async def mortals(actor: Actor, step: Step) -> None:
    """Schedule jobs that die, most of them only once."""
    await schedule_all(actor, step)


def _draw_dead(draft: Draft) -> Args:
    random = draft.random
    return {"topic": draft.topics[0].name, "place": random.randrange(50), "limit": random.choice((1, 2, 7))}


async def _listed(actor: Actor, step: Step, **which: Any) -> list[DeadJob]:
    """Returns all dead jobs, page by page."""
    found: list[DeadJob] = []
    cursor = None
    while True:
        page = await actor.client.dead.list(step.args["topic"], limit=step.args["limit"], cursor=cursor, **which)
        found += page.jobs
        if (cursor := page.cursor) is None:
            return found


@operation("replay-one", weight=6, draw=_draw_dead, trait="dead")
async def replay_one(actor: Actor, step: Step) -> None:
    """Replay one of the dead jobs, and purge it if it cannot be replayed."""
    try:
        dead = await _listed(actor, step, newest_first=step.args["place"] % 2 == 0)
        one = dead[step.args["place"] % len(dead)] if dead else None
        if one is None or await actor.client.dead.show(one.topic, one.dead_id) is None:
            return
    except WheelqError:
        return
    async with actor.recording(step, one.topic, one.id) as call:
        call.outcome = str(await actor.client.dead.replay_one(one.topic, one.dead_id))
        if call.outcome != "replayed":
            await actor.client.dead.purge_one(one.topic, one.dead_id)


def _draw_replay(draft: Draft) -> Args:
    random = draft.random
    which = random.choice(({"all": True}, {"all": True, "limit": 3}, {"reason": "buried"}, {"all": True, "rate": 5.0}))
    return {**_draw_dead(draft), "which": which}


@operation("replay", weight=3, draw=_draw_replay, trait="dead")
async def replay(actor: Actor, step: Step) -> None:
    """Replay many at once."""
    topic, story = step.args["topic"], actor.ledger.world.story
    try:
        answer = await actor.client.dead.replay(topic, **step.args["which"])
    except WheelqError as error:
        story.tell(actor.name, f"#{step.number} replay: {type(error).__name__}")
    else:
        story.tell(actor.name, f"#{step.number} replay: {answer}")


@operation("purge", weight=1.5, draw=_draw_dead, trait="dead")
async def purge(actor: Actor, step: Step) -> None:
    """Remove all dead jobs, and look that none of those before the call is left."""
    ledger, topic = actor.ledger, step.args["topic"]
    begun, before_ms = ledger.world.now, ledger.server.clock_us() // 1000
    try:
        count = await actor.client.dead.purge(topic, all=True)
        await asyncio.sleep(0.1)
        left = [one.id for one in await _listed(actor, step) if one.buried_ms < before_ms]
    except WheelqError as error:
        ledger.world.story.tell(actor.name, f"#{step.number} purge: {type(error).__name__}")
        return
    ledger.world.story.tell(actor.name, f"#{step.number} purge: {count}, left {left}")
    if left and len(ledger.clock) == 1 and not ledger.was_undone(begun, ledger.world.now):
        ledger.problems.append(f"purged: {topic} still has {left}, which died before {step}")
