"""Problems that are planted in a fleet: the overview names each, and `/metrics` has the figures that raise its alert.

That `doctor` finds them is tested in `tests/faults/test_planted_problems.py`, that the figures raise the alerts in
`tests/unit/test_ready_made.py`. The figure of a receiver's breaker is in `test_metrics.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from html import unescape

import msgpack
import pytest
import redis

from tests.http.conftest import Http, calling
from tests.http.test_metrics import samples
from wheelq import AsyncClient, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.keys import Keys
from wheelq.server.service import Service

HOUR = 3_600
KEYS = Keys()


@pytest.fixture
def own_url(private_server: Callable[..., EmbeddedServer]) -> str:
    """A server whose settings may be changed."""
    return private_server().url


@pytest.fixture
async def site(own_url: str) -> AsyncIterator[Http]:
    """A caller of a service that has not looked at anything yet."""
    async with calling(Service.connect(own_url, Settings())) as http:
        yield http


@pytest.fixture
async def planted(own_url: str) -> AsyncIterator[redis.Redis]:
    """A fleet without a scheduler, in which all is wrong that the server's settings do not decide."""
    with redis.Redis.from_url(own_url) as db:
        now_ms = _now_ms(db)
        async with AsyncClient.connect(own_url, Settings()) as client:
            for topic in ("orders", "mails"):
                await client.schedule(topic, 1, key="a", delay=HOUR)
                db.zadd(KEYS.shard(topic, 0).delayed, {"a": now_ms - 60_000})
            await client.pause("mails")
            await client.schedule("images", 1, delay=HOUR)
            await client.make_group("images", "resizing")
            await client.recurring.put("reports", "nightly", every=HOUR)
        lives = {"seen_ms": now_ms, "group": "default", "topics": ["orders"], "open_destinations": ["shop"]}
        dead = {"seen_ms": now_ms - 60_000, "group": "default", "topics": []}
        db.hset(KEYS.workers, mapping={"lives": msgpack.packb(lives), "dead": msgpack.packb(dead)})
        key = KEYS.shard("reports", 0).recurring
        stored = db.hget(key, "nightly")
        assert isinstance(stored, bytes)
        revision, last, _, rest = stored.split(b" ", 3)
        db.hset(key, "nightly", b" ".join((revision, last, b"2026-01-01T00:00:00Z", rest)))
        yield db


def _now_ms(db: redis.Redis) -> int:
    seconds, micros = db.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


async def test_the_overview_names_every_problem_of_the_fleet(site: Http, planted: redis.Redis) -> None:
    page = unescape((await site.get("/")).text)
    for words in (
        "Topic mails is paused, and jobs have been due",
        "1 worker ended without a word",
        "No live worker serves group resizing of images",
        "1 shard of orders with jobs that are due has no leader",
        "Receiver shop is not called",
        "Recurring job nightly of reports was due",
    ):
        assert words in page


async def test_the_metrics_have_what_their_alerts_look_at(site: Http, planted: redis.Redis) -> None:
    told = samples((await site.get("/metrics")).text)
    assert told["wheelq_topic_paused", "mails"] == 1
    assert told["wheelq_overdue_seconds", "mails"] >= 60
    assert told["wheelq_lost_workers",] == 1
    assert told["wheelq_workers", "resizing", "images"] == 0
    assert ("wheelq_group_oldest_seconds", "resizing", "images") in told
    assert told["wheelq_shards_without_leader", "orders"] == 1
    assert told["wheelq_shards_without_leader", "mails"] == 0
    assert told["wheelq_recurring_next_timestamp_seconds", "nightly", "reports"] < _now_ms(planted) / 1_000 - 60


async def test_a_server_that_is_full_is_on_the_overview_and_in_the_metrics(site: Http, own_url: str) -> None:
    with redis.Redis.from_url(own_url) as db:
        db.config_set("maxmemory", 1)
        page = unescape((await site.get("/")).text)
        told = samples((await site.get("/metrics")).text)
        db.config_set("maxmemory", 0)
    assert "of maxmemory is used" in page
    assert "The server refuses writes" in page
    assert told["wheelq_redis_memory_ratio",] > 0.8


async def test_a_server_that_evicts_is_on_the_overview_and_in_the_metrics(site: Http, own_url: str) -> None:
    with redis.Redis.from_url(own_url) as db:
        db.config_set("maxmemory-policy", "allkeys-lru")
    assert "maxmemory-policy is allkeys-lru" in unescape((await site.get("/")).text)
    assert samples((await site.get("/metrics")).text)["wheelq_redis_evicts",] == 1
