"""7. Groups: workers of one group share the jobs, each group gets every job."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.spec.conftest import Run, nothing_is_left
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, InvalidInput, Job, JobSpec, Retry, Scheduler, Settings, Worker

PRIMER = -1


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
            if job.payload != PRIMER and job.attempt < fails_until:
                raise RuntimeError("not yet")

        return worker

    return make


async def all_are_there(client: AsyncClient, topic: str, log: Log, *groups: str) -> None:
    """Wait until these groups get jobs: what is finished before a group comes into being it does not get."""

    async def each_has_got_one() -> bool:
        await client.schedule(topic, PRIMER, delay=0)
        return all(log.got[group] for group in groups)

    await until(each_has_got_one)
    await nothing_is_left(client, topic)
    log.got.clear()


@pytest.mark.parametrize("group", ["", "a\x1fb", 5, None])
def test_a_worker_has_a_group_that_can_be_named(group: Any) -> None:
    """Replays take an empty one for none, and members of retries are told apart by a control character."""
    with pytest.raises(InvalidInput) as raised:
        Worker.connect("redis://127.0.0.1:1", group=group)
    assert raised.value.field == "group"


def test_a_group_starts_at_the_beginning_or_now() -> None:
    with pytest.raises(InvalidInput, match="start: must be 'beginning' or 'now', not 'latest'"):
        Worker.connect("redis://127.0.0.1:1", start="latest")  # type: ignore[arg-type]


async def test_workers_of_one_group_share_the_jobs(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Each job goes to one of them."""
    run(make_worker("g", "one"), make_worker("g", "two"))
    await all_are_there(aclient, topic, log, "one", "two")
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(100)])
    await log.until(lambda: sum(len(jobs) for jobs in log.got.values()) >= 100)
    await nothing_is_left(aclient, topic)
    assert sorted(n for jobs in log.got.values() for n, _ in jobs) == list(range(100))
    assert set(log.got) == {"one", "two"}


async def test_each_group_gets_every_job(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    run(make_worker("billing"), make_worker("mail"))
    await all_are_there(aclient, topic, log, "billing", "mail")
    await aclient.schedule_many(topic, [JobSpec(n, delay=0.1) for n in range(50)])
    await log.until(lambda: len(log.got["billing"]) == len(log.got["mail"]) == 50)
    assert {n for n, _ in log.got["billing"]} == {n for n, _ in log.got["mail"]} == set(range(50))
    await nothing_is_left(aclient, topic)


async def test_the_first_jobs_of_a_topic_reach_groups_that_are_made_a_little_later(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Each worker makes its group when it notices the topic; what the first group has finished is kept for a minute."""
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
    run(make_worker("billing"))
    await log.until(lambda: len(log.got["billing"]) == 20)
    await nothing_is_left(aclient, topic)
    run(make_worker("mail"))
    await log.until(lambda: len(log.got["mail"]) == 20)
    await nothing_is_left(aclient, topic)


async def test_the_first_jobs_of_a_topic_are_kept_for_later_groups_although_another_group_is_removed(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
    audit = make_worker("audit")
    run(make_worker("billing"))
    stopped = run(audit)
    await log.until(lambda: len(log.got["billing"]) == len(log.got["audit"]) == 20)
    await nothing_is_left(aclient, topic)
    audit.stop()
    await stopped
    await aclient.remove_group(topic, "audit", force=True)
    run(make_worker("mail"))
    await log.until(lambda: len(log.got["mail"]) == 20)


async def test_a_job_is_finished_when_every_group_has_finished_it(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Until then it is live, and its id is taken."""
    mail = make_worker("mail")
    run(make_worker("billing"))
    stopped = run(mail)
    await all_are_there(aclient, topic, log, "billing", "mail")
    mail.stop()
    await stopped
    await aclient.schedule(topic, 1, delay=0, key="a")
    await log.until(lambda: (1, 1) in log.got["billing"])
    assert await aclient.get(topic, "a") is not None
    assert not (await aclient.schedule(topic, 2, delay=60, key="a")).created
    run(make_worker("mail"))
    await log.until(lambda: (1, 1) in log.got["mail"])
    await nothing_is_left(aclient, topic)
    assert await aclient.get(topic, "a") is None


async def test_a_group_whose_workers_are_away_gets_the_jobs_of_new_shards_too(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """It is there on each new shard from the change on, so what others finish meanwhile is kept for it."""
    mail, jobs = make_worker("mail"), range(20)
    run(make_worker("billing"))
    stopped = run(mail)
    await all_are_there(aclient, topic, log, "billing", "mail")
    mail.stop()
    await stopped
    await aclient.set_shards(topic, 3)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in jobs])
    await log.until(lambda: {(n, 1) for n in jobs} <= {*log.got["billing"]})
    run(make_worker("mail"))
    await log.until(lambda: {(n, 1) for n in jobs} <= {*log.got["mail"]})
    await nothing_is_left(aclient, topic)


async def test_a_retry_concerns_its_own_group_only(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Group `mail` fails twice; `billing` runs the job once. Then it is over for both, and the id is free."""
    run(make_worker("billing"), make_worker("mail", fails_until=3))
    await all_are_there(aclient, topic, log, "billing", "mail")
    await aclient.schedule(topic, 1, delay=0, key="a")
    await log.until(lambda: (1, 3) in log.got["mail"] and (1, 1) in log.got["billing"])
    await nothing_is_left(aclient, topic)
    assert log.got["mail"] == [(1, 1), (1, 2), (1, 3)]
    assert log.got["billing"] == [(1, 1)]
    assert await aclient.get(topic, "a") is None
    assert (await aclient.schedule(topic, 2, delay=60, key="a")).created


async def test_a_new_group_gets_what_is_still_in_the_stream(
    aclient: AsyncClient, topic: str, run: Run, log: Log, make_worker: Callable[..., Worker]
) -> None:
    """Jobs that fell due before any worker came wait in the stream; the first group finds them all."""
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
    run(make_worker("late"))
    await log.until(lambda: len(log.got["late"]) == 20)
