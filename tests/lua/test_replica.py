"""After a failover, a client may still be connected to the old primary, which is a replica now.

It may know less than the new primary. So its scripts must not answer "kept" or "not found" to a producer, although that
takes no write: the producer would rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Shard
from tests.records import OTHER
from wheelq.embedded import EmbeddedServer
from wheelq.errors import NotPrimary
from wheelq.protocol.call import Call, for_many
from wheelq.protocol.calls import bundles, producer, recurring, state
from wheelq.protocol.keys import ShardKeys

BUNDLE = "publish:b"
CALLS: dict[str, Callable[[ShardKeys], Call[object]]] = {
    "schedule, which would keep the live job": lambda keys: producer.schedule(keys, [("a", "+5", OTHER)], "keep", "1"),
    "schedule, where a job that was promoted has the id": lambda keys: producer.schedule(
        keys, [("ran", "+5", RECORD)], "replace", "1"
    ),
    "schedule, in its former shard, where no live job has the id": lambda keys: producer.schedule(
        keys, [("unknown", "+5", RECORD)], "keep", ""
    ),
    "cancel": lambda keys: producer.cancel(keys, "unknown"),
    "reschedule": lambda keys: producer.reschedule(keys, "unknown", "+5"),
    "reschedule, too late": lambda keys: producer.reschedule(keys, "ran", "+5"),
    "reschedule, if due at another time": lambda keys: producer.reschedule(keys, "a", "+5", 1),
    "run_now": lambda keys: producer.run_now(keys, "unknown"),
    "run_now, too late": lambda keys: producer.run_now(keys, "ran"),
    "shut, of a bundle that is closed": lambda keys: bundles.shut(keys, BUNDLE),
    "shut, of a bundle without members here": lambda keys: bundles.shut(keys, f"{BUNDLE}, another"),
    "reading a recurring job to change it": lambda keys: recurring.read_one(keys, "nightly", to_change=True),
}


@pytest.fixture
def replica(private_server: Callable[..., EmbeddedServer], topic: str) -> Iterator[Shard]:
    """A shard on a server that has just become the replica of another, and has not heard from it."""
    shard = Shard(private_server(appendonly=False).url, topic)
    shard.schedule(("a", f"+{HOUR_MS}"), ("ran", "+0"))
    shard.send(bundles.enter(shard.keys, BUNDLE))
    shard.send(bundles.shut(shard.keys, BUNDLE))
    shard.redis.replicaof("127.0.0.1", 1)
    yield shard
    shard.close()


@pytest.mark.parametrize("name", CALLS)
def test_a_replica_answers_no_producer(replica: Shard, name: str) -> None:
    with pytest.raises(NotPrimary):
        replica.send(CALLS[name](replica.keys))


def test_nor_does_it_answer_several_calls_in_one(replica: Shard) -> None:
    calls = [producer.schedule(replica.keys, [(id, "+5", RECORD)], "keep", "1") for id in ("b", "c")]
    with pytest.raises(NotPrimary):
        replica.send(for_many(calls))


def test_it_is_read_as_before(replica: Shard) -> None:
    assert replica.send(state.get(replica.keys, "a")) is not None
    assert replica.send(recurring.read_one(replica.keys, "nightly")).entry is None
