"""11. Workers that die: their jobs run again in another worker, and a job that kills its workers is buried."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.running import die, die_at_work
from tests.spec.conftest import Run, counts_are
from tests.waiting import in_time, until
from wheelq import AsyncClient, Job, JobSpec, Settings, Worker
from wheelq.model.topic import shard_of
from wheelq.settings import WorkerSettings


async def test_a_dead_workers_jobs_run_again_in_another(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """Noticed because nobody renews it: 3.5 s by default, 0.3 s here. The job is told that it is delivered again."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=100, abandoned_ms=300, block_ms=300))
    dying = Worker.connect(url, group="g", settings=quick)
    await aclient.schedule(topic, "payload", delay=0, key="a")
    await die_at_work(dying, topic)

    got: list[Job] = []
    done = asyncio.Event()
    other = Worker.connect(url, group="g", settings=quick)

    @other.handler(topic)
    async def handle(job: Job) -> None:
        got.append(job)
        done.set()

    run(other)
    await in_time(done.wait())
    assert [(job.id, job.payload, job.attempt, job.redelivered) for job in got] == [("a", "payload", 1, True)]


async def test_a_dead_workers_jobs_run_again_although_other_work_never_ends(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """A worker that never has a free place for long takes over between two jobs, and not when all is done."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=100, abandoned_ms=300, concurrency=1))
    dying = Worker.connect(url, group="g", settings=quick)
    await aclient.schedule(topic, delay=0, key="a")
    await die_at_work(dying, topic)
    await aclient.schedule_many(topic, [JobSpec(delay=0) for _ in range(200)])
    ran: list[str] = []
    other = Worker.connect(url, group="g", settings=quick)

    @other.handler(topic)
    async def handle(job: Job) -> None:
        ran.append(job.id)
        await asyncio.sleep(0.1)

    run(other)
    await until(lambda: "a" in ran)
    assert ran.index("a") < 100, "between two jobs, and not behind all two hundred"


async def test_several_workers_share_the_jobs_of_a_dead_one(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """None takes over more than it can start, however many shards they come from: all six run at the same time."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=100, abandoned_ms=300, block_ms=300, concurrency=3))
    dead = Worker.connect(url, group="g", settings=replace(quick, worker=replace(quick.worker, concurrency=6)))
    began: list[str] = []
    all_began = asyncio.Event()

    @dead.handler(topic)
    async def hang(job: Job) -> None:
        began.append(job.id)
        if len(began) == 6:
            all_began.set()
        await asyncio.Event().wait()

    await aclient.configure(topic)
    await aclient.set_shards(topic, 6)
    one_of_each_shard = {shard_of(id, 6): id for id in map(str, range(100))}.values()
    await aclient.schedule_many(topic, [JobSpec(delay=0, key=id) for id in one_of_each_shard])
    await die(dead, all_began)

    running: set[str] = set()
    all_run = asyncio.Event()

    def survivor() -> Worker:
        worker = Worker.connect(url, group="g", settings=quick)

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            running.add(job.id)
            if len(running) == 6:
                all_run.set()
            await all_run.wait()

        return worker

    run(survivor(), survivor())
    await in_time(all_run.wait())


async def test_a_job_that_runs_for_long_is_not_taken_from_its_worker(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """It is renewed meanwhile: here it runs for longer than a dead worker's would be left alone."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=100, abandoned_ms=5_000, block_ms=300))
    runs: list[str] = []
    done = asyncio.Event()

    def make(name: str) -> Worker:
        worker = Worker.connect(url, group="g", settings=quick)

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            runs.append(name)
            await asyncio.sleep(7.0)
            done.set()

        return worker

    run(make("one"), make("two"))
    await aclient.schedule(topic, delay=0)
    await in_time(done.wait())

    await counts_are(aclient, topic, (0, 0, 0))
    assert len(runs) == 1


async def test_a_job_that_keeps_killing_its_workers_is_buried(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """After `max_deliveries` without an answer: 10 by default, 2 here."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=60, abandoned_ms=120, block_ms=200, max_deliveries=2))
    await aclient.schedule(topic, delay=0)
    for _ in range(2):
        await die_at_work(Worker.connect(url, group="g", settings=quick), topic)
    last = Worker.connect(url, group="g", settings=quick)
    ran: list[Job] = []
    last.handler(topic)(ran.append)
    run(last)

    await counts_are(aclient, topic, (0, 0, 1))
    assert ran == []
