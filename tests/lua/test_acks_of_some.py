"""ack_some.lua: each of several shards acknowledges as if it were asked alone, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.lua.shard import Shard
from wheelq.protocol.calls import worker
from wheelq.protocol.calls.worker import Acks, Entry

Shards = tuple[Shard, Shard, Shard]


@pytest.fixture
def shards(url: str, topic: str) -> Iterator[Shards]:
    made = Shard(url, topic), Shard(url, topic, 1), Shard(url, topic, 2)
    yield made
    for shard in made:
        shard.close()


def of(shard: Shard, entries: Sequence[Entry], safe_until_ms: int = 0, dropped: int = 0) -> Acks:
    return Acks(shard.keys, safe_until_ms, 0, [(entry.entry_id, entry.member) for entry in entries], dropped)


def ack(*acks: Acks, by: Shard) -> Sequence[int | str]:
    return by.send(worker.ack_some(acks, "g", "w1"))


def test_each_shard_forgets_its_own_finished_jobs(shards: Shards) -> None:
    first, second, third = ([shard, shard.deliver("a", "b")] for shard in shards)
    alone = Shard.ack(third[0], third[1])
    answers = ack(of(first[0], first[1]), of(second[0], second[1][:1]), by=shards[0])
    assert answers == [2, 1]
    assert alone == 2
    assert shards[0].snapshot() == shards[2].snapshot(), "as in a call for one shard"
    assert shards[1].snapshot()["jobs"] == {"b": "e2"}


def test_a_delivery_that_another_worker_has_is_not_acknowledged(shards: Shards) -> None:
    mine, its = shards[0].deliver("a"), shards[1].deliver("a", consumer="w2")
    before = shards[1].snapshot()
    assert ack(of(shards[0], mine), of(shards[1], its), by=shards[0]) == [1, 0]
    assert shards[1].snapshot() == before
    assert ack(of(shards[0], mine), of(shards[1], its, shards[1].now_ms() + 60_000), by=shards[0]) == [0, 1]


@pytest.mark.parametrize("key", ["ready", "jobs"])
def test_a_shard_that_another_program_has_spoilt_says_so_and_stops_no_other(shards: Shards, key: str) -> None:
    deliveries = [shard.deliver("a") for shard in shards]
    name = getattr(shards[0].keys, key)
    shards[0].redis.rename(name, f"{name}:aside")
    shards[0].redis.set(name, "of another program")
    all_of_them = [
        of(shard, entries, shard.now_ms() + 60_000) for shard, entries in zip(shards, deliveries, strict=True)
    ]
    first, *others = ack(*all_of_them, by=shards[0])
    assert "WRONGTYPE" in str(first)
    assert others == [1, 1]
    shards[0].redis.delete(name)
    shards[0].redis.rename(f"{name}:aside", name)


def test_a_shard_without_the_group_stops_no_other(shards: Shards) -> None:
    deliveries = [shard.deliver("a") for shard in shards]
    shards[1].redis.xgroup_destroy(shards[1].keys.ready, "g")
    answers = ack(*(of(shard, entries) for shard, entries in zip(shards, deliveries, strict=True)), by=shards[0])
    assert answers[::2] == [1, 1]
    assert answers[1] == 0 or "NOGROUP" in str(answers[1])


def test_those_that_were_dropped_are_counted_in_their_own_shard(shards: Shards) -> None:
    first, second = shards[0].deliver("a", "b", "c"), shards[1].deliver("a", "b")
    assert ack(of(shards[0], first, dropped=2), of(shards[1], second), by=shards[0]) == [3, 2]
    counted = [shard.redis.hmget(shard.keys.counts, "done\x1fg", "expired\x1fg") for shard in shards[:2]]
    assert counted == [[b"1", b"2"], [b"2", None]]
