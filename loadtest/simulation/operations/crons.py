"""Recurring jobs by cron expressions, with seconds, in time zones whose clocks change during the run."""

from __future__ import annotations

import asyncio

from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change, change_for_good
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from loadtest.simulation.zones import SHIFTS_S

EXPRESSIONS = (
    "*/7 * * * * *",
    "5,25,45 * * * * *",
    "*/10 0 * * * *",
    "*/7 * 0 * * *",
    "*/5 0,1 0,1 * * *",
    "*/8 * 0,23 * * *",
    "10 30 0 * * *",
)
MISSED = ("coalesce", "skip", "all")


def _draw_cron(draft: Draft) -> Args:
    random = draft.random
    return {
        "topic": draft.topics[0].name,
        "name": draft.name("cron"),
        "cron": random.choice(EXPRESSIONS),
        "tz": random.choice(("UTC", *SHIFTS_S)),
        "jitter": random.choice((0, 0, 1.0)),
        "missed": random.choice(MISSED),
        "seconds": round(random.uniform(10, 35), 1),
        "pause": random.choice((0, 0, 6.0)),
    }


@operation("cron", weight=5, draw=_draw_cron, trait="crons")
async def cron(actor: Actor, step: Step) -> None:
    """Put a recurring job, pause it for a while in some steps, and remove it."""
    args, recurring = step.args, actor.client.recurring
    topic, name, payload = args["topic"], args["name"], [0, 0, "error"]
    rule = {key: args[key] for key in ("cron", "tz", "jitter", "missed")}
    await change(actor, step, lambda: recurring.put(topic, name, payload, **rule))
    await asyncio.sleep(args["seconds"])
    if args["pause"]:
        await change(actor, step, lambda: recurring.pause(topic, name))
        await asyncio.sleep(args["pause"])
        await change(actor, step, lambda: recurring.resume(topic, name))
        await asyncio.sleep(args["pause"])
    await change_for_good(actor, step, lambda: recurring.remove(topic, name))
