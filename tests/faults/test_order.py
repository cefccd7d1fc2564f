"""Order holds when handlers fail and workers die, freeze and come and go: nothing overtaken, nothing lost."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from loadtest.order import Event, Show, Wake, judge
from tests.running import running
from tests.transports import AsyncWith, Fault, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, Job, JobSpec, Retry, RetryAfter, Settings, Worker
from wheelq.base.clock import ServerClock
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import Call
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.worker.ordered.ordering import OrderedLane, OrderedShard

CALLS = [
    "hold",
    "tidy_order",
    "keep",
    "HDEL",
    "read_held",
    "put_off",
    "ack",
    "conclude",
    "adopt",
    "HMGET",
    "XREAD",
    "let_go",
]
QUICK = {"renew_ms": 100, "abandoned_ms": 500, "grace_ms": 2_000}


def wait_until_done(show: Show, runs: int) -> None:
    """Wait until so many runs have succeeded: the fault then strikes in the midst of the work."""
    assert eventually(lambda: sum(not event.is_start for event in show.events()) >= runs), show.fleet.output()


@contextmanager
def shown(server: EmbeddedServer, directory: Path, mode: str, shards: int) -> Iterator[Show]:
    """A scheduler is at work; at the end nothing was overtaken, and nothing is left."""
    show = Show(server.url, directory, mode, shards=shards)
    with show.fleet:
        show.fleet.start("scheduler")
        yield show
        found = show.findings(PATIENCE)
        assert found.is_clean, f"{found}\n{show.fleet.output()}"
        assert eventually(lambda: show.left() == 0), show.left()


@pytest.mark.slow
def test_by_key_with_workers_killed_one_after_the_other(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """20 keys in 4 shards, three workers, 30 % of all runs fail, three workers are killed and replaced."""
    with shown(private_server(), tmp_path, "key", shards=4) as show:
        workers = [show.start_worker() for _ in range(3)]
        show.schedule(30, 20, first=1.0, spread=8.0)
        for runs in (100, 250, 400):
            wait_until_done(show, runs)
            show.fleet.kill(workers.pop(0))
            workers.append(show.start_worker())


@pytest.mark.long
def test_a_shard_with_workers_killed_one_after_the_other(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """One line of 300 jobs; whoever holds it is killed twice."""
    with shown(private_server(), tmp_path, "shard", shards=1) as show:
        workers = [show.start_worker()]
        show.schedule(300, 1, first=1.0, spread=3.0)
        for runs in (60, 180):
            wait_until_done(show, runs)
            workers.append(show.start_worker())
            show.fleet.kill(workers.pop(0))


@pytest.mark.long
def test_a_worker_that_was_frozen_past_its_lease_starts_nothing_out_of_turn(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """SIGSTOP for longer than a delivery may go without renewal, with another worker there, then SIGCONT.

    The jobs that ran in the frozen worker run again in the other, and their first ends come too late to count. The
    guide says what it may still start when it wakes: for each key, the job that it had just made sure of.
    """
    with shown(private_server(), tmp_path, "key", shards=2) as show:
        first = show.start_worker()
        show.schedule(60, 10, first=1.0, spread=14.0)
        wait_until_done(show, 30)
        show.start_worker()
        for runs in (60, 250):
            wait_until_done(show, runs)
            show.fleet.freeze(first)
            time.sleep(5.0)
            show.wake(first)


async def nothing_is_left(client: AsyncClient) -> bool:
    [info] = await client.topics()
    return info.waiting + info.ready + info.running + info.retrying == 0


@pytest.mark.parametrize("fault", [ReplyLost, Unreachable, Refusing, Repeating])
@pytest.mark.parametrize("name", CALLS)
async def test_order_holds_when_calls_fail_and_replies_are_lost(url: str, name: str, fault: type[Fault]) -> None:
    """Three calls in a row are struck, in the midst of 40 jobs that fail at random. Two workers in turn."""
    prefix, topic = f"faults-{secrets.token_hex(6)}", "ordered"
    settings = WorkerSettings(**QUICK)
    done: list[int] = []
    all_done = asyncio.Event()

    def make(*faults: Fault) -> Worker:
        worker = Worker(AsyncWith(url, *faults), keys=Keys(prefix), settings=settings)

        @worker.handler(topic, ordered=True, retry=Retry(max_attempts=50, base=0.01, cap=0.02))
        async def handle(job: Job) -> None:
            if random.random() < 0.2:
                raise ConnectionError
            if job.payload not in done:
                done.append(job.payload)
            if len(done) == 20:
                worker.stop()
            if len(done) == 40:
                all_done.set()

        return worker

    async with AsyncClient.connect(url, Settings(prefix=prefix)) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(40)])
        async with asyncio.timeout(PATIENCE):
            await make(fault(name, after=1, times=3)).run()
            second = make(fault(name, after=1, times=3))
            async with running(second):
                await all_done.wait()
                await until(partial(nothing_is_left, client))
    assert done == list(range(40))


def noting(done: list[str]) -> Callable[[Job], Awaitable[None]]:
    """A handler that notes the ids of the jobs that it ran."""

    async def work(job: Job) -> None:
        done.append(job.id)

    return work


def ordered(url: str, prefix: str, work: Callable[[Job], Awaitable[None]], **settings: int) -> Worker:
    """A worker whose jobs of the topic `ordered` run one at a time, and again after 300 ms."""
    quick = WorkerSettings(**QUICK | settings)
    worker = Worker.connect(url, settings=Settings(prefix=prefix, worker=quick))
    worker.handler("ordered", ordered=True, retry=Retry(max_attempts=20, base=0.3, jitter=0))(work)
    return worker


async def test_a_job_that_fails_after_its_worker_lost_the_shard_goes_to_the_new_holder(
    url: str, prefix: str, raw: redis.Redis, aclient: AsyncClient
) -> None:
    """It was renewed by the former holder, which never ran it again, and the new one waited for it for ever."""
    began, may_fail = asyncio.Event(), asyncio.Event()
    done: list[tuple[str, int]] = []

    async def fail(job: Job) -> None:
        began.set()
        await may_fail.wait()
        raise ConnectionError

    async def work(job: Job) -> None:
        done.append((job.id, job.attempt))

    former, new = ordered(url, prefix, fail), ordered(url, prefix, work)
    await aclient.schedule_many("ordered", [JobSpec(n, delay=0, key=f"job-{n}") for n in range(3)])
    async with running(former):
        await began.wait()
        key = Keys(prefix).shard("ordered", 0).order("default")
        raw.hset(key, mapping={"owner": new.name, "until": 2**50})  # as when a frozen holder's lease has ended
        async with running(new):
            await until(lambda: any(shard.is_held for shard in shards(new)))
            await until(lambda: not any(shard.is_held for shard in shards(former)))
            may_fail.set()
            await until(lambda: len(done) == 3)
            assert done == [("job-0", 2), ("job-1", 1), ("job-2", 1)]
    assert raw.hkeys(key) == []


async def test_a_delivery_whose_acknowledgement_a_fail_over_has_lost_is_done_again_by_the_holder(
    url: str, prefix: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, aclient: AsyncClient
) -> None:
    """The worker thinks that it is done, and Redis that the worker, which lives and holds the shard, has it still."""
    monkeypatch.setattr("wheelq.worker.delivery.recovery.LOOK_EVERY", 0.2)
    ready = Keys(prefix).shard("ordered", 0).ready
    entries: list[Any] = []
    runs: list[int] = []

    async def work(job: Job) -> None:
        entries.extend(raw.xrange(ready, job.entry_id, job.entry_id))
        runs.append(job.attempt)

    worker = ordered(url, prefix, work)
    await aclient.schedule("ordered", delay=0)
    running = asyncio.create_task(worker.run())
    await until(lambda: runs == [1] and not raw.xpending(ready, "default")["pending"])
    with raw.pipeline() as lost:
        lost.xadd(ready, entries[0][1])
        lost.xreadgroup("default", worker.name, {ready: ">"})
        lost.execute()
    await until(lambda: runs == [1, 1] and not raw.xpending(ready, "default")["pending"])
    worker.stop()
    await running


async def test_the_holder_forgets_a_next_run_that_a_restart_has_brought_back(
    url: str, prefix: str, raw: redis.Redis, aclient: AsyncClient
) -> None:
    """Seed 2100175: its job was buried just before the server lost its last second, in which the run was forgotten."""
    order = Keys(prefix).shard("ordered", 0).order("default")
    done: list[str] = []
    await aclient.schedule("ordered", delay=0, key="a")
    async with running(worker := ordered(url, prefix, noting(done))):
        await until(lambda: done == ["a"])
        await aclient.pause("ordered")  # so that no call waits in the server, and none fails
        [ordered_shard] = shards(worker)
        await until(lambda: ordered_shard.shard.topic.paused and ordered_shard._bell is not None)
        await until(lambda: ordered_shard._bell is not None and ordered_shard._bell.done())
        raw.hset(order, "5-5", b"\x02")
        raw.client_kill_filter(_type="normal", skipme=True)
        await until(lambda: not raw.hexists(order, "5-5"))


async def test_a_job_that_waits_for_its_turn_and_is_delivered_once_more_holds_up_nothing(
    url: str, prefix: str, raw: redis.Redis, aclient: AsyncClient
) -> None:
    """The server has lost its last writes, and does not know that the worker was given the job."""
    ready = Keys(prefix).shard("ordered", 0).ready
    began, may_end = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def work(job: Job) -> None:
        began.set()
        await may_end.wait()
        done.append(job.id)

    await aclient.schedule_many("ordered", [JobSpec(key=f"job-{n}", delay=0) for n in range(3)])
    async with running(ordered(url, prefix, work)):
        await began.wait()
        await until(lambda: raw.xpending(ready, "default")["pending"] == 3)
        first, *others = [entry_id for entry_id, _ in raw.xrange(ready)]
        with raw.pipeline() as lost:
            lost.xgroup_setid(ready, "default", first)
            lost.xack(ready, "default", *others)
            lost.execute()
        await until(lambda: raw.xpending(ready, "default")["pending"] == 3)
        may_end.set()
        await until(lambda: len(done) == 3)
    assert done == ["job-0", "job-1", "job-2"]


def shards(worker: Worker) -> list[OrderedShard]:
    lane = worker._lanes._of_topic.get("ordered")
    return list(lane._shards.values()) if isinstance(lane, OrderedLane) else []


async def test_nothing_starts_while_a_dead_holders_remaining_jobs_are_taken_over(
    url: str, prefix: str, raw: redis.Redis
) -> None:
    """It renewed one delivery later than the next one: the later job is abandoned, and taken over, before the first."""
    done: list[str] = []

    class Advancing(AsyncWith):
        """Whatever ends in another shard makes this one look what may start, also while a call is under way."""

        async def send(self, call: Call[Any]) -> Any:
            if call.name == "adopt":
                for shard in shards(worker):
                    shard.look_again()
            return await super().send(call)

    keys = Keys(prefix).shard("ordered", 0)
    async with AsyncClient.connect(url, Settings(prefix=prefix)) as client:
        await client.make_group("ordered", "default")
        await client.schedule_many("ordered", [JobSpec(n, delay=0, key=f"job-{n}") for n in range(2)])
        [(_, entries)] = raw.xreadgroup("default", "dead", {keys.ready: ">"})
        raw.xclaim(keys.ready, "default", "dead", 0, [entries[1][0]], idle=10_000)
        settings = WorkerSettings(**QUICK)
        worker = Worker(Advancing(url), keys=Keys(prefix), settings=settings)
        worker.handler("ordered", ordered=True)(noting(done))
        async with running(worker):
            await until(lambda: len(done) == 2)
    assert done == ["job-0", "job-1"]


@pytest.mark.parametrize(("name", "after"), [("adopt", 0), ("HMGET", 1)])  # the first HMGET asks what the topic is
@pytest.mark.parametrize("fault", [ReplyLost, Refusing])
async def test_a_dead_holders_jobs_run_although_taking_them_over_fails_midway(
    url: str, prefix: str, raw: redis.Redis, name: str, after: int, fault: type[Fault]
) -> None:
    done: list[str] = []
    keys = Keys(prefix).shard("ordered", 0)
    async with AsyncClient.connect(url, Settings(prefix=prefix)) as client:
        await client.make_group("ordered", "default")
        await client.schedule_many("ordered", [JobSpec(n, delay=0, key=f"job-{n}") for n in range(2)])
        raw.xreadgroup("default", "dead", {keys.ready: ">"})
        settings = WorkerSettings(**QUICK)
        worker = Worker(AsyncWith(url, struck := fault(name, after=after)), keys=Keys(prefix), settings=settings)
        worker.handler("ordered", ordered=True)(noting(done))
        async with running(worker):
            await until(lambda: len(done) == 2)
    assert struck.struck == 1
    assert done == ["job-0", "job-1"]


async def test_a_worker_that_stops_leaves_nothing_of_the_retries_that_have_ended(
    url: str, prefix: str, raw: redis.Redis, aclient: AsyncClient
) -> None:
    done: set[str] = set()

    async def fail_once(job: Job) -> None:
        if job.attempt == 1:
            raise RetryAfter(0.01, counts=True)
        done.add(job.id)

    worker = ordered(url, prefix, fail_once, renew_ms=60_000, abandoned_ms=180_000)  # no hold tells Redis of the ends
    await aclient.schedule_many("ordered", [JobSpec(n, delay=0) for n in range(20)])
    async with running(worker):
        await until(lambda: len(done) == 20)
    assert raw.hkeys(Keys(prefix).shard("ordered", 0).order("default")) == []


async def test_traces_of_ended_retries_of_a_killed_holder_are_forgotten(
    url: str, prefix: str, raw: redis.Redis, aclient: AsyncClient
) -> None:
    done: list[str] = []
    key = Keys(prefix).shard("ordered", 0).order("default")
    raw.hset(key, mapping={f"{n}-0": "1 record" for n in range(1, 1_000)})
    worker = ordered(url, prefix, noting(done))
    await aclient.schedule("ordered", delay=0)
    async with running(worker):
        await until(lambda: len(done) == 1)
        await until(lambda: raw.hlen(key) <= 2)


async def test_no_retry_starts_early_with_a_wrong_estimate_of_the_servers_clock(
    url: str, prefix: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, aclient: AsyncClient
) -> None:
    """Behind a slow link its estimate is off by up to half a round trip; here it is 200 ms ahead."""
    estimate = ServerClock.now_ms
    early_ms: list[float] = []

    async def work(job: Job) -> None:
        seconds, microseconds = raw.time()
        early_ms.append(job.due_ms - (seconds * 1000 + microseconds / 1000))
        if job.attempt < 4:
            raise ConnectionError

    monkeypatch.setattr(ServerClock, "now_ms", lambda clock: estimate(clock) + 200)
    worker = ordered(url, prefix, work)
    await aclient.schedule("ordered", delay=0)
    async with running(worker):
        await until(lambda: len(early_ms) == 4)
    assert max(early_ms) <= 0


def test_the_judge_finds_what_is_wrong() -> None:
    def events(*steps: str) -> list[Event]:
        return [Event(at, step[0] == "s", "k", int(step[1:])) for at, step in enumerate(steps)]

    assert judge(events("s0", "s0", "d0", "s1", "d1"), {"k": 2}).is_clean
    assert judge(events("s0", "d0", "s0", "d0", "s1", "d1"), {"k": 2}).repeated == 1
    assert judge(events("s0", "d0"), {"k": 2}).missing == ["k #1"]
    assert judge(events("s0", "s1", "d0", "d1"), {"k": 2}).early == ["k #1"]
    assert judge(events("s0", "d0", "s1", "d1", "s0", "d0"), {"k": 2}).overtaken == ["k #0"]


def test_the_judge_permits_what_a_frozen_worker_starts_first_of_a_key_when_it_wakes() -> None:
    def event(at: int, what: str, n: int, worker: str) -> Event:
        return Event(at, what == "s", "k", n, worker)

    others = [event(0, "s", 0, "b"), event(1, "d", 0, "b"), event(2, "s", 1, "b"), event(3, "d", 1, "b")]
    late = event(5, "s", 0, "a")
    wake = Wake("a", 4)
    assert judge([*others, late], {"k": 2}, [wake]).is_clean
    assert judge([*others, late], {"k": 2}, [wake]).permitted == 1
    assert judge([*others, late], {"k": 2}).overtaken == ["k #0"]
    assert judge([*others, late], {"k": 2}, [Wake("a", 6)]).overtaken == ["k #0"]
    assert judge([*others, late, event(6, "s", 0, "a")], {"k": 2}, [wake]).overtaken == ["k #0"]
