"""promote_some.lua: each of several shards is promoted as if it were asked alone, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, Shard, entry
from wheelq.errors import NotLeader, Refused
from wheelq.protocol.calls import leader
from wheelq.protocol.calls.leader import Promoted, ToPromote

Shards = tuple[Shard, Shard, Shard]


@pytest.fixture
def shards(url: str, topic: str) -> Iterator[Shards]:
    """Three shards, each with two jobs that are due and one that is not, and led by one node."""
    made = Shard(url, topic), Shard(url, topic, 1), Shard(url, topic, 2)
    for shard in made:
        shard.schedule(*((id, f"+{HOUR_MS}") for id in ("a", "b", "c")))
        shard.redis.zadd(shard.keys.delayed, {"a": 1, "b": 2})
        shard.lead()
    yield made
    for shard in made:
        shard.close()


def token_of(shard: Shard) -> str:
    return str(shard.redis.get(shard.keys.lease).decode())  # type: ignore[union-attr]


def promote(shards: Shards, *tokens: str) -> list[int | str]:
    """How many jobs each shard promoted, or what is wrong there."""
    tokens = tokens or tuple(map(token_of, shards))
    named = [ToPromote(shard.keys, token, ["a", "b", "c"]) for shard, token in zip(shards, tokens, strict=True)]
    answers = shards[0].send(leader.promote_some(named, LEASE_MS))
    return [one.promoted if isinstance(one, Promoted) else str(one) for one in answers]


def waiting(shard: Shard) -> list[bytes]:
    return shard.redis.zrange(shard.keys.delayed, 0, -1)  # type: ignore[return-value]


def test_each_shard_promotes_its_own_jobs_and_says_what_waits(shards: Shards) -> None:
    before = [shard.snapshot() for shard in shards]
    named = [ToPromote(shard.keys, token_of(shard), ["a", "b", "c", "no such"]) for shard in shards]
    answers = shards[0].send(leader.promote_some(named, LEASE_MS))
    for shard, was, answer in zip(shards, before, answers, strict=True):
        due_ms = was["delayed"]["c"]
        assert isinstance(answer, Promoted)
        assert (answer.promoted, answer.first_due_ms, answer.waiting) == (2, due_ms, [("c", due_ms)])
        assert shard.snapshot() == was | {
            "delayed": {"c": due_ms},
            "jobs": {"a": "e1", "b": "e2", "c": RECORD},
            "ready": {"e1": entry("a", 1), "e2": entry("b", 2)},
        }


def test_its_answer_is_that_of_a_call_for_one_shard(shards: Shards) -> None:
    first, second, _ = shards
    alone = first.send(leader.promote(first.keys, token_of(first), LEASE_MS, ["a", "b", "c"]))
    [answer] = second.send(leader.promote_some([ToPromote(second.keys, token_of(second), ["a", "b", "c"])], LEASE_MS))
    assert isinstance(answer, Promoted)
    assert (answer.promoted, [member for member, _ in answer.waiting]) == (alone.promoted, ["c"])


def test_a_lease_is_prolonged_and_the_first_job_looked_for_only_if_asked(shards: Shards) -> None:
    for shard in shards:
        shard.redis.pexpire(shard.keys.lease, 5_000)
    named = [ToPromote(shard.keys, token_of(shard), ["a"], renews=shard is shards[1]) for shard in shards]
    answers = shards[0].send(leader.promote_some(named, LEASE_MS))
    told = [(one.promoted, one.has_renewed, one.first_due_ms) for one in answers if isinstance(one, Promoted)]
    assert told == [(1, False, None), (1, True, 2), (1, False, None)]
    assert [int(shard.redis.pttl(shard.keys.lease)) > 5_000 for shard in shards] == [False, True, False]


def test_a_lease_that_is_lost_stops_only_its_own_shard(shards: Shards) -> None:
    tokens = [token_of(shard) for shard in shards]
    shards[1].redis.set(shards[1].keys.lease, "another:5:run:1")
    before = shards[1].snapshot()
    named = [ToPromote(shard.keys, token, ["a", "b"]) for shard, token in zip(shards, tokens, strict=True)]
    first, second, third = shards[0].send(leader.promote_some(named, LEASE_MS))
    assert isinstance(first, Promoted)
    assert isinstance(second, NotLeader)
    assert isinstance(third, Promoted)
    assert (first.promoted, third.promoted) == (2, 2)
    assert shards[1].snapshot() == before


def test_the_lease_of_one_shard_does_not_open_another(shards: Shards) -> None:
    token = token_of(shards[0])
    while token_of(shards[1]) == token:  # both were led in the same millisecond
        shards[1].lead()
    before = shards[1].snapshot()
    assert promote(shards, token, token, token_of(shards[2]))[0] == 2
    assert shards[1].snapshot() == before


@pytest.mark.parametrize("key", ["delayed", "jobs"])
def test_a_shard_that_cannot_be_read_says_so_and_stops_no_other(shards: Shards, key: str) -> None:
    broken = shards[0]
    name = getattr(broken.keys, key)
    broken.redis.rename(name, f"{name}:aside")
    broken.redis.set(name, "of another program")
    first, *others = promote(shards)
    assert "WRONGTYPE" in str(first)
    assert others == [2, 2]
    broken.redis.delete(name)
    broken.redis.rename(f"{name}:aside", name)
    assert promote(shards) == [2, 0, 0]
    assert broken.redis.xlen(broken.keys.ready) == 2


def test_jobs_that_the_stream_of_one_shard_refuses_keep_waiting(shards: Shards) -> None:
    shards[1].redis.set(shards[1].keys.ready, "not a stream")
    assert promote(shards) == [2, 0, 2]
    assert waiting(shards[1]) == [b"a", b"b", b"c"]
    shards[1].redis.delete(shards[1].keys.ready)
    assert promote(shards) == [0, 2, 0]


def test_no_job_is_promoted_before_the_servers_clock_has_reached_its_time(shards: Shards) -> None:
    for n in range(10):
        for shard in shards:
            shard.redis.zadd(shard.keys.delayed, {"c": shard.now_ms() + 2 + n % 3})
        while not all(b"c" not in waiting(shard) for shard in shards):
            promote(shards)
        for shard in shards:
            [(entry_id, fields)] = shard.redis.xrevrange(shard.keys.ready, count=1)  # type: ignore[misc]
            assert int(entry_id.partition(b"-")[0]) >= int(fields[b"due"])
            shard.redis.hset(shard.keys.jobs, "c", RECORD)


def test_a_user_without_rights_for_one_shard_is_refused_as_a_whole_or_there(shards: Shards, url: str) -> None:
    """Since Redis 7 the call is refused, before that only the commands of the script. Nothing is half done."""
    server = shards[0].redis
    server.acl_setuser(
        "partly", enabled=True, nopass=True, commands=["+@all"], keys=[f"wheelq:{{{shards[0].keys.topic}:[01]}}:*"]
    )
    partly = Shard(url.replace("://", "://partly:any@"), shards[0].keys.topic)
    try:
        named = [ToPromote(shard.keys, token_of(shard), ["a", "b"]) for shard in shards]
        before = shards[2].snapshot()
        try:
            answers = partly.send(leader.promote_some(named, LEASE_MS))
        except Refused:
            assert all(len(waiting(shard)) == 3 for shard in shards)
        else:
            assert [isinstance(one, Promoted) for one in answers] == [True, True, False]
        assert shards[2].snapshot() == before
    finally:
        partly.close()
        server.acl_deluser("partly")
