"""Dead workers are found soon and living ones are left alone, whatever the server's clock and pending lists say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from loadtest.servers.hosts import SteppedClock
from tests.records import RECORD
from tests.running import collecting, running
from tests.transports import AsyncWith, Refusing
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Job, JobSpec, Scheduler, Settings, Worker
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ConfigurationError
from wheelq.following.carrier import Carrier
from wheelq.protocol.call import command
from wheelq.protocol.calls import heartbeats, leader, producer, registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.client import ServerClient
from wheelq.server.leases import Leases
from wheelq.settings import SchedulerSettings, ServerSettings, TopicSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport

HOUR = 3_600.0
WATCHFUL = Settings(worker=WorkerSettings(renew_ms=200, abandoned_ms=800))
QUICK = Settings(
    worker=WorkerSettings(renew_ms=200, abandoned_ms=800, grace_ms=500),
    scheduler=SchedulerSettings(lease_ms=2_000, lease_margin_ms=200, heartbeat_ms=500),
)


@asynccontextmanager
async def beating(transport: AsyncTransport, worker: str) -> AsyncIterator[None]:
    """Another worker of the group "g", of which nothing is there but its heartbeat."""

    async def beat() -> None:
        number = 0
        while True:
            number += 1
            await transport.send(heartbeats.beat_worker(Keys(), worker, f"{number} g"))
            await asyncio.sleep(0.2)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def deliver(transport: AsyncTransport, keys: ShardKeys, consumer: str, *ids: str) -> None:
    """Let jobs be due, and given to a consumer of the group "g"."""
    await transport.send(calls.make_group(keys, "g"))
    for first in range(0, len(ids), 500):
        part = ids[first : first + 500]
        await transport.send(producer.schedule(keys, [(id, "+0", RECORD) for id in part], "keep", "1"))
        [found] = await transport.send(calls.read([keys], "g", consumer, len(part), None))
        assert len(found) == len(part)


async def test_a_dead_workers_jobs_do_not_hide_behind_those_of_living_ones(
    url: str, topic: str, raw: redis.Redis, transport: AsyncTransport
) -> None:
    """10,000 of a worker that lives stand before them; they were not renewed for long, and are left alone."""
    keys = Keys().shard(topic, 0)
    await transport.send(registry.register_topic(Keys(), topic, Settings().topic))
    await deliver(transport, keys, f"living-{topic}", *(f"living-{n}" for n in range(10_000)))
    await deliver(transport, keys, f"dead-{topic}", *(f"dead-{n}" for n in range(20)))
    await transport.send(heartbeats.beat_worker(Keys(), f"dead-{topic}", "1 g"))
    few_at_a_time = Settings(worker=replace(WATCHFUL.worker, concurrency=5))
    worker, ran = collecting(url, topic, few_at_a_time, "g")
    async with beating(transport, f"living-{topic}"), running(worker):
        await until(lambda: len(ran) >= 20)
        await asyncio.sleep(1.0)
        assert sorted(ran) == sorted(f"dead-{n}" for n in range(20))
        assert raw.xpending(keys.ready, "g")["pending"] == 10_000


async def test_deliveries_that_a_consumer_without_a_heartbeat_does_not_renew_are_taken_over(
    url: str, topic: str, transport: AsyncTransport
) -> None:
    """In another language; found by a look every 45 seconds at most, here by one after 2 seconds."""
    await transport.send(registry.register_topic(Keys(), topic, Settings().topic))
    await deliver(transport, Keys().shard(topic, 0), "in Node", "a")
    worker, ran = collecting(url, topic, WATCHFUL, "g")
    async with running(worker):
        await until(lambda: ran == ["a"])


async def test_a_worker_that_left_before_it_could_finish_is_succeeded_at_once(
    url: str, topic: str, transport: AsyncTransport
) -> None:
    """A worker that only stopped beating would be waited for, here an hour."""
    settings = Settings(worker=WorkerSettings(renew_ms=200, abandoned_ms=3_600_000, grace_ms=10))
    leaving, began = Worker.connect(url, group="g", settings=settings), asyncio.Event()
    staying, ran = collecting(url, topic, settings, "g")

    @leaving.handler(topic)
    async def hang(job: Job) -> None:
        began.set()
        await asyncio.Event().wait()

    await transport.send(registry.register_topic(Keys(), topic, Settings().topic))
    keys = Keys().shard(topic, 0)
    async with running(leaving):
        await transport.send(calls.make_group(keys, "g"))
        await transport.send(producer.schedule(keys, [("a", "+0", RECORD)], "keep", "1"))
        await began.wait()
        async with running(staying):
            await asyncio.sleep(1.0)
            assert ran == []
            leaving.stop()
            await until(lambda: ran == ["a"])


async def test_a_worker_that_could_not_hand_back_says_so_although_its_last_shard_was_empty(
    url: str, topic: str, raw: redis.Redis, transport: AsyncTransport
) -> None:
    """Else its deliveries would belong to a worker of which nobody knows anything."""
    refused = Refusing("hand_back")
    worker, began = Worker(AsyncWith(url, refused), "g", settings=WorkerSettings(grace_ms=10)), asyncio.Event()

    @worker.handler(topic)
    async def hang(job: Job) -> None:
        began.set()
        await asyncio.Event().wait()

    await transport.send(registry.register_topic(Keys(), topic, TopicSettings(shards=2)))
    keys = Keys().shard(topic, 0)
    await transport.send(producer.schedule(keys, [("a", "+0", RECORD)], "keep", "2"))
    async with running(worker):
        await began.wait()
    assert refused.struck == 1
    assert raw.hget(Keys().beats, worker.name) == b"left g"


async def test_a_full_server_keeps_no_heartbeat_from_being_written_and_no_topic_from_being_followed(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    """A topic is resumed on it: the worker sees that and goes on."""
    server = private_server(appendonly=False)
    worker, ran = collecting(server.url, topic, WATCHFUL, "g")
    scheduler = Scheduler.connect(server.url)
    async with AsyncClient.connect(server.url) as client, running(scheduler, worker):
        await client.schedule(topic, key="first", delay=0)
        await until(lambda: ran == ["first"])
        await client.pause(topic)
        await client.schedule(topic, key="second", delay=0.1)
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("maxmemory", "100kb")
            before = raw.hget(Keys().beats, worker.name)
            await until(lambda: raw.hget(Keys().beats, worker.name) != before)
            raw.config_set("maxmemory", 0)
            await client.resume(topic)
            raw.config_set("maxmemory", "100kb")
            await until(lambda: ran == ["first", "second"])


async def test_a_worker_that_starts_is_seen_at_once_by_one_that_was_alone_and_by_which_it_is_seen(
    url: str, topic: str
) -> None:
    """Else a job that it takes and leaves would be found later than within five seconds."""
    seldom = Settings(worker=WorkerSettings(renew_ms=600_000, abandoned_ms=1_200_000))
    (alone, _), (newcomer, _) = (collecting(url, topic, seldom, f"g-{topic}") for _ in range(2))
    async with running(alone):
        await until(lambda: alone._hints.is_listening and alone._parts.peers._has_heard)
        async with running(newcomer):
            await until(lambda: newcomer.name in alone._parts.peers._beats)
            assert alone.name in newcomer._parts.peers._beats


async def test_a_worker_that_holds_nothing_beats_with_two_commands_and_asks_the_time_now_and_then(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    """It runs no script, which the server counts with all that it calls."""
    server = private_server(appendonly=False)
    worker, _ = collecting(server.url, topic, WATCHFUL, "g")
    with redis.Redis.from_url(server.url) as raw:
        async with running(worker):
            await until(lambda: raw.hexists(Keys().beats, worker.name))
            before = raw.hget(Keys().beats, worker.name)
            with raw.monitor() as monitor:
                words: list[str] = []
                async with asyncio.timeout(PATIENCE):
                    while "HSET HGETALL HSET HGETALL" not in " ".join(words) or "TIME" not in words:
                        seen = await asyncio.to_thread(monitor.next_command)
                        words.append(seen["command"].partition(" ")[0])
                assert "EVALSHA" not in words
            assert raw.hget(Keys().beats, worker.name) != before


# The server's clock is stepped


class Stepping:
    """A server whose clock can be stepped, with QUICK settings."""

    def __init__(self, url: str, clock: SteppedClock) -> None:
        self.url = url
        self._clock = clock
        self.transport = AsyncTransport(Address(url))

    async def step(self, seconds: float) -> None:
        """Set it so far ahead of this machine's, and wait until the server has seen it."""
        self._clock.step(seconds)

        async def is_off() -> bool:
            ahead = await self.transport.send(server_time_us()) / 1e6 - time.time()
            return abs(ahead - seconds) < 5.0

        await until(is_off)

    def worker(
        self, topic: str, *, ordered: bool = False, hold: asyncio.Event | None = None
    ) -> tuple[Worker, list[str]]:
        worker, ran = Worker.connect(self.url, group="g", settings=QUICK), list[str]()

        @worker.handler(topic, ordered=ordered)
        async def handle(job: Job) -> None:
            ran.append(job.id)
            if hold is not None:
                await hold.wait()

        return worker, ran


MISFITS: set[Path] = set()
"""Servers that do not start under libfaketime. Finding that out takes half a minute."""


@pytest.fixture
async def stepping(
    private_server: Callable[..., EmbeddedServer], server_binary: Path, tmp_path: Path
) -> AsyncIterator[Stepping]:
    if server_binary in MISFITS:
        pytest.skip("libfaketime does not get on with this server's allocator")
    clock = SteppedClock.under(server_binary, tmp_path)
    if clock is None:
        pytest.skip("libfaketime is not installed (Debian: apt install libfaketime)")
    try:
        server = private_server(binary=clock.binary, appendonly=False)
    except ConfigurationError as error:
        if "libfaketime" not in str(error):
            raise
        MISFITS.add(server_binary)
        pytest.skip("libfaketime does not get on with this server's allocator")
    found = Stepping(server.url, clock)
    yield found
    await found.transport.close()


@asynccontextmanager
async def frozen(part: Worker | Scheduler) -> AsyncIterator[None]:
    """Run it, and at the end let it die as a process that is killed: nothing is handed back, nothing given up."""
    task = asyncio.create_task(part.run())
    yield
    part._transport.send = _never  # type: ignore[method-assign]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _never(call: object) -> object:
    raise asyncio.CancelledError


@pytest.mark.parametrize("ordered", [False, True])
async def test_after_a_step_back_a_dead_workers_jobs_run_again_soon(
    stepping: Stepping, topic: str, ordered: bool
) -> None:
    """By the server's clock they were delivered in an hour, and the ordered shard is held until then."""
    dead, began = stepping.worker(topic, ordered=ordered, hold=asyncio.Event())
    living, ran = stepping.worker(topic, ordered=ordered)
    async with AsyncClient.connect(stepping.url) as client, running(Scheduler.connect(stepping.url, QUICK)):
        async with frozen(dead):
            await client.schedule(topic, key="a", delay=0)
            await until(lambda: began == ["a"])
        await stepping.step(-HOUR)
        async with running(living):
            await until(lambda: ran == ["a"], within=40.0)


async def test_after_a_step_forwards_no_living_workers_job_runs_twice(stepping: Stepping, topic: str) -> None:
    may_end = asyncio.Event()
    first, begun = stepping.worker(topic, hold=may_end)
    others = [stepping.worker(topic) for _ in range(2)]
    async with AsyncClient.connect(stepping.url) as client, running(Scheduler.connect(stepping.url, QUICK), first):
        await client.schedule(topic, key="a", delay=0)
        await until(lambda: begun == ["a"])
        async with running(*(worker for worker, _ in others)):
            await until(lambda: all(first.name in worker._parts.peers._beats for worker, _ in others))
            for step in (10.0, 20.0, 30.0, HOUR):
                await stepping.step(step)
                await asyncio.sleep(0.5)
            assert [ran for _, ran in others] == [[], []]
            may_end.set()
    assert begun == ["a"]


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_jobs_that_wait_run_by_the_new_time(stepping: Stepping, topic: str, step: float) -> None:
    """Nodes rest until the next job, and would sleep until their own clock says that it is time."""
    worker, ran = stepping.worker(topic)
    nodes = [Scheduler.connect(stepping.url, QUICK) for _ in range(2)]
    async with AsyncClient.connect(stepping.url) as client, running(*nodes, worker):
        await client.schedule(topic, key="soon", delay=0.5)
        await until(lambda: ran == ["soon"])
        await client.schedule(topic, key="later", delay=HOUR / 2)
        await asyncio.sleep(1.0)
        await stepping.step(step)
        if step > 0:
            await until(lambda: ran == ["soon", "later"], within=40.0)
        await client.schedule(topic, key="new", delay=1.0)
        await until(lambda: "new" in ran, within=40.0)
        assert ran.count("later") == (step > 0)
        assert len(set(ran)) == len(ran)


async def test_after_a_step_back_a_lease_that_nobody_prolongs_is_taken_over(stepping: Stepping, topic: str) -> None:
    """Its holder's connection cannot be seen to be closed, as of a machine that lost its power."""
    keys = Keys().shard(topic, 0)
    await stepping.transport.send(registry.register_topic(Keys(), topic, Settings().topic))
    granted = await stepping.transport.send(leader.acquire(keys, "gone", "elsewhere:1", 2_000, "1"))
    assert granted.is_ours
    await stepping.step(-HOUR)
    left = command("PTTL", keys.lease, read=int, key=keys.lease)
    assert await stepping.transport.send(left) > 1_000_000
    worker, ran = stepping.worker(topic)
    nodes = [Scheduler.connect(stepping.url, QUICK) for _ in range(2)]
    async with AsyncClient.connect(stepping.url) as client, running(*nodes, worker):
        await client.schedule(topic, key="a", delay=0.2)
        await until(lambda: ran == ["a"], within=40.0)

        async def is_taken_over() -> bool:
            return (await stepping.transport.send(leader.look(keys))).token != granted.token

        await until(is_taken_over, within=40.0)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_nodes_do_not_take_each_other_for_dead_when_the_clock_is_stepped(
    stepping: Stepping, topic: str, step: float
) -> None:
    nodes = [Scheduler.connect(stepping.url, QUICK) for _ in range(2)]
    version = heartbeats.assignment_version(Keys())

    async def is_shared() -> bool:
        posts = await stepping.transport.send(heartbeats.assignment(Keys()))
        return {node for post in posts.values() for node in post} == {node.node for node in nodes}

    async with AsyncClient.connect(stepping.url) as client, running(*nodes):
        await client.schedule(topic, delay=HOUR)
        await until(is_shared)
        before = await stepping.transport.send(version)
        await stepping.step(step)
        await asyncio.sleep(4.0)  # eight heartbeats
        assert await stepping.transport.send(version) == before
        assert await is_shared()


@asynccontextmanager
async def leasing(url: str) -> AsyncIterator[Leases]:
    """What leases jobs in one HTTP server."""
    transport = AsyncTransport(Address(url))
    client = ServerClient(transport, Keys())
    leases = Leases(client, transport, Keys(), SystemClock(), ServerSettings(), Carrier(transport))
    running = asyncio.create_task(leases.run())
    try:
        yield leases
    finally:
        running.cancel()
        await leases.close()
        await transport.close()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_an_http_lease_lasts_its_whole_time_with_any_clock(stepping: Stepping, topic: str, step: float) -> None:
    """And no longer: a server that has leased nothing before agrees with one that has."""
    async with (
        AsyncClient.connect(stepping.url) as client,
        leasing(stepping.url) as first,
        leasing(stepping.url) as second,
    ):
        await client.schedule_many(topic, [JobSpec(key=key, delay=0) for key in ("long", "short")])
        leased = await first.lease(topic, "g", 2, 1_800_000)
        long, short = sorted(leased, key=lambda item: item.entry.id)
        before = asyncio.get_running_loop().time()
        assert await first.extend(topic, "g", [short.handle], 12_000) == [True]
        await stepping.step(step)
        assert await first.lease(topic, "g", 10, 60_000) == []
        assert await second.lease(topic, "g", 10, 60_000) == []
        found = await second.lease(topic, "g", 10, 60_000, wait_s=PATIENCE)
        assert asyncio.get_running_loop().time() - before >= 12.0
        assert [(item.entry.id, item.entry.deliveries) for item in found] == [(short.entry.id, 2)]
        assert await second.ack(topic, "g", [long.handle]) == [True]
