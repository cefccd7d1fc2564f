"""A fail-over loses a topic or its number of shards, and clients schedule on, because they trust what they know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from tests.faults.stages import Meanwhile
from tests.running import running
from tests.transports import BlockingWith, ReplyLost
from tests.waiting import until
from wheelq import Client, JobSpec, Scheduler, Settings
from wheelq.base.clock import ManualClock
from wheelq.model.topic import Topic
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.protocol.keys import Keys
from wheelq.scheduler.parts import NodeParts
from wheelq.scheduler.topics import WATCHED_S, LostTopics
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, AsyncTransport


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(prefix=prefix, scheduler=SchedulerSettings(heartbeat_ms=200))


async def test_jobs_that_were_scheduled_on_are_promoted(
    raw: redis.Redis, settings: Settings, scheduler: Scheduler, client: Client
) -> None:
    keys = Keys(settings.prefix)
    client.configure("orders", max_pending=1_000)
    client.set_shards("orders", 2)
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    raw.hdel(keys.topics, "orders")
    raw.hdel(keys.topics, VERSION_FIELD)
    client.schedule("others", delay=0.1)  # the nodes notice that the list is another
    await until(lambda: scheduler.promoted == 2)
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 3)
    [info] = [info for info in client.topics() if info.name == "orders"]
    assert (info.shards, info.settings.max_pending) == (2, 1_000), "it is listed as it was"


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_topic_that_no_node_has_known_comes_back_with_the_next_producer(
    raw: redis.Redis, url: str, settings: Settings, shards: int
) -> None:
    """All nodes are new, too. The shards still know their number, and so the producer learns it."""
    with Client.connect(url, settings) as client:
        client.configure("orders")
        client.set_shards("orders", shards)
        client.schedule_many("orders", [JobSpec(delay=0.1) for _ in range(20)])
    raw.delete(Keys(settings.prefix).topics)
    scheduler = Scheduler.connect(url, settings)
    async with running(scheduler):
        with Client.connect(url, settings) as client:  # as one whose memory of the topic is over
            client.schedule("orders", delay=0.1)
            await until(lambda: scheduler.promoted == 21)
            assert [info.shards for info in client.topics()] == [shards]


async def test_a_pause_of_which_only_a_shard_knows_ends(scheduler: Scheduler, client: Client) -> None:
    """The shard has read it before its node did, and then a failover has undone it."""
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    [shard] = scheduler._shards.values()
    shard.configure(replace(shard.topic, paused=True, version=shard.topic.version + 1))
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 2)


async def test_jobs_in_shards_whose_number_was_lost_are_promoted(
    raw: redis.Redis, settings: Settings, scheduler: Scheduler, client: Client
) -> None:
    """The change of the number of shards is lost, and a client that has made it schedules on by it."""
    keys = Keys(settings.prefix)
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    before = raw.hgetall(keys.topics)
    client.set_shards("orders", 4)
    client.schedule("others", delay=0.1)  # the nodes have read the list since
    await until(lambda: scheduler.promoted == 2)
    raw.hset(keys.topics, mapping={"orders": before[b"orders"], VERSION_FIELD: before[VERSION_FIELD.encode()]})
    for number in range(4):
        shard = keys.shard("orders", number)
        raw.delete(shard.shards, shard.fence)
    client.schedule_many("orders", [JobSpec(delay=0.1) for _ in range(40)])
    assert all(raw.exists(keys.shard("orders", number).delayed) for number in range(4))
    await until(lambda: scheduler.promoted == 42)
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 43)
    [info] = [info for info in client.topics() if info.name == "orders"]
    assert info.shards == 1, "the change was lost: it is not made again"


@pytest.mark.parametrize("many", [False, True])
def test_a_topic_is_registered_as_it_was_when_the_server_has_lost_everything(
    raw: redis.Redis, settings: Settings, many: bool, client: Client
) -> None:
    """No scheduler runs that could register it, and the client trusts what it knows."""
    client.schedule("orders", delay=60)
    client.set_shards("orders", 4)
    client.configure("orders", max_pending=1_000)
    _empty(raw, settings)
    if many:
        client.schedule_many("orders", [JobSpec(delay=60) for _ in range(40)])
    else:
        ids = [client.schedule("orders", delay=60).id for _ in range(40)]
        assert all(client.get("orders", id) for id in ids)
    [info] = client.topics()
    assert (info.shards, info.settings.max_pending, info.waiting) == (4, 1_000, 40)


@pytest.mark.parametrize("many", [False, True])
def test_jobs_are_found_that_were_placed_by_a_number_of_shards_that_the_server_has_lost(
    raw: redis.Redis, url: str, settings: Settings, many: bool, client: Client
) -> None:
    with Client.connect(url, settings) as other:
        client.schedule("orders", delay=60)
        client.set_shards("orders", 4)
        _empty(raw, settings)
        other.schedule("orders", delay=60)
        specs = [JobSpec(delay=60, key=f"job-{n}") for n in range(40)]
        if many:
            client.schedule_many("orders", specs)
        else:
            for n in range(40):
                client.schedule("orders", delay=60, key=f"job-{n}")
        [info] = client.topics()
        assert (info.shards, info.waiting) == (1, 41)
        assert all(client.get("orders", f"job-{n}") for n in range(40))


def test_a_topic_is_registered_again_before_a_call_whose_reply_was_lost_is_repeated(
    raw: redis.Redis, url: str, settings: Settings
) -> None:
    """The call was done on an empty server, so the repeated one finds its job there."""
    transport = BlockingWith(url, ReplyLost("schedule", after=1))
    with Client(transport, Keys(settings.prefix)) as client:
        client.schedule("orders", delay=60)
        _empty(raw, settings)
        client.schedule("orders", delay=60)
        assert [info.name for info in client.topics()] == ["orders"]


@pytest.mark.parametrize("many", [False, True])
def test_a_topic_is_registered_again_when_it_was_lost_just_after_its_registration(
    raw: redis.Redis, url: str, settings: Settings, many: bool
) -> None:
    transport = BlockingWith(url, Meanwhile("schedule", lambda: _empty(raw, settings)))
    with Client(transport, Keys(settings.prefix)) as client:
        if many:
            client.schedule_many("orders", [JobSpec(delay=60) for _ in range(40)])
        else:
            client.schedule("orders", delay=60)
        assert [(info.name, info.waiting) for info in client.topics()] == [("orders", 40 if many else 1)]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_topic_is_registered_again_when_it_was_lost_between_two_batches_of_one_call(
    raw: redis.Redis, url: str, settings: Settings, shards: int, client: Client
) -> None:
    client.configure("orders")
    client.set_shards("orders", shards)
    transport = BlockingWith(url, Meanwhile("schedule", lambda: _empty(raw, settings), after=shards))
    with Client(transport, Keys(settings.prefix)) as client:
        client.schedule_many("orders", [JobSpec(delay=60) for _ in range(shards * 1_200)])
        [info] = client.topics()
        assert (info.name, info.shards) == ("orders", shards)
        assert info.waiting > 500


def test_a_recurring_job_registers_a_topic_that_the_server_has_lost(
    raw: redis.Redis, settings: Settings, client: Client
) -> None:
    client.schedule("orders", delay=60)
    _empty(raw, settings)
    client.recurring.put("orders", "nightly", cron="0 3 * * *")
    assert [info.name for info in client.topics()] == ["orders"]


def test_the_settings_of_a_topic_that_the_server_has_lost_can_be_changed(
    raw: redis.Redis, settings: Settings, client: Client
) -> None:
    client.schedule("orders", delay=60)
    _empty(raw, settings)
    client.configure("orders", max_pending=7)
    assert [(info.name, info.settings.max_pending) for info in client.topics()] == [("orders", 7)]


def _empty(raw: redis.Redis, settings: Settings) -> None:
    """Delete everything of wheelq, as a restart without data does."""
    for key in raw.scan_iter(f"{settings.prefix}*"):
        raw.delete(key)


@pytest.mark.parametrize("topic", [Topic(), Topic(removing=True, paused=True)])
async def test_a_topic_without_jobs_or_one_that_is_removed_is_not_listed_again(
    raw: redis.Redis, url: str, settings: Settings, topic: Topic
) -> None:
    keys, clock, transport = Keys(settings.prefix), ManualClock(), AsyncTransport(Address(url))
    lost = LostTopics(NodeParts(transport, keys, clock))
    lost.note({"orders": topic}, {})
    await lost.restore()
    assert not raw.exists(keys.topics)
    if not topic.removing:
        clock.advance(WATCHED_S)
    raw.hset(keys.shard("orders", 0).jobs, "a", "1-1")
    await lost.restore()
    assert not raw.exists(keys.topics)
    await transport.close()
