"""register_topic, put_topic, groups, assign and beat: what all nodes share, changed by one and told to everyone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgpack
import pytest

from tests.lua.shard import Ear, Shard
from wheelq.errors import TopicUnreadable
from wheelq.model.topic import Topic
from wheelq.protocol import registry_codec
from wheelq.protocol.calls import heartbeats, registry, shard_counts, worker
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings


@pytest.fixture
def keys(shard: Shard) -> Iterator[Keys]:
    """The keys of a wheelq of this test's own: all topics of one are in one hash."""
    keys = Keys(f"wheelq-{secrets.token_hex(6)}")
    yield keys
    shard.redis.delete(keys.topics, keys.assignment, keys.nodes)


def test_a_new_topic_is_written_down_counted_and_told(shard: Shard, keys: Keys) -> None:
    ear = Ear(shard, keys.changes)
    settings, before_us = Topic(shards=3, retention_ms=5), shard.send(server_time_us())
    assert shard.send(registry.topics(keys)) == (0, {}, {})
    assert shard.send(registry.topic(keys, "orders")) is None
    assert shard.send(registry.register_topic(keys, "orders", settings)) == settings
    assert shard.send(registry.topics(keys))[1:] == ({"orders": settings}, {})
    assert shard.send(registry.topic(keys, "orders")) == settings
    assert shard.send(registry.topics_version(keys)) >= before_us
    assert set(shard.redis.hkeys(keys.topics)) == {b"orders", registry.VERSION_FIELD.encode()}
    assert ear.heard() == [b"orders"]
    ear.close()


def test_a_known_topic_stays_as_it_is(shard: Shard, keys: Keys) -> None:
    shard.send(registry.register_topic(keys, "orders", TopicSettings(shards=3)))
    ear = Ear(shard, keys.changes)
    before = shard.redis.hgetall(keys.topics)
    assert shard.send(registry.register_topic(keys, "orders", TopicSettings(shards=5))) == Topic(shards=3)
    assert shard.redis.hgetall(keys.topics) == before
    assert ear.heard() == []
    ear.close()


def test_every_new_topic_is_a_change(shard: Shard, keys: Keys) -> None:
    versions = []
    for topic in ("a", "b", "c"):
        shard.send(registry.register_topic(keys, topic, TopicSettings()))
        versions.append(shard.send(registry.topics_version(keys)))
    assert sorted(set(versions)) == versions
    assert set(shard.send(registry.topics(keys)).settings) == {"a", "b", "c"}


def test_changes_differ_also_while_the_clock_stands_still_or_was_set_back(shard: Shard, keys: Keys) -> None:
    ahead_us = (shard.now_ms() + 3_600_000) * 1_000
    shard.redis.hset(keys.topics, registry.VERSION_FIELD, ahead_us)
    for n, topic in enumerate(("a", "b", "c"), 1):
        shard.send(registry.register_topic(keys, topic, TopicSettings()))
        assert shard.send(registry.topics_version(keys)) == ahead_us + n


def test_only_a_client_with_the_present_settings_changes_a_topic(shard: Shard, keys: Keys) -> None:
    before = shard.send(registry.register_topic(keys, "orders", TopicSettings(shards=3)))
    ear = Ear(shard, keys.changes)
    after = before.resharded(5, last_due_ms=7)
    assert shard.send(registry.put_topic(keys, "orders", registry_codec.encode_topic(before), after)) is True
    assert shard.send(registry.topics(keys))[1:] == ({"orders": after}, {})
    assert ear.heard() == [b"orders"]
    ear.close()


def test_a_topic_that_was_changed_meanwhile_is_left_alone(shard: Shard, keys: Keys) -> None:
    before = shard.send(registry.register_topic(keys, "orders", TopicSettings(shards=3)))
    shard.send(
        registry.put_topic(keys, "orders", registry_codec.encode_topic(before), before.resharded(4, last_due_ms=0))
    )
    stored = shard.redis.hgetall(keys.topics)
    ear = Ear(shard, keys.changes)
    assert (
        shard.send(
            registry.put_topic(keys, "orders", registry_codec.encode_topic(before), before.resharded(5, last_due_ms=0))
        )
        is False
    )
    assert shard.redis.hgetall(keys.topics) == stored
    assert ear.heard() == []
    ear.close()


@pytest.mark.parametrize(
    "stored", [{"shards": 3, "retention_ms": 0}, {"shards": 3, "retention_ms": 0, "colour": "blue"}]
)
def test_a_topic_that_another_release_wrote_can_be_changed(shard: Shard, keys: Keys, stored: dict[str, int]) -> None:
    """It knows fewer settings, or more."""
    shard.redis.hset(keys.topics, "orders", msgpack.packb(stored))
    packed = shard.send(registry.stored_topic(keys, "orders"))
    assert packed is not None
    after = registry_codec.decode_topic(packed).resharded(5, last_due_ms=0)
    assert shard.send(registry.put_topic(keys, "orders", packed, after)) is True
    now_stored = msgpack.unpackb(shard.redis.hget(keys.topics, "orders"))
    assert now_stored["shards"] == 5
    assert now_stored.get("colour") == stored.get("colour"), "what only a newer release knows stays"


def test_only_a_node_that_has_read_the_last_assignment_replaces_it(shard: Shard, keys: Keys) -> None:
    ear = Ear(shard, keys.changes)
    posts = {("orders", 0): ("n1", "n2"), ("orders", 1): ("n2", None)}
    assert shard.send(heartbeats.assignment_version(keys)) == 0
    assert shard.send(heartbeats.assignment(keys)) == {}
    assert shard.send(heartbeats.put_assignment(keys, 0, 1, posts)) is True
    assert shard.send(heartbeats.assignment_version(keys)) == 1
    assert shard.send(heartbeats.assignment(keys)) == posts
    assert ear.heard() == [b"assignment"]
    ear.close()


def test_an_assignment_made_from_an_older_one_changes_nothing(shard: Shard, keys: Keys) -> None:
    shard.send(heartbeats.put_assignment(keys, 0, 1, {("orders", 0): ("n1", None)}))
    before = shard.redis.hgetall(keys.assignment)
    ear = Ear(shard, keys.changes)
    assert shard.send(heartbeats.put_assignment(keys, 0, 1, {("orders", 0): ("n2", None)})) is False
    assert shard.redis.hgetall(keys.assignment) == before
    assert ear.heard() == []
    ear.close()


def test_a_node_is_alive_with_what_it_last_said(shard: Shard, keys: Keys) -> None:
    shard.send(heartbeats.beat_node(keys, "n1", {"seen_ms": 1}))
    shard.send(heartbeats.beat_node(keys, "n1", {"seen_ms": 2}))
    shard.send(heartbeats.beat_node(keys, "n2", {"seen_ms": 3}))
    assert shard.send(heartbeats.alive(keys.nodes)) == {"n1": {"seen_ms": 2}, "n2": {"seen_ms": 3}}
    shard.send(heartbeats.gone(keys.nodes, "n1"))
    assert set(shard.send(heartbeats.alive(keys.nodes))) == {"n2"}


def test_the_groups_of_a_shard_are_named(shard: Shard) -> None:
    assert shard.send(shard_counts.groups(shard.keys)) == []
    for group in ("mail", "billing"):
        shard.send(worker.make_group(shard.keys, group))
    assert sorted(shard.send(shard_counts.groups(shard.keys))) == ["billing", "mail"]


@pytest.mark.parametrize("junk", ["many", "", str(2**63 - 1)])
def test_changes_are_told_where_another_program_wrote_something_else(shard: Shard, keys: Keys, junk: str) -> None:
    shard.redis.hset(keys.topics, registry.VERSION_FIELD, junk)
    shard.send(registry.register_topic(keys, "orders", TopicSettings()))
    first = shard.send(registry.topics_version(keys))
    shard.send(registry.register_topic(keys, "mails", TopicSettings()))
    assert 0 < first < shard.send(registry.topics_version(keys))


def test_a_topic_that_cannot_be_read_is_told_apart_from_the_others(shard: Shard, keys: Keys) -> None:
    shard.send(registry.register_topic(keys, "orders", TopicSettings(shards=3)))
    for name, stored in {"mails": msgpack.packb({"shards": "4"}), "no name!": b"\x80", b"\xff": b"\x80"}.items():
        shard.redis.hset(keys.topics, name, stored)
    found = shard.send(registry.topics(keys))
    assert found.settings == {"orders": Topic(shards=3)}
    assert set(found.unreadable) == {"mails", "no name!", "\\xff"}
    with pytest.raises(TopicUnreadable, match="'mails' cannot be read: shards must be int, not '4'"):
        shard.send(registry.topic(keys, "mails"))
    with pytest.raises(TopicUnreadable, match="'mails'"):
        shard.send(registry.register_topic(keys, "mails", TopicSettings()))
