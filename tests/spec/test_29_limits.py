"""29. Limits: `concurrency` of a handler.

A worker runs at most `concurrency` jobs of a handler at a time, besides its own limit for all of them. The handler's
other jobs stay in Redis, and slow no other handler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.running import die_at_work, running
from tests.waiting import until
from wheelq import AsyncClient, InvalidInput, Job, JobSpec, Retry, Router, Scheduler, Settings, Worker
from wheelq.testing import AsyncWheelqTest
from wheelq.worker.handlers.handler import Ordered

Read = Callable[[], int]


class Gated:
    """A handler's function: each run waits until it may end."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.done = Counter[str]()
        self.may_end = asyncio.Event()

    async def run(self, job: Job) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.may_end.wait()
            await asyncio.sleep(0.001)
        finally:
            self.running -= 1
        self.done[job.id] += 1

    def has_done(self, jobs: int) -> Callable[[], bool]:
        return lambda: len(self.done) == jobs


@pytest.fixture
def gated() -> Gated:
    return Gated()


async def counted(client: AsyncClient, topic: str) -> tuple[int, int]:
    """How many jobs are ready and not yet read, and how many are read and not yet done."""
    [info] = [info for info in await client.topics() if info.name == topic]
    return info.ready, info.running


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("ordered", [False, "key"])
async def test_a_handler_runs_at_most_its_own_limit_and_the_other_jobs_stay_in_redis(
    worker: Worker, aclient: AsyncClient, topic: str, gated: Gated, ordered: Ordered, shards: int
) -> None:
    await aclient.configure(topic)
    await aclient.set_shards(topic, shards)
    worker.handler(topic, concurrency=3, ordered=ordered)(gated.run)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key=str(n)) for n in range(40)])
    async with running(worker):
        await until(lambda: gated.running == 3)
        if not ordered:  # the holder of an ordered shard reads ahead: no other worker could take its jobs
            assert await counted(aclient, topic) == (37, 3)
        gated.may_end.set()
        await until(gated.has_done(40))
    assert gated.most == 3


@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_a_full_handler_keeps_nothing_from_others(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated, ordered: Ordered
) -> None:
    """Neither places of the worker, nor its turn to read: the other handlers have all but its own."""
    other, worker = Gated(), Worker.connect(url, concurrency=8, settings=settings)
    worker.handler(topic, concurrency=2, ordered=ordered)(gated.run)
    worker.handler(f"{topic}-other")(other.run)
    await aclient.configure(topic)
    await aclient.set_shards(topic, 4)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key=str(n)) for n in range(50)])
    async with running(worker):
        await until(lambda: gated.running == 2)
        await aclient.schedule_many(f"{topic}-other", [JobSpec(n, delay=0) for n in range(50)])
        await until(lambda: other.running == 6)
        other.may_end.set()
        await until(other.has_done(50))
        assert gated.running == 2
        gated.may_end.set()
        await until(gated.has_done(50))
    assert (gated.most, other.most) == (2, 6)


async def test_the_workers_own_limit_holds_for_all_handlers_together(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    worker = Worker.connect(url, concurrency=4, settings=settings)
    for name, limit, ordered in (("a", 3, False), ("b", 3, "key"), ("c", 9, False), ("d", None, False)):
        worker.handler(f"{topic}-{name}", concurrency=limit, ordered=ordered)(gated.run)  # type: ignore[arg-type]
        specs = [JobSpec(n, delay=0, key=f"{name}{n}", partition_key=str(n)) for n in range(30)]
        await aclient.schedule_many(f"{topic}-{name}", specs)
    async with running(worker):
        await until(lambda: gated.running == 4)
        gated.may_end.set()
        await until(gated.has_done(120))
    assert gated.most == 4


async def test_other_workers_take_the_jobs_of_a_full_handler(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    workers = [Worker.connect(url, settings=settings) for _ in range(2)]
    for worker in workers:
        worker.handler(topic, concurrency=2)(gated.run)
    async with running(*workers):
        await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
        await until(lambda: gated.running == 4)
        gated.may_end.set()
        await until(gated.has_done(20))
        assert all(worker.handled for worker in workers)


async def test_a_full_handlers_topic_is_paused_and_resumed(
    worker: Worker, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    """Its reader waits for the running job meanwhile, and finds that there is nothing to read."""
    worker.handler(topic, concurrency=1)(gated.run)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(5)])
    async with running(worker):
        await until(lambda: gated.running == 1)
        await aclient.pause(topic)
        await until(lambda: worker._lanes._of_topic[topic]._shards == [])  # type: ignore[union-attr]
        gated.may_end.set()
        await until(gated.has_done(1))
        assert (await counted(aclient, topic))[0] == 4
        await aclient.resume(topic)
        await until(gated.has_done(5))


async def test_a_retried_and_a_taken_over_job_count_towards_the_limit(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    quick = replace(settings, worker=replace(settings.worker, renew_ms=100, abandoned_ms=300))
    dying, worker = (Worker.connect(url, settings=quick) for _ in range(2))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0, key=str(n)) for n in range(10)])
    await die_at_work(dying, topic)
    assert (await counted(aclient, topic))[1] > 2

    @worker.handler(topic, concurrency=2, retry=Retry(max_attempts=3, delays=[0.01]))
    async def handle(job: Job) -> None:
        await gated.run(job)
        if job.attempt < 3:
            raise ValueError("not yet")

    gated.may_end.set()
    async with running(worker, Scheduler.connect(url, settings)):
        await until(lambda: gated.done == dict.fromkeys(map(str, range(10)), 3))
    assert gated.most == 2


async def test_a_task_and_a_routers_handler_have_limits_too(
    worker: Worker, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    router = Router()

    @worker.task(topic, concurrency=1)
    async def task(job: Job) -> None:
        await gated.run(job)

    router.handler(f"{topic}-of-router", concurrency=2)(gated.run)
    worker.include(router)
    for name in (topic, f"{topic}-of-router"):
        await aclient.schedule_many(name, [JobSpec({}, delay=0, key=f"{name}{n}") for n in range(10)])
    async with running(worker):
        await until(lambda: gated.running == 3)
        gated.may_end.set()
        await until(gated.has_done(20))
    assert gated.most == 3


async def test_a_handler_that_is_added_later_has_its_limit(
    worker: Worker, aclient: AsyncClient, topic: str, gated: Gated
) -> None:
    worker.handler(topic)(gated.run)
    async with running(worker):
        await aclient.schedule(topic, delay=0)
        await until(lambda: gated.running == 1)
        worker.handler(f"{topic}-later", concurrency=2)(gated.run)
        await aclient.schedule_many(f"{topic}-later", [JobSpec(n, delay=0) for n in range(10)])
        await until(lambda: gated.running == 3)
        gated.may_end.set()
        await until(gated.has_done(11))
    assert gated.most == 3


async def test_a_limit_holds_under_time_travel(async_wheelq: AsyncWheelqTest, gated: Gated) -> None:
    async_wheelq.worker.handler("orders", concurrency=2)(gated.run)
    gated.may_end.set()
    async_wheelq.client.schedule_many("orders", [JobSpec(n, delay=3600, key=str(n)) for n in range(9)])
    await async_wheelq.advance(hours=1)
    assert (len(gated.done), gated.most) == (9, 2)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "2"])
def test_a_limit_is_a_whole_number_of_at_least_one(worker: Worker, concurrency: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        worker.handler("orders", concurrency=concurrency)(lambda job: None)
