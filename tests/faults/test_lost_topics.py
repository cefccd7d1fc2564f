"""A fail-over loses a topic or its number of shards, and clients schedule on, because they trust what they know."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tests.waiting import until
from wheelq import Client, JobSpec, Scheduler, Settings
from wheelq.base.clock import ManualClock
from wheelq.model.topic import Topic
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.protocol.keys import Keys
from wheelq.scheduler.topics import WATCHED_S, LostTopics
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, AsyncTransport


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(prefix=prefix, scheduler=SchedulerSettings(heartbeat_ms=200))


async def test_jobs_that_were_scheduled_on_are_promoted(
    raw: redis.Redis, url: str, settings: Settings, scheduler: Scheduler
) -> None:
    keys = Keys(settings.prefix)
    with Client.connect(url, settings) as client:
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
    running = asyncio.create_task(scheduler.run())
    with Client.connect(url, settings) as client:  # as one whose memory of the topic is over
        client.schedule("orders", delay=0.1)
        await until(lambda: scheduler.promoted == 21)
        assert [info.shards for info in client.topics()] == [shards]
    scheduler.stop()
    await running


async def test_jobs_in_shards_whose_number_was_lost_are_promoted(
    raw: redis.Redis, url: str, settings: Settings, scheduler: Scheduler
) -> None:
    """The change of the number of shards is lost, and a client that has made it schedules on by it."""
    keys = Keys(settings.prefix)
    with Client.connect(url, settings) as client:
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


@pytest.mark.parametrize("topic", [Topic(), Topic(removing=True, paused=True)])
async def test_a_topic_without_jobs_or_one_that_is_removed_is_not_listed_again(
    raw: redis.Redis, url: str, settings: Settings, topic: Topic
) -> None:
    keys, clock, transport = Keys(settings.prefix), ManualClock(), AsyncTransport(Address(url))
    lost = LostTopics(transport, keys, clock)
    lost.note({"orders": topic}, {})
    await lost.restore()
    assert not raw.exists(keys.topics)
    if not topic.removing:
        clock.advance(WATCHED_S)
    raw.hset(keys.shard("orders", 0).jobs, "a", "1-1")
    await lost.restore()
    assert not raw.exists(keys.topics)
    await transport.close()
