"""8. Stopping: a worker stops quickly, finishes what runs, and loses and delays nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.spec.conftest import Run, nothing_is_left
from tests.waiting import PATIENCE, in_time, until
from wheelq import AsyncClient, Job, JobSpec, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.settings import WorkerSettings


async def ended(task: asyncio.Task[None]) -> None:
    await in_time(task)


def wheelq_tasks() -> set[str]:
    """What runs on this loop on behalf of schedulers and workers; transports' readers end with their clients."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name.startswith("wheelq ")} - {"wheelq transport"}


async def test_a_plain_handler_stops_its_worker(worker: Worker, aclient: AsyncClient, topic: str) -> None:
    """From its thread, also in asyncio's debug mode."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    try:
        worker.handler(topic)(lambda job: worker.stop())
        await aclient.schedule(topic, delay=0)
        await in_time(worker.run())
    finally:
        loop.set_debug(False)
    assert worker.handled == 1


async def test_a_scheduler_that_stops_leaves_nothing_running(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    scheduler = Scheduler.connect(url, settings)
    running = asyncio.create_task(scheduler.run())
    await aclient.schedule(topic, delay=0.1)
    await until(lambda: scheduler.promoted > 0)
    scheduler.stop()
    await ended(running)
    assert wheelq_tasks() == set()


async def test_another_scheduler_goes_on_at_once(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """The one that stops gives its leases back: no other has to wait until they end."""
    settings = replace(settings, scheduler=replace(settings.scheduler, lease_ms=600_000))  # they outlast the test
    first, second = Scheduler.connect(url, settings), Scheduler.connect(url, settings)
    running = asyncio.create_task(first.run())
    await aclient.schedule(topic, delay=0.1)
    await until(lambda: first.promoted == 1)
    run(second)
    await aclient.schedule_many(topic, [JobSpec(n, delay=1 + 0.02 * n) for n in range(50)])
    await until(lambda: first.promoted > 1)
    first.stop()
    await ended(running)
    await until(lambda: any(shard.is_leading for shard in second._shards.values()))
    await until(lambda: first.promoted + second.promoted == 1 + 50)
    assert (await aclient.topics())[0].waiting == 0


async def test_a_worker_that_stops_lets_its_handlers_finish(worker: Worker, aclient: AsyncClient, topic: str) -> None:
    """Within `grace_ms` (10 s by default); what they finished is acked."""
    began, done = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        began.set()
        await asyncio.sleep(0.2)
        done.set()

    running = asyncio.create_task(worker.run())
    await aclient.schedule(topic, delay=0)
    await in_time(began.wait())
    worker.stop()
    await ended(running)
    assert done.is_set()
    assert (await aclient.topics())[0].ready == 0
    assert wheelq_tasks() == set()


async def test_a_worker_that_stops_reads_no_more(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    worker = Worker.connect(url, settings=settings, concurrency=1)
    began = asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        began.set()
        await asyncio.sleep(0.1)

    running = asyncio.create_task(worker.run())
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    await in_time(began.wait())
    worker.stop()
    await ended(running)
    assert worker.handled < 10
    assert (await aclient.topics())[0].ready == 10 - worker.handled


async def test_a_job_that_outlasts_the_grace_runs_at_once_in_another_worker(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """Not after the time by which a dead worker is noticed, which is an hour here."""
    patient = replace(settings, worker=WorkerSettings(renew_ms=200, abandoned_ms=3_600_000, block_ms=300, grace_ms=50))
    first, second = (Worker.connect(url, group="g", settings=patient) for _ in range(2))
    began, cancelled, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    again: list[Job] = []

    @first.handler(topic)
    async def hang(job: Job) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @second.handler(topic)
    async def handle(job: Job) -> None:
        again.append(job)
        done.set()

    running = asyncio.create_task(first.run())
    await aclient.schedule(topic, delay=0, key="a")
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        first.stop()
        await running
        assert cancelled.is_set()
        run(second)
        await done.wait()
    assert [(job.id, job.attempt, job.redelivered) for job in again] == [("a", 1, True)]


async def test_an_idle_worker_stops_at_once(url: str, settings: Settings, aclient: AsyncClient, topic: str) -> None:
    """Its waiting read is ended; nobody waits for the five seconds it may take."""
    slow = replace(settings, worker=WorkerSettings(block_ms=60_000))
    worker = Worker.connect(url, settings=slow)
    ran = asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        ran.set()

    await aclient.schedule(topic, delay=0)
    running = asyncio.create_task(worker.run())
    await in_time(ran.wait())
    await asyncio.sleep(0.05)  # let it read again
    worker.stop()
    async with asyncio.timeout(30):  # half of `block_ms`
        await running


@pytest.mark.parametrize("kind", [Scheduler, Worker])
async def test_stopping_before_the_start_is_no_trouble(
    url: str, settings: Settings, kind: type[Scheduler | Worker]
) -> None:
    one = kind.connect(url, settings=settings)
    if isinstance(one, Worker):
        one.handler("orders")(print)
    one.stop()
    await ended(asyncio.create_task(one.run()))
    assert wheelq_tasks() == set()


@pytest.mark.parametrize("kind", [Scheduler, Worker])
async def test_cancelling_ends_everything_too(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, kind: type[Scheduler | Worker]
) -> None:
    """Not in good order, but nothing goes on promoting or reading behind the caller's back."""
    await aclient.schedule(topic, delay=3600)
    one = kind.connect(url, settings=settings)
    if isinstance(one, Worker):
        one.handler(topic)(print)
    running = asyncio.create_task(one.run())
    await until(lambda: bool(wheelq_tasks()))
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    try:
        await until(lambda: not wheelq_tasks())
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_name().startswith("wheelq "):
                task.cancel()


async def test_both_survive_a_restart_of_the_server(
    private_server: Callable[..., EmbeddedServer], settings: Settings, topic: str, run: Run
) -> None:
    """Killed and started again with its append-only file: jobs scheduled before run after, each once."""
    server = private_server(fsync="always")
    got: list[object] = []
    all_got = asyncio.Event()
    worker = Worker.connect(server.url, settings=settings)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        got.append(job.payload)
        if len(got) == 20:
            all_got.set()

    async with AsyncClient.connect(server.url, settings) as client:
        run(Scheduler.connect(server.url, settings), worker)
        await client.schedule(topic, "first", delay=0.05)
        await until(lambda: got == ["first"])  # at its start, a part ends when the server is away
        await nothing_is_left(client, topic)  # or it would be delivered again
        got.clear()
        await client.schedule_many(topic, [JobSpec(n, delay=5 + n / 100) for n in range(20)])  # after the kill
        await asyncio.sleep(0.2)
        server.kill()
        await asyncio.sleep(0.2)
        server.start()
        await in_time(all_got.wait())
    assert sorted(got) == list(range(20))  # type: ignore[type-var]
