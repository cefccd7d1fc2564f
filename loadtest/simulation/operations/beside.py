"""The load beside combined faults: long jobs, jobs that are kept and changed, and a topic that is paused often.

See `combined`.
"""

from __future__ import annotations

from loadtest.simulation.operations import jobs, topics
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import WITH_OUTBOX, Draft

LONG_S = 8.0
"""Longer than a worker that is stopped waits for its handlers."""


def _draw_long(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft), "delay": draft.random.choice((0, 0.5, 2.0)), "payload": [LONG_S, 0, "error"]}


operation("long-schedule", 60, draw=_draw_long, trait="leaving")(jobs.schedule)


def _draw_soon(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft), "delay": round(draft.random.uniform(0, 3), 3), "payload": [0, 0, "error"]}


def _draw_pause(draft: Draft) -> Args:
    return {"topic": draft.topic().name, "seconds": round(draft.random.uniform(0.2, 0.5), 2)}


operation("hedged-schedule", 200, draw=_draw_soon, trait="hedging")(jobs.schedule)
operation("hedged-pause", 50, draw=_draw_pause, trait="hedging")(topics.pause)


def _draw_kept(draft: Draft) -> Args:
    return {**jobs.drawn_job(draft), "delay": round(draft.random.uniform(1, 9), 3)}


for number in WITH_OUTBOX:
    for name, weight, draw, do in (
        ("schedule", 40, _draw_kept, jobs.schedule),
        ("cancel", 20, jobs.draw_known, jobs.cancel),
        ("reschedule", 10, jobs.draw_reschedule, jobs.reschedule),
    ):
        operation(f"kept{number}-{name}", weight, draw=draw, trait="keeping", who=f"producer-{number}")(do)
