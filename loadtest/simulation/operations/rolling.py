"""Ordered jobs, of which many fail and wait for a retry, beside a restart of all workers in turn (see `combined`)."""

from __future__ import annotations

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import Draft


def _draw_lined(draft: Draft) -> Args:
    random = draft.random
    payload = [random.choice((0, 0.01, 0.3)), random.choice((0, 0, 1, 1, 2)), "error"]
    return {**jobs.drawn_job(draft), "delay": round(random.uniform(0, 3), 3), "payload": payload}


operation("lined-schedule", 40, draw=_draw_lined, trait="rolling")(jobs.schedule)
