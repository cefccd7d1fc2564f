"""mark.lua: a write that leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.lua.shard import RECORD, Shard
from wheelq.protocol.call import Call, scripted


def mark(shard: Shard) -> Call[int]:
    return scripted("mark", (shard.keys.delayed,), (), int)


def changes(shard: Shard) -> int:
    """How many changes the server has counted; what is no change goes to no replica and no file."""
    return int(shard.redis.info("persistence")["rdb_changes_since_last_save"])


@pytest.mark.parametrize("jobs", [{}, {"a": 1}])
def test_it_is_a_change_and_changes_nothing(shard: Shard, jobs: dict[str, int]) -> None:
    for id, due_ms in jobs.items():
        shard.redis.zadd(shard.keys.delayed, {id: due_ms})
        shard.redis.hset(shard.keys.jobs, id, RECORD)
    before, counted = shard.snapshot(), changes(shard)
    assert shard.send(mark(shard)) == 0
    assert shard.snapshot() == before
    assert changes(shard) - counted == 2
