"""Small things that are kept for a while beside the jobs: answers that may be asked for again, and numbers."""

from __future__ import annotations

from typing import Any

from wheelq.protocol.call import Call, command, scripted
from wheelq.protocol.keys import Keys


def remember(key: str, note: bytes, ttl_ms: int) -> Call[bytes | None]:
    """Write a note, unless there is one: the one that is there, or None when this one was written."""
    return scripted("remember", (key,), (note, ttl_ms), _as_it_is)


def recall(key: str) -> Call[bytes | None]:
    """A note; None when there is none (any more)."""
    return command("GET", key, read=_as_it_is, key=key)


def take_ids(keys: Keys, count: int) -> Call[int]:
    """Take so many numeric task ids: the first of them."""
    return scripted("take_ids", (keys.task_ids,), (count,), int)


def _as_it_is(reply: Any) -> bytes | None:
    return reply  # type: ignore[no-any-return]  # bytes, or nil
