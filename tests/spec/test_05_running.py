"""5. Running: a scheduler makes jobs ready when they are due, a worker hands them to handlers.

Schedulers and workers run on the test's own event loop. Time bounds are generous: what is exact here is that nothing
runs early, twice or never; how late things are is measured elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.spec.conftest import Inbox, Run, known, nothing_is_left
from tests.waiting import in_time, until
from wheelq import AsyncClient, Job, JobSpec, RescheduleOutcome, Scheduler, Settings, Worker
from wheelq.errors import Unavailable
from wheelq.protocol.calls import heartbeats, registry
from wheelq.protocol.calls.server import info
from wheelq.protocol.keys import Keys
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport


async def test_a_job_runs_once_after_its_due_time(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    """Never before it, by the server's clock; and it is gone when it has run."""
    run(make_worker())
    receipt = await aclient.schedule(topic, {"id": 42}, delay=0.3, headers={"trace": "t"})
    [job] = await inbox.wait_for(1)
    assert (job.id, job.topic, job.payload, job.headers) == (receipt.id, topic, {"id": 42}, {"trace": "t"})
    assert (job.due_ms, job.attempt, job.redelivered) == (receipt.due_ms, 1, False)
    assert job.promoted_ms >= job.due_ms
    assert job.due == receipt.due
    await nothing_is_left(aclient, topic)
    assert await aclient.get(topic, receipt.id) is None


async def test_many_jobs_run_in_the_order_of_their_due_times_each_once(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    """700 jobs over 0.7 s, scheduled in the reverse order."""
    run(make_worker())
    receipts = await aclient.schedule_many(topic, [JobSpec(n, delay=0.3 + n / 1000) for n in reversed(range(700))])
    jobs = await inbox.wait_for(700)
    due = [job.due_ms for job in jobs]
    assert due == sorted(due)
    assert sorted(job.payload for job in jobs) == list(range(700))
    assert {job.id for job in jobs} == {receipt.id for receipt in receipts}
    assert all(job.promoted_ms >= job.due_ms for job in jobs)
    await nothing_is_left(aclient, topic)
    assert len(inbox.jobs) == 700


async def test_jobs_due_at_one_instant_all_run(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    """More than one call promotes (500) and one window reads (2,000)."""
    run(make_worker())
    at = datetime.now(UTC) + timedelta(seconds=0.7)
    await aclient.schedule_many(topic, [JobSpec(n, at=at) for n in range(3_000)])
    jobs = await inbox.wait_for(3_000)
    assert sorted(job.payload for job in jobs) == list(range(3_000))
    assert all(job.promoted_ms >= job.due_ms for job in jobs)


async def test_a_job_that_was_overdue_runs_when_a_scheduler_comes(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    run: Run,
    make_worker: Callable[..., Worker],
    inbox: Inbox,
) -> None:
    """The sorted set keeps it; nobody need be there when it is scheduled, nor when it falls due."""
    await aclient.schedule(topic, 1, delay=0.05)
    run(make_worker())

    async def is_overdue() -> bool:
        return (await aclient.topics())[0].overdue_ms >= 100

    await until(is_overdue)
    assert inbox.jobs == []
    run(Scheduler.connect(url, settings))
    [job] = await inbox.wait_for(1)
    assert job.promoted_ms - job.due_ms >= 100


@pytest.mark.parametrize("delay", [0, 0.05, 0.301, 0.6])
async def test_a_job_scheduled_into_a_topic_at_rest_runs_in_time(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    run: Run,
    make_worker: Callable[..., Worker],
    inbox: Inbox,
    delay: float,
) -> None:
    """With nothing near the scheduler sleeps for up to a minute; a job that comes before wakes it.

    Also one that is due just beyond the window (2 s by default, 0.3 s here).
    """
    narrow = replace(settings, scheduler=SchedulerSettings(window_ms=300))
    run(Scheduler.connect(url, narrow), make_worker())
    await aclient.schedule(topic, "first", delay=0)
    await inbox.wait_for(1)
    await asyncio.sleep(0.1)  # let it fall asleep
    await aclient.schedule(topic, "second", delay=delay)
    _, job = await inbox.wait_for(2)
    assert job.promoted_ms >= job.due_ms
    assert job.lateness < 20, "nobody waited for the scheduler's next look, within a minute"


async def test_a_job_brought_forward_runs_at_its_new_time(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(make_worker())
    await aclient.schedule(topic, delay=3600, key="a")
    await aclient.reschedule(topic, "a", delay=0.1)
    [job] = await inbox.wait_for(1)
    assert job.promoted_ms >= job.due_ms


@pytest.fixture
async def foresighted(url: str, settings: Settings, run: Run) -> Scheduler:
    """A scheduler that loads jobs long before they are due: then a busy machine, too, can change them in time."""
    scheduler = Scheduler.connect(url, replace(settings, scheduler=SchedulerSettings(window_ms=20_000)))
    run(scheduler)
    return scheduler


async def test_a_job_put_off_does_not_run_at_its_old_time(
    aclient: AsyncClient, topic: str, foresighted: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    """Also when the scheduler had loaded it; a job due in between shows that the old time has passed."""
    run(make_worker())
    await aclient.schedule(topic, "put off", delay=5.0, key="a")
    await aclient.schedule(topic, "between", delay=5.1, key="b")
    await asyncio.sleep(0.1)  # let it be loaded
    assert await aclient.reschedule(topic, "a", delay=5.5) is RescheduleOutcome.RESCHEDULED
    jobs = await inbox.wait_for(2)
    assert [job.payload for job in jobs] == ["between", "put off"]
    assert all(job.promoted_ms >= job.due_ms for job in jobs)


async def test_a_cancelled_job_does_not_run(
    aclient: AsyncClient, topic: str, foresighted: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(make_worker())
    await aclient.schedule(topic, "cancelled", delay=5.0, key="a")
    await aclient.schedule(topic, "after", delay=5.1)
    await asyncio.sleep(0.1)
    assert await aclient.cancel(topic, "a") == "cancelled"
    [job] = await inbox.wait_for(1)
    assert job.payload == "after"
    await nothing_is_left(aclient, topic)
    assert len(inbox.jobs) == 1


async def test_an_id_can_be_used_again_when_its_job_has_run(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(make_worker())
    for n in (1, 2):
        assert (await aclient.schedule(topic, n, delay=0.01, key="a")).created
        await inbox.wait_for(n)
        await nothing_is_left(aclient, topic)


async def test_a_job_says_where_it_stands_on_its_way(
    worker: Worker, aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run
) -> None:
    """Waiting, ready, running, gone."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        began.set()
        await may_end.wait()

    async def state() -> str | None:
        info = await aclient.get(topic, "a")
        return info and str(info.state)

    await aclient.schedule(topic, delay=3600, key="a")
    assert await state() == "waiting"
    await aclient.reschedule(topic, "a", delay=0.2)

    async def is_ready() -> bool:
        return await state() == "ready"

    await until(is_ready)
    run(worker)
    await in_time(began.wait())
    assert await state() == "running"
    assert await aclient.cancel(topic, "a") == "running"
    may_end.set()
    await nothing_is_left(aclient, topic)
    assert await state() is None


async def test_jobs_of_all_shards_run(
    url: str, settings: Settings, topic: str, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(Scheduler.connect(url, settings), make_worker())
    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings(shards=4))) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=0.2) for n in range(200)])
        jobs = await inbox.wait_for(200)
        assert sorted(job.payload for job in jobs) == list(range(200))
        await nothing_is_left(client, topic)


async def test_a_topic_may_come_after_its_worker_and_its_scheduler(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    """Both find it within about a second of its first job."""
    run(make_worker())
    await asyncio.sleep(0.3)
    await aclient.schedule(topic, 1, delay=0.05)
    assert [job.payload for job in await inbox.wait_for(1)] == [1]


async def test_a_worker_that_waits_for_a_topic_is_known_at_once_and_asks_for_it_seldom(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """It hears when the topic comes; asking, every 5 s, is for notices that were lost."""
    worker, ran, keys = Worker.connect(url, settings=settings), asyncio.Event(), Keys(settings.prefix)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        ran.set()

    transport = AsyncTransport(Address(url))

    async def asked() -> int:
        return int((await transport.send(info("commandstats")))["cmdstat_hget"].split(",")[0][6:])

    async def is_known() -> bool:
        return worker.name in await transport.send(heartbeats.alive(keys.workers))

    await transport.send(registry.topic(keys, topic))  # counted from the first on
    run(worker)
    await until(is_known)
    with redis.Redis.from_url(url) as connection:
        await until(lambda: connection.pubsub_numsub(keys.changes)[0][1] == 1)
    await asyncio.sleep(0.5)  # until it knows that it listens
    before, began = await asked(), time.monotonic()
    await asyncio.sleep(1.5)
    assert await asked() - before <= 1 + (time.monotonic() - began) / 5
    await aclient.schedule(topic, delay=0)
    await in_time(ran.wait())
    await transport.close()


async def test_jobs_of_a_topic_without_a_handler_are_left_unread(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(make_worker())
    other = f"{topic}-other"
    receipt = await aclient.schedule(other, 1, delay=0)
    await aclient.schedule(topic, 2, delay=0.1)
    await inbox.wait_for(1)
    info = known(await aclient.get(other, receipt.id))
    assert info.state == "ready"


@pytest.mark.parametrize("kind", [Scheduler, Worker])
async def test_without_a_server_nothing_starts(kind: type[Scheduler | Worker], tmp_path: object) -> None:
    """At the very start an error is told at once; later the server may come and go."""
    one = kind.connect(f"unix://{tmp_path}/none.sock")
    if isinstance(one, Worker):
        one.handler("orders")(print)
    with pytest.raises(Unavailable):
        await one.run()


def test_the_clock_is_not_the_workers(url: str) -> None:
    """Lateness is measured by the server's clock: a worker whose own is an hour off says the same."""
    job = Job("a", "orders", None, due_ms=1_000, attempt=1, entry_id="1010-0", started_ms=1_012.5)
    assert job.lateness == 0.0125
    assert job.promoted_ms == 1_010
    assert job.due.timestamp() == 1
