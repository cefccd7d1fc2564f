"""A script for many shards in one call: each is answered as if it were asked alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, Shard
from wheelq.errors import NotLeader, Refused
from wheelq.protocol.call import for_many
from wheelq.protocol.calls import leader
from wheelq.protocol.calls.leader import Opened, Renewed

Shards = tuple[Shard, Shard, Shard]


@pytest.fixture
def shards(url: str, topic: str) -> Iterator[Shards]:
    """Three shards with a job each, led by one node."""
    made = Shard(url, topic), Shard(url, topic, 1), Shard(url, topic, 2)
    for number, shard in enumerate(made):
        shard.schedule((f"job-{number}", f"+{1_000 * (number + 1)}"))
        shard.lead()
    yield made
    for shard in made:
        shard.close()


def token_of(shard: Shard) -> str:
    return str(shard.redis.get(shard.keys.lease).decode())  # type: ignore[union-attr]


def open_all(shards: Shards, *tokens: str) -> list[Opened | Exception]:
    tokens = tokens or tuple(map(token_of, shards))
    calls = [
        leader.open_window(shard.keys, token, LEASE_MS, None, 2_500, 10, HOUR_MS)
        for shard, token in zip(shards, tokens, strict=True)
    ]
    return shards[0].send(for_many(calls))


def test_each_shard_has_its_own_arguments_and_its_own_answer(shards: Shards) -> None:
    answers = open_all(shards)
    jobs = [one.jobs for one in answers if isinstance(one, Opened)]
    assert [[id for id, _ in some] for some in jobs] == [["job-0"], ["job-1"], []], "the last is due after the window"
    for shard, answer in zip(shards, answers, strict=True):
        assert isinstance(answer, Opened)
        assert int(shard.redis.get(shard.keys.horizon) or 0) == answer.horizon_ms


def test_a_shard_that_another_node_leads_is_left_alone(shards: Shards) -> None:
    first, _, last = map(token_of, shards)
    before = shards[1].snapshot()
    answers = open_all(shards, first, "other:1:run:2", last)
    assert [type(one) for one in answers] == [Opened, NotLeader, Opened]
    assert shards[1].snapshot() == before


def test_an_error_of_one_shard_is_its_own(shards: Shards) -> None:
    shards[1].redis.set(shards[1].keys.delayed, "another program wrote this")
    first, second, third = open_all(shards)
    assert isinstance(first, Opened)
    assert isinstance(second, Refused)
    assert "WRONGTYPE" in str(second)
    assert isinstance(third, Opened)


def test_an_answer_that_cannot_be_read_is_an_error_of_its_shard(shards: Shards) -> None:
    shards[1].redis.zadd(shards[1].keys.delayed, {"another program": float("inf")})
    shards[1].redis.zrem(shards[1].keys.delayed, "job-1")
    calls = [leader.renew(shard.keys, token_of(shard), LEASE_MS) for shard in shards]
    answers = shards[0].send(for_many(calls))
    assert isinstance(answers[0], Renewed)
    assert isinstance(answers[2], Renewed)
    alone: object
    try:
        alone = shards[1].send(calls[1])
    except Exception as error:  # noqa: BLE001  # what it answers alone is what it must answer here
        alone = error
    assert type(answers[1]) is type(alone)


def test_one_call_takes_a_hundred_shards(shards: Shards) -> None:
    calls = [leader.renew(shard.keys, token_of(shard), LEASE_MS) for shard in shards] * 33
    answers = shards[0].send(for_many(calls))
    assert [type(one) for one in answers] == [Renewed] * 99
