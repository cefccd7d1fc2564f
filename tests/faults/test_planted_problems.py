"""Each problem that is planted in a fleet is found by `doctor`, and a fleet at rest has none."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgpack
import pytest
import redis

from wheelq import Client, Settings
from wheelq.admin import Inspector
from wheelq.admin.diagnosis import Level
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

HOUR = 3600


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


def test_a_paused_topic_is_named_and_is_not_overdue(
    url: str, settings: Settings, client: Client, raw: redis.Redis
) -> None:
    client.schedule("orders", 1, key="a", delay=HOUR)
    client.pause("orders")
    raw.zadd(Keys(settings.prefix).shard("orders", 0).delayed, {"a": now_ms(url) - 9_000})
    told = found(url, settings, Level.WARNING)
    [seconds] = re.findall(r"Topic orders is paused, and jobs have been due for (\d+) s", told)
    assert 9 <= int(seconds) < 60
    assert "overdue" not in found(url, settings, Level.PROBLEM)


def unled(client: Client, raw: redis.Redis, keys: Keys, now_ms: int) -> None:
    client.schedule("orders", 1, key="a", delay=HOUR)
    raw.zadd(keys.shard("orders", 0).delayed, {"a": now_ms})


def unserved(client: Client, raw: redis.Redis, keys: Keys, now_ms: int) -> None:
    client.schedule("orders", 1, delay=HOUR)
    client.make_group("orders", "mail")


def missed(client: Client, raw: redis.Redis, keys: Keys, now_ms: int) -> None:
    client.recurring.put("reports", "nightly", every=HOUR)
    stored = raw.hget(keys.shard("reports", 0).recurring, "nightly")
    assert isinstance(stored, bytes)
    revision, last, _, rest = stored.split(b" ", 3)
    put_back = b" ".join((revision, last, b"2026-01-01T00:00:00Z", rest))
    raw.hset(keys.shard("reports", 0).recurring, "nightly", put_back)


def seen(name: str, ago_ms: int, **more: object) -> Callable[[Client, redis.Redis, Keys, int], object]:
    """A worker that was last seen so long ago."""

    def plant(client: Client, raw: redis.Redis, keys: Keys, now_ms: int) -> None:
        told = {"seen_ms": now_ms - ago_ms, "group": "g", "topics": [], **more}
        raw.hset(keys.workers, name, msgpack.packb(told))

    return plant


PLANTED = {
    "1 shard of orders with jobs that are due has no leader": (unled, Level.PROBLEM),
    "1 worker ended without a word": (seen("dead", 60_000), Level.WARNING),
    "Receiver shop is not called": (seen("lives", 0, open_destinations=["shop"]), Level.WARNING),
    "No live worker serves group mail of orders": (unserved, Level.WARNING),
    "Recurring job nightly of reports was due": (missed, Level.PROBLEM),
}


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_problem_is_found(url: str, settings: Settings, client: Client, raw: redis.Redis, words: str) -> None:
    plant, level = PLANTED[words]
    plant(client, raw, Keys(settings.prefix), now_ms(url))
    assert words in found(url, settings, level)
