"""Several producers at the same moment, with the same job: what one does, another may undo. See `oracle.linear`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, Do, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Drawn, Step

TURN_S = 4.0
"""Everybody who comes within these seconds waits for their end, and then all act at once."""
TURNS = 3
"""So many turns are about one job."""
MOST_CALLS = 18


def _draw_rival(draft: Draft) -> Args | None:
    random, turn = draft.random, int(draft.now / TURN_S)
    id, topic = f"r{turn // TURNS}", draft.topics[0].name
    if sum(one.id == id for one in draft.jobs) >= MOST_CALLS:
        return None
    draft.jobs.append(Drawn(topic, id, draft.now, 0.0, None))
    pause = round((turn + 1) * TURN_S - draft.now + random.choice((0, 0.0005, 0.002, 0.01, 1.0)), 4)
    return {"topic": topic, "id": id, "partition_key": None, "pause": pause}


def _draw_due(draft: Draft) -> Args | None:
    args = _draw_rival(draft)
    return args and {**args, "delay": draft.random.choice((0, 0.3, TURN_S, TURN_S, 9.0))}


def _draw_job(draft: Draft) -> Args | None:
    args, random = _draw_due(draft), draft.random
    return args and {**args, "payload": [random.choice((0, 0, 0.3, 3.0)), random.choice((0, 0, 1)), "error"]}


async def schedule_or_raise(actor: Actor, step: Step) -> None:
    await jobs.schedule_as(actor, step, "raise")


def _after_a_pause(do: Do) -> Do:
    async def wait_and_do(actor: Actor, step: Step) -> None:
        await asyncio.sleep(step.args["pause"])
        await do(actor, step)

    return wait_and_do


RIVALS: Mapping[str, tuple[float, Any, Do]] = {
    "schedule": (22, _draw_job, jobs.schedule),
    "replace": (10, _draw_job, jobs.replace),
    "raise": (6, _draw_job, schedule_or_raise),
    "cancel": (10, _draw_rival, jobs.cancel),
    "reschedule": (9, _draw_due, jobs.reschedule),
    "run-now": (7, _draw_rival, jobs.run_now),
    "get": (8, _draw_rival, jobs.get),
}
for name, (weight, draw, do) in RIVALS.items():
    operation(f"rival-{name}", weight, draw=draw, trait="rivals")(_after_a_pause(do))
