"""29. Limits: `concurrency` of a handler, `attempts` and `timeout` of a job.

A worker runs at most `concurrency` jobs of a handler at a time, besides its own limit for all of them. The handler's
other jobs stay in Redis, and slow no other handler.

A job may bring with it how many `attempts` it gets, and how long each may take (`timeout`). Both win over a default,
and what the handler states itself caps them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.running import die_at_work, running
from tests.waiting import PATIENCE, until
from wheelq import (
    AsyncClient,
    Client,
    InvalidInput,
    Job,
    JobSpec,
    JobState,
    Retry,
    RetryAfter,
    Router,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.model.dead import Reason
from wheelq.testing import AsyncWheelqTest, WheelqTest
from wheelq.worker.handlers import threads
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


class PlainGated:
    """The same for a plain handler, whose runs wait in threads."""

    def __init__(self) -> None:
        self.running = Counter[str]()
        self.done = Counter[str]()
        self.may_end = threading.Event()

    def run_as(self, name: str) -> Callable[[Job], None]:
        def run(job: Job) -> None:
            self.running[name] += 1
            assert self.may_end.wait(PATIENCE)
            self.running[name] -= 1
            self.done[job.id] += 1

        return run


@pytest.fixture
def plain() -> Iterator[PlainGated]:
    plain = PlainGated()
    yield plain
    plain.may_end.set()


async def test_a_worker_with_plain_handlers_holds_no_job_for_which_it_has_no_thread(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, plain: PlainGated
) -> None:
    """It would count as started: it would neither expire nor stay behind at a stop; no other worker could run it."""
    few = replace(settings, worker=replace(settings.worker, threads=2, concurrency=8))
    first, second = (Worker.connect(url, settings=few) for _ in range(2))
    first.handler(topic)(plain.run_as("first"))
    second.handler(topic)(plain.run_as("second"))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    async with running(first):
        await until(lambda: plain.running["first"] == 2)
        assert await counted(aclient, topic) == (8, 2)
        async with running(second):
            await until(lambda: plain.running["second"] == 2)
            assert await counted(aclient, topic) == (6, 4)
            plain.may_end.set()
            await until(lambda: len(plain.done) == 10)


@pytest.mark.parametrize("ordered", [False, "key"])
async def test_threads_limit_plain_handlers_only(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated, plain: PlainGated, ordered: Ordered
) -> None:
    """All of them together; one has a limit of its own besides."""
    few = replace(settings, worker=replace(settings.worker, threads=3, concurrency=8))
    worker = Worker.connect(url, settings=few)
    worker.handler(f"{topic}-a")(plain.run_as("a"))
    worker.handler(f"{topic}-b")(plain.run_as("b"))
    worker.handler(f"{topic}-c", concurrency=1, ordered=ordered)(plain.run_as("c"))
    worker.handler(f"{topic}-async")(gated.run)
    for name in "abc":
        specs = [JobSpec(n, delay=0, key=f"{name}{n}", partition_key=str(n)) for n in range(12)]
        await aclient.schedule_many(f"{topic}-{name}", specs)
    async with running(worker):
        await until(lambda: plain.running.total() == 3)
        await aclient.schedule_many(f"{topic}-async", [JobSpec(n, delay=0) for n in range(12)])
        await until(lambda: gated.running == 5)
        held = [(await counted(aclient, f"{topic}-{name}"))[1] for name in "ab"]
        assert plain.running["c"] <= 1
        assert sum(held) == 3 - plain.running["c"]
        gated.may_end.set()
        plain.may_end.set()
        await until(lambda: len(plain.done) == 36 and len(gated.done) == 12)


@pytest.mark.parametrize("has_async", [False, True])
async def test_threads_that_hang_are_no_longer_counted_on(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    plain: PlainGated,
    gated: Gated,
    has_async: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond a number of them, they keep their places: a job that was read for such a place kept others waiting."""
    monkeypatch.setattr(threads, "ABANDONED_LIMIT", 0)
    few = replace(settings, worker=replace(settings.worker, threads=2, concurrency=6))
    worker, other = (Worker.connect(url, settings=few) for _ in range(2))
    other.handler(topic)(lambda job: other_ran.append(job.id))
    other_ran: list[str] = []
    worker.handler(f"{topic}-hangs", timeout=0.05, retry=Retry(max_attempts=1))(plain.run_as("hangs"))
    worker.handler(topic)(plain.run_as("plain"))
    if has_async:
        worker.handler(f"{topic}-async")(gated.run)
    await aclient.schedule_many(f"{topic}-hangs", [JobSpec(n, delay=0) for n in range(2)])
    async with running(worker):
        await until(lambda: worker.failed == 2)
        if has_async:  # these have all places
            await aclient.schedule_many(f"{topic}-async", [JobSpec(n, delay=0) for n in range(9)])
            await until(lambda: gated.running == 6)
            gated.may_end.set()
            await until(gated.has_done(9))
        await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(9)])
        async with running(other):
            await until(lambda: len(other_ran) == 9)
        plain.may_end.set()  # the threads come back
        await aclient.schedule(topic, key="later", delay=0)
        await until(lambda: plain.done["later"] == 1)


async def test_batches_take_no_thread_from_single_handlers(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, plain: PlainGated
) -> None:
    """A single job that was read because it could start would wait for the end of a batch."""
    few = replace(settings, worker=replace(settings.worker, threads=1))
    worker = Worker.connect(url, settings=few)
    run = plain.run_as("batch")
    worker.batch_handler(f"{topic}-batch", max_size=1, concurrency=2)(lambda jobs: run(jobs[0]))
    worker.handler(topic)(plain.run_as("single"))
    await aclient.schedule_many(f"{topic}-batch", [JobSpec(key=key, delay=0) for key in "ab"])
    async with running(worker):
        await until(lambda: plain.running["batch"] == 2)
        await aclient.schedule(topic, key="c", delay=0)
        await until(lambda: plain.running["single"] == 1)
        plain.may_end.set()
        await until(lambda: plain.done.keys() == {"a", "b", "c"})


async def test_threads_limit_plain_handlers_beside_async_ones_that_are_found_later(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, gated: Gated, plain: PlainGated
) -> None:
    few = replace(settings, worker=replace(settings.worker, threads=2, concurrency=6))
    worker, found = Worker.connect(url, settings=few), list[str]()
    worker.handler(topic)(plain.run_as("plain"))

    async def find() -> list[str]:
        return found

    worker.handler_for_each(find)(gated.run)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(9)])
    await aclient.schedule(f"{topic}-async", delay=0)
    async with running(worker):
        await until(lambda: plain.running["plain"] == 2)
        found.append(f"{topic}-async")
        await until(lambda: gated.running == 1)
        assert await counted(aclient, topic) == (7, 2)
        gated.may_end.set()
        plain.may_end.set()
        await until(lambda: len(plain.done) == 9)


async def test_an_async_handler_that_is_registered_at_work_gets_the_places_that_the_threads_leave(
    worker: Worker, aclient: AsyncClient, topic: str, gated: Gated, plain: PlainGated
) -> None:
    """Until then all handlers were plain, and the worker had no more places than threads."""
    worker.handler(topic)(plain.run_as("plain"))
    most, places = worker._settings.threads, worker._settings.concurrency
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(most)])
    await aclient.schedule_many(f"{topic}-async", [JobSpec(n, delay=0) for n in range(places)])
    async with running(worker):
        await until(lambda: plain.running["plain"] == most)
        worker.handler(f"{topic}-async")(gated.run)
        await until(lambda: gated.running == places - most)
        gated.may_end.set()
        plain.may_end.set()
        await until(lambda: len(plain.done) == most and len(gated.done) == places)


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


# Limits of a job


SOON = Retry(base=0.01, jitter=0)


def fails(runs: list[int]) -> Callable[[Job], None]:
    def handle(job: Job) -> None:
        runs.append(job.attempt)
        raise ValueError("no")

    return handle


@pytest.mark.parametrize(
    ("retry", "attempts", "expected"),
    [
        (SOON, 2, 2),
        (SOON, 7, 7),
        (SOON, None, 5),
        (replace(SOON, max_attempts=3), 7, 3),
        (replace(SOON, max_attempts=None), 7, 7),
        (Retry(delays=[1]), 7, 2),
    ],
)
def test_a_jobs_attempts_win_over_the_default_and_are_capped_by_what_its_handler_states(
    wheelq: WheelqTest, retry: Retry, attempts: int | None, expected: int
) -> None:
    runs: list[int] = []
    wheelq.worker.handler("mail", retry=retry)(fails(runs))
    wheelq.client.schedule("mail", delay=60, key="a", attempts=attempts)
    wheelq.advance(days=1)
    assert runs == list(range(1, expected + 1))
    [dead] = wheelq.client.dead.list("mail").jobs
    assert (dead.id, dead.reason) == ("a", Reason.FAILED)


def test_each_job_of_a_batch_has_its_own_attempts(wheelq: WheelqTest) -> None:
    runs = Counter[str]()

    @wheelq.worker.batch_handler("mail", retry=SOON)
    def handle(jobs: list[Job]) -> None:
        runs.update(job.id for job in jobs)
        raise ValueError("no")

    specs = [JobSpec(n, delay=60, key=f"{n}", attempts=n) for n in (1, 2, 7)]
    wheelq.client.schedule_many("mail", specs)
    wheelq.advance(days=1)
    assert runs == {"1": 1, "2": 2, "7": 7}


@pytest.mark.parametrize("ordered", [True, "key"])
def test_an_ordered_job_has_its_own_attempts(wheelq: WheelqTest, ordered: Ordered) -> None:
    runs: list[int] = []
    wheelq.worker.handler("mail", ordered=ordered, retry=SOON)(fails(runs))
    wheelq.client.schedule("mail", delay=60, attempts=2)
    wheelq.advance(days=1)
    assert runs == [1, 2]


def test_asking_for_more_time_and_a_payload_that_does_not_fit_take_no_attempt(wheelq: WheelqTest) -> None:
    runs: list[int] = []

    @wheelq.worker.handler("mail")
    def handle(job: Job) -> None:
        runs.append(job.attempt)
        if len(runs) < 4:
            raise RetryAfter(60)

    @wheelq.worker.task("orders")
    def task(number: int) -> None:
        raise AssertionError("its payload does not fit")

    wheelq.client.schedule("mail", delay=60, attempts=1)
    wheelq.client.schedule("orders", {"number": "x"}, delay=60, key="a", attempts=1)
    wheelq.advance(minutes=10)
    assert runs == [1, 1, 1, 1]
    info = wheelq.client.get("orders", "a")
    assert info is not None
    assert info.state is JobState.RETRYING


def test_a_replay_and_a_rerun_give_the_same_attempts_again_and_replace_gives_new_ones(wheelq: WheelqTest) -> None:
    runs: list[int] = []
    wheelq.worker.handler("mail", retry=SOON)(fails(runs))
    client = wheelq.client
    client.configure("mail", retention_ms=86_400_000)
    client.schedule("mail", delay=60, key="a", attempts=9, timeout=9)
    client.schedule("mail", delay=60, key="a", attempts=2, timeout=5, on_duplicate="replace")
    client.reschedule("mail", "a", delay=90)
    info = client.get("mail", "a")
    assert info is not None
    assert (info.max_attempts, info.timeout) == (2, 5)
    began = wheelq.now
    wheelq.advance(minutes=10)
    client.dead.replay("mail", all=True)
    wheelq.advance(minutes=10)
    assert runs == [1, 2, 1, 2]
    client.dead.purge("mail", all=True)
    client.rerun("mail", group="default", since=began, until=wheelq.now)
    wheelq.advance(minutes=10)
    assert runs == [1, 2] * 3


def test_a_typed_task_and_a_recurring_job_have_limits_of_their_own(wheelq: WheelqTest) -> None:
    runs: list[tuple[str, int | None, float | None]] = []

    @wheelq.worker.task("mail")
    def send(job: Job, to: str) -> None:
        runs.append((to, job.max_attempts, job.timeout))

    wheelq.client.schedule(send.job("ada"), delay=60, attempts=3, timeout=timedelta(seconds=10))
    wheelq.client.recurring.put(send.job("bob"), "nightly", cron="@daily", attempts=2, timeout=5)
    unchanged = wheelq.client.recurring.put(send.job("bob"), "nightly", cron="@daily", attempts=2, timeout=5)
    changed = wheelq.client.recurring.put(send.job("bob"), "nightly", cron="@daily", attempts=4, timeout=5)
    wheelq.advance(days=1)
    assert runs == [("ada", 3, 10.0), ("bob", 4, 5.0)]
    assert (unchanged.outcome, changed.outcome) == ("unchanged", "updated")


@pytest.mark.parametrize(("stated", "own"), [(None, 0.05), (600, 0.05), (0.05, 600)])
@pytest.mark.parametrize("kind", ["async", "thread", "batch"])
async def test_a_jobs_time_limit_wins_over_none_and_is_capped_by_its_handlers(
    worker: Worker, aclient: AsyncClient, topic: str, kind: str, stated: float | None, own: float
) -> None:
    """A batch may take as long as the least of its jobs says."""
    may_end = threading.Event()

    async def hang(given: object) -> None:
        await asyncio.Event().wait()

    def block(job: Job) -> None:
        may_end.wait(PATIENCE)

    once = Retry(max_attempts=1)
    if kind == "batch":
        worker.batch_handler(topic, max_size=2, retry=once, timeout=stated)(hang)
    else:
        worker.handler(topic, retry=once, timeout=stated)(block if kind == "thread" else hang)
    specs = [JobSpec(delay=0, key="a", timeout=own), JobSpec(delay=0, key="b", timeout=700)]
    async with running(worker):
        await aclient.schedule_many(topic, specs if kind == "batch" else specs[:1])

        async def is_buried() -> bool:
            return bool((await aclient.dead.list(topic)).jobs)

        await until(is_buried)
        may_end.set()
    assert "took longer than its timeout of 0.05 s" in (await aclient.dead.list(topic)).jobs[0].error


async def test_nothing_ends_a_function_on_the_event_loop(worker: Worker, aclient: AsyncClient, topic: str) -> None:
    ended: list[str] = []

    @worker.handler(topic, inline=True)
    def handle(job: Job) -> None:
        time.sleep(0.05)
        ended.append(job.id)

    async with running(worker):
        await aclient.schedule(topic, delay=0, key="a", timeout=0.001)
        await until(lambda: ended == ["a"])
        await until(lambda: worker.handled == 1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": 1.0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"attempts": 1_000_001}, "attempts"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": timedelta(days=400)}, "timeout"),
    ],
)
def test_limits_that_make_no_sense_are_refused(client: Client, topic: str, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        client.schedule(topic, delay=60, **wrong)
    assert refused.value.field == field
