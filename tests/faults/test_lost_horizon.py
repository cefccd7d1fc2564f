"""A fail-over loses the last horizon while the leader rests: a job that is scheduled then is promoted in time.

In a cluster another master takes the slot over while the connections of a scheduler node, to other masters, stay
as they are: nothing tells the leader, which rests for up to a minute.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.waiting import until
from wheelq import Client, Scheduler, Settings
from wheelq.protocol.keys import Keys, ShardKeys

LOST: dict[str, Callable[[redis.Redis, ShardKeys], object]] = {
    "all of it": lambda raw, keys: raw.delete(keys.horizon, keys.lease),
    "the last one": lambda raw, keys: raw.set(keys.horizon, raw.time()[0] * 1000 - 5_000),
}


@pytest.mark.parametrize("what", LOST)
async def test_a_job_scheduled_after_the_horizon_was_lost_is_promoted_in_time(
    raw: redis.Redis, settings: Settings, topic: str, scheduler: Scheduler, what: str, client: Client
) -> None:
    keys = Keys(settings.prefix).shard(topic, 0)
    client.schedule(topic, key="first", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    window = scheduler._shards[keys.near]._leader._window

    def rests() -> bool:
        last = int(raw.get(keys.horizon) or 0)
        return last == window.loaded_to and last > raw.time()[0] * 1000 + 30_000

    await until(rests)
    LOST[what](raw, keys)
    client.schedule(topic, key="late?", delay=2.0)
    await until(lambda: scheduler.promoted == 2)
    assert scheduler.lateness.total_ms < 20_000, "a rest would have gone on for 30 s at least"
