"""What a worker asks: read, ack, retry, bury, and the calls of recovery.

A ready entry is read as raw field lists: `id`, `due`, `attempt`, `record`, and `group` in a retry, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.keys import MEMBER_SEPARATOR, ShardKeys
from wheelq.settings import TopicSettings


class Entry(NamedTuple):
    """One delivery of a ready entry, its record still packed."""

    entry_id: str
    id: str
    due_ms: int
    attempt: int
    record: bytes
    group: str | None
    """The only group that a retry concerns; None: every group."""
    deliveries: int = 1

    @property
    def member(self) -> str:
        """What names this job in the `jobs` hash: the id, or id and group of a retry."""
        return self.id if self.group is None else f"{self.id}{MEMBER_SEPARATOR}{self.group}"


class Claimed(NamedTuple):
    """The answer to `claim`."""

    cursor: str
    """Where the next claim goes on; "0-0" when all were looked at."""
    entry_ids: list[str]


GroupStart = Literal["beginning", "now"]
"""Where a new group starts to read: with all that the stream keeps, or behind it."""


def make_group(keys: ShardKeys, group: str, start: GroupStart = "beginning") -> Call[bool]:
    """Make the group; False when it was there. The first group of a stream starts at the beginning in any case."""
    return scripted("make_group", (keys.ready,), (group, start), bool)


def read(
    shards: Sequence[ShardKeys], group: str, consumer: str, count: int, block_ms: int | None
) -> Call[list[list[Entry]]]:
    """Up to `count` new entries of each shard; one list per shard, in order.

    Waits up to `block_ms` for the first; None: does not wait.

    In a cluster all of them must lie in one slot.
    """
    places = {keys.ready.encode(): place for place, keys in enumerate(shards)}

    def read_reply(reply: list[Any] | None) -> list[list[Entry]]:
        found: list[list[Entry]] = [[] for _ in shards]
        for stream, entries in reply or ():
            found[places[stream]] = [read_entry(entry_id, fields) for entry_id, fields in entries]
        return found

    args: list[Argument] = ["GROUP", group, consumer, "COUNT", count]
    if block_ms is not None:
        args += ["BLOCK", block_ms]
    args += ["STREAMS", *(keys.ready for keys in shards)]
    args += [">"] * len(shards)
    return command("XREADGROUP", *args, read=read_reply, wait_ms=block_ms or 0, key=shards[0].ready)


def ack(
    keys: ShardKeys,
    group: str,
    consumer: str,
    safe_until_ms: int,
    retention_ms: int,
    deliveries: Sequence[tuple[str, str]],
) -> Call[int]:
    """Acknowledge up to 500 deliveries (entry id, member); how many were still this consumer's."""
    args: list[Argument] = [group, consumer, safe_until_ms, retention_ms]
    for delivery in deliveries:
        args += delivery
    return scripted("ack", (keys.ready, keys.jobs), args, int)


def retry(keys: ShardKeys, group: str, consumer: str, entry: Entry, pause_ms: int, record: bytes) -> Call[bool]:
    """Acknowledge a failed delivery and let the job wait, with the `record` of its next run.

    False when the delivery was not this consumer's any more.
    """
    args = (group, consumer, entry.entry_id, entry.id, pause_ms, keys.near, record)
    return scripted("retry", (keys.ready, keys.jobs, keys.delayed, keys.horizon), args, bool)


class Burial(NamedTuple):
    """What is told of a job that is given up."""

    reason: str
    error: str
    traceback: str
    attempt: int
    first_due_ms: int


def bury(
    keys: ShardKeys, group: str, consumer: str, entry: Entry, burial: Burial, settings: TopicSettings
) -> Call[bool]:
    """Put a job among the dead; False when the delivery was not this consumer's any more."""
    told = (burial.attempt, burial.first_due_ms, burial.reason, burial.error, burial.traceback)
    kept = (settings.retention_ms, settings.dead_retention_ms, settings.dead_max)
    args = (group, consumer, entry.entry_id, entry.id, entry.member, *told, *kept)
    return scripted("bury", (keys.ready, keys.jobs, keys.dead, keys.buried, keys.progress, keys.news), args, bool)


def keep(keys: ShardKeys, group: str, consumer: str, entry_ids: Sequence[str]) -> Call[tuple[int, list[str]]]:
    """Renew up to 500 deliveries: the server's time in microseconds, and those that were lost to another worker."""

    def read(reply: list[Any]) -> tuple[int, list[str]]:
        return int(reply[0]), [entry_id.decode() for entry_id in reply[1:]]

    return scripted("keep", (keys.ready,), (group, consumer, *entry_ids), read)


def claim(keys: ShardKeys, group: str, consumer: str, abandoned_ms: int, cursor: str, count: int) -> Call[Claimed]:
    """Take over up to `count` deliveries that nobody renewed for `abandoned_ms`.

    The server looks at ten times `count` a call, so the cursor must be kept. With JUSTID the reply has one shape on
    every server; the entries themselves are then asked for with `adopt`.
    """

    def read(reply: list[Any]) -> Claimed:
        return Claimed(reply[0].decode(), [entry_id.decode() for entry_id in reply[1]])

    args = (keys.ready, group, consumer, abandoned_ms, cursor, "COUNT", count, "JUSTID")
    return command("XAUTOCLAIM", *args, read=read, key=keys.ready)


def adopt(keys: ShardKeys, group: str, consumer: str, entry_ids: Sequence[str]) -> Call[list[Entry]]:
    """The entries of up to 500 deliveries just claimed; those that are gone are left out, and acknowledged away."""

    def read(reply: list[Any]) -> list[Entry]:
        groups_of_three = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [read_entry(entry_id, fields, deliveries) for entry_id, deliveries, fields in groups_of_three]

    return scripted("adopt", (keys.ready,), (group, consumer, *entry_ids), read)


def hand_back(keys: ShardKeys, group: str, consumer: str, idle_ms: int, entry_ids: Sequence[str]) -> Call[int]:
    """Let others take over up to 500 deliveries at their next look; how many were still this consumer's."""
    return scripted("hand_back", (keys.ready,), (group, consumer, idle_ms, *entry_ids), int)


def leave(keys: ShardKeys, group: str, consumer: str) -> Call[bool]:
    """Remove this consumer if it holds nothing."""
    return scripted("leave", (keys.ready,), (group, consumer), bool)


def clear_out(keys: ShardKeys, group: str, silent_ms: int, settings: TopicSettings) -> Call[tuple[int, int]]:
    """Remove empty consumers that were silent for long, and up to 20 dead jobs too many: how many of either."""
    args = (group, silent_ms, settings.dead_retention_ms, settings.dead_max)
    return scripted("clear_out", (keys.ready, keys.dead, keys.buried), args, lambda reply: (reply[0], reply[1]))


def read_entry(entry_id: bytes, fields: list[bytes], deliveries: int = 1) -> Entry:
    """A ready entry as delivered.

    Without a record if it is none of wheelq's, so that it is buried and not tried for ever.
    """
    try:
        return Entry(
            entry_id.decode(),
            fields[1].decode(),
            int(fields[3]),
            int(fields[5]),
            fields[7],
            fields[9].decode() if len(fields) > 8 else None,
            deliveries,
        )
    except (ValueError, IndexError):  # of which UnicodeDecodeError is one
        return Entry(entry_id.decode(), f"entry {entry_id.decode()}", 0, 1, b"", None, deliveries)
