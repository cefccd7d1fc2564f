"""13. Batches: a handler that takes lists of jobs.

`@worker.batch_handler(topic, max_size=…, max_wait=…)`: called when `max_size` jobs have come together, or the first of
them has waited `max_wait` seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.spec.conftest import Run, nothing_is_left
from tests.waiting import PATIENCE, in_time, until
from wheelq import AsyncClient, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.errors import BatchFailed, ConfigurationError, InvalidInput
from wheelq.protocol.call import command
from wheelq.settings import TopicSettings, WorkerSettings

SOON = Retry(base=0.02, cap=0.05)
LONG = 60.0
"""A `max_wait` that no test lives to see."""


class Batches:
    """Batches as a handler got them."""

    def __init__(self) -> None:
        self.all: list[list[Job]] = []

    @property
    def payloads(self) -> list[object]:
        return sorted(job.payload for batch in self.all for job in batch)

    async def wait_for(self, jobs: int) -> None:
        await until(lambda: sum(map(len, self.all)) >= jobs)


@pytest.fixture
def batches() -> Batches:
    return Batches()


@pytest.fixture
def make(url: str, settings: Settings, topic: str, batches: Batches) -> Callable[..., Worker]:
    """A worker whose batch handler remembers what it got, and then does as `handle` says."""

    def make(handle: Callable[[list[Job]], object] = lambda jobs: None, **terms: object) -> Worker:
        worker = Worker.connect(url, settings=settings)

        @worker.batch_handler(topic, **{"retry": SOON, **terms})
        async def remember(jobs: list[Job]) -> object:
            batches.all.append(jobs)
            result = handle(jobs)
            return await result if asyncio.iscoroutine(result) else result

        return worker

    return make


# When a batch starts


async def test_a_full_batch_starts_at_once(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    """Four batches of 25, and none waits for `max_wait`."""
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(100)])
    run(make(max_size=25, max_wait=LONG))
    await batches.wait_for(100)
    assert [len(batch) for batch in batches.all] == [25] * 4
    assert batches.payloads == list(range(100))
    await nothing_is_left(aclient, topic)


async def test_a_batch_larger_than_the_workers_concurrency_is_filled(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:
    """`concurrency` counts handlers that run; jobs that wait in a batch take none of it."""
    worker = Worker.connect(url, settings=settings, concurrency=1)

    @worker.batch_handler(topic, max_size=500, max_wait=LONG)
    async def handle(jobs: list[Job]) -> None:
        batches.all.append(jobs)

    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(1_000)])
    run(worker)
    await batches.wait_for(1_000)
    assert [len(batch) for batch in batches.all] == [500, 500]


async def test_a_batch_is_filled_from_all_shards(
    url: str, settings: Settings, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings(shards=4))) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(200)])
        run(make(max_size=200, max_wait=LONG))
        await batches.wait_for(200)
        assert len(batches.all) == 1
        await nothing_is_left(client, topic)


async def test_a_batch_that_is_not_full_starts_when_its_first_job_has_waited_long_enough(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    run(make(max_size=500, max_wait=2))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])
    await batches.wait_for(3)
    assert len(batches.all) == 1
    assert all(job.started_ms - job.promoted_ms >= 1_800 for job in batches.all[0]), "the worker estimates the time"


async def test_jobs_that_come_one_by_one_are_gathered(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    """The sixth makes the batch full."""
    run(make(max_size=6, max_wait=LONG))
    for n in range(6):
        await aclient.schedule(topic, n, delay=0)
        await asyncio.sleep(0.02)
    await batches.wait_for(6)
    assert [len(batch) for batch in batches.all] == [6]


async def test_no_more_batches_run_at_a_time_than_allowed_and_nothing_more_is_read_meanwhile(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    """What is not read could be run by another worker."""
    may_end = asyncio.Event()
    receipts = await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(100)])
    run(make(lambda jobs: may_end.wait(), max_size=10, concurrency=2))
    await batches.wait_for(20)
    await asyncio.sleep(0.1)
    infos = [await aclient.get(topic, receipt.id) for receipt in receipts]
    assert sum(info is not None and info.state == "running" for info in infos) == 20
    may_end.set()
    await batches.wait_for(100)
    await nothing_is_left(aclient, topic)


async def test_single_jobs_that_take_all_places_do_not_starve_a_batch(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:
    worker = Worker.connect(url, settings=settings, concurrency=2)
    may_end, busy = asyncio.Event(), asyncio.Semaphore(0)

    @worker.handler(f"{topic}-single")
    async def handle(job: Job) -> None:
        busy.release()
        await may_end.wait()

    @worker.batch_handler(topic, max_size=10)
    async def handle_batch(jobs: list[Job]) -> None:
        batches.all.append(jobs)

    run(worker)
    await aclient.schedule_many(f"{topic}-single", [JobSpec(n, delay=0) for n in range(10)])
    async with asyncio.timeout(PATIENCE):
        await busy.acquire()
        await busy.acquire()
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(30)])
    await batches.wait_for(30)
    may_end.set()


# What comes of it


async def test_a_plain_function_gets_its_batches_in_a_thread(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:

    @worker.batch_handler(topic, max_size=10)
    def handle(jobs: list[Job]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        batches.all.append(jobs)

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    await batches.wait_for(10)
    await nothing_is_left(aclient, topic)
    assert (worker.handled, worker.failed) == (10, 0)


async def test_when_the_handler_raises_all_its_jobs_are_tried_again(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    def fail_at_first(jobs: list[Job]) -> None:
        if any(job.attempt == 1 for job in jobs):
            raise ConnectionError("the other side is away")

    run(make(fail_at_first, max_size=10))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    await batches.wait_for(20)
    assert sorted((job.payload, job.attempt) for batch in batches.all for job in batch) == [
        (n, attempt) for n in range(10) for attempt in (1, 2)
    ]
    await nothing_is_left(aclient, topic)


async def test_an_error_in_the_list_returned_is_the_failure_of_the_job_in_its_place(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    """As `asyncio.gather(..., return_exceptions=True)` returns it."""

    async def handle_one(job: Job) -> None:
        if job.payload % 3 == 0 and job.attempt == 1:
            raise ValueError(job.payload)

    async def handle(jobs: list[Job]) -> list[object]:
        return await asyncio.gather(*map(handle_one, jobs), return_exceptions=True)

    run(make(handle, max_size=9))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(9)])
    await batches.wait_for(12)
    await nothing_is_left(aclient, topic)
    again = [job.payload for batch in batches.all for job in batch if job.attempt == 2]
    assert sorted(again) == [0, 3, 6]
    assert len(batches.payloads) == 12


async def test_batch_failed_names_the_jobs_that_failed(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    """The others are done. A job whose attempts are used up is buried alone."""

    def handle(jobs: list[Job]) -> None:
        raise BatchFailed({job.id: ValueError("a bad one") for job in jobs if job.payload == 5})

    run(make(handle, max_size=10, retry=Retry(max_attempts=2, base=0.02)))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])

    async def is_buried() -> bool:
        [info] = [info for info in await aclient.topics() if info.name == topic]
        return info.dead == 1

    await until(is_buried)
    await nothing_is_left(aclient, topic)
    assert batches.payloads == sorted([*range(10), 5])


async def test_a_batch_that_takes_too_long_is_given_up_and_tried_again(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    async def handle(jobs: list[Job]) -> None:
        if jobs[0].attempt == 1:
            await asyncio.Event().wait()

    run(make(handle, max_size=3, timeout=0.1))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])
    await batches.wait_for(6)
    await nothing_is_left(aclient, topic)


# Stopping, and dying


async def test_a_stop_runs_a_partial_batch_at_once(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    worker = make(max_size=10, max_wait=LONG)
    ended = run(worker)
    receipts = await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])

    async def is_read() -> bool:
        info = await aclient.get(topic, receipts[-1].id)
        return info is not None and info.state == "running"

    await until(is_read)
    assert batches.all == []
    worker.stop()
    await in_time(ended)
    assert batches.payloads == [0, 1, 2]
    await nothing_is_left(aclient, topic)


async def test_a_batch_that_does_not_end_within_the_grace_is_handed_back_to_another_worker(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:
    settings = replace(settings, worker=replace(settings.worker, grace_ms=50))
    first = Worker.connect(url, settings=settings)
    began = asyncio.Event()

    @first.batch_handler(topic, max_size=5)
    async def never_end(jobs: list[Job]) -> None:
        began.set()
        await asyncio.Event().wait()

    second = Worker.connect(url, settings=settings)

    @second.batch_handler(topic, max_size=5)
    async def handle(jobs: list[Job]) -> None:
        batches.all.append(jobs)

    run(first)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(5)])
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        run(second)
        first.stop()
    await batches.wait_for(5)
    assert all(job.redelivered and job.attempt == 1 for batch in batches.all for job in batch)
    await nothing_is_left(aclient, topic)


async def test_a_batch_that_was_gathered_before_a_pause_starts_after_it(
    aclient: AsyncClient, topic: str, run: Run, make: Callable[..., Worker], batches: Batches
) -> None:
    worker = make(max_size=10, max_wait=0.5)
    run(worker)
    await aclient.schedule(topic, "first", delay=0)
    await batches.wait_for(1)
    await aclient.schedule(topic, "gathered", delay=0)
    await until(lambda: worker._parts.held.shards() != [])  # it is here
    await aclient.pause(topic)
    await asyncio.sleep(1.5)  # longer than it may wait: nothing must happen
    assert batches.payloads == ["first"]
    await aclient.resume(topic)
    await batches.wait_for(2)
    await nothing_is_left(aclient, topic)


async def test_a_gathered_delivery_that_was_given_to_another_worker_does_not_start(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:
    """A worker was frozen, another has taken over what it held, and it knows that when the batch starts."""
    worker = Worker.connect(url, settings=replace(settings, worker=WorkerSettings(block_ms=500, renew_ms=50)))

    @worker.batch_handler(topic, max_size=2, max_wait=LONG)
    async def handle(jobs: list[Job]) -> None:
        batches.all.append(jobs)

    run(worker)
    await aclient.schedule(topic, "taken over", delay=0)
    held = worker._parts.held
    await until(lambda: held.shards() != [])
    [shard] = held.shards()
    [entry_id] = held.of(shard)
    ready, group = shard.keys.ready, worker._parts.group
    claim = command("XCLAIM", ready, group, "another", 0, entry_id, "JUSTID", read=len, key=ready)
    assert await worker._parts.transport.send(claim) == 1
    await until(lambda: held.shards() == [])
    await aclient.schedule(topic, "its own", delay=0)
    await batches.wait_for(1)
    assert batches.payloads == ["its own"]


async def test_jobs_that_wait_in_a_batch_are_not_taken_for_abandoned(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, batches: Batches
) -> None:
    """They are renewed: here they wait for longer than a delivery may go without."""
    impatient = replace(settings, worker=WorkerSettings(block_ms=500, renew_ms=50, abandoned_ms=5_000))
    gathering = Worker.connect(url, settings=impatient)
    robbers: list[list[Job]] = []

    @gathering.batch_handler(topic, max_size=10, max_wait=7.0)
    async def handle(jobs: list[Job]) -> None:
        batches.all.append(jobs)

    robber = Worker.connect(url, settings=impatient)

    @robber.batch_handler(topic, max_size=1)
    async def rob(jobs: list[Job]) -> None:
        robbers.append(jobs)

    run(gathering)
    receipt = await aclient.schedule(topic, 1, delay=0)

    async def is_read() -> bool:
        info = await aclient.get(topic, receipt.id)
        return info is not None and info.state == "running"

    await until(is_read)
    run(robber)
    await batches.wait_for(1)
    assert robbers == []
    assert not batches.all[0][0].redelivered


# Terms


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"max_size": 0}, "max_size"),
        ({"max_size": 5_001}, "max_size"),
        ({"max_wait": -0.1}, "max_wait"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_terms_that_make_no_sense_are_refused(url: str, topic: str, terms: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        Worker.connect(url).batch_handler(topic, **terms)(print)


def test_a_topic_has_one_handler_of_either_kind(url: str, topic: str) -> None:
    worker = Worker.connect(url)
    worker.handler(topic)(print)
    with pytest.raises(ConfigurationError, match="already"):
        worker.batch_handler(topic)(print)
