"""30. What follows a job: `job.then(topic, payload, …)` makes a job if and only if this run is acknowledged as done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.spec.conftest import Inbox, Run, counts_are, known, nothing_is_left
from tests.waiting import until
from wheelq import AsyncClient, Bury, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput
from wheelq.testing import WheelqTest

SOON = Retry(base=0.02, cap=0.05)


@pytest.fixture
def next_topic(topic: str) -> str:
    return f"{topic}-next"


@pytest.fixture
def after(worker: Worker, next_topic: str, inbox: Inbox) -> Inbox:
    """What has followed."""

    @worker.handler(next_topic)
    async def handle(job: Job) -> None:
        inbox.put(job)

    return inbox


@pytest.mark.usefixtures("scheduler")
async def test_a_job_is_followed_by_another(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    ids = []

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        ids.append(job.then(next_topic, {"to": job.payload}).id)
        ids.append(await job.then(next_topic, {"to": "all"}, priority="high"))

    run(worker)
    await aclient.schedule(topic, "ada", delay=0)
    jobs = await after.wait_for(2)
    assert {job.id: job.payload for job in jobs} == dict(zip(ids, [{"to": "ada"}, {"to": "all"}], strict=True))


@pytest.mark.usefixtures("scheduler")
async def test_a_plain_handler_says_it_in_the_same_line(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    began_ms = []

    @worker.handler(topic)
    def handle(job: Job) -> None:
        began_ms.append(int(job.started_ms))
        job.then(next_topic, job.payload, delay=0.2, headers={"a": "b"}, attempts=3, key="k")

    run(worker)
    await aclient.schedule(topic, 7, delay=0)
    [job] = await after.wait_for(1)
    assert (job.id, job.payload, job.headers["a"], job.max_attempts) == ("k", 7, "b", 3)
    assert job.due_ms >= began_ms[0] + 200, "the delay counts from the acknowledgement"
    assert job.started_ms >= job.due_ms


@pytest.mark.usefixtures("scheduler")
async def test_a_run_that_fails_makes_nothing(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    """Only the attempt that is acknowledged: the followers of the others are never made."""

    @worker.handler(topic, retry=SOON)
    async def handle(job: Job) -> None:
        job.then(next_topic, job.attempt)
        if job.attempt < 3:
            raise ValueError("not yet")

    run(worker)
    await aclient.schedule(topic, delay=0)
    [job] = await after.wait_for(1)
    assert job.payload == 3
    await nothing_is_left(aclient, topic)
    assert len(after.jobs) == 1


@pytest.mark.usefixtures("scheduler")
async def test_a_job_that_is_buried_or_takes_too_long_makes_nothing(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    @worker.handler(topic, retry=Retry(max_attempts=1), timeout=0.05)
    async def handle(job: Job) -> None:
        job.then(next_topic)
        if job.payload == "bury":
            raise Bury("no use")
        await asyncio.sleep(60)

    run(worker)
    await aclient.schedule(topic, "bury", delay=0)
    await aclient.schedule(topic, "slow", delay=0)
    await counts_are(aclient, topic, (0, 0, 2))
    assert after.jobs == []


@pytest.mark.usefixtures("scheduler")
async def test_each_job_of_a_batch_has_its_own_followers(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    @worker.batch_handler(topic, max_size=3, max_wait=60, retry=Retry(max_attempts=1))
    async def handle(jobs: list[Job]) -> list[Exception | None]:
        for job in jobs:
            job.then(next_topic, job.payload)
        return [ValueError("bad") if job.payload == 1 else None for job in jobs]

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])
    jobs = await after.wait_for(2)
    assert sorted(job.payload for job in jobs) == [0, 2]
    await counts_are(aclient, topic, (0, 0, 1))
    assert len(after.jobs) == 2


@pytest.mark.usefixtures("scheduler")
async def test_a_task_is_followed_by_a_task(aclient: AsyncClient, worker: Worker, run: Run, topic: str) -> None:
    closed: list[int] = []

    @worker.task(f"{topic}-close")
    async def close_order(order_id: int) -> None:
        closed.append(order_id)

    @worker.task(topic)
    async def pay(job: Job, order_id: int) -> None:
        job.then(close_order.job(order_id), delay=0.01)

    run(worker)
    await aclient.schedule(pay.job(42), delay=0)
    await until(lambda: closed == [42])


@pytest.mark.usefixtures("scheduler")
async def test_followers_of_an_ordered_topic_come_once_for_each_job(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    @worker.handler(topic, ordered=True, retry=SOON)
    async def handle(job: Job) -> None:
        job.then(next_topic, (job.payload, job.attempt))
        if job.payload == 0 and job.attempt == 1:
            raise ValueError("again")

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])
    jobs = await after.wait_for(3)
    await nothing_is_left(aclient, topic)
    assert sorted(job.payload for job in jobs) == [[0, 2], [1, 1], [2, 1]]


@pytest.mark.usefixtures("scheduler")
async def test_every_group_has_followers_of_its_own(
    aclient: AsyncClient,
    url: str,
    settings: Settings,
    worker: Worker,
    run: Run,
    topic: str,
    next_topic: str,
    after: Inbox,
) -> None:
    """The id of a follower is derived from the delivery, so two groups, and two calls of `then`, never meet."""
    other = Worker.connect(url, group="other", settings=settings)

    async def handle(job: Job) -> None:
        job.then(next_topic, 1)
        job.then(next_topic, 2)

    for one in (worker, other):
        await aclient.make_group(topic, one.group)
        one.handler(topic)(handle)
    await aclient.make_group(next_topic, "default")
    run(worker, other)
    await aclient.schedule(topic, delay=0)
    jobs = await after.wait_for(4)
    assert len({job.id for job in jobs}) == 4
    assert sorted(job.payload for job in jobs) == [1, 1, 2, 2]


@pytest.mark.usefixtures("scheduler")
async def test_a_key_that_a_live_job_has_is_kept_or_replaced(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str
) -> None:
    @worker.handler(topic)
    async def handle(job: Job) -> None:
        job.then(next_topic, "new", delay=3_600, key="k", on_duplicate=job.payload)

    run(worker)
    await aclient.schedule(next_topic, "old", delay=3_600, key="k")
    await aclient.schedule(topic, "keep", delay=0)
    await nothing_is_left(aclient, topic)
    assert known(await aclient.get(next_topic, "k")).payload == "old"
    await aclient.schedule(topic, "replace", delay=0)

    async def is_new() -> bool:
        return known(await aclient.get(next_topic, "k")).payload == "new"

    await until(is_new)


@pytest.mark.usefixtures("scheduler")
async def test_followers_keep_the_order_of_their_calls(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    """Those with the same due time and shard."""

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        for n in range(100):
            job.then(next_topic, n)

    run(worker)
    await aclient.schedule(topic, delay=0)
    jobs = await after.wait_for(100)
    assert [job.payload for job in sorted(jobs, key=lambda job: [int(n) for n in job.entry_id.split("-")])] == [
        *range(100)
    ]


BAD: dict[str, Callable[[Job, str], object]] = {
    "topic": lambda job, topic: job.then("no topic"),
    "payload": lambda job, topic: job.then(topic, object()),
    "payload too large": lambda job, topic: job.then(topic, "x" * 100_000),
    "delay": lambda job, topic: job.then(topic, delay=-1),
    "key": lambda job, topic: job.then(topic, key=""),
    "attempts": lambda job, topic: job.then(topic, attempts=0),
    "priority": lambda job, topic: job.then(topic, priority="urgent"),  # type: ignore[arg-type]
    "on_duplicate": lambda job, topic: job.then(topic, key="k", on_duplicate="raise"),
    "too many": lambda job, topic: [job.then(topic) for _ in range(101)],
    "too large together": lambda job, topic: [job.then(topic, "x" * 60_000) for _ in range(20)],
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.usefixtures("scheduler")
async def test_a_bad_call_is_refused_at_the_call(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, what: str
) -> None:
    errors = []

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        try:
            BAD[what](job, next_topic)
        except InvalidInput as error:
            errors.append(error)

    run(worker)
    await aclient.schedule(topic, delay=0)
    await until(lambda: len(errors) == 1)


@pytest.mark.usefixtures("scheduler")
async def test_nothing_can_follow_a_run_that_has_ended(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str
) -> None:
    jobs: list[Job] = []

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        jobs.append(job)

    run(worker)
    await aclient.schedule(topic, delay=0)
    await nothing_is_left(aclient, topic)
    with pytest.raises(InvalidInput, match="has ended"):
        jobs[0].then(next_topic)


def test_a_job_of_a_unit_test_may_be_followed_too() -> None:
    job = Job("a", "orders", {}, 0, 1, "1-0", 0.0)
    assert job.then("emails", key="k").id == "k"


@pytest.mark.usefixtures("scheduler")
async def test_a_chain_runs_over_topics_of_many_shards(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str
) -> None:
    ended: list[int] = []
    names = [f"{topic}-{n}" for n in range(3)]
    for name in names:
        await aclient.configure(name)
        await aclient.set_shards(name, 4)

    @worker.handler(names[0])
    async def first(job: Job) -> None:
        job.then(names[1], job.payload)

    @worker.handler(names[1])
    async def second(job: Job) -> None:
        job.then(names[2], job.payload)

    @worker.handler(names[2])
    async def third(job: Job) -> None:
        ended.append(job.payload)

    run(worker)
    await aclient.schedule_many(names[0], [JobSpec(n, delay=0) for n in range(200)])
    await until(lambda: len(ended) >= 200)
    for name in names:
        await nothing_is_left(aclient, name)
    assert sorted(ended) == [*range(200)]


async def test_followers_are_carried_without_a_scheduler(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, after: Inbox
) -> None:
    """What is due at once goes to the stream at once."""

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        job.then(next_topic)

    run(worker)
    await aclient.schedule(topic, delay=0)
    await after.wait_for(1)


# when a job dies


@pytest.fixture
def told(worker: Worker, topic: str, inbox: Inbox) -> Inbox:
    """What is told of dead jobs."""

    @worker.handler(f"{topic}-deaths")
    async def handle(job: Job) -> None:
        inbox.put(job)

    return inbox


def dies(worker: Worker, topic: str) -> None:
    @worker.handler(topic, retry=Retry(max_attempts=2, base=0.01, cap=0.01))
    async def handle(job: Job) -> None:
        raise ValueError("a bad job")


@pytest.mark.usefixtures("scheduler")
async def test_a_topic_is_told_of_each_dead_job(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, told: Inbox
) -> None:
    dies(worker, topic)
    await aclient.configure(topic, on_dead=f"{topic}-deaths")
    run(worker)
    receipt = await aclient.schedule(topic, {"order": 42}, delay=0.1, key="a")
    [job] = await told.wait_for(1)
    dead = job.payload
    assert (dead["id"], dead["topic"], dead["group"], dead["reason"]) == ("a", topic, "default", "failed")
    assert (dead["payload"], dead["attempt"], dead["first_due_ms"]) == ({"order": 42}, 2, receipt.due_ms)
    assert "a bad job" in dead["error"]
    assert [error for _, _, _, error in dead["attempts"]] == ["ValueError: a bad job"] * 2
    assert dead["scheduled_ms"] > 0
    await counts_are(aclient, topic, (0, 0, 1))
    assert len(told.jobs) == 1


@pytest.mark.usefixtures("scheduler")
async def test_a_job_says_itself_where_its_death_is_told_of(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, told: Inbox
) -> None:
    dies(worker, topic)
    await aclient.configure(topic, on_dead="elsewhere")
    run(worker)
    await aclient.schedule(topic, 1, delay=0, key="a", on_dead=f"{topic}-deaths")
    await aclient.schedule_many(topic, [JobSpec(2, delay=0, key="b", on_dead=f"{topic}-deaths")])
    await told.wait_for(2)
    assert {job.payload["id"]: job.payload["payload"] for job in told.jobs} == {"a": 1, "b": 2}


@pytest.mark.usefixtures("scheduler")
async def test_a_job_that_follows_tells_of_its_death_too(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str, next_topic: str, told: Inbox
) -> None:
    dies(worker, next_topic)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        job.then(next_topic, "x", on_dead=f"{topic}-deaths")

    run(worker)
    await aclient.schedule(topic, delay=0)
    [job] = await told.wait_for(1)
    assert (job.payload["topic"], job.payload["payload"]) == (next_topic, "x")


@pytest.mark.usefixtures("scheduler")
async def test_nothing_tells_of_the_death_of_a_job_that_tells_of_one(
    aclient: AsyncClient, worker: Worker, run: Run, topic: str
) -> None:
    """Else two topics could tell each other of deaths without end."""
    dies(worker, topic)
    await aclient.configure(topic, on_dead=topic)
    run(worker)
    await aclient.schedule(topic, delay=0)
    await counts_are(aclient, topic, (0, 0, 2))
    await nothing_is_left(aclient, topic)


@pytest.mark.parametrize("on_dead", ["no topic", "a:b", ":/path", "x" * 101, 5])
async def test_where_deaths_are_told_of_is_checked(aclient: AsyncClient, topic: str, on_dead: Any) -> None:
    with pytest.raises(InvalidInput, match="on_dead"):
        await aclient.configure(topic, on_dead=on_dead)
    with pytest.raises(InvalidInput, match="on_dead"):
        await aclient.schedule(topic, delay=0, on_dead=on_dead)


def test_a_scheduler_takes_a_carrier(url: str, settings: Settings) -> None:
    assert Scheduler.connect(url, settings).promoted == 0


# terms of the job, runs again, traces


@pytest.fixture
def kit(wheelq: WheelqTest) -> WheelqTest:
    """A test whose worker lets `next` follow each job of `orders`."""

    @wheelq.worker.handler("orders", retry=Retry(max_attempts=2, base=30))
    def handle(job: Job) -> None:
        job.then("next", [job.payload, job.attempt])
        if job.payload == "late" and job.attempt == 1:
            raise ValueError("try again")

    wheelq.worker.handler("next")(lambda job: None)
    wheelq.raise_errors = False
    return wheelq


def test_a_job_that_expires_is_followed_by_nothing(kit: WheelqTest) -> None:
    """Before its first run; or before its second, which would have been the acknowledged one."""
    kit.client.schedule("orders", "unrun", delay=10, expires=5)
    kit.client.schedule("orders", "late", delay=100, expires=5)
    kit.client.pause("orders")
    kit.advance(60)
    kit.client.resume("orders")
    kit.advance(200)
    kit.assert_ran("orders", payload="late", times=1)
    kit.assert_not_ran("next")
    kit.assert_nothing_waits()


@pytest.mark.parametrize("misfire", ["skip", "bury"])
def test_a_misfire_is_followed_by_nothing_until_it_is_replayed(kit: WheelqTest, misfire: Any) -> None:
    kit.client.configure("orders", misfire=misfire, grace_ms=1_000)
    kit.client.schedule("orders", "unrun", delay=10)
    kit.client.pause("orders")
    kit.advance(60)
    kit.client.resume("orders")
    kit.advance(1)
    kit.assert_not_ran("orders")
    kit.assert_not_ran("next")
    replayed = kit.client.dead.replay("orders", all=True).replayed
    assert replayed == (misfire == "bury")
    kit.run_due()
    if replayed:
        kit.assert_ran("next", times=1)
    else:
        kit.assert_not_ran("next")


def test_a_rerun_has_followers_of_its_own(kit: WheelqTest) -> None:
    """They have other ids, so both run, also if the first ones are live still."""
    kit.client.configure("orders", retention_ms=3_600_000)
    began = kit.now
    kit.client.schedule("orders", 1, delay=10)
    kit.advance(10)
    kit.client.rerun("orders", group=kit.worker.group, since=began)
    kit.advance(1)
    first, second = kit.assert_ran("next", times=2)
    assert first.job.id != second.job.id
