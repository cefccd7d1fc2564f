"""Operations that change a topic; they are repeated while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import PAUSES, Draft, Step
from wheelq.errors import ServerError, WheelqError


async def change(actor: Actor, step: Step, do: Callable[[], Awaitable[object]]) -> None:
    """Change a topic, and try again while the server is away."""
    call = Call(step, step.args["topic"], "", actor.ledger.world.now, actor.ledger.server.clock_us())
    actor.ledger.calls.append(call)
    for _ in range(30):
        try:
            await do()
        except ServerError as error:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {type(error).__name__}")
            await asyncio.sleep(1.0)
        except WheelqError as error:
            call.outcome = f"refused: {type(error).__name__}"
            return
        else:
            call.outcome, call.answered = "done", actor.ledger.world.now
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind} {step.args['topic']}: done")
            return


UNDONE_S = 8.0
"""A server that loses writes, by a fail-over or with its power, has lost them within this time."""


async def change_for_good(actor: Actor, step: Step, do: Callable[[], Awaitable[object]]) -> None:
    """Change a topic, and again if the server has lost the change: nobody else would put back what a step has done."""
    while True:
        await change(actor, step, do)
        changed = actor.ledger.world.now
        if step.kind in PAUSES:
            actor.ledger.trouble("pause", step.args["topic"], 1.5, since=step.at)
        await asyncio.sleep(UNDONE_S)
        if not actor.ledger.was_undone(changed - 1.0, changed):
            return


def _draw_set_shards(draft: Draft) -> Args | None:
    if "reshards" not in draft.traits:
        return None
    return {"topic": draft.topic().name, "shards": draft.random.choice((1, 2, 3, 4))}


@operation("set-shards", weight=0.35, draw=_draw_set_shards)
async def set_shards(actor: Actor, step: Step) -> None:
    topic, shards = step.args["topic"], step.args["shards"]
    actor.ledger.trouble("reshard", topic, 2.0)
    await change(actor, step, lambda: actor.client.set_shards(topic, shards))
    actor.ledger.trouble("reshard", topic, 2.0)


def _draw_pause(draft: Draft) -> Args | None:
    if "pauses" not in draft.traits:
        return None
    return {"topic": draft.topic().name, "seconds": round(draft.random.uniform(0.5, 9), 2)}


@operation("pause", weight=0.25, draw=_draw_pause)
async def pause(actor: Actor, step: Step) -> None:
    topic = step.args["topic"]
    await change(actor, step, lambda: actor.client.pause(topic))
    await asyncio.sleep(step.args["seconds"])
    await change_for_good(actor, step, lambda: actor.client.resume(topic))


def _draw_configure(draft: Draft) -> Args | None:
    if "settings" not in draft.traits:
        return None
    change = draft.random.choice(
        (
            {"keep_done_ms": 0},
            {"keep_done_ms": 5_000},
            {"retention_ms": 2_000},
            {"retention_ms": 0},
            {"max_rate": 0.0},
            {"max_rate": 6.0},
            {"max_pending": 0},
            {"max_ready": 0},
        )
    )
    return {"topic": "limit", "change": change}


@operation("configure", weight=0.4, draw=_draw_configure)
async def configure(actor: Actor, step: Step) -> None:
    wanted = step.args["change"]
    await change(actor, step, lambda: actor.client.configure("limit", **wanted))


def _draw_recurring(draft: Draft) -> Args | None:
    if "recurring" not in draft.traits:
        return None
    every = draft.random.choice((1, 2, 5))
    missed = draft.random.choice(("coalesce", "skip", "all"))
    name = draft.name("every")
    seconds = round(draft.random.uniform(3, 25), 1)
    return {"topic": "plain", "name": name, "every": every, "missed": missed, "seconds": seconds}


@operation("recurring", weight=0.25, draw=_draw_recurring)
async def recurring(actor: Actor, step: Step) -> None:
    """Put a recurring job, and remove it after some seconds."""
    args, recurring = step.args, actor.client.recurring
    payload = [0, 0, "error"]
    await change(
        actor,
        step,
        lambda: recurring.put("plain", args["name"], payload, every=args["every"], missed=args["missed"]),
    )
    await asyncio.sleep(args["seconds"])
    await change_for_good(actor, step, lambda: recurring.remove("plain", args["name"]))


def _draw_group(draft: Draft) -> Args | None:
    if "groups" not in draft.traits:
        return None
    seconds = round(draft.random.uniform(1, 15), 1)
    return {"topic": "plain", "group": f"passing-{int(draft.now)}", "seconds": seconds}


@operation("group", weight=0.15, draw=_draw_group)
async def pass_by(actor: Actor, step: Step) -> None:
    """Make a group without workers, and remove it."""
    topic, group, client = step.args["topic"], step.args["group"], actor.client
    await change(actor, step, lambda: client.make_group(topic, group))
    await asyncio.sleep(step.args["seconds"])
    await change_for_good(actor, step, lambda: client.remove_group(topic, group))
