"""Operations that schedule, change and read single jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import BLUNT, Draft, Drawn, Step
from wheelq import JobSpec, Receipt
from wheelq.errors import NotReplicated, OutcomeUnknown, WheelqError


def drawn_job(draft: Draft, topic: Any = None) -> dict[str, Any]:
    """Draw a new job."""
    random = draft.random
    topic = topic or draft.topic()
    id = f"{topic.name[0]}{len(draft.jobs)}"
    delay = random.choice((0, 0, 0.05, 0.5, 1, 3, random.uniform(0, 8), random.uniform(5, 20), 30.0))
    partition_key: str | None
    if topic.handling == "keyed":
        partition_key = f"k{random.randrange(4)}"
    else:
        partition_key = f"k{random.randrange(3)}" if random.random() < 0.1 else None
    draft.jobs.append(Drawn(topic.name, id, draft.now, delay, partition_key))
    return {
        "topic": topic.name,
        "id": id,
        "delay": round(delay, 3),
        "partition_key": partition_key,
        "payload": _payload(draft, topic.handling),
    }


def _payload(draft: Draft, handling: str) -> list[Any]:
    """Draw how long its handler takes, how often it fails, and how."""
    random = draft.random
    takes = random.choice((0, 0, 0.001, 0.01, 0.05, 0.2, random.uniform(0, 2), 4.0 if random.random() < 0.1 else 0))
    fails, how = 0, "error"
    if random.random() < 0.12:
        fails = random.choice((1, 1, 2, 3, 99))
        how = random.choice(("error", "error", "again", "bury", "base" if "base" in draft.traits else "error"))
        if how == "bury":
            fails = 99
        if handling != "single" and how in ("base", "again"):
            how = "error"
    return [round(takes, 3), fails, how]


def _draw_schedule(draft: Draft) -> Args:
    durable = draft.has_sentinel and draft.random.random() < 0.3
    return {**drawn_job(draft), "durability": "replicated" if durable else None}


@operation("schedule", weight=72, draw=_draw_schedule)
async def schedule(actor: Actor, step: Step) -> None:
    await schedule_as(actor, step, "keep")


async def schedule_as(actor: Actor, step: Step, on_duplicate: Any) -> None:
    """Schedule the job of a step."""
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        receipt = await actor.client.schedule(
            args["topic"],
            args["payload"],
            delay=args["delay"],
            key=args["id"],
            partition_key=args["partition_key"],
            on_duplicate=on_duplicate,
            durability=args.get("durability"),
        )
        note_receipt(call, receipt)


def note_receipt(call: Call, receipt: Receipt) -> None:
    """Record the answer to a schedule call."""
    call.due_ms = receipt.due_ms
    call.kept = receipt.in_outbox
    if receipt.in_outbox:
        call.outcome = "kept"
    else:
        call.outcome = "replaced" if receipt.replaced else "created" if receipt.created else "there"


def _draw_again(draft: Draft) -> Args | None:
    job = draft.a_job()
    if job is None:
        return None
    handling = next(topic.handling for topic in draft.topics if topic.name == job.topic)
    return {
        "topic": job.topic,
        "id": job.id,
        "delay": round(draft.random.choice((0.5, 3.0, draft.random.uniform(0, 15))), 3),
        "partition_key": job.partition_key,
        "payload": _payload(draft, handling),
    }


@operation("duplicate", weight=4, draw=_draw_again)
async def duplicate(actor: Actor, step: Step) -> None:
    """Schedule the same id again: the job is kept, or made again if it has ended."""
    await schedule_as(actor, step, "keep")


@operation("replace", weight=3, draw=_draw_again)
async def replace(actor: Actor, step: Step) -> None:
    await schedule_as(actor, step, "replace")


def _draw_schedule_many(draft: Draft) -> Args:
    topic = draft.topic()
    return {"topic": topic.name, "jobs": [drawn_job(draft, topic) for _ in range(draft.random.randint(2, 12))]}


@operation("schedule-many", weight=2, draw=_draw_schedule_many)
async def schedule_many(actor: Actor, step: Step) -> None:
    await schedule_all(actor, step)


async def schedule_all(actor: Actor, step: Step) -> list[Call]:
    """Schedule the step's jobs in one call. Returns the answer about each."""
    jobs, topic, world = step.args["jobs"], step.args["topic"], actor.ledger.world
    asked_us = actor.ledger.server.clock_us()
    calls = [Call(step, topic, job["id"], world.now, asked_us) for job in jobs]
    actor.ledger.calls += calls
    specs = [
        JobSpec(payload=job["payload"], delay=job["delay"], key=job["id"], partition_key=job["partition_key"])
        for job in jobs
    ]
    try:
        receipts: Any = await actor.client.schedule_many(topic, specs)
    except WheelqError as error:
        receipts = getattr(error, "receipts", {})
        failed = "unknown" if isinstance(error, (OutcomeUnknown, NotReplicated)) else f"refused: {type(error).__name__}"
    else:
        failed = ""
    by_id = {one.id: one for one in (receipts.values() if isinstance(receipts, dict) else receipts)}
    for one in calls:
        receipt = by_id.get(one.id)
        one.answered = world.now
        if receipt is None:
            one.outcome = failed
        else:
            note_receipt(one, receipt)
    world.story.tell(actor.name, f"#{step.number} {topic}: {[f'{one.id} {one.outcome}' for one in calls]}")
    return calls


async def _change(actor: Actor, step: Step, do: Callable[..., Awaitable[object]], **more: object) -> None:
    """Change one job, and record the answer."""
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        call.outcome = str(await do(args["topic"], args["id"], partition_key=args["partition_key"], **more))


def draw_known(draft: Draft) -> Args | None:
    """Draw a job that may still wait."""
    job = draft.a_job()
    return {"topic": job.topic, "id": job.id, "partition_key": job.partition_key} if job else None


@operation("cancel", weight=5, draw=draw_known)
async def cancel(actor: Actor, step: Step) -> None:
    await _change(actor, step, actor.client.cancel)


def draw_reschedule(draft: Draft) -> Args | None:
    """Draw a job that may still wait, and its new delay."""
    job = draft.a_job()
    delay = round(draft.random.choice((0.2, 2.0, draft.random.uniform(0, 15))), 3)
    if job is None:
        return None
    return {"topic": job.topic, "id": job.id, "partition_key": job.partition_key, "delay": delay}


@operation("reschedule", weight=5, draw=draw_reschedule)
async def reschedule(actor: Actor, step: Step) -> None:
    await _change(actor, step, actor.client.reschedule, delay=step.args["delay"])


@operation("run-now", weight=2, draw=draw_known)
async def run_now(actor: Actor, step: Step) -> None:
    await _change(actor, step, actor.client.run_now)


@operation("get", weight=2, draw=draw_known)
async def get(actor: Actor, step: Step) -> None:
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        found = await actor.client.get(args["topic"], args["id"], partition_key=args["partition_key"])
        call.outcome, call.due_ms = ("nothing", 0) if found is None else (str(found.state), found.due_ms)


for name, weight, draw, do in (
    ("blunt-schedule", 50, _draw_schedule, schedule),
    ("blunt-many", 4, _draw_schedule_many, schedule_many),
    ("blunt-cancel", 5, draw_known, cancel),
    ("blunt-reschedule", 5, draw_reschedule, reschedule),
):
    operation(name, weight, draw=draw, trait="blocking", who=BLUNT)(do)
