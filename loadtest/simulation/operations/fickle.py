"""Jobs of a topic whose settings change, and jobs that end at once while somebody begins to wait for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from wheelq.errors import WheelqError

WAIT_S = 15.0
AT_ONCE_S = 1.5
"""A caller that waits for a job hears of its end within this time."""
KNOWN_S = 4.0
"""Workers know new settings of a topic after this time."""
TURN_S = 14.0
"""So long nobody else changes the topic."""


def _draw_prompt(draft: Draft) -> Args:
    topic, random = draft.topics[1], draft.random
    found = [jobs.drawn_job(draft, topic) for _ in range(random.randint(3, 8))]
    own = [{"delay": random.choice((0, 0, 0.003, 0.01)), "takes": round(random.uniform(0, 0.015), 4)} for _ in found]
    return {
        "topic": topic.name,
        "jobs": [
            {**job, "delay": one["delay"], "partition_key": None, "payload": [one["takes"], 0, "error", job["id"]]}
            for job, one in zip(found, own, strict=True)
        ],
    }


@operation("wait-at-once", weight=14, draw=_draw_prompt, trait="fickle")
async def wait_at_once(actor: Actor, step: Step) -> None:
    """Schedule jobs that end at once, and wait for each: its end is not missed."""

    async def wait(call: Call) -> None:
        await asyncio.sleep(0.001 * place[call.id])
        since = actor.ledger.world.now
        try:
            await actor.client.wait(call.topic, call.id, timeout=WAIT_S)
        except WheelqError:
            return
        now = actor.ledger.world.now
        ends = [run.ended for run in actor.ledger.runs if run.id == call.id and run.topic == call.topic and run.ended]
        late_s = now - max([since, *ends[:1]])
        if late_s > AT_ONCE_S and not actor.ledger.is_explained(since, now):
            actor.ledger.problems.append(f"news: {call.topic}/{call.id} ({step}) had ended {late_s:.1f} s before")

    calls = await jobs.schedule_all(actor, step)
    place = {call.id: n for n, call in enumerate(calls)}
    await asyncio.gather(*(wait(call) for call in calls if call.outcome == "created"))


def _draw_change(draft: Draft) -> Args | None:
    topic, random = draft.topics[0], draft.random
    if any(one.topic == topic.name and one.at > draft.now - TURN_S for one in draft.jobs):
        return None
    job = {**jobs.drawn_job(draft, topic), "delay": 0, "partition_key": None, "payload": [0, 0, "error", "kept"]}
    return {"topic": topic.name, "job": job, "keep_done_ms": random.choice((0, 15_000, 15_000, 30_000))}


@operation("change-keeping", weight=8, draw=_draw_change, trait="fickle", who="producer-1")
async def change_keeping(actor: Actor, step: Step) -> None:
    """Change how long finished jobs are kept; when the workers know that, a job is kept so long, or not at all."""
    topic, wanted, ledger = step.args["topic"], step.args["keep_done_ms"], actor.ledger
    await change(actor, step, lambda: actor.client.configure(topic, keep_done_ms=wanted))
    since = ledger.world.now
    await asyncio.sleep(KNOWN_S)
    job = replace(step, kind="fickle-schedule", args=step.args["job"])
    await jobs.schedule(actor, job)
    await asyncio.sleep(AT_ONCE_S)
    try:
        found = await actor.client.get(topic, job.args["id"])
    except WheelqError:
        return
    changes = [one for one in ledger.calls if one.step.kind == step.kind and one.answered > step.at]
    if len(changes) == 1 and bool(found) != bool(wanted) and not ledger.is_explained(since, ledger.world.now):
        ledger.problems.append(f"kept: {topic}/{job.args['id']} is {found} after it has run, with {wanted} ms ({step})")
