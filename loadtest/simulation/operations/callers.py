"""Callers over HTTP that say more than `http`: they repeat requests under a key, look for results, and have API keys.

What they make is in a topic of its own, whose jobs `lessees.Asker` pulls.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from loadtest.simulation.ledger import Call, Keyed
from loadtest.simulation.lessees import result_of
from loadtest.simulation.operations.http import note
from loadtest.simulation.operations.jobs import drawn_job
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import WEB, Draft, Step
from wheelq.errors import ServerError
from wheelq.protocol.calls.access import drop_api_key, put_api_key
from wheelq.server.access import new_key

WAIT_S = 12
AGAIN = ((0,), (0, 0), (0, 0.004), (0, 0.3, 4.0), (0, 1.0, 1.0), (0, 8.0))
"""When a request comes under one key."""
READ_AGAIN_S = 3.5
"""A key that was revoked opens nothing after this time, if Redis could be asked: `keys_ms`, and a moment."""


def _draw_job(draft: Draft) -> Args:
    job = drawn_job(draft, draft.topics[0])
    delay = draft.random.choice((0, 0.2, 3.0, 12.0))
    return {**job, "delay": delay, "partition_key": None, "payload": [*job["payload"], job["id"]]}


def _draw_unnamed(draft: Draft) -> dict[str, Any]:
    """Draw a job whose id the service makes, so that no other step can name it."""
    job = _draw_job(draft)
    draft.jobs[-1] = replace(draft.jobs[-1], at=-100.0)
    return dict(job)


async def _schedule(actor: Any, step: Step, token: str | None = None) -> None:
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        body = {"id": args["id"], "delay": args["delay"], "payload": args["payload"]}
        note(call, *await actor.ask("POST", f"/v1/topics/{args['topic']}/jobs", body, token=token))


@operation("asked-schedule", weight=20, draw=_draw_job, trait="callers", who=WEB)
async def schedule(actor: Any, step: Step) -> None:
    await _schedule(actor, step)


# --- Idempotency-Key ------------------------------------------------------------------------------------------------


def _draw_keyed(draft: Draft) -> Args:
    return {**_draw_unnamed(draft), "again": draft.random.choice(AGAIN)}


@operation("asked-keyed", weight=14, draw=_draw_keyed, trait="callers", who=WEB)
async def keyed(actor: Any, step: Step) -> None:
    """Schedule a job without an id, and repeat the request under its Idempotency-Key: it makes one job."""
    args = step.args
    await _repeat(actor, step, "jobs", {"delay": args["delay"], "payload": args["payload"]}, [args])


def _draw_many(draft: Draft) -> Args:
    random = draft.random
    delay = random.choice((0, 1.0, 6.0))
    jobs = [{**_draw_unnamed(draft), "delay": delay} for _ in range(random.randint(2, 6))]
    jobs = [{**job, "is_named": random.random() < 0.5} for job in jobs]
    return {"topic": draft.topics[0].name, "jobs": jobs, "delay": delay, "again": random.choice(AGAIN)}


@operation("asked-many", weight=8, draw=_draw_many, trait="callers", who=WEB)
async def many(actor: Any, step: Step) -> None:
    """Schedule jobs with and without ids in one request, with an invalid one among them, and repeat it under a key."""
    args = step.args
    jobs: list[Any] = [{"delay": args["delay"], "payload": job["payload"]} for job in args["jobs"]]
    for body, job in zip(jobs, args["jobs"], strict=True):
        body |= {"id": job["id"]} if job["is_named"] else {}
    await _repeat(actor, step, "bulk", {"jobs": [*jobs, {"payload": "and no time"}]}, args["jobs"])


async def _repeat(actor: Any, step: Step, path: str, body: Any, jobs: Any) -> None:
    """Send a request under a key, as often as the step says; unless it was refused, once more with another body."""
    ledger, key = actor.ledger, {"idempotency-key": f"step-{step.number}"}
    path = f"/v1/topics/{step.args['topic']}/{path}"
    one = Keyed(step, ledger.world.now, ledger.server.clock_us(), [job["payload"][-1] for job in jobs])
    ledger.keyed.append(one)

    async def ask(pause: float) -> None:
        await asyncio.sleep(pause)
        is_beside = not one.is_remembered
        status, answer = await actor.ask("POST", path, body, key)
        _note_jobs(actor, one, status, answer, is_beside=is_beside)

    await asyncio.gather(*map(ask, step.args["again"]))
    if all(status == 503 for status, _ in one.answers):
        return  # nothing has the key: the other request would have it
    status, _ = await actor.ask("POST", path, {**body, "on_duplicate": "raise"}, key)
    if one.was_told and status < 300 and not ledger.undone:
        ledger.problems.append(f"once: {step} was answered, and its key was taken for another request: {status}")


def _note_jobs(actor: Any, one: Keyed, status: int, answer: Any, *, is_beside: bool) -> None:
    """Note an answer; the first one that names the jobs is the answer to the call about each.

    A request that was sent before there was an answer (`is_beside`) may make a job again that was buried meanwhile.
    """
    ledger, was_told = actor.ledger, one.was_told
    one.answers.append((status, answer))
    ledger.world.story.tell(actor.name, f"#{one.step.number} {status} {one.ids_in(answer) if status < 300 else ''}")
    if status >= 300:
        return
    made, asked = answer.get("outcomes", [answer]), one.step.args.get("jobs", [one.step.args])
    for job, wanted in zip(made, asked, strict=False):
        is_mortal = wanted["payload"][-2] == "bury"
        if "id" in job and "problem" not in job and (not was_told or (is_mortal and is_beside)):
            call = Call(one.step, one.step.args["topic"], job["id"], one.sent, one.asked_us, ledger.world.now)
            ledger.calls.append(call)
            note(call, 504 if was_told else status, job)
    if "outcomes" in answer and made[-1].get("problem", {}).get("status") != 422:
        ledger.problems.append(f"once: {one.step} has an invalid job, whose outcome is {made[-1]}")


# --- single jobs ----------------------------------------------------------------------------------------------------


def _draw_known(draft: Draft) -> Args | None:
    job = draft.a_job()
    return {"topic": job.topic, "id": job.id, "partition_key": None} if job else None


def _draw_moved(draft: Draft) -> Args | None:
    args, delay = _draw_known(draft), round(draft.random.uniform(0.2, 12), 3)
    return args and {**args, "delay": delay}


async def _change(actor: Any, step: Step, method: str, path: str, done: str, body: Any = None) -> None:
    topic, id = step.args["topic"], step.args["id"]
    async with actor.recording(step, topic, id) as call:
        status, answer = await actor.ask(method, f"/v1/topics/{topic}/{path}/{id}", body)
        kind = answer["type"].partition("#")[2] if status >= 400 else ""
        known = {"job-not-found": "not_found", "too-late": "running", "paused": "paused", "outcome-unknown": "unknown"}
        call.outcome = known.get(kind, f"refused: {status}" if kind else done)


@operation("asked-cancel", weight=4, draw=_draw_known, trait="callers", who=WEB)
async def cancel(actor: Any, step: Step) -> None:
    await _change(actor, step, "DELETE", "jobs", "cancelled")


@operation("asked-reschedule", weight=6, draw=_draw_moved, trait="callers", who=WEB)
async def reschedule(actor: Any, step: Step) -> None:
    await _change(actor, step, "PATCH", "jobs", "rescheduled", {"delay": step.args["delay"]})


@operation("asked-run-now", weight=4, draw=_draw_known, trait="callers", who=WEB)
async def run_now(actor: Any, step: Step) -> None:
    await _change(actor, step, "POST", "run", "promoted")


@operation("asked-get", weight=4, draw=_draw_known, trait="callers", who=WEB)
async def get(actor: Any, step: Step) -> None:
    topic, id = step.args["topic"], step.args["id"]
    async with actor.recording(step, topic, id) as call:
        status, answer = await actor.ask("GET", f"/v1/topics/{topic}/jobs/{id}")
        call.outcome = {200: str(answer.get("state")), 404: "nothing"}.get(status, f"refused: {status}")
        call.due_ms = answer["due_ms"] if status == 200 else 0


@operation("asked-wait", weight=10, draw=_draw_job, trait="callers", who=WEB)
async def wait(actor: Any, step: Step) -> None:
    """Schedule a job, wait for its end, and compare its result with what the lessees have sent."""
    await _schedule(actor, step)
    topic, id, ledger = step.args["topic"], step.args["id"], actor.ledger
    status, answer = await actor.ask("GET", f"/v1/topics/{topic}/jobs/{id}?wait={WAIT_S}")
    if status == 200 and answer["state"] == "done":
        sent = [result_of(run) for run in ledger.runs if (run.topic, run.id) == (topic, id)]
        ledger.world.story.tell(actor.name, f"#{step.number} {id} is done: {answer['result']}")
        if answer["result"] not in sent:
            ledger.problems.append(f"result: {topic}/{id} has {answer['result']!r}, and its lessees sent {sent}")


# --- API keys -------------------------------------------------------------------------------------------------------


def _draw_key(draft: Draft) -> Args:
    random = draft.random
    return {**_draw_job(draft), "pause": round(random.uniform(0, 3), 2), "is_rotated": random.random() < 0.5}


@operation("asked-key", weight=4, draw=_draw_key, trait="callers", who=WEB)
async def key(actor: Any, step: Step) -> None:
    """Make an API key that may schedule, and nothing else; then revoke it, or change its secret: it opens nothing."""
    service, ledger = actor.service, actor.ledger
    made, token = new_key(f"step {step.number}", ("schedule:asked",), service.clock.wall_ms())
    try:
        await service.transport.send(put_api_key(service.keys, made.id, made.stored()))
    except ServerError:
        return
    await _schedule(actor, step, token)
    await _expect(actor, step, token, 403, "may only schedule")
    await asyncio.sleep(step.args["pause"])
    after, new_token = made.rotated(service.clock.wall_ms(), 0)
    put = put_api_key(service.keys, made.id, after.stored())
    try:
        await service.transport.send(put if step.args["is_rotated"] else drop_api_key(service.keys, made.id))
    except ServerError:
        return
    if step.args["is_rotated"]:
        await _expect(actor, step, new_token, 403, "has a new secret")
    since = ledger.world.now
    await asyncio.sleep(READ_AGAIN_S)
    if not ledger.is_explained(since, ledger.world.now, whom=WEB):
        await _expect(actor, step, token, 401, "was revoked")


async def _expect(actor: Any, step: Step, token: str, wanted: int, why: str) -> None:
    """Note a problem, if a request that must be refused is answered otherwise, unless Redis could not be asked."""
    status, _ = await actor.ask("GET", "/v1/topics/asked/jobs", token=token)
    actor.ledger.world.story.tell(actor.name, f"#{step.number} a key that {why}: {status}")
    if status < 500 and status != wanted and not actor.ledger.undone:
        actor.ledger.problems.append(f"key: a key that {why} is answered {status} ({step})")
