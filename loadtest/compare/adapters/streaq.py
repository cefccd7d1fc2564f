"""streaq: one worker process, which also moves due jobs; results are not kept, and runs are not logged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from streaq import Worker

from loadtest.compare.adapters.common import CONCURRENCY, Due, Handle, run

AT_A_TIME = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def task_of(worker: Worker[Any], handle: Handle) -> Any:
    """The one task, as the producer and the worker know it."""

    async def compare(payload: str) -> None:
        await handle(payload)

    return worker.task(compare, name="compare", ttl=0, silent=True)


async def nothing(payload: str) -> None:
    """A producer runs no task."""


async def produce(url: str, jobs: list[Due]) -> None:
    """`enqueue_many`: one pipeline a call."""
    worker: Worker[Any] = Worker(redis_url=url)
    task = task_of(worker, nothing)
    async with worker:
        for first in range(0, len(jobs), AT_A_TIME):
            some = jobs[first : first + AT_A_TIME]
            await worker.enqueue_many(
                [task.enqueue(payload).start(schedule=EPOCH + timedelta(milliseconds=ms)) for payload, ms in some]
            )


async def work(url: str, handle: Handle) -> None:
    """Until SIGTERM, which streaq handles."""
    worker: Worker[Any] = Worker(redis_url=url, concurrency=CONCURRENCY)
    task_of(worker, handle)
    await worker.run_async()


if __name__ == "__main__":
    run(produce, work)
