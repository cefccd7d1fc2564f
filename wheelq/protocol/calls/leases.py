"""What is asked for consumers that have no connection of their own: lease deliveries for a while, answer for them.

All of them are one consumer of their group. A lease is a delivery whose idle time was set so that it reaches
`LONGEST_MS` when the lease ends: then whoever leases next takes it over. A delivery's count of deliveries numbers its
leases, so a lease is named by entry and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.calls.worker import Entry, read_entry
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import TopicSettings

CONSUMER = "http"
LONGEST_MS = 12 * 3_600_000
"""The longest lease."""
START = "0-0"


class Lease(NamedTuple):
    """One lease, as it is named in an answer."""

    entry_id: str
    member: bytes
    number: int


class Leased(NamedTuple):
    """The answer to `lease`."""

    cursor: str
    """Where to look on for leases that have ended."""
    now_ms: int
    """The server's time."""
    entries: list[Entry]


def lease(keys: ShardKeys, group: str, lease_ms: int, count: int, cursor: str) -> Call[Leased]:
    """Lease up to `count` deliveries: those whose lease has ended, then new ones."""

    def read(reply: list[Any]) -> Leased:
        cursor, now_ms, *rest = reply
        threes = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        entries = [read_entry(entry_id, fields, number) for entry_id, number, fields in threes]
        return Leased(cursor.decode(), int(now_ms), entries)

    args = (group, CONSUMER, LONGEST_MS, LONGEST_MS - lease_ms, count, cursor)
    return scripted("lease", (keys.ready,), args, read)


def ack(keys: ShardKeys, group: str, topic: TopicSettings, leases: Sequence[Lease]) -> Call[list[bool]]:
    """Acknowledge up to 500 leases; for each whether it was still theirs."""
    args: list[Argument] = [group, CONSUMER, topic.retention_ms, topic.keep_done_ms]
    for item in leases:
        args += item
    return scripted("ack_leased", (keys.ready, keys.jobs, keys.done, keys.ended, keys.news), args, _each)


def extend(keys: ShardKeys, group: str, lease_ms: int, leases: Sequence[Lease]) -> Call[list[bool]]:
    """Let up to 500 leases end so long from now; for each whether it was still theirs."""
    args: list[Argument] = [group, CONSUMER, LONGEST_MS - lease_ms]
    for item in leases:
        args += (item.entry_id, item.number)
    return scripted("extend_leased", (keys.ready,), args, _each)


def take(keys: ShardKeys, group: str, id: str) -> Call[bool]:
    """Take a promoted job off the line by its id; False when it is not there, or another group needs it."""
    return scripted("take_ready", (keys.ready, keys.jobs), (group, id), bool)


def last_entry(keys: ShardKeys) -> Call[str]:
    """Id of the last ready entry; "0-0" when there is none."""

    def read(reply: list[Any]) -> str:
        return reply[0][0].decode() if reply else START

    return command("XREVRANGE", keys.ready, "+", "-", "COUNT", 1, read=read, key=keys.ready)


def wait_for_entries(after: Sequence[tuple[ShardKeys, str]], block_ms: int) -> Call[dict[str, str]]:
    """Wait for a ready entry behind the named ones: the stream's key → the entry that came; empty: none did.

    In a cluster all of them must lie in one slot.
    """

    def read(reply: list[Any] | None) -> dict[str, str]:
        return {stream.decode(): entries[-1][0].decode() for stream, entries in reply or ()}

    streams = [keys.ready for keys, _ in after]
    args: list[Argument] = ["COUNT", 1, "BLOCK", block_ms, "STREAMS", *streams, *(entry for _, entry in after)]
    return command("XREAD", *args, read=read, wait_ms=block_ms, key=streams[0])


def _each(reply: list[int]) -> list[bool]:
    return [done == 1 for done in reply]
