"""The stored form of topics, of the assignment of shards, and of the reports of nodes and workers.

All are msgpack, read and written by clients only. Fields that a newer release has added are kept and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import msgpack

from wheelq.errors import InvalidSetting, TopicUnreadable
from wheelq.model.topic import Topic
from wheelq.settings import TopicSettings

MOST_SHARDS = 100_000
"""A stored number of shards above this is a mistake, and serving it would stop a node."""
_DEFAULTS = asdict(Topic())


def encode_topic(topic: TopicSettings, stored: bytes | None = None) -> bytes:
    """Packs a topic for `topics`, keeping fields of a newer release that are in `stored`."""
    known = topic if isinstance(topic, Topic) else Topic(**asdict(topic))
    packed: bytes = msgpack.packb({**(msgpack.unpackb(stored) if stored else {}), **asdict(known)})
    return packed


def decode_topic(packed: bytes, topic: str = "") -> Topic:
    """Reads a stored topic; fields that a newer release has added are ignored. Raises: TopicUnreadable."""
    found = _topic_or_problem(packed)
    if isinstance(found, str):
        raise TopicUnreadable(topic, found)
    return found


@lru_cache(maxsize=512)  # most of a thousand topics have the same settings
def _topic_or_problem(packed: bytes) -> Topic | str:
    try:
        stored = msgpack.unpackb(packed, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        return f"they are not msgpack ({error})"
    if not isinstance(stored, dict):
        return "they are not a map"
    known = {name: stored[name] for name in _DEFAULTS if name in stored}
    for name, value in known.items():
        if problem := _problem_with(name, value):
            return f"{name} {problem}"
    try:
        return Topic(**known)
    except InvalidSetting as error:
        return f"{error.setting} {error.problem}"


def _problem_with(name: str, value: Any) -> str | None:
    """Returns the problem of a stored setting, beyond the checks of the settings themselves."""
    wanted = type(_DEFAULTS[name])
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        return f"must be {wanted.__name__}, not {_shown(value)}"
    if name == "removed_groups" and not all(_is_removed_group(one) for one in value):
        return f"must be names and times, not {_shown(value)}"
    counts = {"shards": (value,), "draining": value}.get(name, ())
    if any(type(count) is not int or not 1 <= count <= MOST_SHARDS for count in counts):
        return f"must be 1 to {MOST_SHARDS:,}, not {_shown(value)}"
    return None


def _is_removed_group(one: Any) -> bool:
    return type(one) is tuple and list(map(type, one)) == [str, int]


def _shown(value: Any) -> str:
    return repr(value)[:60]


def encode_posts(posts: Mapping[tuple[str, int], tuple[str, str | None]]) -> bytes:
    """Packs leader and standby of every shard. Each node name is stored once, because there may be 100,000 shards."""
    nodes = sorted({node for post in posts.values() for node in post if node is not None})
    number = {node: n for n, node in enumerate(nodes)} | {None: -1}
    topics: dict[str, list[int]] = {}
    for (topic, _), (leader, standby) in sorted(posts.items()):
        topics.setdefault(topic, []).extend((number[leader], number[standby]))
    packed: bytes = msgpack.packb([nodes, topics])
    return packed


def decode_posts(packed: bytes) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Unpacks what `encode_posts` packed, a topic's shards numbered from 0; empty if another program wrote it."""
    try:
        nodes, topics = msgpack.unpackb(packed)
        names: list[Any] = [*map(_text, nodes), None]  # number -1
        return {
            (_text(topic), shard): (names[leader], names[standby])
            for topic, numbers in topics.items()
            for shard, (leader, standby) in enumerate(zip(numbers[::2], numbers[1::2], strict=True))
        }
    except (ValueError, TypeError, IndexError, AttributeError, msgpack.UnpackException):
        return {}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} is not a name")
    return value


def decode_map(packed: bytes) -> dict[str, Any]:
    """Unpacks a map of plain values (the report of a node or worker). Raises: ValueError."""
    try:
        found = msgpack.unpackb(packed)
    except msgpack.UnpackException as error:
        raise ValueError(f"not msgpack ({str(error) or type(error).__name__})") from error
    if not isinstance(found, dict):
        raise ValueError(f"not a map, but {_shown(found)}")
    return found


def decode_maps(reply: Sequence[bytes]) -> dict[str, dict[str, Any]]:
    """Unpacks a hash of such maps, as HGETALL returns it; unreadable ones are left out."""
    found = {}
    for name, packed in zip(reply[::2], reply[1::2], strict=True):
        with suppress(ValueError):
            report = decode_map(packed)
            if type(report.get("seen_ms", 0)) is int:
                found[name.decode()] = report
    return found
