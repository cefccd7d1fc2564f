"""Each problem that is planted in a fleet is found by `doctor`, and a fleet at rest has none."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator

import msgpack
import pytest
import redis

from wheelq import Client, Settings
from wheelq.admin import Inspector
from wheelq.admin.diagnosis import Level
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

HOUR = 3600


@pytest.fixture
def settings() -> Settings:
    return Settings(prefix=f"planted-{secrets.token_hex(6)}")


@pytest.fixture
def client(url: str, settings: Settings) -> Iterator[Client]:
    with Client.connect(url, settings) as client:
        yield client


@pytest.fixture
def db(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as connection:
        yield connection


def found(url: str, settings: Settings, level: Level) -> str:
    """The titles of all findings of a level."""
    with Inspector.connect(url, settings) as inspector:
        return "\n".join(finding.title for finding in inspector.doctor() if finding.level is level)


def now_ms(url: str) -> int:
    transport = Transport(Address(url))
    try:
        return transport.send(server_time_us()) // 1000
    finally:
        transport.close()


def test_a_shard_at_rest_without_a_leader_is_no_problem(url: str, settings: Settings, client: Client) -> None:
    client.schedule("orders", 1, delay=HOUR)
    assert "leader" not in found(url, settings, Level.PROBLEM)


def test_a_job_that_is_due_in_a_shard_without_a_leader_is_one(
    url: str, settings: Settings, client: Client, db: redis.Redis
) -> None:
    client.schedule("orders", 1, key="a", delay=HOUR)
    db.zadd(Keys(settings.prefix).shard("orders", 0).delayed, {"a": now_ms(url)})
    assert "1 shard of orders with jobs that are due has no leader" in found(url, settings, Level.PROBLEM)


def test_a_paused_topic_is_named_and_is_not_overdue(
    url: str, settings: Settings, client: Client, db: redis.Redis
) -> None:
    client.schedule("orders", 1, key="a", delay=HOUR)
    client.pause("orders")
    db.zadd(Keys(settings.prefix).shard("orders", 0).delayed, {"a": now_ms(url) - 9_000})
    told = found(url, settings, Level.WARNING)
    [seconds] = re.findall(r"Topic orders is paused, and jobs have been due for (\d+) s", told)
    assert 9 <= int(seconds) < 60
    assert "overdue" not in found(url, settings, Level.PROBLEM)


def test_a_worker_that_died_and_a_receiver_that_is_down_are_told(url: str, settings: Settings, db: redis.Redis) -> None:
    keys = Keys(settings.prefix)
    lives = {"seen_ms": now_ms(url), "group": "g", "topics": [], "open_destinations": ["shop"]}
    db.hset(keys.workers, "lives", msgpack.packb(lives))
    db.hset(keys.workers, "dead", msgpack.packb({"seen_ms": now_ms(url) - 60_000, "group": "g", "topics": []}))
    told = found(url, settings, Level.WARNING)
    assert "1 worker ended without a word" in told
    assert "Receiver shop is not called" in told


def test_a_group_that_nobody_serves_is_told(url: str, settings: Settings, client: Client) -> None:
    client.schedule("orders", 1, delay=HOUR)
    client.make_group("orders", "mail")
    assert "No live worker serves group mail of orders" in found(url, settings, Level.WARNING)


def test_a_recurring_job_that_was_missed_is_told(url: str, settings: Settings, client: Client, db: redis.Redis) -> None:
    client.recurring.put("reports", "nightly", every=HOUR)
    key = Keys(settings.prefix).shard("reports", 0).recurring
    stored = db.hget(key, "nightly")
    assert isinstance(stored, bytes)
    revision, last, _, rest = stored.split(b" ", 3)
    db.hset(key, "nightly", b" ".join((revision, last, b"2026-01-01T00:00:00Z", rest)))
    assert "Recurring job nightly of reports was due" in found(url, settings, Level.PROBLEM)


def test_a_server_that_is_full_refuses_writes_and_one_that_evicts_is_told(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    url = private_server().url
    settings = Settings()
    with redis.Redis.from_url(url) as connection:
        connection.config_set("maxmemory-policy", "allkeys-lru")
        assert "maxmemory-policy is allkeys-lru" in found(url, settings, Level.PROBLEM)
        connection.config_set("maxmemory-policy", "noeviction")
        connection.config_set("maxmemory", 1)
        told = found(url, settings, Level.PROBLEM)
        connection.config_set("maxmemory", 0)
    assert "of maxmemory is used" in told
    assert "The server refuses writes" in told
