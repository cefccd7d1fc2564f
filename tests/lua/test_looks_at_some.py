"""look_some.lua: leases are prolonged, and shards named whose leader must look itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, Shard
from wheelq.protocol.calls import leader
from wheelq.protocol.calls.leader import ToLookAt

Shards = tuple[Shard, Shard, Shard]


@pytest.fixture
def shards(url: str, topic: str) -> Iterator[Shards]:
    """Three shards, each with one job that waits."""
    made = Shard(url, topic), Shard(url, topic, 1), Shard(url, topic, 2)
    for shard in made:
        shard.schedule(("a", f"+{HOUR_MS}"))
    yield made
    for shard in made:
        shard.close()


def due_ms(shard: Shard) -> int:
    return int(shard.snapshot()["delayed"]["a"])


def look(shards: Shards, *at: ToLookAt) -> list[int]:
    return shards[0].send(leader.look_some(at, LEASE_MS))


def test_only_a_job_before_all_that_the_leader_knows_is_told(shards: Shards) -> None:
    known = [ToLookAt(shard.keys, "", due_ms(shard) + more) for shard, more in zip(shards, (0, 1, -1), strict=True)]
    before = [shard.snapshot() for shard in shards]
    assert look(shards, *known) == [1]
    assert [shard.snapshot() for shard in shards] == before, "nothing is changed"


def test_an_empty_shard_and_one_with_held_back_jobs_alone_have_missed_nothing(shards: Shards) -> None:
    shards[0].redis.delete(shards[0].keys.delayed)
    shards[1].redis.zadd(shards[1].keys.delayed, {"a": 2**45 + 1})
    assert look(shards, *(ToLookAt(shard.keys, "", 2**46) for shard in shards[:2])) == []


def test_priority_makes_no_job_earlier(shards: Shards) -> None:
    due = due_ms(shards[0])
    shards[0].redis.zadd(shards[0].keys.delayed, {"a": due - 0.25})
    assert look(shards, ToLookAt(shards[0].keys, "", due)) == []


def test_a_lease_is_prolonged_only_if_its_token_is_given_and_a_lost_one_is_told(shards: Shards) -> None:
    tokens = [shard.lead(lease_ms=5_000) for shard in shards]
    shards[2].redis.set(shards[2].keys.lease, "other:5:run:9", px=5_000)
    asked = [ToLookAt(shard.keys, token, 0) for shard, token in zip(shards, [tokens[0], "", tokens[2]], strict=True)]
    assert look(shards, *asked) == [2]
    first, second, third = (int(shard.redis.pttl(shard.keys.lease)) for shard in shards)
    assert first > 20_000
    assert second <= 5_000
    assert third <= 5_000
