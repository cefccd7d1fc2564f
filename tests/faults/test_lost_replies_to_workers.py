"""Workers whose replies get lost, whose requests arrive twice, whose server forgets: nothing is lost, nothing doubled.

Every operation is struck in turn: first those of the settler and of recovery, then each in a worker as a whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from loadtest.servers.proxy import Proxy
from tests.faults.stages import FAULTS, Bench, Look
from tests.running import collecting, running
from tests.transports import AsyncWith, BlockingWith, Fault, ReplyLost, Unreachable
from tests.waiting import PATIENCE, until
from wheelq import Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.model.dead import Reason
from wheelq.protocol.call import Call
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker.delivery import recovery
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.peers import Standing
from wheelq.worker.outcome import Again, Buried


@pytest.fixture
async def bench(url: str, topic: str) -> AsyncIterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(*faults: Fault) -> Bench:
        benches.append(Bench(url, topic, *faults))
        return benches[-1]

    yield make
    for one in benches:
        await one.close()


every_fault = pytest.mark.parametrize("fault", FAULTS)


@every_fault
async def test_acks_are_sent_until_they_are_answered(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("ack"))
    for delivery in at.deliver("a", "b", "c")[:2]:
        at.settler.done(delivery)
    await at.until_done(at.settler.flush)
    look = Look(raw, topic)
    assert (look.live(), look.pending("g"), struck.struck) == ({"c"}, 1, 1)
    assert [delivery.entry.id for delivery in at.held.of(at.shard).values()] == ["c"]


@every_fault
async def test_a_failed_job_waits_for_one_retry(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("retry"))
    [a] = at.deliver("a")
    await at.settler.settle(a, Again(60_000))
    look = Look(raw, topic)
    assert list(look.delayed()) == ["a\x1fg"]
    assert (look.live(), look.pending("g"), struck.struck) == ({"a", "a\x1fg"}, 0, 1)
    assert not at.held.of(at.shard)


@every_fault
async def test_a_job_that_is_given_up_is_buried_once(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("bury"))
    [a] = at.deliver("a")
    await at.settler.settle(a, Buried(Reason.FAILED, "it broke"))
    look = Look(raw, topic)
    assert (look.dead(), look.live(), look.pending("g"), struck.struck) == (["a"], set(), 0, 1)
    assert not at.held.of(at.shard)


async def give_its_entry_to(at: Bench, raw: redis.Redis, lost: Delivery, id: str, consumer: str) -> None:
    """The server has lost its latest writes, and another job gets the id of their entry: the clock was behind."""
    keys = at.shard.keys
    raw.delete(keys.ready, keys.jobs)
    at.deliver(id, consumer="before the loss")
    [(_, fields)] = raw.xrange(keys.ready)
    raw.delete(keys.ready)
    raw.xadd(keys.ready, fields, id=lost.entry.entry_id)
    at.plain.send(worker_calls.make_group(keys, "g"))
    [entry] = at.plain.send(worker_calls.read([keys], "g", consumer, 1, 1))[0]
    if consumer == "w1":
        at.held.add(Delivery(at.shard, entry, 0))
    for client in raw.client_list(_type="normal"):
        if client["id"] != str(raw.client_id()):
            raw.client_kill_filter(_id=client["id"])


@pytest.mark.parametrize("consumer", ["w1", "w2"])
@pytest.mark.parametrize("outcome", ["done", Again(60_000), Buried(Reason.FAILED, "no use")])
async def test_a_delivery_that_the_server_lost_does_not_settle_another_job_with_its_entry_id(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, outcome: Any, consumer: str
) -> None:
    at = bench()
    [a] = at.deliver("a")
    await at.recovery.keep(at.shard)  # connects
    await give_its_entry_to(at, raw, a, "b", consumer)
    a.safe_until_ms = 1 << 50
    if outcome == "done":
        at.settler.done(a)
        await at.until_done(at.settler.flush)
    else:
        await at.settler.settle(a, outcome)
    look = Look(raw, topic)
    assert (raw.xlen(at.shard.keys.ready), look.live(), look.pending("g"), look.dead()) == (1, {"b"}, 1, [])


@every_fault
async def test_renewing_goes_on_after_a_fault(bench: Callable[..., Bench], fault: type[Fault]) -> None:
    at = bench(struck := fault("keep"))
    at.deliver("a", "b")
    await at.until_done(partial(at.recovery.keep, at.shard))
    assert len(at.held.of(at.shard)) == 2
    assert struck.struck == 1


@every_fault
@pytest.mark.parametrize("call", ["holders", "take_over", "adopt"])
async def test_abandoned_deliveries_are_taken_over_after_a_fault(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """Two looks, far enough apart, find deliveries claimed by a call whose reply was lost."""
    at = bench(struck := fault(call))
    at.deliver("a", "b", consumer="dead")
    taken: dict[str, Delivery] = {}
    deadline = time.monotonic() + PATIENCE
    while len(taken) < 2:
        assert time.monotonic() < deadline
        await at.until_done(lambda: at.recovery.look([at.shard]))
        for delivery in await at.until_done(lambda: at.recovery.claim(at.shard, 10)):
            assert delivery.entry.id not in taken, "one delivery twice"
            taken[delivery.entry.id] = delivery
        await at.until_done(partial(at.recovery.keep, at.shard))
        await asyncio.sleep(0.005)
    assert struck.struck == 1
    for delivery in taken.values():
        at.settler.done(delivery)
    await at.until_done(at.settler.flush)
    look = Look(raw, topic)
    assert (look.live(), look.pending("g")) == (set(), 0)


async def test_after_as_many_own_deliveries_as_one_look_finds_the_others_are_looked_for_soon(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fail-over has lost that they were acknowledged; they were found as many at a time, `LOOK_EVERY` apart."""
    monkeypatch.setattr(recovery, "BATCH", 1)
    monkeypatch.setattr(recovery, "LOOK_EVERY", 3_600.0)
    at, started = bench(), list[str]()
    for delivery in at.deliver("a", "b", "c"):
        at.held.drop(delivery)

    @asynccontextmanager
    async def turn(shard: ServedShard) -> AsyncIterator[int]:
        yield 10

    def start(deliveries: Sequence[Delivery]) -> None:
        started.extend(delivery.entry.id for delivery in deliveries)

    task = asyncio.create_task(at.recovery.run(lambda: [at.shard], turn, start))
    await until(lambda: started == ["a", "b", "c"])
    task.cancel()


async def test_a_peer_that_turns_out_to_live_before_its_deliveries_are_claimed_keeps_them(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis
) -> None:
    """It was only frozen. A look finds what it holds; the claim comes later, when there is room."""
    at = bench()
    at.deliver("a", consumer="dead")
    await at.recovery.look([at.shard])
    at.peers.heard(time.monotonic(), {"dead": "8 g"})
    assert await at.recovery.claim(at.shard, 10) == []
    assert raw.xpending(at.shard.keys.ready, "g")["consumers"] == [{"name": b"dead", "pending": 1}]


async def test_a_peer_that_has_beaten_again_unheard_keeps_its_deliveries(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis
) -> None:
    """It was frozen, and reads again before the next look at all heartbeats."""
    at, peer = bench(), f"frozen-{topic}"
    at.deliver("a", consumer=peer)
    at.peers.heard(time.monotonic(), {peer: "left g"})
    raw.hset(Keys().beats, peer, "8 g")
    await at.recovery.look([at.shard])
    assert await at.recovery.claim(at.shard, 10) == []
    raw.hset(Keys().beats, peer, "left g")
    await at.recovery.look([at.shard])
    assert [delivery.entry.id for delivery in await at.recovery.claim(at.shard, 10)] == ["a"]


async def test_deliveries_are_taken_over_while_no_heartbeat_can_be_read(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis
) -> None:
    """In a cluster another node may hold the heartbeats, and be away."""
    at = bench(away := Unreachable("HGETALL", times=1))
    at.deliver("a", consumer="dead")
    await at.recovery.look([at.shard])
    assert [delivery.entry.id for delivery in await at.recovery.claim(at.shard, 10)] == ["a"]
    assert away.struck == 1


# A scheduler and a worker, whole


OF_WORKERS = ("XREADGROUP", "ack", "retry", "bury", "keep", "holders", "take_over", "adopt", "HSET")
LOOKS = ("HGET", "HMGET")
OF_SCHEDULERS = ("promote", "sweep")


@pytest.mark.parametrize("call", [*OF_WORKERS, *LOOKS, *OF_SCHEDULERS])
async def test_every_job_ends_although_a_call_of_each_kind_loses_its_reply(
    url: str, topic: str, prefix: str, raw: redis.Redis, call: str
) -> None:
    """Jobs that succeed, one that fails at first, one that always fails, one left by a dead worker, and a slow one."""
    settings = WorkerSettings(renew_ms=60, abandoned_ms=150, block_ms=300, grace_ms=3_000)
    keys = Keys(prefix)
    scheduler = Scheduler(AsyncWith(url, ReplyLost(call, after=2)), keys)
    worker = Worker(AsyncWith(url, ReplyLost(call, after=1)), "g", keys, settings)
    done: dict[str, int] = {}
    expected = {*(f"fine-{n}" for n in range(10)), "fails-once", "slow", "left"}

    @worker.handler(topic, retry=Retry(max_attempts=2, base=0))
    async def handle(job: Job) -> None:
        if job.id == "fails-always" or (job.id == "fails-once" and job.attempt == 1):
            raise RuntimeError(job.id)
        if job.id == "slow":
            await asyncio.sleep(0.4)
        done[job.id] = done.get(job.id, 0) + 1

    client = Client(BlockingWith(url), keys)
    client.schedule(topic, 0, delay=0, key="left")
    shard = keys.shard(topic, 0)
    plain = Transport(Address(url))
    plain.send(worker_calls.make_group(shard, "g"))
    assert plain.send(worker_calls.read([shard], "g", "dead", 10, 1))[0]
    client.schedule_many(topic, [JobSpec(n, delay=0.02 * n, key=f"fine-{n}") for n in range(10)])
    for id in ("fails-once", "fails-always", "slow"):
        client.schedule(topic, 0, delay=0.05, key=id)

    look = Look(raw, topic, prefix=prefix)
    async with asyncio.timeout(PATIENCE), running(scheduler, worker):
        await until(lambda: expected <= done.keys() and not look.live())
    assert done.keys() == expected
    assert (look.dead(), look.delayed(), look.pending("g")) == (["fails-always"], {}, 0)
    assert [id for id, runs in done.items() if runs > 1] == []
    client.close()
    plain.close()


async def test_a_delivery_whose_reply_was_lost_is_looked_for_at_once(
    url: str, topic: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only when the worker looks anyway, here after an hour."""
    monkeypatch.setattr("wheelq.worker.delivery.recovery.LOOK_EVERY", 3_600.0)
    settings = WorkerSettings(renew_ms=60, abandoned_ms=150, block_ms=20_000)
    lost = ReplyLost("XREADGROUP", times=0)
    worker, ran = Worker(AsyncWith(url, lost), "g", Keys(prefix), settings), list[str]()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        ran.append(job.id)

    with Client(BlockingWith(url), Keys(prefix)) as client:
        client.schedule(topic, delay=3_600)
        async with running(worker):
            await until(lambda: lost.met == 1 and worker._parts.recovery._look_at > time.monotonic() + 3_000)
            lost._after, lost._times = 1, 1
            client.schedule(topic, delay=0, key="ends the first read")
            await until(lambda: lost.struck == 1)
            client.schedule(topic, delay=0, key="in the lost reply")
            await until(lambda: ran == ["ends the first read", "in the lost reply"])


async def test_a_delivery_whose_reply_was_cut_starts_as_soon_as_the_worker_is_connected_again(
    url: str, topic: str, prefix: str, raw: redis.Redis
) -> None:
    """And not only when it counts as abandoned, here after hours."""
    settings = WorkerSettings(renew_ms=3_600_000, abandoned_ms=7_200_000, block_ms=20_000)
    look, ran = Look(raw, topic, prefix=prefix), list[str]()
    with Client(BlockingWith(url), Keys(prefix)) as client, Proxy(url) as proxy:
        worker = Worker(AsyncTransport(Address(proxy.url("worker"))), "g", Keys(prefix), settings)
        worker.handler(topic)(lambda job: ran.append(job.id))
        client.schedule(topic, delay=0, key="before")
        async with running(worker):
            await until(lambda: ran == ["before"] and look.pending("g") == 0)
            proxy.swallow(True, "worker")
            client.schedule(topic, delay=0, key="in the cut reply")
            await until(lambda: look.pending("g") == 1)
            proxy.swallow(False, "worker")
            await until(lambda: ran == ["before", "in the cut reply"])


async def test_a_job_that_goes_to_the_waiting_read_of_a_dead_worker_is_taken_over_soon(
    url: str, topic: str, prefix: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is cut off from its server, or frozen: its read waits there after it was found dead."""
    monkeypatch.setattr(recovery, "LOOK_EVERY", 3_600.0)
    settings = WorkerSettings(renew_ms=100, abandoned_ms=500, block_ms=20_000)
    look, ran, keys = Look(raw, topic, prefix=prefix), list[str](), Keys(prefix)
    with Client(BlockingWith(url), keys) as client, Proxy(url) as proxy:
        dead = Worker(AsyncTransport(Address(proxy.url("worker"))), "g", keys, settings)
        living = Worker(AsyncTransport(Address(url)), "g", keys, settings)
        for worker in (dead, living):
            worker.handler(topic)(lambda job: ran.append(job.id))
        client.schedule(topic, delay=3_600)
        async with running(dead):
            client.schedule(topic, delay=0, key="first")
            await until(lambda: ran == ["first"])
            await until(lambda: any("xreadgroup" in one["cmd"] for one in raw.client_list()))
            async with running(living):
                proxy.swallow(True, "worker")
                await until(lambda: living._parts.peers.standing(dead.name) is Standing.GONE)
                await until(lambda: living._parts.recovery._look_at > living._parts.clock.monotonic() + 10)
                client.schedule(topic, delay=0, key="to the dead one")
                assert look.pending("g") == 1, "its read was the first"
                await until(lambda: ran == ["first", "to the dead one"])
                proxy.swallow(False, "worker")


@pytest.mark.long
async def test_a_read_that_the_server_did_only_after_its_connection_was_cut_is_found_too(
    url: str, topic: str, prefix: str
) -> None:
    """The first look for its deliveries finds none."""

    class DoneAfterwards(Fault):
        def calls(self, call: Call[Any]) -> list[Call[Any]]:
            return super().calls(call) if lost.struck else [call]

        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            def read(reply: object) -> object:
                client.schedule(topic, delay=0, key="late")
                assert plain.send(worker_calls.read([keys], "g", worker.name, 10, None))[0]
                return call.read(reply)

            return [replace(call, read=read)]

    settings = WorkerSettings(renew_ms=3_600_000, abandoned_ms=7_200_000, block_ms=20_000)
    keys, ran, lost, late = (
        Keys(prefix).shard(topic, 0),
        list[str](),
        ReplyLost("XREADGROUP"),
        DoneAfterwards("holders", after=1),
    )
    worker = Worker(AsyncWith(url, lost, late), "g", Keys(prefix), settings)
    worker.handler(topic)(lambda job: ran.append(job.id))
    with Client(BlockingWith(url), Keys(prefix)) as client, closing(Transport(Address(url))) as plain:
        client.schedule(topic, delay=0, key="in the lost reply")
        async with running(worker):
            await until(lambda: sorted(ran) == ["in the lost reply", "late"])


@pytest.mark.parametrize(
    "fields", [{"hello": "world"}, {"id": "x", "due": "soon", "attempt": "1", "record": "r"}], ids=str
)
async def test_an_entry_that_is_no_job_is_buried_and_holds_nothing_up(
    url: str, topic: str, prefix: str, raw: redis.Redis, client: Client, fields: dict[str, str]
) -> None:
    """Somebody added to the stream by hand."""
    settings = Settings(prefix=prefix, worker=WorkerSettings(block_ms=200))
    worker, ran = collecting(url, topic, settings, "g")
    client.schedule(topic, 0, delay=3600)
    raw.xadd(Keys(prefix).shard(topic, 0).ready, dict(fields))  # type: ignore[arg-type]
    look = Look(raw, topic, prefix=prefix)
    async with running(worker):
        client.schedule(topic, 1, delay=0, key="good")
        await until(lambda: ran == ["good"] and len(look.dead()) == 1 and look.pending("g") == 0)
