"""Jobs that are waited for, cancelled while they run, or run again. Their topic keeps results and entries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from loadtest.simulation.operations.jobs import drawn_job, note_receipt
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from loadtest.simulation.world import EPOCH_S
from wheelq import Receipt
from wheelq.errors import JobFailed, JobNotFound, NotFinished, WheelqError

WAIT_S = 15.0
LIVES = 3


def _draw_awaited(draft: Draft) -> Args:
    random, topic = draft.random, draft.topics[0]
    takes, fails = random.choice((0, 0.01, 0.5, 2.0)), random.choice((0, 0, 0, 1, 99))
    job = drawn_job(draft, topic)
    job["payload"] = [takes, fails, "error" if fails == 1 else "bury", f"result {job['id']}"]
    return {**job, "delay": random.choice((0, 0.5, 3.0))}


@operation("wait", weight=20, draw=_draw_awaited, trait="lives")
async def wait(actor: Actor, step: Step) -> None:
    """Schedule a job, and wait for its result by its receipt; then look it up."""
    args, ledger, client = step.args, actor.ledger, actor.client
    async with actor.recording(step, args["topic"], args["id"]) as call:
        receipt = await client.schedule(args["topic"], args["payload"], delay=args["delay"], key=args["id"])
        note_receipt(call, receipt)
    if call.outcome != "created":
        return
    try:
        result = await client.wait(receipt, timeout=WAIT_S)
        info = await client.get(receipt)
    except (NotFinished, JobFailed, JobNotFound) as error:
        found, result = type(error).__name__, None
    except WheelqError:
        return
    else:
        found = "nothing" if info is None else str(info.state)
    ledger.world.story.tell(actor.name, f"#{step.number} {args['id']}: {found}, {result!r}")
    is_dead = args["payload"][1] == 99
    wrong = found == "JobFailed" if not is_dead else result is not None
    if wrong or (result is not None and result != args["payload"][3]):
        ledger.problems.append(f"result: {args['topic']}/{args['id']} ({step}) is {found}, with {result!r}")


def _draw_lives(draft: Draft) -> Args:
    return {**drawn_job(draft, draft.topics[0]), "delay": draft.random.choice((0, 0.2, 1.0)), "takes": 0.05}


@operation("wait-lives", weight=6, draw=_draw_lives, trait="lives")
async def wait_lives(actor: Actor, step: Step) -> None:
    """Give one id several lives, and wait for each by its receipt, at once and at the end: no answer is of another."""
    args, topic, id, receipts = step.args, step.args["topic"], step.args["id"], dict[str, Receipt]()
    for result in (f"{id} in life {number}" for number in range(LIVES)):
        async with actor.recording(step, topic, id) as call:
            payload = [args["takes"], 0, "error", result]
            receipt = await actor.client.schedule(topic, payload, delay=args["delay"], key=id)
            note_receipt(call, receipt)
        if call.outcome == "created":
            receipts[result] = receipt
            await _wait_for(actor, step, receipt, result)
    for result, receipt in receipts.items():
        await _wait_for(actor, step, receipt, result)


async def _wait_for(actor: Actor, step: Step, receipt: Receipt, result: str) -> None:
    try:
        found: object = await actor.client.wait(receipt, timeout=WAIT_S)
    except WheelqError as error:
        found = error
    actor.ledger.world.story.tell(actor.name, f"#{step.number} {receipt.id}: {found!r}")
    is_unknown = isinstance(found, WheelqError) and not isinstance(found, JobFailed)
    if found != result and not is_unknown:
        actor.ledger.problems.append(f"result: {receipt.id} ({step}) is {found!r}, not {result!r}")


def _draw_long(draft: Draft) -> Args:
    job = drawn_job(draft, draft.topics[0])
    return {**job, "delay": 0, "payload": [4.0, 0, "error", "long"], "sleep": round(draft.random.uniform(0.05, 4), 2)}


@operation("cancel-running", weight=10, draw=_draw_long, trait="lives")
async def cancel_running(actor: Actor, step: Step) -> None:
    """Schedule a job that takes long, and cancel it while it runs."""
    args, topic, id = step.args, step.args["topic"], step.args["id"]
    async with actor.recording(step, topic, id) as call:
        note_receipt(call, await actor.client.schedule(topic, args["payload"], delay=0, key=id))
    await asyncio.sleep(args["sleep"])
    async with actor.recording(step, topic, id) as call:
        call.outcome = str(await actor.client.cancel(topic, id, running=True))


def _draw_rerun(draft: Draft) -> Args:
    random = draft.random
    return {
        "topic": draft.topics[0].name,
        "seconds": random.choice((1, 3, 6)),
        "rate": random.choice((None, None, 4.0)),
    }


@operation("rerun", weight=2, draw=_draw_rerun, trait="lives")
async def rerun(actor: Actor, step: Step) -> None:
    """Run again what was promoted in the last seconds. A call whose outcome is unknown is repeated under its name."""
    args, ledger = step.args, actor.ledger
    now = datetime.fromtimestamp(EPOCH_S + ledger.world.now, UTC)
    which = {"group": "default", "since": now - timedelta(seconds=args["seconds"]), "until": now, "rate": args["rate"]}
    for _ in range(10):
        try:
            answer = await actor.client.rerun(args["topic"], name=f"again-{step.number}", **which)
        except WheelqError as error:
            ledger.world.story.tell(actor.name, f"#{step.number} rerun: {type(error).__name__}")
            await asyncio.sleep(1.0)
        else:
            ledger.world.story.tell(actor.name, f"#{step.number} rerun: {answer}")
            return
