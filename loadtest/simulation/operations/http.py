"""Operations of callers over HTTP."""

from __future__ import annotations

from typing import Any

from loadtest.simulation.ledger import Call
from loadtest.simulation.operations.jobs import drawn_job
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import WEB, Draft, Step


def note(call: Call, status: int, answer: Any) -> None:
    """Record the answer about a job that was asked for."""
    if status in (200, 201, 202):
        call.due_ms, call.kept = answer["due_ms"], answer["in_outbox"]
        call.outcome = "kept" if call.kept else "created" if answer["created"] else "there"
    else:
        call.outcome = "unknown" if status == 504 else f"refused: {status}"


def _draw_http_schedule(draft: Draft) -> Args:
    job = drawn_job(draft)
    target = {"service": "shop", "path": "/due"} if job["topic"] == "called" else None
    return {**job, "partition_key": None, "target": target, "repeats": draft.random.random() < 0.3}


@operation("http-schedule", weight=60, draw=_draw_http_schedule, trait="web", who=WEB)
async def http_schedule(actor: Any, step: Step) -> None:
    """Schedule a job over HTTP for a lessee or a receiver; some repeat a failed request with its Idempotency-Key."""
    args = step.args
    async with actor.recording(step, args["topic"], args["id"]) as call:
        body = {"id": args["id"], "delay": args["delay"], "payload": args["payload"]}
        if args["target"]:
            body["target"] = args["target"]
        headers = {"idempotency-key": f"step-{step.number}"} if args["repeats"] else {}
        path = f"/v1/topics/{args['topic']}/jobs"
        status, answer = await actor.ask("POST", path, body, headers)
        note(call, status, answer)
        if headers and status in (503, 504):
            again, answer = await actor.ask("POST", path, body, headers)
            if again < 300 or status == 503:
                note(call, again, answer)


def _draw_http_cancel(draft: Draft) -> Args | None:
    return {"topic": draft.topic().name, "place": draft.random.randrange(200)}


@operation("http-cancel", weight=5, draw=_draw_http_cancel, trait="web", who=WEB)
async def http_cancel(actor: Any, step: Step) -> None:
    made = [one for one in actor.ledger.calls if one.step.kind == "http-schedule" and one.outcome == "created"]
    if not made:
        return
    job = made[step.args["place"] % len(made)]
    async with actor.recording(step, job.topic, job.id) as call:
        status, _ = await actor.ask("DELETE", f"/v1/topics/{job.topic}/jobs/{job.id}")
        call.outcome = {204: "cancelled", 404: "not_found", 409: "running", 504: "unknown"}.get(status, "refused")
