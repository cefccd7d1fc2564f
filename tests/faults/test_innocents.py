"""A job that kills its worker again and again is given up; those that ran beside it are not."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

import pytest
import redis

from tests.faults.stages import RECORD
from tests.running import die, running
from tests.waiting import in_time, until
from wheelq import Client, Job, JobSpec, Settings, Worker
from wheelq.base.clock import SystemClock
from wheelq.model.dead import Reason
from wheelq.model.topic import Topic
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import Address, AsyncTransport
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.recovery import Recovery
from wheelq.worker.ordered.deliveries import OrderedDeliveries

SETTINGS = WorkerSettings()
JOBS = 20
ABANDONED_MS, MAX_DELIVERIES = 700, 4


async def life(transport: AsyncTransport, shard: ServedShard, name: str, before: str) -> list[Delivery]:
    """What a worker starts that comes after one that died: all that this one left, as far as it lets itself."""
    clock = SystemClock()
    parts = WorkerParts(transport, Keys(), "g", name, SETTINGS, clock)
    parts.server.observe(clock.monotonic(), await transport.send(server_time_us()))
    parts.peers.heard(clock.monotonic(), {before: "left g"})
    await parts.recovery.look([shard])
    return await parts.recovery.claim(shard, 100)


async def test_jobs_beside_one_that_kills_its_worker_are_not_given_up(url: str, topic: str, raw: redis.Redis) -> None:
    """None of them is done before the worker dies. One that is suspect runs without another such beside it."""
    transport, shard = AsyncTransport(Address(url)), ServedShard(Keys().shard(topic, 0), Topic())
    await transport.send(calls.make_group(shard.keys, "g"))
    jobs = [(f"job-{n}", "+0", RECORD) for n in range(JOBS)]
    await transport.send(producer.schedule(shard.keys, jobs, "keep", "1"))
    await transport.send(calls.read([shard.keys], "g", "w0", 100, 1))  # and dies
    finished: set[str] = set()
    for n in range(1, 100):
        started = await life(transport, shard, f"w{n}", f"w{n - 1}")
        if "job-7" in [delivery.entry.id for delivery in started]:
            continue  # it dies
        done = [(delivery.entry.entry_id, delivery.entry.member) for delivery in started]
        if done:
            await transport.send(calls.ack(shard.keys, "g", f"w{n}", 0, 0, done))
            finished |= {delivery.entry.id for delivery in started}
    dead = [fields[b"id"].decode() for _, fields in raw.xrange(shard.keys.dead)]
    assert (dead, len(finished)) == (["job-7"], JOBS - 1)
    await transport.close()


async def test_a_second_suspect_does_not_start_beside_the_first_although_it_was_claimed_later(
    url: str, topic: str, raw: redis.Redis
) -> None:
    transport, shard = AsyncTransport(Address(url)), ServedShard(Keys().shard(topic, 0), Topic())
    await transport.send(calls.make_group(shard.keys, "g"))
    await transport.send(producer.schedule(shard.keys, [(id, "+0", RECORD) for id in ("a", "b")], "keep", "1"))
    [entries] = await transport.send(calls.read([shard.keys], "g", "w0", 100, 1))
    often = SETTINGS.max_deliveries - 1
    raw.xclaim(shard.keys.ready, "g", "w0", 0, [one.entry_id for one in entries], retrycount=often, justid=True)
    parts = WorkerParts(transport, Keys(), "g", "w1", SETTINGS, SystemClock())
    parts.server.observe(SystemClock().monotonic(), await transport.send(server_time_us()))
    parts.peers.heard(SystemClock().monotonic(), {"w0": "left g"})
    await parts.recovery.look([shard])
    assert [delivery.entry.id for delivery in await parts.recovery.claim(shard, 1)] == ["a"]
    assert await parts.recovery.claim(shard, 1) == []
    await transport.close()


async def test_suspects_that_go_back_come_again_one_by_one(url: str, prefix: str, raw: redis.Redis) -> None:
    settings = Settings(prefix=prefix, worker=WorkerSettings(renew_ms=50, abandoned_ms=200))
    keys, at_once, most, ran = Keys(prefix).shard("t", 0), 0, 0, list[str]()
    with Client.connect(url, settings) as client:
        client.make_group("t", "g")
        client.schedule_many("t", [JobSpec(key=f"job-{n}", delay=0) for n in range(5)])
    [(_, entries)] = raw.xreadgroup("g", "gone", {keys.ready: ">"})
    ids = [entry for entry, _ in entries]
    raw.xclaim(keys.ready, "g", "gone", 0, ids, idle=60_000, retrycount=7, justid=True)
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler("t")
    async def note(job: Job) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.05)
        at_once -= 1
        ran.append(job.id)

    async with running(worker):
        await until(lambda: len(ran) == 5)
    assert (most, sorted(ran)) == (1, [f"job-{n}" for n in range(5)])
    assert raw.xlen(keys.dead) == 0


@pytest.mark.parametrize("ordered", [True, "key"])
async def test_jobs_behind_or_beside_one_that_kills_its_worker_are_not_given_up_in_an_ordered_topic(
    url: str, prefix: str, ordered: Literal[True, "key"]
) -> None:
    """Their worker holds those behind it, and others of its fleet take them over each time; they have not started."""
    await only_the_guilty_one_is_buried(url, prefix, ordered)


async def test_a_start_that_was_counted_before_its_worker_froze_is_not_counted_again(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker had to hold the shard again before the job could start. So it was buried a delivery too early."""
    count, frozen = Recovery.count, list[str]()

    async def count_and_freeze(self: Recovery, delivery: Delivery) -> None:
        await count(self, delivery)
        if delivery.entry.id == "job-3" and delivery.entry.deliveries == MAX_DELIVERIES - 1 and not frozen:
            frozen.append(delivery.entry.id)
            time.sleep(ABANDONED_MS / 1000)  # noqa: ASYNC251  # nothing in the process goes on

    monkeypatch.setattr(Recovery, "count", count_and_freeze)
    await only_the_guilty_one_is_buried(url, prefix, "key")
    assert frozen


async def test_a_suspect_whose_start_was_counted_runs_before_the_next_one_starts(
    url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker had to hold the shard again. The guilty one started meanwhile, and this job was buried for it."""
    may_run, put_back = OrderedDeliveries.may_run, list[str]()

    def put_back_once(self: OrderedDeliveries, delivery: Delivery) -> bool:
        may = may_run(self, delivery)
        is_last_start = delivery.is_counted and delivery.entry.deliveries == MAX_DELIVERIES - 1
        if may and is_last_start and delivery.entry.id != "job-2" and not put_back:
            put_back.append(delivery.entry.id)
            self._sequence.again(delivery, int(time.time() * 1000) + 500)
            return False
        return may

    monkeypatch.setattr(OrderedDeliveries, "may_run", put_back_once)
    await only_the_guilty_one_is_buried(url, prefix, "key")
    assert put_back


async def test_a_worker_that_stops_before_a_job_has_its_turn_leaves_the_count_of_its_deliveries(
    url: str, prefix: str, raw: redis.Redis
) -> None:
    """Otherwise a job that kills its workers would never be given up while others of them are stopped in good order."""
    of_worker = WorkerSettings(renew_ms=100, abandoned_ms=ABANDONED_MS)
    settings, ready = Settings(prefix=prefix, worker=of_worker), Keys(prefix).shard("t", 0).ready
    busy, kills = asyncio.Event(), asyncio.Event()

    def make() -> Worker:
        worker = Worker.connect(url, settings=settings, concurrency=1)

        @worker.handler("busy")
        async def work(job: Job) -> None:
            busy.set()
            await asyncio.Event().wait()

        @worker.handler("t", ordered=True)
        async def handle(job: Job) -> None:
            kills.set()
            await asyncio.Event().wait()

        return worker

    with Client.connect(url, settings) as client:
        client.schedule("t", key="kills", delay=0)
        await die(make(), kills)
        client.schedule("busy", delay=0)
        next_one = make()
        running_one = asyncio.create_task(next_one.run())
        await in_time(busy.wait())

        def delivered() -> list[tuple[bytes, int]]:
            return [
                (one["consumer"], one["times_delivered"]) for one in raw.xpending_range(ready, "default", "-", "+", 9)
            ]

        await until(lambda: delivered() == [(next_one.name.encode(), 1)])
        next_one.stop(grace=0)
        await running_one
        assert [count for _, count in delivered()] == [1]


def dead_tells_nothing(delivery: Delivery) -> None:
    """For `Recovery.ended`: a process that is killed runs no `finally`, so no other suspect may start after it."""


async def only_the_guilty_one_is_buried(url: str, prefix: str, ordered: Literal[True, "key"]) -> None:
    """One of six jobs kills four workers, and is given up; the others run."""
    of_worker = WorkerSettings(renew_ms=100, abandoned_ms=ABANDONED_MS, max_deliveries=MAX_DELIVERIES)
    settings, ran = Settings(prefix=prefix, worker=of_worker), set[str]()
    with Client.connect(url, settings) as client:
        client.schedule_many("t", [JobSpec(key=f"job-{n}", partition_key=f"{n}", delay=0) for n in range(6)])
        for life in range(5):
            worker, kills = Worker.connect(url, settings=settings), asyncio.Event()

            @worker.handler("t", ordered=ordered)
            async def handle(job: Job, worker: Worker = worker, kills: asyncio.Event = kills) -> None:
                if job.id == "job-2":
                    worker._parts.recovery.ended = dead_tells_nothing  # type: ignore[method-assign]
                    kills.set()
                    await asyncio.Event().wait()
                await asyncio.sleep(0.05)
                ran.add(job.id)

            if life < of_worker.max_deliveries:
                await die(worker, kills)
                for lane in worker._lanes._of_topic.values():
                    for shard in lane._shards.values():
                        shard.is_held = False  # type: ignore[union-attr]  # its timers start nothing
        async with running(worker):
            await until(lambda: len(ran) + len(client.dead.list("t").jobs) == 6)
        assert ran == {"job-0", "job-1", "job-3", "job-4", "job-5"}
        assert [(dead.id, dead.reason) for dead in client.dead.list("t").jobs] == [("job-2", Reason.DELIVERIES)]
