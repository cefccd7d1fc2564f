"""Bursts of short jobs of which many end at the same moment, for workers that are stopped while they finish them."""

from __future__ import annotations

from loadtest.simulation.operations import jobs
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.plan import Draft


def _draw_burst(draft: Draft) -> Args:
    random, topic = draft.random, draft.topics[0]
    takes, delay = random.choice((0.2, 0.3, 0.4)), random.choice((0, 0.5, 2.0))
    found = [jobs.drawn_job(draft, topic) for _ in range(random.randint(12, 26))]
    same = {"delay": delay, "partition_key": None, "payload": [takes, 0, "error"]}
    return {"topic": topic.name, "jobs": [{**job, **same} for job in found]}


operation("short-burst", 18, draw=_draw_burst, trait="bursts")(jobs.schedule_many)
