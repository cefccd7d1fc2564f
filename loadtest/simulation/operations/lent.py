"""Jobs for `lessees.Latecomer`, of which nobody is told anything: they need not end in a certain way."""

from __future__ import annotations

from typing import Any

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import WEB, Draft, Step


def _draw_lent(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft, draft.topics[0]), "delay": draft.random.choice((0, 0.5, 2.0))}


@operation("lent-schedule", weight=40, draw=_draw_lent, trait="lent", who=WEB)
async def schedule(actor: Any, step: Step) -> None:
    """Schedule a job over HTTP."""
    args = step.args
    await actor.ask("POST", "/v1/topics/lent/jobs", {name: args[name] for name in ("id", "delay", "payload")})
