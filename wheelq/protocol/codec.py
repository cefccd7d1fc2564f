"""What is stored for a job: a version byte, an attempt byte, and a msgpack array.

    \\x01  \\x01  [payload]                      the usual job
    \\x01  \\x03  [payload, {"h": {...}, "n": …}]   third attempt, with headers and a producer's nonce
    version attempt

Scripts read the two bytes and pass the rest through, so that Lua never unpacks anything. The first byte of a record
is below 0x20 and that of an entry id is a digit, so one look tells a waiting job from a promoted one.

| key of the options map | meaning                                                                              |
|------------------------|--------------------------------------------------------------------------------------|
| `h`                    | headers: map of strings                                                              |
| `n`                    | nonce, 8 bytes: tells a producer's repeated call with a given key from another's call |
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import msgpack

from wheelq.errors import InvalidInput, PayloadTooLarge
from wheelq.job import Payload
from wheelq.settings import TopicSettings
from wheelq.topics import Topic

VERSION = 1
NONCE_BYTES = 8
_FIRST_ATTEMPT = bytes((VERSION, 1))
_ONE_ITEM, _TWO_ITEMS = b"\x91", b"\x92"  # msgpack: array of one, array of two
_SCALARS = (str, bytes, int, float, bool, type(None))


class Record(NamedTuple):
    """A stored job, unpacked."""

    attempt: int
    payload: Payload
    headers: Mapping[str, str]


class UnreadableRecord(ValueError):
    """The bytes are no record of a version known here."""


def encode(payload: Payload, headers: Mapping[str, str] | None, limit_bytes: int, with_nonce: bool) -> bytes:
    """The record of a new job; `with_nonce` two equal calls make different records.

    Raises: PayloadTooLarge; InvalidInput naming the offending path when msgpack cannot hold the payload, or could not
    give it back as it was.
    """
    packed = _pack_payload(payload)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes)
    if not headers and not with_nonce:
        return _FIRST_ATTEMPT + _ONE_ITEM + packed
    options: dict[str, Any] = {}
    if headers:
        options["h"] = _checked_headers(headers, limit_bytes)
    if with_nonce:
        options["n"] = secrets.token_bytes(NONCE_BYTES)
    return b"".join((_FIRST_ATTEMPT, _TWO_ITEMS, packed, msgpack.packb(options)))


def decode(record: bytes) -> Record:
    """A record, unpacked. Raises: UnreadableRecord."""
    if len(record) < 3 or record[0] != VERSION:
        raise UnreadableRecord(f"record version {record[:1]!r} is not known to this release")
    try:
        items = msgpack.unpackb(memoryview(record)[2:])
    except Exception as error:  # msgpack raises a dozen types for bytes that are not msgpack
        raise UnreadableRecord(f"not msgpack: {error}") from error
    if type(items) is not list or not items:
        raise UnreadableRecord("a record holds an array of at least one item")
    options = items[1] if len(items) > 1 else {}
    headers = options.get("h", {}) if type(options) is dict else None
    if type(headers) is not dict:
        raise UnreadableRecord("the second item of a record is a map, and so are its headers")
    return Record(record[1], items[0], headers)


def _pack_payload(payload: Payload) -> bytes:
    try:
        packed: bytes = msgpack.packb(payload)
        if type(payload) not in _SCALARS:
            # What is accepted must be readable: this finds integer map keys and nesting beyond msgpack's limit.
            msgpack.unpackb(_ONE_ITEM + packed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        path, problem = _find_offender(payload)
        raise InvalidInput(path, problem or f"cannot be packed by msgpack: {error}") from error
    return packed


def _find_offender(payload: Payload) -> tuple[str, str | None]:
    """The path to the first item that msgpack cannot hold, and what is wrong with it; walks without recursion."""
    todo: list[tuple[str, Any, int]] = [("payload", payload, 0)]
    while todo:
        path, item, depth = todo.pop()
        if depth > 1_000:
            return path[:60] + "…", "is nested too deeply: the limit is 1,000 levels"
        if isinstance(item, dict):
            for key, value in item.items():
                if not isinstance(key, str):
                    return f"{path}[{key!r}]", f"map keys must be strings, not {type(key).__name__}; write {str(key)!r}"
                todo.append((f"{path}.{key}", value, depth + 1))
        elif isinstance(item, (list, tuple)):
            todo.extend((f"{path}[{n}]", value, depth + 1) for n, value in enumerate(item))
        elif (problem := _scalar_problem(item)) is not None:
            return path, problem
    return "payload", None


def _scalar_problem(item: Any) -> str | None:
    if isinstance(item, bool) or item is None or isinstance(item, (float, bytes, bytearray, memoryview)):
        return None
    if isinstance(item, int):
        return None if -(2**63) <= item < 2**64 else f"{item} does not fit into 64 bits; send it as a string"
    if isinstance(item, str):
        try:
            item.encode()
        except UnicodeEncodeError as error:
            return f"is not valid Unicode text ({error.reason})"
        return None
    return (
        f"a {type(item).__qualname__} cannot be sent; use None, bool, int, float, str, bytes, "
        "and lists and string-keyed dicts of these (a datetime as .isoformat(), a set as a list)"
    )


def _checked_headers(headers: Mapping[str, str], limit_bytes: int) -> dict[str, str]:
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise InvalidInput("headers", "names and values must be strings")
    for problem in (_scalar_problem(text) for pair in headers.items() for text in pair):
        if problem is not None:
            raise InvalidInput("headers", problem)
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > limit_bytes:
        raise InvalidInput("headers", f"{size:,} characters, the limit is {limit_bytes:,}")
    return dict(headers)


def encode_topic(topic: TopicSettings, stored: bytes | None = None) -> bytes:
    """A topic as stored in `topics`, over what was `stored` before and may have been written by a newer release."""
    known = topic if isinstance(topic, Topic) else Topic(topic.shards, topic.retention_ms)
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
