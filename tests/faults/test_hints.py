"""Hints reach a scheduler node whatever happens to the connection that it hears them on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import redis

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, JobSpec, Scheduler, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.keys import Keys
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport, Subscription


class HeldUp(Subscription):
    """Is open before its opener knows, for as long as the test wants."""

    holds = False
    is_held: asyncio.Event
    may_go_on: asyncio.Event

    async def open(self, channels: Sequence[str]) -> None:
        await super().open(channels)
        if HeldUp.holds:
            HeldUp.is_held.set()
            await HeldUp.may_go_on.wait()


class WithHeldUp(AsyncTransport):
    """Its subscriptions can be held up."""

    def subscription(self) -> Subscription:
        return HeldUp(super().subscription()._where)


async def test_a_shard_that_begins_while_the_subscription_is_opened_again_is_listened_to(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """The list of channels was made before: without a second look the shard would hear no hint for good."""
    HeldUp.holds, HeldUp.is_held, HeldUp.may_go_on = False, asyncio.Event(), asyncio.Event()
    server = private_server(appendonly=False)
    one_shard = Settings(topic=TopicSettings(shards=1))
    near = {topic: Keys().shard(topic, 0).near for topic in ("before", "meanwhile")}
    scheduler = Scheduler(WithHeldUp(Address(server.url)))
    async with AsyncClient.connect(server.url, one_shard) as client, running(scheduler):
        with redis.Redis.from_url(server.url) as raw:

            def heard() -> set[str]:
                return {topic for topic, channel in near.items() if raw.pubsub_numsub(channel)[0][1]}

            await client.schedule("before", delay=3_600)
            await until(lambda: heard() == {"before"})
            HeldUp.holds = True
            raw.client_kill_filter(_type="pubsub")
            await HeldUp.is_held.wait()
            await client.schedule("meanwhile", delay=3_600)
            await until(lambda: near["meanwhile"] in scheduler._shards)
            assert heard() == {"before"}
            HeldUp.may_go_on.set()
            await until(lambda: heard() == {"before", "meanwhile"})


async def test_a_job_without_a_hint_is_found_where_the_horizon_moves_more_often_than_the_lease_is_renewed(
    url: str, prefix: str, topic: str, raw: redis.Redis
) -> None:
    """Each move of the horizon prolongs the lease, so the leader never renews it and never rests."""
    settings = Settings(prefix=prefix, scheduler=SchedulerSettings(idle_ms=1_200), topic=TopicSettings(shards=1))
    keys = Keys(prefix).shard(topic, 0)
    scheduler = Scheduler.connect(url, settings)
    async with AsyncClient.connect(url, settings) as client, running(scheduler):
        await client.schedule_many(topic, [JobSpec(key="near", delay=0.1), JobSpec(key="copied", delay=3_600)])
        await until(lambda: raw.xlen(keys.ready) == 1)
        promoted_ms = raw.time()[0] * 1_000
        after_its_sweep = promoted_ms + settings.scheduler.idle_ms + 3 * settings.scheduler.sweep_ms
        await until(lambda: int(raw.get(keys.horizon) or 0) > after_its_sweep)
        raw.zadd(keys.delayed, {"copied": 1})
        await until(lambda: raw.xlen(keys.ready) == 2)
