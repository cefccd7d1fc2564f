"""Whoever changes a topic dies on the way: shards were told new terms, and nobody has published them."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest

from tests.transports import BlockingWith, ReplyLost
from tests.waiting import until
from wheelq import Client, Scheduler, Settings
from wheelq.errors import OutcomeUnknown
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.topics import Topic
from wheelq.transport import Address, Transport

PAUSED = replace(Topic(), paused=True).terms


@pytest.fixture
def settings() -> Settings:
    return Settings(prefix=f"half-{secrets.token_hex(6)}")


async def test_a_shard_gets_its_leader_back(url: str, settings: Settings, topic: str) -> None:
    """It finds out that nobody publishes the terms, and tells the shard those that stand."""
    keys = Keys(settings.prefix).shard(topic, 0)
    transport, scheduler = Transport(Address(url)), Scheduler.connect(url, settings)
    running = asyncio.create_task(scheduler.run())
    with Client.connect(url, settings) as client:
        client.schedule(topic, key="first", delay=0.1)
        await until(lambda: scheduler.promoted == 1)
        transport.send(registry.fence(keys, PAUSED))
        later = Client.connect(url, settings)  # which waits for the terms, and then takes the change back
        await asyncio.to_thread(later.schedule, topic, key="second", delay=0.1)
        later.close()
        await until(lambda: scheduler.promoted == 2)
    scheduler.stop()
    await running
    transport.close()


async def test_a_shard_gets_its_leader_back_though_nobody_schedules(url: str, settings: Settings, topic: str) -> None:
    keys = Keys(settings.prefix).shard(topic, 0)
    transport, scheduler = Transport(Address(url)), Scheduler.connect(url, settings)
    running = asyncio.create_task(scheduler.run())
    with Client.connect(url, settings) as client:
        client.schedule(topic, key="first", delay=0.1)
        await until(lambda: scheduler.promoted == 1)
        client.schedule(topic, key="second", delay=0.5)
        transport.send(registry.fence(keys, PAUSED))
        await until(lambda: scheduler.promoted == 2)
    scheduler.stop()
    await running
    transport.close()


@pytest.mark.parametrize("call", ["fence", "put_topic"])
def test_a_pause_whose_reply_was_lost_can_be_repeated_and_taken_back(
    url: str, settings: Settings, topic: str, call: str
) -> None:
    with Client(BlockingWith(url, ReplyLost(call)), Keys(settings.prefix)) as client:
        client.schedule(topic, key="waits", delay=60)
        with pytest.raises(OutcomeUnknown):
            client.pause(topic)
        assert client.pause(topic).paused
        assert not client.resume(topic).paused
        assert client.schedule(topic, key="runs", delay=0).created
        info = next(info for info in client.topics() if info.name == topic)
        assert (info.delayed, info.ready) == (1, 1)
