"""Groups that come late and go, and a topic that is removed and made again."""

from __future__ import annotations

import asyncio

from loadtest.simulation.operations.jobs import drawn_job, schedule_all
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change, change_for_good
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq import JobSpec
from wheelq.errors import ServerError, WheelqError
from wheelq.scheduler.membership import TURN_S

TRIES = 120
"""For a minute, half a second apart: longer than a server is away and a client then waits before it tries again."""


def _draw_fleeting(draft: Draft) -> Args | None:
    random, topic = draft.random, draft.topics[0]
    if draft.jobs or draft.now > 35:
        return None
    jobs = [{**drawn_job(draft, topic), "payload": [0.01, 0, "error"]} for _ in range(8)]
    return {
        "topic": topic.name,
        "jobs": jobs,
        "first": random.randint(2, 30),
        "pause": round(random.uniform(0.2, 9), 2),
    }


@operation("remake", weight=2, draw=_draw_fleeting, trait="removal", who="producer-1")
async def remake(actor: Actor, step: Step) -> None:
    """Remove a topic with all its jobs, again if the server has lost that, and schedule others: these run."""
    args, client, topic = step.args, actor.client, step.args["topic"]
    forgotten = [JobSpec(payload=[n % 3, 0, "error"], delay=n % 5 * 3.0, key=f"gone-{n}") for n in range(args["first"])]
    try:
        await client.schedule_many(topic, forgotten)
        await client.make_group(topic, "late")
    except WheelqError as error:
        actor.ledger.world.story.tell(actor.name, f"#{step.number} {type(error).__name__}")
    await asyncio.sleep(args["pause"])
    while True:
        began = actor.ledger.world.now
        await _remove(actor, step)
        await asyncio.sleep(args["pause"])
        if not actor.ledger.was_undone(began, actor.ledger.world.now):
            break
    hurt = sum(one.kind == "node" and one.begins > actor.ledger.world.now for one in actor.ledger.troubles)
    actor.ledger.trouble("hung-nodes", topic, hurt * TURN_S)  # the other nodes wait so long for each of them
    await schedule_all(actor, step)


async def _remove(actor: Actor, step: Step) -> None:
    topic, client, story = step.args["topic"], actor.client, actor.ledger.world.story
    for _ in range(TRIES):
        try:
            await client.remove_group(topic, "late", force=True)
            await client.remove_topic(topic, force=True)
            break
        except ServerError:
            await asyncio.sleep(0.5)
        except WheelqError as error:
            story.tell(actor.name, f"#{step.number} {type(error).__name__}: {error}")
            break
    story.tell(actor.name, f"#{step.number} {topic} was removed")


def _draw_late_group(draft: Draft) -> Args:
    random, topic = draft.random, draft.topics[1]
    jobs = [drawn_job(draft, topic) for _ in range(5)]
    return {
        "topic": topic.name,
        "jobs": jobs,
        "group": f"late-{len(draft.jobs)}",
        "pause": round(random.uniform(0, 4), 2),
    }


@operation("late-group", weight=4, draw=_draw_late_group, trait="removal")
async def late_group(actor: Actor, step: Step) -> None:
    """Make a group that reads nothing, and remove it while it has jobs; again, if the server has lost the removal."""
    args, client = step.args, actor.client
    topic, group = args["topic"], args["group"]
    await change(actor, step, lambda: client.make_group(topic, group))
    await schedule_all(actor, step)
    await asyncio.sleep(args["pause"])
    await change_for_good(actor, step, lambda: client.remove_group(topic, group))
