"""`concurrency` limits all single handlers of a worker, in order or not, and each topic gets its turn."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Job, JobSpec, Settings, Worker
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.held import Delivery

ORDERED = {"first": True, "second": "key", "third": True}


def limited(url: str, prefix: str, concurrency: int, **settings: int) -> Worker:
    own = WorkerSettings(concurrency=concurrency, **{"renew_ms": 100, "abandoned_ms": 500, **settings})
    return Worker.connect(url, settings=Settings(prefix=prefix, worker=own))


@pytest.mark.parametrize("concurrency", [1, 2, 9])
async def test_handlers_of_all_topics_together_are_as_many_as_the_limit(
    url: str, prefix: str, aclient: AsyncClient, concurrency: int
) -> None:
    """Each ordered topic had a pool of its own: `concurrency=2` ran eight."""
    worker, ran, now, most = limited(url, prefix, concurrency), Counter[str](), 0, 0

    async def handle(job: Job) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(20):  # so that all that may start does
            await asyncio.sleep(0)
        now -= 1
        ran[job.topic] += 1

    for topic, ordered in ORDERED.items():
        worker.handler(topic, ordered=ordered)(handle)
    worker.handler("plain")(handle)
    for topic in (*ORDERED, "plain"):
        await aclient.configure(topic)
        await aclient.set_shards(topic, 4)
        await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key=str(n % 10)) for n in range(100)])
    async with running(worker):
        await until(lambda: ran == dict.fromkeys((*ORDERED, "plain"), 100))
    assert most == concurrency


@pytest.mark.parametrize("busy", ["plain", "first", "limited"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_topic_with_jobs_without_end_leaves_the_others_their_turn(
    url: str, prefix: str, aclient: AsyncClient, concurrency: int, busy: str
) -> None:
    worker, ran, is_over = limited(url, prefix, concurrency), Counter[str](), False

    async def handle(job: Job) -> None:
        await asyncio.sleep(0.001)
        ran[job.topic] += 1
        if job.topic == busy and not is_over:
            await aclient.schedule_many(busy, [JobSpec(0, delay=0, partition_key=job.id)] * 2)

    worker.handler("plain")(handle)
    worker.handler("first", ordered="key")(handle)
    worker.handler("second", ordered=True)(handle)
    worker.handler("limited", concurrency=2)(handle)
    others = {"plain", "first", "second", "limited"} - {busy}
    for topic in (busy, *others):
        await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key=str(n)) for n in range(20)])
    async with running(worker):
        await until(lambda: all(ran[topic] == 20 for topic in others))
        assert ran[busy] < 20 * 20, "the busy one ran alone for a while"
        is_over = True


async def test_a_read_that_waits_for_jobs_does_not_keep_the_last_place_from_an_ordered_job(
    url: str, prefix: str, aclient: AsyncClient
) -> None:
    worker, ran = limited(url, prefix, 1, block_ms=600_000), Counter[str]()

    async def handle(job: Job) -> None:
        ran[job.topic] += 1

    worker.handler("plain")(handle)
    worker.handler("first", ordered=True)(handle)
    await aclient.schedule("plain", delay=0)
    async with running(worker):
        for n in range(1, 4):
            await until(lambda: any(reader.is_waiting for reader in worker._lanes._default._readers.values()))
            await aclient.schedule("first", delay=0)
            await until(lambda n=n: ran["first"] == n)  # type: ignore[misc]
        await aclient.schedule("plain", delay=0)
        await until(lambda: ran["plain"] == 2)


async def test_a_shard_without_a_free_place_is_passed_on_to_a_worker_that_has_one(
    url: str, prefix: str, aclient: AsyncClient
) -> None:
    began, may_end, ran = asyncio.Event(), asyncio.Event(), list[str]()

    async def block(job: Job) -> None:
        began.set()
        await may_end.wait()

    async def note(job: Job) -> None:
        ran.append(job.id)

    full, free = limited(url, prefix, 1), limited(url, prefix, 1)
    full.handler("plain")(block)
    full.handler("first", ordered=True)(note)
    free.handler("first", ordered=True)(note)
    ids = [(await aclient.schedule("first", delay=0)).id for _ in range(3)]
    async with running(full):
        await until(lambda: ran == ids)
        await aclient.schedule("plain", delay=0)
        await began.wait()
        ids += [(await aclient.schedule("first", delay=0)).id for _ in range(3)]
        async with running(free):
            await until(lambda: ran == ids)
            may_end.set()


@pytest.mark.parametrize("stops", [False, True])
async def test_ordered_jobs_that_wait_for_a_place_are_renewed_and_can_be_cancelled_and_are_handed_back(
    url: str, prefix: str, aclient: AsyncClient, stops: bool
) -> None:
    began, may_end, ran = asyncio.Event(), asyncio.Event(), list[str]()
    worker, other = limited(url, prefix, 1), limited(url, prefix, 1)

    @worker.handler("plain")
    async def block(job: Job) -> None:
        began.set()
        await may_end.wait()

    @worker.handler("first", ordered=True)
    @other.handler("first", ordered=True)
    async def note(job: Job) -> None:
        ran.append(job.id)

    def waiting() -> dict[str, Delivery]:
        held = worker._parts.held
        found = [delivery for shard in held.shards() for delivery in held.of(shard).values()]
        return {delivery.entry.id: delivery for delivery in found if delivery.shard.keys.topic == "first"}

    await aclient.schedule("plain", delay=0)
    async with running(worker):
        await began.wait()
        for key in ("a", "b", "c"):
            await aclient.schedule("first", delay=0, key=key)
        await until(lambda: len(waiting()) == 3)
        safe_until_ms = max(delivery.safe_until_ms for delivery in waiting().values())
        await until(lambda: min(delivery.safe_until_ms for delivery in waiting().values()) > safe_until_ms)
        assert ran == []
        if stops:
            worker.stop(grace=600)
            async with running(other):  # while the handler of the other topic still runs
                await until(lambda: ran == ["a", "b", "c"])
                may_end.set()
        else:
            await aclient.cancel("first", "b", running=True)
            await until(lambda: waiting()["b"].is_cancelled)
            may_end.set()
            await until(lambda: ran == ["a", "c"] and not waiting())
