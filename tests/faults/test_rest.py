"""A fleet at rest costs next to nothing, however many topics it serves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import redis

from tests.running import age, running
from tests.waiting import until
from wheelq import AsyncClient, Job, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.worker.delivery.held import ServedShard
from wheelq.worker.upkeep import overdue

TOPICS = 150
"""A twentieth of what the promise of 100 calls a second is about."""
IDLE_S = 3.0
"""A twentieth of the usual time between looks at a shard at rest, of its leader and of its standby."""
SPANS = 2
OTHERS = 25
"""Calls a second of two nodes and two workers however many topics they serve."""


@contextmanager
def counting(url: str) -> Iterator[Counter[str]]:
    """Counts what clients send meanwhile: calls to single shards, and others. What scripts call does not count."""
    sent, has_ended = Counter[str](), threading.Event()
    with redis.Redis.from_url(url) as raw, raw.monitor() as monitor:

        def count() -> None:
            while not has_ended.is_set():
                seen = monitor.next_command()
                if seen["client_type"] != "lua":
                    is_of_one = seen["command"].count(":0}") == 1 or seen["command"].startswith("EVALSHA")
                    sent["shards" if is_of_one and "{topic-" in seen["command"] else "others"] += 1

        listening = threading.Thread(target=count, daemon=True)
        listening.start()
        yield sent
        has_ended.set()
        raw.ping()  # which it hears, too
        listening.join()


@pytest.mark.long
async def test_two_nodes_and_two_workers_with_many_resting_topics_send_few_calls(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """At most 1.5 a minute for each shard, and 25 a second besides: 100 a second with 3,000 topics.

    Here shards are looked at twenty times as often: the count does not depend on when each of them came to rest.
    """
    short = SchedulerSettings(idle_ms=int(IDLE_S * 1000), lease_ms=2_000, lease_margin_ms=200, window_ms=500)
    settings = Settings(scheduler=short)
    server = private_server(appendonly=False)
    names = [f"topic-{n}" for n in range(TOPICS)]
    parts: list[Scheduler | Worker] = [Scheduler.connect(server.url, settings) for _ in range(2)]
    ran = Counter[str]()

    async def handle(job: Job) -> None:
        ran[job.topic] += 1

    for _ in range(2):
        worker = Worker.connect(server.url)
        for name in names:
            worker.handler(name)(handle)
        parts.append(worker)
    async with running(*parts):
        async with AsyncClient.connect(server.url, Settings(topic=TopicSettings(shards=1))) as client:
            for name in names:
                await client.schedule(name, delay=0.5)
            await until(lambda: len(ran) == TOPICS)
        age(server.url, settings.prefix)  # in their first minute shards do not rest
        with redis.Redis.from_url(server.url) as raw:
            await until(lambda: not any(raw.xlen(ready) for ready in raw.scan_iter("*:ready", count=10_000)))
            await until(lambda: not any(raw.scan_iter("*:lease", count=10_000)))
        with counting(server.url) as sent:
            began = time.monotonic()
            await asyncio.sleep(SPANS * IDLE_S)
            took = time.monotonic() - began
        assert TOPICS * 2 * SPANS / 2 <= sent["shards"] <= TOPICS * 2 * (took / IDLE_S + 1)
        assert sent["others"] / took <= OTHERS


async def test_a_worker_that_knows_a_scheduler_looks_for_one_again_when_the_janitor_finds_a_late_job(
    private_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overdue, "LOOK_S", 0.05)
    server = private_server(appendonly=False)
    scheduler, worker = Scheduler.connect(server.url), Worker.connect(server.url)
    worker.handler("orders")(print)
    found: list[bool] = []
    look = worker._overdue.step

    async def noted(shards: Sequence[ServedShard]) -> bool:
        found.append(await look(shards))
        return found[-1]

    monkeypatch.setattr(worker._overdue, "step", noted)
    async with running(scheduler):
        working = asyncio.create_task(worker.run())
        await until(lambda: True in found)
        looks = len(found)
    async with AsyncClient.connect(server.url) as client:
        await client.schedule("orders", delay=0.1)
    with redis.Redis.from_url(server.url) as raw:
        shard = Keys().shard("orders", 0)
        await until(lambda: bool(worker._shards.shards) and _overdue_ms(raw, shard) > overdue.OVERDUE_MS + 200)
    assert (len(found), "no scheduler runs" in caplog.text) == (looks, False)
    await worker._janitor.step(worker._shards.shards)
    await until(lambda: "no scheduler runs" in caplog.text)
    worker.stop()
    await working


def _overdue_ms(raw: redis.Redis, shard: ShardKeys) -> float:
    [(_, score)] = raw.zrange(shard.delayed, 0, 0, withscores=True)
    seconds, micros = raw.time()
    return float(seconds * 1000 + micros / 1000 - score)
