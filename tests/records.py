"""Stored records of jobs, for tests that write or compare them byte by byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from wheelq.protocol.keys import ShardKeys, tag_keys

LIFE = b"one life"
NOT_STORED = bytes(6)
"""In place of the time at which the script stored it."""


def record(payload: Any = 1, attempt: int = 1, options: Mapping[str, Any] | None = None, life: bytes = LIFE) -> bytes:
    """The record of a job, as its producer sends it."""
    flags = 0 if options is None else 2
    body = msgpack.packb(payload) + (b"" if options is None else msgpack.packb(options))
    return bytes((2, *NOT_STORED, attempt, flags)) + life + body


def unstamped(stored: Any) -> Any:
    """A stored record as its producer sent it; anything else as it is."""
    return stored if type(stored) is not bytes or stored[:1] != b"\x02" else stored[:1] + NOT_STORED + stored[7:]


def tags_of(keys: ShardKeys, turn_ms: int) -> tuple[str, str]:
    """The keys of the answers to a shard's calls."""
    return tag_keys(keys.prefix, keys.topic, keys.shard, turn_ms)


RECORD = record()
SECOND_ATTEMPT = record(attempt=2)
OTHER = record(2)
