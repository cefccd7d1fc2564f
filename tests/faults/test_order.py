"""Order holds when handlers fail and workers die, freeze and come and go: nothing overtaken, nothing lost."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from loadtest.order import Event, Show, judge
from tests.transports import AsyncWith, Fault, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import eventually, until
from wheelq import AsyncClient, Job, JobSpec, Retry, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings

CALLS = ("hold", "read_held", "put_off", "ack", "conclude", "adopt", "HMGET", "XREAD", "let_go")


def wait_until_nothing_is_left(show: Show) -> None:
    assert eventually(lambda: show.left() == 0, within_s=15), show.left()


def test_by_key_with_workers_killed_one_after_the_other(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """20 keys in 4 shards, three workers, 30 % of all runs fail, three workers are killed and replaced."""
    show = Show(private_server().url, tmp_path, "key", shards=4)
    with show.fleet:
        show.fleet.start("scheduler")
        workers = [show.start_worker() for _ in range(3)]
        show.schedule(30, 20, first=1.0, spread=8.0)
        for _ in range(3):
            time.sleep(3.0)
            show.fleet.kill(workers.pop(0))
            workers.append(show.start_worker())
        found = show.findings(patience=60)
        assert found.is_clean, f"{found}\n{show.fleet.output()}"
        wait_until_nothing_is_left(show)


def test_a_shard_with_workers_killed_one_after_the_other(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """One line of 300 jobs; whoever holds it is killed twice."""
    show = Show(private_server().url, tmp_path, "shard", shards=1)
    with show.fleet:
        show.fleet.start("scheduler")
        workers = [show.start_worker()]
        show.schedule(300, 1, first=1.0, spread=3.0)
        for _ in range(2):
            time.sleep(3.0)
            workers.append(show.start_worker())
            show.fleet.kill(workers.pop(0))
        found = show.findings(patience=80)
        assert found.is_clean, f"{found}\n{show.fleet.output()}"
        wait_until_nothing_is_left(show)


def test_a_worker_that_was_frozen_past_its_lease_starts_nothing_out_of_turn(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """SIGSTOP for longer than a delivery may go without renewal, with another worker there, then SIGCONT.

    What was running in the frozen one runs again in the other, and its own end comes too late to count.
    """
    show = Show(private_server().url, tmp_path, "key", shards=2)
    with show.fleet:
        show.fleet.start("scheduler")
        first = show.start_worker()
        show.schedule(60, 10, first=1.0, spread=14.0)
        time.sleep(3.5)
        show.start_worker()
        for _ in range(2):
            time.sleep(1.0)
            show.fleet.freeze(first)
            time.sleep(5.0)
            show.fleet.wake(first)
        found = show.findings(patience=60)
        assert found.is_clean, f"{found}\n{show.fleet.output()}"
        wait_until_nothing_is_left(show)


async def nothing_is_left(client: AsyncClient) -> bool:
    [info] = await client.topics()
    return (info.delayed, info.ready) == (0, 0)


@pytest.mark.parametrize("fault", [ReplyLost, Unreachable, Refusing, Repeating])
@pytest.mark.parametrize("name", CALLS)
async def test_order_holds_when_calls_fail_and_replies_are_lost(url: str, name: str, fault: type[Fault]) -> None:
    """Of each call three in a row are struck, in the midst of 40 jobs that fail at random. Two workers in turn."""
    prefix, topic = f"faults-{secrets.token_hex(6)}", "ordered"
    settings = WorkerSettings(renew_ms=100, abandoned_ms=500, grace_ms=2_000)
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
        async with asyncio.timeout(20):
            await make(fault(name, after=1, times=3)).run()
            second = make(fault(name, after=1, times=3))
            running = asyncio.create_task(second.run())
            await all_done.wait()
            await until(partial(nothing_is_left, client))
            second.stop()
            await running
    assert done == list(range(40))


def test_the_judge_finds_what_is_wrong() -> None:
    def events(*steps: str) -> list[Event]:
        return [Event(at, step[0] == "s", "k", int(step[1:])) for at, step in enumerate(steps)]

    assert judge(events("s0", "s0", "d0", "s1", "d1"), {"k": 2}).is_clean
    assert judge(events("s0", "d0", "s0", "d0", "s1", "d1"), {"k": 2}).repeated == 1
    assert judge(events("s0", "d0"), {"k": 2}).missing == ["k #1"]
    assert judge(events("s0", "s1", "d0", "d1"), {"k": 2}).early == ["k #1"]
    assert judge(events("s0", "d0", "s1", "d1", "s0", "d0"), {"k": 2}).overtaken == ["k #0"]
