"""14. Order: one job at a time, in due order, for each shard or each partition key.

`@worker.handler(topic, ordered=True)` orders a shard, `ordered="key"` each partition key. Over all workers of a group,
also across retries: a failing job holds back those behind it until it is done or buried.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.running import running
from tests.spec.conftest import Run, known, nothing_is_left, state_is
from tests.waiting import PATIENCE, in_time, until
from wheelq import AsyncClient, CancelOutcome, Job, JobSpec, JobState, Retry, RetryAfter, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput
from wheelq.model.dead import Reason
from wheelq.model.topic import shard_of
from wheelq.settings import TopicSettings, WorkerSettings
from wheelq.worker.ordered import deliveries

SOON = Retry(max_attempts=20, base=0.02, cap=0.05)


@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_job_that_waits_in_its_worker_for_its_turn_can_be_cancelled(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, has_failed: bool
) -> None:
    """Behind another job, it is buried when its turn comes; waiting for its next attempt, at once. It does not run."""
    runs: list[str] = []
    first_may_end = asyncio.Event()

    @worker.handler(topic, ordered=True, retry=Retry(delays=[3_600]))
    async def work(job: Job) -> None:
        runs.append(job.id)
        if job.id == "first":
            await first_may_end.wait()
        elif job.id == "second" and has_failed:
            raise ConnectionError("the other side is away")

    await aclient.schedule_many(topic, [JobSpec(key=key, delay=0) for key in ("first", "second", "third")])
    run(worker)
    await until(lambda: runs == ["first"])
    if has_failed:
        first_may_end.set()
        await until(lambda: runs == ["first", "second"])

    async def is_asked() -> bool:
        return await aclient.cancel(topic, "second", running=True) is CancelOutcome.CANCELLING

    await until(is_asked)
    first_may_end.set()
    await until(lambda: "third" in runs)
    [dead] = (await aclient.dead.list(topic)).jobs
    assert (dead.id, dead.reason) == ("second", Reason.CANCELLED)
    assert runs == ["first", *["second"] * has_failed, "third"]
    assert worker.cancelled == 1


async def test_a_job_that_waits_for_its_retry_is_shown_as_retrying_and_those_behind_it_as_running(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run
) -> None:
    @worker.handler(topic, ordered=True, retry=Retry(delays=[0, 3_600]))
    async def work(job: Job) -> None:
        if job.id == "first" and job.attempt == 2:
            second_attempt.set()
            await may_fail.wait()
        raise ConnectionError(f"attempt {job.attempt}")

    async def listed(state: str) -> list[tuple[str, int | None, str | None]]:
        return [(job.id, job.attempt, job.group) for job in (await aclient.jobs(topic, state=state)).jobs]

    second_attempt, may_fail = asyncio.Event(), asyncio.Event()
    await aclient.schedule_many(topic, [JobSpec(key=key, delay=0) for key in ("first", "second")])
    run(worker)
    await in_time(second_attempt.wait())
    info = known(await aclient.get(topic, "first"))
    assert (info.state, info.attempt, info.last_error) == (JobState.RUNNING, 2, "ConnectionError: attempt 1")
    assert await listed("running") == [("first", 2, worker.group), ("second", 1, worker.group)]
    may_fail.set()
    await state_is(aclient, topic, "first", JobState.RETRYING)
    info = known(await aclient.get(topic, "first"))
    assert (info.attempt, info.last_error, len(info.attempts)) == (3, "ConnectionError: attempt 2", 2)
    assert info.due_ms > (info.promoted_ms or 0) + 3_000_000
    assert await listed("running") == [("second", 1, worker.group)]
    assert await listed("retrying") == [("first", 3, worker.group)]
    assert [job.due_ms for job in (await aclient.jobs(topic, state="retrying")).jobs] == [info.due_ms]


@pytest.mark.parametrize("waits_for", ["its turn", "its retry", "a place"])
async def test_a_job_that_was_cancelled_while_it_waited_in_its_worker_is_buried_when_that_stops(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, waits_for: str
) -> None:
    """No other worker knows that its caller was told CANCELLING."""
    runs: list[str] = []
    busy = f"{topic}-busy"

    def make() -> Worker:
        worker = Worker.connect(url, group="g", settings=settings, concurrency=1)

        @worker.handler(topic, ordered=True, retry=Retry(delays=[3_600]))  # it waits until the worker stops
        @worker.handler(busy)
        async def work(job: Job) -> None:
            runs.append(job.id)
            if job.id == "first" and runs.count("first") == 1:
                await asyncio.Event().wait()
            elif job.id == "second" and waits_for == "its retry":
                raise ConnectionError("the other side is away")

        return worker

    if waits_for == "a place":
        await aclient.schedule(busy, key="first", delay=0)
    elif waits_for == "its turn":
        await aclient.schedule(topic, key="first", delay=0)
    stopping = make()
    running = run(stopping)
    await until(lambda: waits_for == "its retry" or runs == ["first"])
    await aclient.schedule_many(topic, [JobSpec(key=key, delay=0) for key in ("second", "third")])
    await until(lambda: waits_for != "its retry" or runs == ["second"])

    async def is_asked() -> bool:
        return await aclient.cancel(topic, "second", running=True) is CancelOutcome.CANCELLING

    await until(is_asked)
    held = stopping._parts.held._by_shard
    await until(
        lambda: stopping.cancelled == 1 or any(one.is_cancelled for some in held.values() for one in some.values())
    )
    stopping.stop(grace=0)
    await running
    run(make())
    await until(lambda: "third" in runs)
    [dead] = (await aclient.dead.list(topic)).jobs
    assert (dead.id, dead.reason) == ("second", Reason.CANCELLED)
    assert runs.count("second") == (waits_for == "its retry")
    assert stopping.cancelled == 1


async def test_a_worker_that_stops_lets_its_idle_shards_go_while_other_handlers_still_run(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """Another worker takes the shard over at once, and does not wait for the end of the first one."""
    settings = replace(settings, worker=replace(settings.worker, abandoned_ms=600_000))  # a hold outlasts the test
    runs: list[str] = []
    may_end, is_busy = asyncio.Event(), asyncio.Event()

    def make(name: str) -> Worker:
        worker = Worker.connect(url, settings=settings)

        @worker.handler(topic, ordered=True)
        async def work(job: Job) -> None:
            runs.append(f"{name} {job.payload}")

        @worker.handler(f"{topic}-long")
        async def work_long(job: Job) -> None:
            is_busy.set()
            await may_end.wait()

        return worker

    first = make("first")
    stopped = run(first)
    await aclient.schedule(topic, 1, delay=0)
    await aclient.schedule(f"{topic}-long", delay=0)
    await until(lambda: runs == ["first 1"])
    await in_time(is_busy.wait())
    first.stop(grace=PATIENCE)
    run(make("second"))
    await aclient.schedule(topic, 2, delay=0)
    await until(lambda: runs == ["first 1", "second 2"])
    assert not stopped.done()
    may_end.set()
    await in_time(stopped)


class Log:
    """What ran, in order; fails when two of one key run at a time."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.by_key: defaultdict[Any, list[int]] = defaultdict(list)
        self.runs = 0
        self.overlaps = 0
        self._running: set[Any] = set()

    async def run(self, job: Job, key: Any, fails: bool = False) -> None:
        self.runs += 1
        self.overlaps += key in self._running
        self._running.add(key)
        try:
            await asyncio.sleep(random.choice([0, 0, 0.001]))
            if fails:
                raise ConnectionError("the other side is away")
        finally:
            self._running.discard(key)
        number = job.payload["n"]
        self.done.append(number)
        self.by_key[key].append(number)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make(url: str, settings: Settings, topic: str, log: Log) -> Callable[..., Worker]:
    """A worker that runs by order, each run failing with a probability of `fails`."""

    def make(ordered: Any = True, fails: float = 0.0, key: str = "", retry: Retry = SOON, **how: Any) -> Worker:
        worker = Worker.connect(url, settings=how.pop("settings", settings), **how)

        @worker.handler(topic, ordered=ordered, retry=retry)
        async def handle(job: Job) -> None:
            await log.run(job, job.payload.get("key", ""), random.random() < fails)

        return worker

    return make


def specs(count: int, keys: int = 0, delay: float = 0.0, spread: float = 0.0) -> list[JobSpec]:
    found = []
    for n in range(count):
        key = f"k{n % keys}" if keys else ""
        payload = {"n": n, "key": key}
        found.append(JobSpec(payload, delay=delay + spread * n / count, partition_key=key or None))
    return found


async def test_the_jobs_of_a_shard_run_one_at_a_time_in_due_order(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    """However many handlers a worker could run."""
    run(make())
    jobs = [*reversed(specs(300, delay=0.2, spread=0.3))]
    receipts = await aclient.schedule_many(topic, jobs)
    await until(lambda: len(log.done) == 300)
    numbers = {receipt.id: spec.payload["n"] for receipt, spec in zip(receipts, jobs, strict=True)}
    due = sorted(receipts, key=lambda receipt: (receipt.due_ms, receipt.id))
    assert log.done == [numbers[receipt.id] for receipt in due]
    assert log.overlaps == 0
    await nothing_is_left(aclient, topic)


async def test_order_holds_across_retries(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    """A job that fails keeps its place: the next one starts when it is done."""
    run(make(fails=0.3))
    await aclient.schedule_many(topic, specs(60))
    await until(lambda: len(log.done) == 60)
    assert log.done == list(range(60))
    assert log.runs > 60
    assert log.overlaps == 0
    await nothing_is_left(aclient, topic)


async def test_order_holds_over_several_workers_of_a_group(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    run(*(make(fails=0.1) for _ in range(3)))
    await aclient.schedule_many(topic, specs(100, delay=0.1, spread=1.0))
    await until(lambda: len(log.done) == 100)
    assert log.done == list(range(100))
    assert log.overlaps == 0


async def test_by_key_each_key_is_in_order_and_keys_do_not_wait_for_each_other(
    url: str, settings: Settings, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    """400 jobs of 10 keys in 4 shards, a fifth of all runs fails, two workers."""
    run(*(make("key", fails=0.2) for _ in range(2)))
    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings(shards=4))) as client:
        await client.schedule_many(topic, specs(400, keys=10, delay=0.1, spread=0.5))
        await until(lambda: len(log.done) == 400)
        await nothing_is_left(client, topic)
    assert dict(log.by_key) == {f"k{key}": list(range(key, 400, 10)) for key in range(10)}
    assert log.overlaps == 0
    assert log.done != sorted(log.done)


async def test_a_key_that_fails_does_not_hold_back_others_and_is_buried_in_the_end(
    worker: Worker, aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run
) -> None:
    """Behind the buried one its key goes on."""
    done: list[str] = []

    @worker.handler(topic, ordered="key", retry=Retry(max_attempts=3, base=0.2, jitter=0))
    async def handle(job: Job) -> None:
        if job.payload == "bad":
            raise ValueError(job.payload)
        done.append(job.payload)

    pairs = [("a", "bad"), ("a", "behind"), ("b", "other"), ("b", "another")]
    await aclient.schedule_many(topic, [JobSpec(what, delay=0, partition_key=key) for key, what in pairs])
    run(worker)
    await until(lambda: len(done) == 3)
    assert done == ["other", "another", "behind"]

    async def is_buried() -> bool:
        return [info.dead for info in await aclient.topics() if info.name == topic] == [1]

    await until(is_buried)


async def test_the_log_says_that_all_keys_wait_behind_one_that_fails(
    worker: Worker,
    aclient: AsyncClient,
    topic: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many jobs of its key as a worker holds wait behind its first."""
    monkeypatch.setattr(deliveries, "READ_AHEAD_BY_KEY", 5)

    @worker.handler(topic, ordered="key", retry=Retry(delays=[3_600]))
    async def work(job: Job) -> None:
        raise ConnectionError("the other side is away")

    await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key="a") for n in range(6)])
    await aclient.schedule(topic, delay=0, partition_key="b")
    run(worker)
    await until(lambda: "ready: 5 jobs wait behind failed ones of their keys" in caplog.text)


async def test_the_log_blames_no_key_while_all_places_are_taken(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many jobs as a worker holds wait here, too, but none has failed."""
    monkeypatch.setattr(deliveries, "READ_AHEAD_BY_KEY", 5)
    worker, may_end, done = Worker.connect(url, concurrency=1, settings=settings), asyncio.Event(), list[int]()

    @worker.handler(f"{topic}-slow")
    async def slow(job: Job) -> None:
        await may_end.wait()

    @worker.handler(topic, ordered="key")
    async def work(job: Job) -> None:
        done.append(job.payload)

    async def are_read() -> bool:
        return [info.running for info in await aclient.topics() if info.name == topic] == [5]

    await aclient.schedule(f"{topic}-slow", delay=0)
    async with running(worker):
        await until(lambda: worker._lanes.pool.held == 1)
        await aclient.schedule_many(topic, [JobSpec(n, delay=0, partition_key=str(n)) for n in range(8)])
        await until(are_read)
        may_end.set()
        await until(lambda: len(done) == 8)
    assert "wait behind failed ones" not in caplog.text


async def test_a_worker_that_is_cancelled_ends_the_read_of_an_ordered_shard(
    worker: Worker, aclient: AsyncClient, topic: str
) -> None:
    """It ended by an error that nobody took."""
    worker.handler(topic, ordered=True)(lambda job: None)
    await aclient.configure(topic)
    before = asyncio.all_tasks()

    def reads() -> list[asyncio.Task[object]]:
        others = asyncio.all_tasks() - before
        return [one for one in others if getattr(one.get_coro(), "__qualname__", "") == "AsyncTransport.send"]

    run = asyncio.create_task(worker.run())
    await until(lambda: bool(reads()))
    [read] = reads()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert read.cancelled()


async def test_a_finished_job_has_its_attempts_whether_in_order_or_not(
    worker: Worker, aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run
) -> None:
    """In order, a failed job keeps its entry, which says that it is the first attempt."""

    async def work(job: Job) -> None:
        if job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")
        if not job.last_error or "once more" not in job.last_error:
            raise RetryAfter(0, "once more")

    for name, ordered in (("plain", False), ("ordered", "key")):
        await aclient.configure(f"{topic}-{name}", keep_done_ms=60_000)
        worker.handler(f"{topic}-{name}", ordered=ordered, retry=Retry(delays=[0, 0]))(work)  # type: ignore[arg-type]
    run(worker)
    for name in ("plain", "ordered"):
        receipt = await aclient.schedule(f"{topic}-{name}", delay=0)
        await aclient.wait(receipt, timeout=PATIENCE)
        info = known(await aclient.get(receipt))
        assert (info.attempt, [one.error for one in info.attempts]) == (
            3,
            ["ValueError: attempt 1", "ValueError: attempt 2", "once more", None],
        )
        [done] = (await aclient.jobs(f"{topic}-{name}", state="done")).jobs
        assert done.attempt == 3


async def test_jobs_without_a_partition_key_run_by_key_side_by_side(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run
) -> None:
    both_there = asyncio.Barrier(2)

    @worker.handler(topic, ordered="key")
    async def handle(job: Job) -> None:
        await in_time(both_there.wait())

    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(2)])
    run(worker)
    await until(lambda: worker.handled == 2)


async def test_a_job_that_waits_for_its_retry_holds_back_its_shard_also_when_its_worker_stops(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    """The next worker finds it in its place, with its attempts and its time."""
    first = make(fails=1.0, retry=Retry(base=1.0, jitter=0))
    ended = run(first)
    await aclient.schedule_many(topic, specs(5))
    await until(lambda: log.runs == 1)
    first.stop()
    await in_time(ended)
    attempts: list[int] = []
    second = make()
    second.before(lambda job: attempts.append(job.attempt))
    run(second)
    await until(lambda: len(log.done) == 5)
    assert log.done == list(range(5))
    assert attempts == [2, 1, 1, 1, 1]
    await nothing_is_left(aclient, topic)


async def test_workers_share_the_shards(
    url: str, settings: Settings, topic: str, scheduler: Scheduler, run: Run
) -> None:
    """The first one takes all six; when another asks, it passes shards on until each has three."""
    quick = replace(settings, worker=WorkerSettings(renew_ms=100, abandoned_ms=3_000))
    ran: defaultdict[int, int] = defaultdict(int)

    def make(number: int) -> Worker:
        worker = Worker.connect(url, settings=quick)

        @worker.handler(topic, ordered=True)
        async def handle(job: Job) -> None:
            ran[number] += 1

        return worker

    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings(shards=6))) as client:
        run(make(1))
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(60)])
        await until(lambda: ran[1] == 60)
        run(make(2))

        async def is_shared() -> bool:
            before, total = ran[2], sum(ran.values()) + 60
            await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(60)])
            await until(lambda: sum(ran.values()) >= total)
            return 15 <= ran[2] - before <= 45

        await until(is_shared)
        await nothing_is_left(client, topic)


async def test_groups_keep_their_own_order(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    """A group that fails does not hold back another."""
    other = Log()
    failing, fine = make(fails=0.3, group="failing"), make(group="fine")
    fine.before(lambda job: other.done.append(job.payload["n"]))
    run(failing, fine)
    await aclient.schedule_many(topic, specs(30))
    await until(lambda: len(log.done) == 60)
    assert other.done == list(range(30))
    await nothing_is_left(aclient, topic)


async def test_a_paused_topic_begins_nothing_and_goes_on_in_order(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, make: Callable[..., Worker], log: Log
) -> None:
    run(make(fails=0.2))
    await aclient.schedule_many(topic, specs(200))
    await until(lambda: len(log.done) >= 10)
    await aclient.pause(topic)
    await asyncio.sleep(0.5)
    before = log.runs
    await asyncio.sleep(0.3)
    assert log.runs == before < 200
    await aclient.resume(topic)
    await until(lambda: len(log.done) == 200)
    assert log.done == list(range(200))


async def test_concurrency_one_keeps_the_order_of_a_topic_with_one_shard(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run, log: Log
) -> None:
    """With one worker, and as long as nothing fails."""
    worker = Worker.connect(url, settings=settings, concurrency=1)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        await log.run(job, "")

    run(worker)
    await aclient.schedule_many(topic, [*reversed(specs(200, delay=0.2, spread=0.3))])
    await until(lambda: len(log.done) == 200)
    assert log.done == list(range(200))
    assert log.overlaps == 0


def test_ordered_is_one_of_three(url: str, topic: str) -> None:
    with pytest.raises(InvalidInput, match="ordered"):
        Worker.connect(url).handler(topic, ordered="shard")(print)  # type: ignore[arg-type]


# Keeping order here takes a barrier across shards, which would serialize the topic while it drains. The guide and
# the docstring of `set_shards` say that order is not kept.
async def test_by_key_order_is_not_kept_while_the_number_of_shards_is_changed(
    worker: Worker, aclient: AsyncClient, topic: str, scheduler: Scheduler, run: Run
) -> None:
    """A job that the new number of shards places does not wait for those of the former one."""
    key = next(f"k{n}" for n in range(100) if shard_of(f"k{n}", 4) != 0)
    done, has_begun = list[int](), asyncio.Event()

    @worker.handler(topic, ordered="key")
    async def note(job: Job) -> None:
        if job.payload == 1:
            has_begun.set()
        else:
            await in_time(has_begun.wait())
        done.append(job.payload)

    await aclient.schedule(topic, 0, delay=0, partition_key=key)
    await aclient.set_shards(topic, 4)
    await aclient.schedule(topic, 1, delay=0, partition_key=key)
    run(worker)
    await until(lambda: len(done) == 2)
    assert done == [1, 0]


async def test_shards_that_a_topic_no_longer_has_count_for_nobody(
    aclient: AsyncClient, topic: str, url: str, settings: Settings, scheduler: Scheduler, run: Run
) -> None:
    """A worker that went on holding one seemed to have its share, and got none of the others."""
    await aclient.schedule(topic, delay=0)
    await aclient.set_shards(topic, 4)
    workers = [Worker.connect(url, settings=settings) for _ in range(2)]
    done = set[str]()
    for worker in workers:

        @worker.handler(topic, ordered=True)
        async def note(job: Job) -> None:
            done.add(job.id)

    run(*workers)

    def served(worker: Worker) -> set[int]:
        return {shard.keys.shard for shard in worker._shards.shards}

    await until(lambda: all(served(worker) == {0, 1, 2, 3} for worker in workers))
    for shards in (2, 3):
        await aclient.set_shards(topic, shards)
        await until(lambda: all(served(worker) == set(range(shards)) for worker in workers))  # noqa: B023
        receipts = await aclient.schedule_many(topic, [JobSpec(delay=0)] * 20)
        await until(lambda: {one.id for one in receipts} <= done)  # noqa: B023
