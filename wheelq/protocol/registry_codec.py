"""What the registries hold, packed: topics, the posts of scheduler nodes, and what nodes and workers say of themselves.

All of it is msgpack, read and written by clients only. What a newer release has written besides is kept, and passed
over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import msgpack

from wheelq.settings import TopicSettings
from wheelq.topics import Topic


def encode_topic(topic: TopicSettings, stored: bytes | None = None) -> bytes:
    """A topic as stored in `topics`, over what was `stored` before and may have been written by a newer release."""
    known = topic if isinstance(topic, Topic) else Topic(**asdict(topic))
    packed: bytes = msgpack.packb({**(msgpack.unpackb(stored) if stored else {}), **asdict(known)})
    return packed


def decode_topic(packed: bytes) -> Topic:
    """A topic as stored; what a newer release wrote besides is passed over."""
    stored = msgpack.unpackb(packed, use_list=False)
    known = {item.name: stored[item.name] for item in fields(Topic) if item.name in stored}
    return Topic(**known)


def encode_posts(posts: Mapping[tuple[str, int], tuple[str, str | None]]) -> bytes:
    """Leader and standby of every shard: names of nodes once, then numbers, for there may be 100,000 shards."""
    nodes = sorted({node for post in posts.values() for node in post if node is not None})
    number = {node: n for n, node in enumerate(nodes)} | {None: -1}
    topics: dict[str, list[int]] = {}
    for (topic, _), (leader, standby) in sorted(posts.items()):
        topics.setdefault(topic, []).extend((number[leader], number[standby]))
    packed: bytes = msgpack.packb([nodes, topics])
    return packed


def decode_posts(packed: bytes) -> dict[tuple[str, int], tuple[str, str | None]]:
    """What `encode_posts` packed; a topic's shards are numbered from 0."""
    nodes, topics = msgpack.unpackb(packed)
    nodes.append(None)  # number -1
    return {
        (topic, shard): (nodes[leader], nodes[standby])
        for topic, numbers in topics.items()
        for shard, (leader, standby) in enumerate(zip(numbers[::2], numbers[1::2], strict=True))
    }


def decode_map(packed: bytes) -> dict[str, Any]:
    """A map of plain values (what a node or worker says of itself)."""
    found: dict[str, Any] = msgpack.unpackb(packed)
    return found


def decode_maps(reply: Sequence[bytes]) -> dict[str, dict[str, Any]]:
    """A whole hash of such maps, as HGETALL answers."""
    return {name.decode(): decode_map(packed) for name, packed in zip(reply[::2], reply[1::2], strict=True)}
