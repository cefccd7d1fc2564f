"""wheelq: one scheduler process and one worker process, default settings."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta

from loadtest.compare.adapters.common import Due, Handle, run
from wheelq import Client, Job, JobSpec, Scheduler, Worker

TOPIC = "compare"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def produce(url: str, jobs: list[Due]) -> None:
    """Schedule with the blocking client, because the producer has nothing else to do meanwhile."""
    with Client.connect(url) as client:
        client.schedule_many(TOPIC, [JobSpec(payload, at=EPOCH + timedelta(milliseconds=ms)) for payload, ms in jobs])


async def work(url: str, handle: Handle) -> None:
    """Until SIGTERM."""
    worker = Worker.connect(url)

    @worker.handler(TOPIC)
    async def compare(job: Job) -> None:
        await handle(job.payload)

    await _until_stopped(worker)


async def schedule(url: str) -> None:
    """Until SIGTERM."""
    await _until_stopped(Scheduler.connect(url))


async def _until_stopped(part: Worker | Scheduler) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, part.stop)
    await part.run()


if __name__ == "__main__":
    run(produce, work, schedule=schedule)
