"""Small values kept for a while beside the jobs, such as answers to repeated requests; and numeric task ids."""

from __future__ import annotations

from wheelq.protocol.call import Call, as_it_is, command, scripted
from wheelq.protocol.keys import Keys


def remember(key: str, note: bytes, ttl_ms: int) -> Call[bytes | None]:
    """Write a note unless one exists. Returns the existing note, or None if this one was written."""
    return scripted("remember", (key,), (note, ttl_ms), as_it_is)


def recall(key: str) -> Call[bytes | None]:
    """Read a note; None if it does not exist or has expired."""
    return command("GET", key, read=as_it_is, key=key)


def forget(key: str) -> Call[int]:
    """Remove a note."""
    return command("DEL", key, read=int, key=key)


def left_ms(key: str) -> Call[int]:
    """How long a note is still kept; 0 if it is not there."""
    return command("PTTL", key, read=lambda reply: max(reply, 0), key=key)


def take_ids(keys: Keys, count: int) -> Call[int]:
    """Reserve `count` numeric task ids. Returns the first."""
    return scripted("take_ids", (keys.task_ids,), (count,), int)
