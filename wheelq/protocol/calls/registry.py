"""What is asked of the registries (topics, nodes, workers) and of the server itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgpack

from wheelq.protocol import codec, registry_codec
from wheelq.protocol.call import Call, command, nothing, scripted
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings
from wheelq.topics import Topic, TopicInfo

VERSION_FIELD = ":version"
"""A field of the topics hash that is no topic (a name cannot hold a colon): counts changes."""


class Topics(NamedTuple):
    """Every topic, and the number of the change that made it so."""

    version: int
    settings: dict[str, Topic]


class ShardCounts(NamedTuple):
    """How many jobs one shard holds, and since when."""

    delayed: int
    ready: int
    """Promoted and not finished by every group (with retention: all that is kept)."""
    dead: int
    first_due_ms: int | None
    server_us: int


def register_topic(keys: Keys, topic: str, settings: TopicSettings) -> Call[Topic]:
    """Make a topic known, unless it is; how it now stands."""
    args = (keys.changes, topic, VERSION_FIELD, registry_codec.encode_topic(settings))
    return scripted("register_topic", (keys.topics,), args, registry_codec.decode_topic)


def stored_topic(keys: Keys, topic: str) -> Call[bytes | None]:
    """One topic as it is stored, to be changed with `put_topic`; None if it was never used."""
    return command("HGET", keys.topics, topic, read=lambda reply: reply, key=keys.topics)


def put_topic(keys: Keys, topic: str, stored: bytes, after: Topic) -> Call[bool]:
    """Change a topic; False when it is no longer stored as it was. What only a newer release knows of it stays."""
    args = (keys.changes, topic, VERSION_FIELD, stored, registry_codec.encode_topic(after, stored))
    return scripted("put_topic", (keys.topics,), args, bool)


def fence(keys: ShardKeys, terms: str) -> Call[int]:
    """Let a shard be written to only by those who know these terms; when its last waiting job is due."""
    return scripted("fence", (keys.shards, keys.delayed, keys.lease), (terms,), codec.due_ms)


def topic(keys: Keys, topic: str) -> Call[Topic | None]:
    """One topic; None if it was never used."""
    return command("HGET", keys.topics, topic, read=lambda reply: registry_codec.decode_topic(reply) if reply else None)


def topics(keys: Keys) -> Call[Topics]:
    """All topics."""

    def read(reply: list[bytes]) -> Topics:
        found = dict(zip(reply[::2], reply[1::2], strict=True))
        version = int(found.pop(VERSION_FIELD.encode(), 0))
        return Topics(version, {name.decode(): registry_codec.decode_topic(packed) for name, packed in found.items()})

    return command("HGETALL", keys.topics, read=read)


def topics_version(keys: Keys) -> Call[int]:
    """The number of the last change of the topics."""
    return command("HGET", keys.topics, VERSION_FIELD, read=lambda reply: int(reply or 0), key=keys.topics)


def groups(keys: ShardKeys) -> Call[list[str]]:
    """The names of the consumer groups of a shard."""
    return scripted("groups", (keys.ready,), (), lambda reply: [name.decode() for name in reply])


def counts(keys: ShardKeys) -> Call[ShardCounts]:
    """How many jobs a shard holds."""

    def read(reply: list[Any]) -> ShardCounts:
        delayed, ready, dead, first, server_us = reply
        return ShardCounts(delayed, ready, dead, codec.due_ms(first) if first else None, int(server_us))

    return scripted("counts", (keys.delayed, keys.ready, keys.dead), (), read)


def forecast(keys: ShardKeys, ends_ms: Sequence[int]) -> Call[list[int]]:
    """How many of a shard's jobs are due, in each span up to these ends from now, and later."""
    return scripted("forecast", (keys.delayed,), ends_ms, list)


def add_up(topics: Mapping[str, Topic], shards: Sequence[ShardKeys], counts: Sequence[ShardCounts]) -> list[TopicInfo]:
    """One line per topic from the counts of its shards; `shards` names them, sorted by topic."""
    found = []
    for topic, pairs in groupby(zip(shards, counts, strict=True), key=lambda pair: pair[0].topic):
        parts = [count for _, count in pairs]
        first_due_ms = min((part.first_due_ms for part in parts if part.first_due_ms is not None), default=None)
        now_ms = parts[0].server_us // 1000
        found.append(
            TopicInfo(
                topic,
                topics[topic].shards,
                sum(part.delayed for part in parts),
                sum(part.ready for part in parts),
                sum(part.dead for part in parts),
                first_due_ms,
                0 if first_due_ms is None else max(0, now_ms - first_due_ms),
                topics[topic],
            )
        )
    return found


def beat_node(keys: Keys, node: str, what: Mapping[str, Any]) -> Call[None]:
    """Say that a scheduler node lives, and what it does."""
    return scripted("beat", (keys.nodes,), (node, msgpack.packb(dict(what))), nothing)


def beat_worker(keys: Keys, worker: str, what: Mapping[str, Any]) -> Call[None]:
    """Say that a worker lives, and what it does."""
    return command("HSET", keys.workers, worker, msgpack.packb(dict(what)), read=nothing, key=keys.workers)


def gone(hash_key: str, who: str) -> Call[None]:
    """Say that a node or worker has stopped."""
    return command("HDEL", hash_key, who, read=nothing, key=hash_key)


def alive(hash_key: str) -> Call[dict[str, dict[str, Any]]]:
    """What every node or worker last said of itself."""
    return command("HGETALL", hash_key, read=registry_codec.decode_maps, key=hash_key)


def add_callback_topic(keys: Keys, topic: str) -> Call[None]:
    """Some jobs of this topic have a target."""
    return command("SADD", keys.callbacks, topic, read=nothing, key=keys.callbacks)


def callback_topics(keys: Keys) -> Call[list[str]]:
    """The topics of which some jobs have a target, by name."""

    def read(reply: Iterable[bytes]) -> list[str]:
        return sorted(topic.decode() for topic in reply)

    return command("SMEMBERS", keys.callbacks, read=read, key=keys.callbacks)


def announce(keys: Keys, what: str) -> Call[None]:
    """Let all nodes know that something has changed."""
    return command("PUBLISH", keys.changes, what, read=nothing)


def assignment_version(keys: Keys) -> Call[int]:
    """The version of the assignment of shards; 0 while there is none."""
    return command("HGET", keys.assignment, "version", read=lambda reply: int(reply or 0), key=keys.assignment)


def assignment(keys: Keys) -> Call[dict[tuple[str, int], tuple[str, str | None]]]:
    """Leader and standby of every shard."""

    def read(reply: bytes | None) -> dict[tuple[str, int], tuple[str, str | None]]:
        return registry_codec.decode_posts(reply) if reply else {}

    return command("HGET", keys.assignment, "posts", read=read, key=keys.assignment)


def put_assignment(
    keys: Keys, version: int, next_version: int, posts: Mapping[tuple[str, int], tuple[str, str | None]]
) -> Call[bool]:
    """Replace the assignment, unless it is no longer `version`; False when it is not."""
    args = (version, next_version, registry_codec.encode_posts(posts), keys.changes)
    return scripted("assign", (keys.assignment,), args, bool)


def server_time_us() -> Call[int]:
    """The server's clock, in microseconds since the Unix epoch."""
    return command("TIME", read=lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]))


def is_connected(connection_id: int) -> Call[bool]:
    """Whether the connection of this number is open."""
    return command("CLIENT LIST", "ID", connection_id, read=bool)


def unblock(connection_id: int) -> Call[bool]:
    """Let the blocking read of a connection end at once, as if nothing had come."""
    return command("CLIENT UNBLOCK", connection_id, read=bool)


def info(*sections: str) -> Call[dict[str, str]]:
    """What the server says of itself: `INFO`, as a flat map."""

    def read(reply: bytes) -> dict[str, str]:
        lines = reply.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    return command("INFO", *sections, read=read)


def config(pattern: str) -> Call[dict[str, str]]:
    """The server's configuration parameters of this name."""

    def read(reply: list[bytes]) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)}

    return command("CONFIG GET", pattern, read=read)


def needed_commands(keys: Keys) -> dict[str, Call[Any]]:
    """What wheelq needs and some server may not know or allow, each as a call that changes nothing.

    The shard is of no topic. XAUTOCLAIM is refused with NOGROUP by a server that knows it.
    """
    shard = keys.shard("none", 0)
    return {
        "EVALSHA": counts(shard),
        "XAUTOCLAIM": command("XAUTOCLAIM", shard.ready, "none", "none", 0, "0-0", read=nothing, key=shard.ready),
        "ZMSCORE": command("ZMSCORE", shard.delayed, "none", read=nothing, key=shard.delayed),
        "CLIENT LIST ID": is_connected(1),
    }
