"""Producers with an outbox while one of their topics is removed: its jobs stay there, those of another one do not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import UNDONE_S
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import WITH_OUTBOX, Draft, Step
from wheelq.errors import ServerError, WheelqError

LAST_S = 35.0
"""No removal begins later, so that it is over in time."""


def _draw_removal(draft: Draft) -> Args | None:
    return {"topic": draft.topics[0].name} if draft.now < LAST_S else None


@operation("pass", weight=3, draw=_draw_removal, trait="aside", who="producer-1")
async def remove(actor: Actor, step: Step) -> None:
    """Remove a topic with all its jobs, which takes a while; again, if the server has lost that."""
    is_over, world = False, actor.ledger.world
    while not is_over:
        began = world.now
        try:
            await actor.client.remove_topic(step.args["topic"], force=True)
        except ServerError:
            await asyncio.sleep(0.5)
            continue
        except WheelqError as error:  # it is removed already
            world.story.tell(actor.name, f"#{step.number} {type(error).__name__}")
        ended = world.now
        await asyncio.sleep(UNDONE_S)
        is_over = not actor.ledger.was_undone(began - 1.0, ended)


def _draw_passing(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft, draft.topics[0]), "payload": [0, 0, "error"]}


async def schedule_passing(actor: Actor, step: Step) -> None:
    """Schedule a job of which nobody is told whether it runs or is removed."""
    with suppress(WheelqError):
        await actor.client.schedule(step.args["topic"], step.args["payload"], delay=step.args["delay"])


def _draw_staying(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft, draft.topics[1]), "delay": draft.random.choice((0, 0.5, 3.0))}


for number in WITH_OUTBOX:
    own = f"producer-{number}"
    operation(f"aside{number}-passing", 20, draw=_draw_passing, trait="aside", who=own)(schedule_passing)
    operation(f"aside{number}-schedule", 40, draw=_draw_staying, trait="aside", who=own)(jobs.schedule)
