"""What a topic keeps of finished jobs: it goes when the topic keeps nothing any more, and is found while it drains."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from tests.faults.stages import Meanwhile, Stage
from tests.records import LIFE, RECORD
from tests.running import age, collecting, running
from tests.waiting import until
from wheelq import Client, Scheduler, Settings
from wheelq.model.topic import Topic, shard_of
from wheelq.producer.preparation import IdempotentSpec
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import SchedulerSettings

HOUR_MS = 3_600_000


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(prefix=prefix, scheduler=SchedulerSettings(heartbeat_ms=100))


@pytest.fixture
async def runs(url: str, settings: Settings, topic: str) -> AsyncIterator[list[str]]:
    """The ids of the jobs that have run, with a scheduler and a worker at work."""
    worker, found = collecting(url, topic, settings, "g")
    async with running(Scheduler.connect(url, settings), worker):
        yield found


def shard(settings: Settings, topic: str, number: int = 0) -> ShardKeys:
    return Keys(settings.prefix).shard(topic, number)


def standing(client: Client, topic: str) -> Topic:
    return next(info.settings for info in client.topics() if info.name == topic)


async def test_a_topic_that_keeps_no_finished_jobs_any_more_forgets_those_it_kept(
    raw: redis.Redis, client: Client, settings: Settings, topic: str, runs: list[str]
) -> None:
    """Else the very same call would be answered "created" for ever, and the job never run."""
    keys, same_call = shard(settings, topic), [IdempotentSpec(delay=0, key="order-1", life=LIFE)]
    client.configure(topic, keep_done_ms=HOUR_MS)
    client.schedule_many(topic, same_call)
    await until(lambda: bool(raw.exists(keys.done)))
    client.configure(topic, keep_done_ms=0)
    await until(lambda: not raw.exists(keys.done, keys.ended))
    client.schedule_many(topic, same_call)
    await until(lambda: runs == ["order-1", "order-1"])


async def test_a_topic_that_keeps_no_entries_any_more_removes_those_it_kept(
    url: str, raw: redis.Redis, client: Client, settings: Settings, topic: str, runs: list[str]
) -> None:
    client.configure(topic, retention_ms=HOUR_MS)
    client.schedule(topic, delay=0)
    await until(lambda: len(runs) == 1 and not raw.xpending(shard(settings, topic).ready, "g")["pending"])
    assert raw.xlen(shard(settings, topic).ready) == 1
    age(url, settings.prefix)
    client.configure(topic, retention_ms=0)
    await until(lambda: raw.xlen(shard(settings, topic).ready) == 0)


async def test_a_topic_that_kept_finished_jobs_can_be_drained(
    url: str, raw: redis.Redis, client: Client, settings: Settings, topic: str, runs: list[str]
) -> None:
    client.configure(topic, keep_done_ms=HOUR_MS)
    client.set_shards(topic, 2)
    key = next(str(n) for n in range(100) if shard_of(str(n), 2) == 1)
    client.schedule(topic, key=key, delay=0)
    await until(lambda: bool(raw.exists(shard(settings, topic, 1).done)))
    age(url, settings.prefix)
    client.set_shards(topic, 1)
    client.configure(topic, keep_done_ms=0)
    await until(lambda: not standing(client, topic).draining)


async def test_a_call_that_is_repeated_while_the_topic_drains_does_not_run_its_job_again(
    raw: redis.Redis, client: Client, settings: Settings, topic: str, runs: list[str]
) -> None:
    """What is kept of the finished job is where the former number of shards placed it."""
    client.configure(topic, keep_done_ms=HOUR_MS)
    key = next(str(n) for n in range(100) if shard_of(str(n), 4) == 3)
    same_call = [IdempotentSpec(delay=0, key=key, life=LIFE)]
    [first] = client.schedule_many(topic, same_call)
    await until(lambda: bool(raw.exists(shard(settings, topic).done)))
    client.set_shards(topic, 4)
    assert client.schedule_many(topic, same_call) == [first]
    client.schedule(topic, key=f"{key}-behind", delay=0)
    await until(lambda: len(runs) == 2)
    assert runs.count(key) == 1


async def test_settings_that_change_while_a_shard_is_tidied_count_at_once(
    url: str, raw: redis.Redis, topic: str
) -> None:
    """The shard is led under the new terms then, and what is no longer kept does not stay while the shard rests."""
    change, acquired = Meanwhile("tidy", lambda: stage.shard.configure(Topic())), Meanwhile("acquire", lambda: None)
    stage = Stage(url, topic, change, acquired)
    stage.shard.configure(Topic(retention_ms=HOUR_MS))
    stage.plain.send(worker_calls.make_group(stage.keys, "g"))
    stage.plain.send(producer.schedule(stage.keys, [("a", "+0", RECORD)], "keep", "1"))
    [entry] = stage.plain.send(worker_calls.read([stage.keys], "g", "w", 1, 1))[0]
    raw.xack(stage.keys.ready, "g", entry.entry_id)
    raw.hdel(stage.keys.counts, "born")
    assert raw.xlen(stage.keys.ready) == 1
    await stage.step_until(lambda: raw.xlen(stage.keys.ready) == 0)
    assert (change.struck, acquired.met) == (1, 2)
    await stage.close()


async def test_settings_that_change_while_the_lease_is_acquired_make_it_acquired_again(url: str, topic: str) -> None:
    """Producers and the leader must go by the same terms."""
    acquired = Meanwhile("acquire", lambda: stage.shard.configure(Topic(max_rate=5.0)))
    stage = Stage(url, topic, acquired)
    stage.schedule(1, 0)
    await stage.step_until(lambda: acquired.met > 1)
    await stage.close()
