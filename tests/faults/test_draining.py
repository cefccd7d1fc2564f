"""Former numbers of shards are forgotten once nothing is left that they placed, and never before."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.faults.stages import Meanwhile
from tests.records import RECORD
from tests.running import age, collecting, running
from tests.transports import AsyncWith, Refusing
from tests.waiting import until
from wheelq import AsyncClient, CancelOutcome, Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.base.clock import ManualClock
from wheelq.model.topic import Topic, TopicChanges, shaping_of, shard_of
from wheelq.protocol.call import Call
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.draining import Draining
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import SchedulerSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport

HOUR_MS = 3_600_000


@pytest.fixture
def settings(prefix: str) -> Settings:
    quick = SchedulerSettings(heartbeat_ms=100)
    return Settings(prefix=prefix, scheduler=quick, worker=WorkerSettings(block_ms=100))


@pytest.fixture
def clearing(transport: AsyncTransport, settings: Settings, topic: str, clock: ManualClock) -> Draining:
    return Draining(NodeParts(transport, Keys(settings.prefix), clock), lambda: [topic])


async def clear_with(transport: AsyncTransport, settings: Settings, *topics: str) -> None:
    """One look at these topics, over a way of its own."""
    await Draining(NodeParts(transport, Keys(settings.prefix), ManualClock()), lambda: topics).step()
    await transport.close()


def standing(client: Client, topic: str) -> Topic:
    return next(info.settings for info in client.topics() if info.name == topic)


def placed(shard: int, shards: int, *, then: int, of: int) -> str:
    """A key that belongs in `shard` of `shards`, and in shard `then` of `of`."""
    return next(k for k in map(str, range(10_000)) if shard_of(k, shards) == shard and shard_of(k, of) == then)


# With schedulers and a worker


async def test_raising_and_lowering_shards_loses_nothing_and_forgets_former_numbers(
    url: str, settings: Settings, topic: str
) -> None:
    """1 → 4 → 3 shards with waiting jobs, and producers that know the previous number; shard 0 is never empty."""
    runs: Counter[str] = Counter()
    nodes = [Scheduler.connect(url, settings) for _ in range(2)]
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, retry=Retry(max_attempts=3, base=0.01))
    async def run(job: Job) -> None:
        if job.payload == "fails once" and job.attempt == 1:
            raise ValueError("once")
        runs[job.id] += 1

    async with running(*nodes, worker):
        with Client.connect(url, settings) as client:
            wanted: dict[str, str | None] = {}

            async def schedule(by: Client, delay: float, count: int = 40) -> None:
                name = secrets.token_hex(3)
                specs = [
                    JobSpec(
                        "fails once" if n % 9 == 0 else n,
                        delay + n / 100,
                        key=f"{name}-{n}",
                        partition_key=f"p{n % 7}" if n % 3 == 0 else None,
                    )
                    for n in range(count)
                ]
                receipts = await asyncio.to_thread(by.schedule_many, topic, specs)
                assert all(receipt.created for receipt in receipts)
                wanted.update((receipt.id, spec.partition_key) for receipt, spec in zip(receipts, specs, strict=True))

            client.schedule(topic, delay=3600, key=placed(0, 4, then=0, of=3))
            await schedule(client, 0.5)
            for shards in (4, 3):
                with Client.connect(url, settings) as stale:
                    await schedule(stale, 0.5, count=5)
                    await asyncio.to_thread(client.set_shards, topic, shards)
                    await schedule(client, 0.3)
                    age(url, settings.prefix)
                    await until(lambda: not standing(client, topic).draining)
                    lost = [id for id, key in wanted.items() if not client.get(topic, id, partition_key=key)]
                    assert set(runs) >= set(lost), "what has not run is found"
                    before = await asyncio.to_thread(lambda: standing(client, topic))
                    assert (before.shards, before.all_shards, before.drained_by_ms) == (shards, shards, 0)
                    await schedule(stale, 0.1)
            await until(lambda: set(runs) == set(wanted))
            await asyncio.sleep(0.2)
            assert set(runs.values()) == {1}


# What stands in the way


async def test_a_worker_leaves_the_shards_that_its_topic_has_given_up(
    url: str, raw: redis.Redis, settings: Settings, client: Client, topic: str
) -> None:
    """It held them for ever, and so seemed to have its share. When the topic takes them back, it holds them at once."""
    worker, ran = collecting(url, topic, settings, ordered=True)
    keys = Keys(settings.prefix)

    def held() -> list[int]:
        return [n for n in range(3) if raw.hget(keys.shard(topic, n).order("default"), "owner")]

    client.configure(topic)
    client.set_shards(topic, 3)
    async with running(Scheduler.connect(url, settings), worker):
        await until(lambda: held() == [0, 1, 2])
        client.set_shards(topic, 1)
        age(url, settings.prefix)
        await until(lambda: held() == [0])
        client.set_shards(topic, 3)
        ids = client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(20)])
        await until(lambda: sorted(ran) == sorted(one.id for one in ids))
        assert held() == [0, 1, 2]


async def test_a_worker_keeps_a_shard_with_jobs_whose_number_a_fail_over_has_lost(
    url: str, raw: redis.Redis, settings: Settings, client: Client, topic: str
) -> None:
    """It finishes the job that runs there, and leaves the shard when that is empty."""
    keys, may_end = Keys(settings.prefix), asyncio.Event()
    worker = Worker.connect(url, settings=settings)
    begun = list[str]()

    @worker.handler(topic)
    async def wait(job: Job) -> None:
        begun.append(job.id)
        await may_end.wait()

    client.configure(topic)
    before = raw.hgetall(keys.topics)
    client.set_shards(topic, 2)
    async with running(worker):
        async with running(Scheduler.connect(url, settings)):
            client.schedule(topic, delay=0, key=(id := placed(1, 2, then=0, of=1)))
            await until(lambda: begun == [id])
        raw.hset(keys.topics, mapping={topic: before[topic.encode()], VERSION_FIELD: before[VERSION_FIELD.encode()]})
        await worker._shards.find()
        assert [shard.keys.shard for shard in worker._shards.shards] == [0, 1]
        age(url, settings.prefix)
        may_end.set()
        await until(lambda: not raw.xlen(keys.shard(topic, 1).ready))
        await worker._shards.find()
        assert [shard.keys.shard for shard in worker._shards.shards] == [0]


async def test_a_client_with_the_former_number_is_answered_with_the_terms_in_force(
    url: str, raw: redis.Redis, client: Client, clearing: Draining, settings: Settings, topic: str
) -> None:
    """After the number went up and after it went down, also by shards beyond it, which no node serves any more."""
    keys = [str(n) for n in range(200)]
    client.schedule(topic, delay=0, key="first")
    for shards in (4, 2):
        with Client.connect(url, settings) as stale:
            assert stale.schedule(topic, delay=60, key="known").id == "known"
            assert stale.cancel(topic, "known") is CancelOutcome.CANCELLED
            if shards == 4:
                remove(raw, settings, topic, "first")
            client.set_shards(topic, shards)
            await clearing.step()
            assert standing(client, topic).draining == ()
            receipts = stale.schedule_many(topic, [JobSpec(delay=60, key=key) for key in keys])
            assert all(receipt.created for receipt in receipts)
            again = client.schedule_many(topic, [JobSpec(delay=60, key=key) for key in keys])
            assert not any(receipt.created for receipt in again)
            for key in keys:
                client.cancel(topic, key)


async def test_a_client_of_an_abandoned_shard_learns_the_number_in_force_and_does_not_change_it(
    url: str, client: Client, settings: Settings, clearing: Draining, topic: str
) -> None:
    """That shard requires its former terms, which no client is about to publish."""
    client.schedule(topic, key="first", delay=3600)
    client.set_shards(topic, 3)
    with Client.connect(url, settings) as other:
        other.schedule(topic, key="knows", delay=3600)
        for id in ("first", "knows"):
            client.cancel(topic, id)
        client.set_shards(topic, 1)
        await clearing.step()
        assert not standing(client, topic).draining
        client.set_shards(topic, 2)
        assert other.schedule(topic, key=placed(2, 3, then=1, of=2), delay=3600).created
    assert standing(client, topic).shards == 2


def remove(raw: redis.Redis, settings: Settings, topic: str, id: str) -> None:
    """Take a promoted job away, as if its only group had finished it."""
    shard = Keys(settings.prefix).shard(topic, 0)
    raw.hdel(shard.jobs, id)
    raw.delete(shard.ready)


async def test_a_job_that_waits_where_it_was_placed_before(client: Client, clearing: Draining, topic: str) -> None:
    """Also if it is moved beyond the moment at which the last of them was due."""
    client.schedule(topic, delay=1, key="a", partition_key=placed(0, 1, then=3, of=4))
    stays = placed(0, 1, then=0, of=4)
    client.schedule(topic, delay=1, key=stays)
    client.set_shards(topic, 4)
    client.reschedule(topic, "a", delay=7200, partition_key=placed(0, 1, then=3, of=4))
    for _ in range(2):
        await clearing.step()
        assert standing(client, topic).draining == (1,)
    client.cancel(topic, "a", partition_key=placed(0, 1, then=3, of=4))
    await clearing.step()
    assert standing(client, topic).draining == ()
    assert client.get(topic, stays) is not None


@pytest.mark.parametrize("promoted", [False, True])
async def test_a_job_behind_the_new_number(
    url: str, raw: redis.Redis, client: Client, clearing: Draining, settings: Settings, topic: str, promoted: bool
) -> None:
    client.configure(topic)
    client.set_shards(topic, 4)
    await clearing.step()
    key = placed(3, 4, then=1, of=2)
    client.schedule(topic, delay=0 if promoted else 60, key=key)
    client.set_shards(topic, 2)
    await clearing.step()
    assert standing(client, topic).draining == (4,)
    shard = Keys(settings.prefix).shard(topic, 3)
    with Client.connect(url, settings) as other:
        if promoted:
            other.make_group(topic, "g")
            raw.hdel(shard.jobs, key)
            await clearing.step()
            assert standing(client, topic).draining == (4,), "its entry is kept"
            raw.xtrim(shard.ready, maxlen=0, approximate=False)
        else:
            other.cancel(topic, key)
    await clearing.step()
    assert standing(client, topic).draining == ()


async def test_a_promoted_job_that_nobody_has_finished(
    raw: redis.Redis, client: Client, clearing: Draining, settings: Settings, topic: str
) -> None:
    """The check uses its partition key, which is in its entry."""
    key = placed(0, 1, then=0, of=4)
    client.schedule(topic, delay=0, key=key, partition_key=placed(0, 1, then=2, of=4))
    client.set_shards(topic, 4)
    await clearing.step()
    assert standing(client, topic).draining == (1,)
    remove(raw, settings, topic, key)
    await clearing.step()
    assert standing(client, topic).draining == ()


async def test_dead_and_kept_jobs_are_found_after_a_change(
    url: str, client: Client, clearing: Draining, settings: Settings, topic: str, clock: ManualClock
) -> None:
    """Dead jobs are found by their id, and so are finished jobs as long as they are kept."""
    changes: TopicChanges = {"keep_done_ms": HOUR_MS}
    client.configure(topic, **changes)
    key = placed(0, 1, then=2, of=4)
    client.schedule(topic, "bad", delay=0, key=key)
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, retry=Retry(max_attempts=1))
    async def fail(job: Job) -> None:
        raise ValueError(job.id)

    async with running(worker):
        await until(lambda: len(client.dead.list(topic).jobs) == 1)
    client.set_shards(topic, 4)
    await clearing.step()
    assert standing(client, topic).draining == (1,)
    client.dead.purge(topic, all=True)
    for _ in range(2):
        await clearing.step()
        assert standing(client, topic).draining == (1,)
    client.set_shards(topic, 8)
    for _ in range(2):
        clock.advance(HOUR_MS / 1000 - 1)
        await clearing.step()
        assert standing(client, topic).draining == (4, 1), "since that change no hour has passed"
    clock.advance(1)
    await clearing.step()
    clock.advance(HOUR_MS / 1000)
    await clearing.step()
    assert standing(client, topic).draining == ()


async def test_a_shard_that_does_not_name_the_terms(
    raw: redis.Redis, client: Client, clearing: Draining, settings: Settings, topic: str
) -> None:
    """A failover lost them: a client may still place jobs by a former number. Another change of the topic helps."""
    client.configure(topic)
    client.set_shards(topic, 4)
    raw.delete(Keys(settings.prefix).shard(topic, 0).shards)
    await clearing.step()
    assert standing(client, topic).draining == (1,)
    client.set_shards(topic, 4)
    await clearing.step()
    assert standing(client, topic).draining == ()


async def test_a_topic_that_cannot_be_looked_at_does_not_hold_up_the_others(
    url: str, client: Client, settings: Settings, topic: str
) -> None:
    for name in ("broken", topic):
        client.configure(name)
        client.set_shards(name, 4)
    await clear_with(AsyncWith(url, Refusing("HSCAN")), settings, "broken", topic)  # the first call alone
    assert (standing(client, "broken").draining, standing(client, topic).draining) == ((1,), ())


async def test_a_change_meanwhile_wins(url: str, client: Client, settings: Settings, topic: str) -> None:
    client.configure(topic)
    client.set_shards(topic, 4)
    await clear_with(AsyncWith(url, Meanwhile("put_topic", lambda: client.set_shards(topic, 5))), settings, topic)
    found = standing(client, topic)
    assert (found.shards, found.draining) == (5, (4, 1))


async def test_occurrences_of_recurring_jobs_do_not_stand_in_the_way(
    client: Client, clearing: Draining, topic: str
) -> None:
    """They all live in shard 0. A job whose id looks like one of them is a job like all others."""
    client.recurring.put(topic, "tick", every=60)
    client.schedule(topic, delay=60, key="tick@2030-01-01T00:00:00Z")
    client.schedule(topic, delay=60, key=(at := placed(0, 1, then=0, of=64)))
    client.set_shards(topic, 64)
    await clearing.step()
    assert (standing(client, topic).draining, bool(client.get(topic, at))) == ((), True)


@pytest.mark.parametrize("form", ["other@2030-01-01T00:00:{:02}Z", "{}~second"])
async def test_jobs_whose_ids_look_like_what_stays_in_place_stand_in_the_way(
    client: Client, clearing: Draining, topic: str, form: str
) -> None:
    """Else their ids would not be unique any more."""
    client.recurring.put(topic, "tick", every=60)
    ids = [form.format(n) for n in range(60)]
    moved = [id for id in ids if shard_of(id, 4) != 0]
    id = next(id for id in moved if "@" in id or shard_of(id.removesuffix("~second"), 4) == 0)
    client.schedule(topic, delay=60, key=id)
    client.set_shards(topic, 4)
    await clearing.step()
    assert standing(client, topic).draining == (1,)
    assert not client.schedule(topic, delay=60, key=id).created


async def test_a_cleared_topic_keeps_its_whole_rate_to_its_own_shards(
    client: Client, clearing: Draining, topic: str
) -> None:
    client.configure(topic, max_rate=100.0)
    for shards in (10, 2):
        client.set_shards(topic, shards)
    await clearing.step()
    shaping = shaping_of(standing(client, topic), 1)
    assert shaping is not None
    assert shaping.interval_us == 20_000


async def test_many_jobs_are_gone_through_whole(url: str, client: Client, clearing: Draining, topic: str) -> None:
    """There is more than one page, and the misplaced job is found wherever it is."""
    keys = [str(n) for n in range(40_000) if shard_of(str(n), 4) == 0][:3_000]
    bad = placed(0, 1, then=1, of=4)
    client.schedule_many(topic, [JobSpec(delay=3600, key=key) for key in [*keys, bad]])
    client.set_shards(topic, 4)
    await clearing.step()
    assert standing(client, topic).draining == (1,)
    client.cancel(topic, bad)
    await clearing.step()
    assert standing(client, topic).draining == ()
    async with AsyncClient.connect(url, Settings(prefix=clearing._keys.prefix)) as other:
        assert await other.get(topic, keys[-1]) is not None


class JustBefore(Meanwhile):
    """Something else happens just before each call of that name to one shard."""

    def __init__(self, name: str, shard: ShardKeys, what: Callable[[], object]) -> None:
        super().__init__(name, what, times=100)
        self._stem = shard.near.removesuffix("near")

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        return super().strike(call) if (call.key or "").startswith(self._stem) else [call]


@pytest.mark.parametrize(("shards", "then"), [(4, 2), (1, 0)])
@pytest.mark.parametrize("call", ["GET", "EXISTS", "XLEN", "HSCAN", "XRANGE", "HGET"])
async def test_a_dead_job_replayed_meanwhile_blocks_the_replay(
    url: str,
    raw: redis.Redis,
    client: Client,
    settings: Settings,
    topic: str,
    shards: int,
    then: int,
    call: str,
) -> None:
    """At any moment of the search: it was not yet among the live jobs, and is no longer among the dead ones."""
    former = 1 if shards == 4 else 4
    number = 0 if shards == 4 else 3
    client.configure(topic)
    client.set_shards(topic, former)
    await clear_with(AsyncTransport(Address(url)), settings, topic)
    assert standing(client, topic).draining == ()
    key = placed(number, former, then=then, of=shards)
    keys = Keys(settings.prefix).shard(topic, number)
    dead = {"id": key, "group": "g", "reason": "failed", "record": RECORD, "entry": ""}
    dead |= {"due": "1", "first_due": "1", "attempt": "1", "error": "", "traceback": ""}
    raw.xadd(keys.dead, dead)
    client.set_shards(topic, shards)
    await clear_with(
        AsyncWith(url, JustBefore(call, keys, lambda: client.dead.replay(topic, all=True))), settings, topic
    )
    assert standing(client, topic).draining == (former,)
