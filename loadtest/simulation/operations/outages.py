"""Producers with an outbox that say several things about the same jobs, one after the other, and do not wait for better
times: while the server is away, and while it does not hear them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import WITH_OUTBOX, Draft, Step

SAYS = {"schedule": 6, "replace": 4, "cancel": 3, "reschedule": 1, "get": 1}
DO: Mapping[str, Callable[[Actor, Step], Awaitable[None]]] = {
    "schedule": jobs.schedule,
    "replace": jobs.replace,
    "cancel": jobs.cancel,
    "reschedule": jobs.reschedule,
    "get": jobs.get,
}


def _draw_talk(draft: Draft) -> Args:
    random, id = draft.random, draft.name("talk")
    same = {"topic": draft.topics[0].name, "id": id, "partition_key": None}
    said = [
        {
            "says": random.choices(tuple(SAYS), tuple(SAYS.values()))[0],
            "pause": random.choice((0, 0.01, 0.1, 0.4, 1.0)),
            "delay": random.choice((0, 0, 0.3, 1.5, 5.0, round(random.uniform(0, 9), 3))),
        }
        for _ in range(random.randint(3, 10))
    ]
    return {"said": [{**same, **one} for one in said]}


async def talk(actor: Actor, step: Step) -> None:
    """Schedule, cancel and schedule again the job of one id."""
    for one in step.args["said"]:
        own = {"payload": [0, 0, "error"]} if one["says"] in ("schedule", "replace") else {}
        await DO[one["says"]](actor, replace(step, kind=f"outage-{one['says']}", args={**one, **own}))
        await asyncio.sleep(one["pause"])


def _draw_soon(draft: Draft) -> Args:
    job = jobs.drawn_job(draft, draft.topics[0])
    return {**job, "delay": draft.random.choice((0, 0, 0.2, 3.0)), "payload": [0, 0, "error"]}


def _draw_many(draft: Draft) -> Args:
    found = [_draw_soon(draft) for _ in range(draft.random.randint(3, 9))]
    return {"topic": draft.topics[0].name, "jobs": found}


for number in WITH_OUTBOX:
    own = f"producer-{number}"
    operation(f"outage{number}-talk", 14, draw=_draw_talk, trait="outages", who=own)(talk)
    operation(f"outage{number}-many", 30, draw=_draw_many, trait="outages", who=own)(jobs.schedule_many)
    operation(f"outage{number}-schedule", 30, draw=_draw_soon, trait="outages", who=own)(jobs.schedule)
operation("outage-many", 30, draw=_draw_many, trait="outages")(jobs.schedule_many)
operation("outage-schedule", 30, draw=_draw_soon, trait="outages")(jobs.schedule)
