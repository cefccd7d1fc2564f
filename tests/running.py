"""Schedulers and workers that run in the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest
import redis

from tests.waiting import in_time, until
from wheelq import Job, Scheduler, Settings, Worker

WAITS = "waiting until the server can be used"


@asynccontextmanager
async def running(*parts: Scheduler | Worker, patiently: bool = False) -> AsyncIterator[None]:
    """Runs these parts for the block, then stops them and waits for their end. Raises: what one of them ended by."""
    tasks = [asyncio.create_task(part.run(patiently=patiently)) for part in parts]
    try:
        yield
    finally:
        for part in parts:
            part.stop()
        await asyncio.gather(*tasks)


async def waits_out(
    part: Scheduler | Worker, trouble: AbstractAsyncContextManager[None], log: pytest.LogCaptureFixture, **how: bool
) -> None:
    """The part is started in the midst of the trouble, says that it waits, and goes on when the trouble is over."""
    async with AsyncExitStack() as stack:
        async with trouble:
            await stack.enter_async_context(running(part, **how))
            await until(lambda: WAITS in log.text)
        log.set_level("INFO")
        await until(lambda: "the server can be used, after" in log.text)


def scheduler_at(url: str, topic: str = "orders") -> Scheduler:
    return Scheduler.connect(url)


def worker_at(url: str, topic: str = "orders") -> Worker:
    """A worker whose handler does nothing."""
    worker = Worker.connect(url)
    worker.handler(topic)(lambda job: None)
    return worker


each_part = pytest.mark.parametrize("make", [scheduler_at, worker_at])


def collecting(
    url: str, topic: str, settings: Settings | None = None, group: str = "default", *, ordered: bool = False
) -> tuple[Worker, list[str]]:
    """A worker, and the ids of the jobs that it ran."""
    worker, ran = Worker.connect(url, group=group, settings=settings), list[str]()

    @worker.handler(topic, ordered=ordered)
    async def handle(job: Job) -> None:
        ran.append(job.id)

    return worker, ran


def age(url: str, prefix: str) -> None:
    """Make every shard older than a minute, so that finished jobs are removed from its stream."""
    with redis.Redis.from_url(url) as raw:
        for counts in raw.scan_iter(f"{prefix}:{{*}}:counts"):
            raw.hdel(counts, "born")


async def die_at_work(worker: Worker, topic: str) -> None:
    """Run a worker until it has begun a job, and let it die then."""
    began = asyncio.Event()

    @worker.handler(topic)
    async def hang(job: Job) -> None:
        began.set()
        await asyncio.Event().wait()

    await die(worker, began)


async def die(worker: Worker, when: asyncio.Event) -> None:
    """Run a worker until the event; then the nearest thing to kill -9 within one process.

    All its tasks end and settle nothing.
    """
    others = asyncio.all_tasks()
    running = asyncio.create_task(worker.run())
    await in_time(when.wait())
    while victims := asyncio.all_tasks() - others - {asyncio.current_task()}:
        for task in victims:
            task.cancel()  # again and again, so that none can wait for anything on its way out
        await asyncio.sleep(0)
    await asyncio.gather(running, return_exceptions=True)
