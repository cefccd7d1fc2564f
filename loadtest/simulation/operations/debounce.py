"""Jobs of a few keys that calls put off, up to a bound: alone and in bulk, while they run, and while shards change."""

from __future__ import annotations

from typing import Any

from loadtest.simulation.ledger import Debounced
from loadtest.simulation.operations.jobs import note_receipt
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import DEBOUNCED, Draft, Drawn, Step
from wheelq import JobSpec
from wheelq.errors import NotReplicated, OutcomeUnknown, WheelqError

KEYS = ("d0", "d1", "d2")


def _drawn(draft: Draft, key: str) -> dict[str, Any]:
    random = draft.random
    mark = f"m{len(draft.jobs)}"
    draft.jobs.append(Drawn(DEBOUNCED, key, draft.now, 0.0, None))
    quiet = random.choice((0, 0.3, 0.8, 2.0))
    takes, fails = random.choice((0, 0, 0.2, 1.0, 3.0)), random.choice((0, 0, 0, 1))
    return {
        "key": key,
        "quiet": quiet,
        "max_wait": quiet + random.choice((0.2, 1.0, 3.0)),
        "payload": [takes, fails, "error", mark],
    }


def _draw_debounce(draft: Draft) -> Args:
    return {"asked": [_drawn(draft, draft.random.choice(KEYS))]}


def _draw_many(draft: Draft) -> Args:
    return {"asked": [_drawn(draft, key) for key in draft.random.sample(KEYS, 2)]}


async def debounce(actor: Actor, step: Step) -> None:
    """Ask for each job of the step in one call."""
    jobs, world = step.args["asked"], actor.ledger.world
    calls = [_call(actor, step, job["key"], job["payload"][-1], job["max_wait"]) for job in jobs]
    specs = [JobSpec(job["payload"], job["quiet"], key=job["key"], max_wait=job["max_wait"]) for job in jobs]
    failed, receipts = "", {}
    try:
        found = await actor.client.schedule_many(DEBOUNCED, specs, on_duplicate="replace")
        receipts = dict(enumerate(found))
    except WheelqError as error:
        receipts = getattr(error, "receipts", {}) if not isinstance(error, NotReplicated) else {}
        failed = "unknown" if isinstance(error, (OutcomeUnknown, NotReplicated)) else "refused"
    for place, one in enumerate(calls):
        one.answered, one.outcome = world.now, failed
        if receipt := receipts.get(place):
            one.id = receipt.id
            note_receipt(one, receipt)
    world.story.tell(actor.name, f"#{step.number} {[f'{one.id or one.key} {one.mark} {one.outcome}' for one in calls]}")


def _call(actor: Actor, step: Step, key: str, mark: str = "", max_wait: float = 0.0) -> Debounced:
    ledger = actor.ledger
    asked_us = ledger.server.clock_us()
    ledger.debounced.append(
        call := Debounced(step, DEBOUNCED, "", ledger.world.now, asked_us, key=key, mark=mark, max_wait=max_wait)
    )
    return call


def _draw_cancel(draft: Draft) -> Args:
    return {"key": draft.random.choice(KEYS)}


async def cancel(actor: Actor, step: Step) -> None:
    """Cancel what waits of a key."""
    world, call = actor.ledger.world, _call(actor, step, step.args["key"])
    try:
        call.outcome = str(await actor.client.cancel(DEBOUNCED, call.key))
    except WheelqError as error:
        call.outcome = type(error).__name__
    call.answered = world.now
    world.story.tell(actor.name, f"#{step.number} cancel {call.key}: {call.outcome}")


def _draw_reshard(draft: Draft) -> Args:
    return {"topic": DEBOUNCED, "shards": draft.random.choice((1, 2, 3))}


async def reshard(actor: Actor, step: Step) -> None:
    """Change the number of shards while jobs of the keys wait and run."""
    actor.ledger.trouble("reshard", DEBOUNCED, 2.0)
    await change(actor, step, lambda: actor.client.set_shards(DEBOUNCED, step.args["shards"]))
    actor.ledger.trouble("reshard", DEBOUNCED, 2.0)


for name, weight, draw, do in (
    ("debounce", 110, _draw_debounce, debounce),
    ("debounce-many", 8, _draw_many, debounce),
    ("debounce-cancel", 3, _draw_cancel, cancel),
    ("debounce-reshard", 2, _draw_reshard, reshard),
):
    operation(name, weight, draw=draw, trait="debounce")(do)
