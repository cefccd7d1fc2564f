"""The worker of `wheelq up` without a module: it prints every job that falls due."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable

from wheelq.aio import AsyncClient
from wheelq.cli.output import plain, say
from wheelq.model.job import Job
from wheelq.worker import Worker

PRINTING = "wheelq.cli.printing:worker"
"""The argument for `wheelq worker`."""


def worker() -> Worker:
    """Returns a worker for all topics, in the group that Worker.connect() uses."""
    made = Worker.connect()

    @made.lifespan
    async def client() -> AsyncIterator[AsyncClient]:
        async with AsyncClient.connect() as connected:
            yield connected

    async def topics() -> Iterable[str]:
        return [info.name for info in await client.value.topics()]

    @made.handler_for_each(topics)
    async def show(job: Job) -> None:
        payload = json.dumps(job.payload, default=plain, ensure_ascii=False)
        say(f"{job.topic}/{job.id} is due: {payload}, {max(0.0, job.lateness) * 1000:.1f} ms late")

    return made
