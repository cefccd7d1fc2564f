"""7. Groups: workers of one group share the jobs, each group gets every job."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.spec.conftest import PATIENCE, Run, until
from wheelq import AsyncClient, Job, JobSpec, Retry, Scheduler, Settings, Worker


class Log:
    """Who got which payload, at which attempt."""

    def __init__(self) -> None:
        self.got: dict[str, list[tuple[object, int]]] = defaultdict(list)
        self._changed = asyncio.Event()

    def put(self, who: str, job: Job) -> None:
        self.got[who].append((job.payload, job.attempt))
        self._changed.set()

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not fact():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make_worker(url: str, settings: Settings, topic: str, log: Log) -> Callable[..., Worker]:
    def make(group: str, name: str = "", fails_until: int = 1) -> Worker:
        worker = Worker.connect(url, group=group, settings=settings, concurrency=4)

        @worker.handler(topic, retry=Retry(base=0.01))
        async def handle(job: Job) -> None:
            log.put(name or group, job)
            await asyncio.sleep(0.005)
            if job.attempt < fails_until:
                raise RuntimeError("not yet")

        return worker

    return make


async def until_empty(client: AsyncClient, topic: str) -> None:
    async def is_empty() -> bool:
        return all(info.delayed + info.ready == 0 for info in await client.topics() if info.name == topic)

    await until(is_empty)


async def test_workers_of_one_group_share_the_jobs(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Each job goes to one of them."""
    run(make_worker("g", "one"), make_worker("g", "two"))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(100)])
    await log.until(lambda: sum(len(jobs) for jobs in log.got.values()) >= 100)
    await until_empty(aclient, topic)
    assert sorted(n for jobs in log.got.values() for n, _ in jobs) == list(range(100))
    assert set(log.got) == {"one", "two"}


async def test_each_group_gets_every_job(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    run(make_worker("billing"), make_worker("mail"))
    await aclient.schedule(topic, -1, delay=0)
    await log.until(lambda: len(log.got) == 2)  # both groups are there
    await aclient.schedule_many(topic, [JobSpec(n, delay=0.1) for n in range(50)])
    await log.until(lambda: all(len(jobs) == 51 for jobs in log.got.values()))
    assert {n for n, _ in log.got["billing"]} == {n for n, _ in log.got["mail"]} == set(range(-1, 50))
    await until_empty(aclient, topic)


async def test_a_job_is_finished_when_every_group_has_finished_it(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Until then it is live, and its id is taken."""
    mail = make_worker("mail")
    run(make_worker("billing"))
    stopped = run(mail)
    await aclient.schedule(topic, 0, delay=0)
    await log.until(lambda: len(log.got) == 2)
    await until_empty(aclient, topic)
    mail.stop()
    await stopped
    await aclient.schedule(topic, 1, delay=0, key="a")
    await log.until(lambda: (1, 1) in log.got["billing"])
    assert await aclient.get(topic, "a") is not None
    assert not (await aclient.schedule(topic, 2, delay=60, key="a")).created
    run(make_worker("mail"))
    await log.until(lambda: (1, 1) in log.got["mail"])
    await until_empty(aclient, topic)
    assert await aclient.get(topic, "a") is None


async def test_a_retry_concerns_its_own_group_only(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Group `mail` fails twice; `billing` runs the job once. Then it is over for both, and the id is free."""
    run(make_worker("billing"), make_worker("mail", fails_until=3))
    await aclient.schedule(topic, 0, delay=0)
    await log.until(lambda: (0, 3) in log.got["mail"] and (0, 1) in log.got["billing"])
    await until_empty(aclient, topic)
    await aclient.schedule(topic, 1, delay=0, key="a")
    await log.until(lambda: (1, 3) in log.got["mail"] and (1, 1) in log.got["billing"])
    await until_empty(aclient, topic)
    assert [run for run in log.got["mail"] if run[0] == 1] == [(1, 1), (1, 2), (1, 3)]
    assert [run for run in log.got["billing"] if run[0] == 1] == [(1, 1)]
    assert await aclient.get(topic, "a") is None
    assert (await aclient.schedule(topic, 2, delay=60, key="a")).created


async def test_a_new_group_gets_what_is_still_in_the_stream(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Jobs that fell due before any worker came wait in the stream; the first group finds them all."""
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
    run(make_worker("late"))
    await log.until(lambda: len(log.got["late"]) == 20)
