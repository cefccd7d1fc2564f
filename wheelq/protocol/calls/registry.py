"""Calls to the registry of topics: which exist, their settings, and the terms in force in each shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wheelq.errors import InvalidInput, TopicUnreadable
from wheelq.model.checks import check_topic
from wheelq.model.topic import Topic
from wheelq.protocol import registry_codec, scores
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
    were_here: bool
    """Whether they were in force before: a change with these terms was left half done."""


def fence(keys: ShardKeys, terms: str, version: int) -> Call[Fenced]:
    """Make a shard refuse writes with terms other than these, unless terms of a later version are in force.

    Takes the lease from its leader, who may have known other terms.
    """

    def read(reply: list[Any]) -> Fenced:
        return Fenced(scores.due_ms(reply[0]), reply[1], reply[2] == 1)

    return scripted("fence", (keys.shards, keys.delayed, keys.lease, keys.fence), (terms, version), read)


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
