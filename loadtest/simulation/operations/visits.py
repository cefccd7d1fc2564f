"""Requests of people: pages, lists and counts over HTTP. No such request may fail while the server can be reached."""

from __future__ import annotations

from typing import Any

from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import WEB, Draft, Step

TOPICS = ("plain", "order", "batch", "limit", "quiet")
STATES = ("waiting", "retrying", "ready", "running", "done", "dead")
PATHS = (
    "/v1/topics",
    "/v1/topics/{topic}",
    "/v1/topics/{topic}/forecast",
    "/v1/topics/{topic}/history",
    "/v1/topics/{topic}/settings",
    "/v1/topics/{topic}/groups",
    "/v1/topics/{topic}/dead",
    "/v1/topics/{topic}/jobs?state={state}&limit=5",
    "/v1/topics/{topic}/recurring",
    "/metrics",
    "/readyz",
    "/healthz",
    "/",
    "/topics/{topic}",
    "/topics/{topic}/dead",
    "/topics/{topic}/jobs?state={state}",
    "/topics",
    "/groups",
    "/dead",
    "/fleet",
    "/future",
    "/jobs",
    "/recurring",
    "/callbacks",
)


def _draw_visit(draft: Draft) -> Args:
    random = draft.random
    return {"path": random.choice(PATHS).format(topic=random.choice(TOPICS), state=random.choice(STATES))}


@operation("visit", weight=25, draw=_draw_visit, trait="visits", who=WEB)
async def visit(actor: Any, step: Step) -> None:
    status, _ = await actor.ask("GET", step.args["path"])
    actor.ledger.world.story.tell(actor.name, f"#{step.number} GET {step.args['path']}: {status}")
