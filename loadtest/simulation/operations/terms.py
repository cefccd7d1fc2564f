"""Jobs with terms: an expiry, a priority, and a topic that buries what would start too late."""

from __future__ import annotations

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.jobs import drawn_job, note_receipt
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq import JobSpec
from wheelq.errors import WheelqError


def _draw_expiring(draft: Draft) -> Args:
    random = draft.random
    topic = next(one for one in draft.topics if one.name == "brief")
    jobs = [{**drawn_job(draft, topic), "expires": random.choice((0.3, 1.0, 2.5))} for _ in range(random.randint(2, 8))]
    for job in jobs:
        job["delay"], job["payload"] = random.choice((0, 0.5, 2.0)), [0.1, random.choice((0, 0, 1)), "error"]
    return {"topic": topic.name, "jobs": jobs}


@operation("expiring", weight=8, draw=_draw_expiring, trait="terms")
async def expiring(actor: Actor, step: Step) -> None:
    """Schedule jobs that may start for a while only; their topic is so slow that some expire."""
    await schedule_with(actor, step, [{"expires": job["expires"]} for job in step.args["jobs"]], "may expire")


def _draw_ranked(draft: Draft) -> Args:
    random = draft.random
    topic = next(one for one in draft.topics if one.name == "ranked")
    delay = round(random.uniform(1.5, 8), 3)
    jobs = [{**drawn_job(draft, topic), "priority": random.choice(("high", "normal", "low"))} for _ in range(8)]
    return {"topic": topic.name, "jobs": [{**job, "delay": delay, "payload": [0, 0, "error"]} for job in jobs]}


@operation("ranked", weight=6, draw=_draw_ranked, trait="terms")
async def ranked(actor: Actor, step: Step) -> None:
    """Schedule jobs of several priorities that are due at the same time."""
    await schedule_with(actor, step, [{"priority": job["priority"]} for job in step.args["jobs"]], "")


async def schedule_with(actor: Actor, step: Step, more: list[dict[str, object]], outcome: str) -> None:
    """Schedule the step's jobs in one call; with an `outcome`, they need not run."""
    topic, jobs, ledger = step.args["topic"], step.args["jobs"], actor.ledger
    asked_us = ledger.server.clock_us()
    calls = [Call(step, topic, job["id"], ledger.world.now, asked_us) for job in jobs]
    ledger.calls += calls
    specs = [
        JobSpec(payload=job["payload"], delay=job["delay"], key=job["id"], **own)  # type: ignore[call-overload]
        for job, own in zip(jobs, more, strict=True)
    ]
    try:
        receipts = await actor.client.schedule_many(topic, specs)
    except WheelqError as error:
        for call in calls:
            call.answered, call.outcome = ledger.world.now, "unknown"
        ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {type(error).__name__}")
        return
    for call, receipt in zip(calls, receipts, strict=True):
        call.answered = ledger.world.now
        note_receipt(call, receipt)
        call.outcome = outcome if outcome and call.outcome == "created" else call.outcome
    ledger.world.story.tell(actor.name, f"#{step.number} {topic}: {[f'{one.id} {one.outcome}' for one in calls]}")


def _draw_misfiring(draft: Draft) -> Args:
    topic = next(one for one in draft.topics if one.name == "strict")
    jobs = [{**drawn_job(draft, topic), "delay": draft.random.choice((0.5, 1.0))} for _ in range(6)]
    return {"topic": topic.name, "jobs": [{**job, "payload": [0, 0, "error"]} for job in jobs]}


@operation("misfiring", weight=4, draw=_draw_misfiring, trait="terms")
async def misfiring(actor: Actor, step: Step) -> None:
    """Schedule more jobs than their topic promotes in time: the late ones are buried."""
    await schedule_with(actor, step, [{}] * len(step.args["jobs"]), "")
