"""Single occurrences of recurring jobs: looked at, changed, and due while their recurring job changes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change, change_for_good
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq.errors import WheelqError

EVERY_S = 600.0
"""So rarely that there is one occurrence."""
MADE_S = 1.0
NOT_THERE = ("None", "not_found")


def _draw_date(draft: Draft) -> Args:
    random = draft.random
    return {
        "topic": draft.topics[0].name,
        "name": draft.name("date"),
        "in": round(random.uniform(2.5, 9), 2),
        "missed": random.choice(("coalesce", "skip", "all")),
        "does": random.choice(("get", "cancel", "reschedule", "run_now")),
    }


async def _put(actor: Actor, step: Step) -> tuple[list[str], int]:
    """Put a recurring job, and wait until its occurrence is made. Returns its id, if it waits, and when it is due."""
    args, ledger = step.args, actor.ledger
    due_ms = ledger.server.clock_us() // 1000 + int(args["in"] * 1000)
    await _define(actor, step, due_ms, "at first")
    await asyncio.sleep(MADE_S)
    return ledger.waiting_now(args["topic"], f"{args['name']}@"), due_ms


async def _define(actor: Actor, step: Step, due_ms: int, note: str) -> None:
    args, start = step.args, datetime.fromtimestamp(due_ms / 1000, UTC)
    rule: dict[str, Any] = {"every": EVERY_S, "start": start, "missed": args["missed"]}
    payload = [0, 0, "error", note]
    await change(actor, step, lambda: actor.client.recurring.put(args["topic"], args["name"], payload, **rule))


async def _remove(actor: Actor, step: Step) -> None:
    args = step.args
    await change_for_good(actor, step, lambda: actor.client.recurring.remove(args["topic"], args["name"]))


@operation("date", weight=4, draw=_draw_date, trait="dates", who="producer-1")
async def date(actor: Actor, step: Step) -> None:
    """Look at an occurrence that waits, or change it: it is found."""
    args, ledger, topic = step.args, actor.ledger, step.args["topic"]
    waiting, _ = await _put(actor, step)
    more = {"delay": 5.0} if args["does"] == "reschedule" else {}
    for id in waiting:
        try:
            answer = str(await getattr(actor.client, args["does"])(topic, id, **more))
        except WheelqError as error:
            answer = type(error).__name__
        ledger.world.story.tell(actor.name, f"#{step.number} {args['does']} {id}: {answer}")
        if answer in NOT_THERE and id in ledger.waiting_now(topic, id) and not ledger.undone:
            ledger.problems.append(f"unfound: {topic}/{id} waits, and {args['does']} answers {answer} ({step})")
    await asyncio.sleep(args["in"])
    await _remove(actor, step)


@operation("due-date", weight=6, draw=_draw_date, trait="dates", who="producer-1")
async def due_date(actor: Actor, step: Step) -> None:
    """Change a recurring job whose occurrence is due, but waits because its topic is paused: it stays as it is."""
    args, ledger, topic = step.args, actor.ledger, step.args["topic"]
    waiting, due_ms = await _put(actor, step)
    paused_at = ledger.world.now
    await change(actor, step, lambda: actor.client.pause(topic))
    await asyncio.sleep(args["in"])
    was_due = ledger.server.clock_us() / 1000 > due_ms and len(ledger.clock) == 1
    overdue = [id for id in waiting if was_due and id in ledger.waiting_now(topic, id)]
    await _define(actor, step, due_ms, "then")
    for id in overdue:
        is_there = ledger.has_promoted(topic, id) or id in ledger.waiting_now(topic, id)
        ledger.world.story.tell(actor.name, f"#{step.number} {id} {'is there' if is_there else 'is gone'}")
        if not is_there and not ledger.undone and len(ledger.clock) == 1:
            ledger.problems.append(f"withdrawn: {topic}/{id} was due, and was gone after a change ({step})")
    ledger.trouble("pause", topic, 0.0, since=paused_at)
    await change_for_good(actor, step, lambda: actor.client.resume(topic))
    ledger.trouble("pause", topic, 1.5, since=paused_at)
    await _remove(actor, step)
