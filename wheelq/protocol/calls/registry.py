"""Calls to the registry of topics, and to the server itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from wheelq.errors import InvalidInput, TopicUnreadable
from wheelq.model.checks import check_topic
from wheelq.model.topic import Topic, TopicInfo
from wheelq.protocol import codec, registry_codec
from wheelq.protocol.call import Call, command, nothing, scripted
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings

VERSION_FIELD = ":version"
"""A field of the topics hash that is not a topic (a name cannot hold a colon): the number of the last change."""


class RegisteredTopics(NamedTuple):
    """Every topic, and the number of the last change."""

    version: int
    settings: dict[str, Topic]
    unreadable: dict[str, str]
    """Topics with unreadable settings, written by another program or a newer release, and what is wrong with each."""


class GroupCounts(NamedTuple):
    """The progress of one consumer group in a shard."""

    name: str
    lag: int
    """Entries not yet delivered to the group."""
    is_more: bool
    """Whether `lag` is only a lower bound: the server did not report it, and counting stopped there."""
    pending: int
    """Deliveries that are not acknowledged."""
    oldest_ms: int | None
    """When the oldest of these entries was promoted."""


class ShardCounts(NamedTuple):
    """How many jobs one shard holds in each state, and the progress of its groups."""

    waiting: int
    ready: int
    running: int
    retrying: int
    dead: int
    first_due_ms: int | None
    server_us: int
    groups: tuple[GroupCounts, ...] = ()


def version_of(stored: bytes | None) -> int:
    """The number of a change; 0 if the stored value is missing or not a number."""
    return int(stored) if stored is not None and stored.isdigit() and len(stored) < 20 else 0


def register_topic(keys: Keys, topic: str, settings: TopicSettings) -> Call[Topic]:
    """Register a topic unless it exists. Returns it as stored. Raises: TopicUnreadable."""
    args = (keys.changes, topic, VERSION_FIELD, registry_codec.encode_topic(settings))
    return scripted("register_topic", (keys.topics,), args, lambda reply: registry_codec.decode_topic(reply, topic))


def stored_topic(keys: Keys, topic: str) -> Call[bytes | None]:
    """Read one topic as stored, to change it with `put_topic`; None if it was never used."""
    return command("HGET", keys.topics, topic, read=lambda reply: reply, key=keys.topics)


def put_topic(keys: Keys, topic: str, stored: bytes, after: Topic) -> Call[bool]:
    """Change a topic; False if it is no longer stored as `stored`. Fields that only a newer release knows are kept."""
    args = (keys.changes, topic, VERSION_FIELD, stored, registry_codec.encode_topic(after, stored))
    return scripted("put_topic", (keys.topics,), args, bool)


def drop_topic(keys: Keys, topic: str, stored: bytes) -> Call[bool]:
    """Remove a topic from the list; False if it is no longer stored as `stored`."""
    return scripted("drop_topic", (keys.topics,), (keys.changes, topic, VERSION_FIELD, stored), bool)


class Fenced(NamedTuple):
    """The answer to `fence`."""

    last_due_ms: int
    """When the last waiting job of the shard is due."""
    version: int
    """The version of the terms now in force in the shard. If it is above the caller's, nothing was done."""


def fence(keys: ShardKeys, terms: str, version: int, *, take_lease: bool = False) -> Call[Fenced]:
    """Make a shard refuse writes with terms other than these, unless terms of a later version are in force.

    Takes the lease from a leader that knew other terms, and with `take_lease` from any leader.
    """

    def read(reply: list[Any]) -> Fenced:
        return Fenced(codec.due_ms(reply[0]), reply[1])

    args = (terms, version, int(take_lease))
    return scripted("fence", (keys.shards, keys.delayed, keys.lease, keys.fence), args, read)


def fenced_version(keys: ShardKeys) -> Call[int]:
    """The version of the terms in force in a shard; 0 if they were never changed."""
    return command("GET", keys.fence, read=version_of, key=keys.fence)


def topic(keys: Keys, topic: str) -> Call[Topic | None]:
    """Read one topic; None if it was never used. Raises: TopicUnreadable."""

    def read(reply: bytes | None) -> Topic | None:
        return None if reply is None else registry_codec.decode_topic(reply, topic)

    return command("HGET", keys.topics, topic, read=read)


def topics(keys: Keys) -> Call[RegisteredTopics]:
    """Read all topics; one that is unreadable does not affect the others."""

    def read(reply: list[bytes]) -> RegisteredTopics:
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        return _each(version_of(found.pop(VERSION_FIELD.encode(), None)), found)

    return command("HGETALL", keys.topics, read=read)


def topics_named(keys: Keys, names: Sequence[str]) -> Call[RegisteredTopics]:
    """Read up to 500 topics by name, like `topics` but without the version; missing ones are left out."""

    def read(reply: list[bytes | None]) -> RegisteredTopics:
        return _each(0, {name.encode(): packed for name, packed in zip(names, reply, strict=True) if packed})

    return command("HMGET", keys.topics, *names, read=read, key=keys.topics)


def _each(version: int, found: Mapping[bytes, bytes]) -> RegisteredTopics:
    topics = RegisteredTopics(version, {}, {})
    for field, packed in found.items():
        name = field.decode(errors="backslashreplace")
        try:
            topics.settings[check_topic(name)] = registry_codec.decode_topic(packed, name)
        except TopicUnreadable as error:
            topics.unreadable[name] = error.problem
        except InvalidInput as error:
            topics.unreadable[name[:100]] = f"its name {error.problem}"
    return topics


def topics_version(keys: Keys) -> Call[int]:
    """The number of the last change of a topic."""
    return command("HGET", keys.topics, VERSION_FIELD, read=version_of, key=keys.topics)


def first_due(keys: ShardKeys) -> Call[int | None]:
    """When the first waiting job of a shard is due; None if none waits."""

    def read(reply: list[bytes]) -> int | None:
        return codec.due_ms(reply[1]) if reply else None

    return command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", read=read, key=keys.delayed)


def groups(keys: ShardKeys) -> Call[list[str]]:
    """The names of a shard's consumer groups, except those being removed."""
    wanted = (keys.ready, keys.groups)
    return scripted("groups", wanted, (), lambda reply: [name.decode() for name in reply if _is_text(name)])


def counts(keys: ShardKeys) -> Call[ShardCounts]:
    """Count the jobs of a shard, and read the progress of its groups."""

    return scripted("counts", (keys.delayed, keys.ready, keys.dead, keys.jobs, keys.retries), (), read_counts)


def read_counts(reply: list[Any]) -> ShardCounts:  # the script's answer for one shard
    waiting, ready, running, retrying, dead, first, server_us, *groups = reply
    due_ms = codec.due_ms(first) if first else None
    return ShardCounts(waiting, ready, running, retrying, dead, due_ms, int(server_us), _groups(groups))


def _is_text(name: bytes) -> bool:
    """Whether a group name is text; another program may have named a group with any bytes."""
    return name.decode(errors="ignore").encode() == name


def _groups(told: Sequence[Any]) -> tuple[GroupCounts, ...]:
    return tuple(
        GroupCounts(name.decode(), lag, is_more == 1, pending, int(oldest.partition(b"-")[0]) if oldest else None)
        for name, lag, is_more, pending, oldest in told
        if _is_text(name)
    )


def forecast(keys: ShardKeys, ends_ms: Sequence[int]) -> Call[list[int]]:
    """Count a shard's waiting jobs by due time: overdue, in each span up to `ends_ms` from now, and later."""
    return scripted("forecast", (keys.delayed,), ends_ms, list)


def add_up(topics: Mapping[str, Topic], shards: Sequence[ShardKeys], counts: Sequence[ShardCounts]) -> list[TopicInfo]:
    """Returns the counts of each topic from those of its shards; `shards` names them, sorted by topic."""
    found = []
    for topic, pairs in groupby(zip(shards, counts, strict=True), key=lambda pair: pair[0].topic):
        parts = [count for _, count in pairs]
        first_due_ms = min((part.first_due_ms for part in parts if part.first_due_ms is not None), default=None)
        now_ms = parts[0].server_us // 1000
        found.append(
            TopicInfo(
                topic,
                topics[topic].shards,
                sum(part.waiting for part in parts),
                sum(part.ready for part in parts),
                sum(part.running for part in parts),
                sum(part.retrying for part in parts),
                sum(part.dead for part in parts),
                first_due_ms,
                0 if first_due_ms is None else max(0, now_ms - first_due_ms),
                topics[topic],
            )
        )
    return found


def add_callback_topic(keys: Keys, topic: str) -> Call[None]:
    """Record that some jobs of this topic have a target."""
    return command("SADD", keys.callbacks, topic, read=nothing, key=keys.callbacks)


def drop_callback_topic(keys: Keys, topic: str) -> Call[None]:
    """Record that no job of this topic has a target any more."""
    return command("SREM", keys.callbacks, topic, read=nothing, key=keys.callbacks)


def callback_topics(keys: Keys) -> Call[list[str]]:
    """The names of the topics with jobs that have a target."""

    def read(reply: Iterable[bytes]) -> list[str]:
        return sorted(topic.decode(errors="replace") for topic in reply)

    return command("SMEMBERS", keys.callbacks, read=read, key=keys.callbacks)


def announce(keys: Keys, what: str) -> Call[None]:
    """Tell all nodes that something has changed."""
    return command("PUBLISH", keys.changes, what, read=nothing)


def server_time_us(key: str | None = None) -> Call[int]:
    """The server's clock, in microseconds since the Unix epoch; in a cluster, that of the node that holds `key`."""
    return command("TIME", read=lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]), key=key)


def is_connected(connection_id: int) -> Call[bool]:
    """Whether the connection of this number is open."""
    return command("CLIENT LIST", "ID", connection_id, read=bool)


def unblock(connection_id: int) -> Call[bool]:
    """End the blocking read of a connection at once, as if its time were up."""
    return command("CLIENT UNBLOCK", connection_id, read=bool)


def info(*sections: str) -> Call[dict[str, str]]:
    """The server's `INFO`, as a flat map."""

    def read(reply: bytes) -> dict[str, str]:
        lines = reply.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    return command("INFO", *sections, read=read)


def config(pattern: str) -> Call[dict[str, str]]:
    """The server's configuration parameters that match a pattern."""

    def read(reply: list[bytes]) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)}

    return command("CONFIG GET", pattern, read=read)


def publish_nothing(keys: Keys) -> Call[None]:
    """Publish to a channel without listeners: its shard belongs to no topic."""
    return command("PUBLISH", keys.shard("none", 0).near, "", read=nothing)


def needed_commands(keys: Keys) -> dict[str, Call[Any]]:
    """Commands that wheelq needs and a server may lack or forbid, each as a call that changes nothing.

    Their shard belongs to no topic. A server that has XAUTOCLAIM answers it with NOGROUP.
    """
    shard = keys.shard("none", 0)
    return {
        "EVALSHA": counts(shard),
        "XAUTOCLAIM": command("XAUTOCLAIM", shard.ready, "none", "none", 0, "0-0", read=nothing, key=shard.ready),
        "ZMSCORE": command("ZMSCORE", shard.delayed, "none", read=nothing, key=shard.delayed),
        "CLIENT LIST ID": is_connected(1),
    }
