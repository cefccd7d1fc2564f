"""Calls on behalf of consumers without a connection of their own: lease deliveries for a while, then answer them.

One consumer of the group holds all leases of the group, and another the deliveries that were given back. A lease is a
delivery dated so that it is `LONGEST_MS` old when the lease ends; the next call of `lease` then takes it over. The
delivery count numbers the leases, so a lease is named by entry and number.

These dates are milliseconds of a separate clock. `time` advances it by the time that the HTTP servers measure, so that
a step of the Redis server's clock neither ends nor prolongs a lease. See `server/leases.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.calls import outgoing
from wheelq.protocol.calls.outgoing import Follower, Outgoing
from wheelq.protocol.calls.state import PROGRESS_KEEP_MS, UNLEASED
from wheelq.protocol.calls.worker import Entry, read_entry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings

CONSUMER = "http"
LONGEST_MS = 12 * 3_600_000
"""The longest lease."""
START = "0-0"


class LeaseId(NamedTuple):
    """The name of one lease."""

    entry_id: str
    member: bytes
    number: int
    in_bundle: bool = False
    """Whether the job is a member of a bundle."""


class LeaseTime(NamedTuple):
    """The answer to `time`."""

    ms: int
    """The time of the lease clock."""
    era: str
    """Changes when the clock restarts from the server's time; earlier estimates are then void."""
    server_ms: int
    """The server's time."""


class Leased(NamedTuple):
    """The answer to `lease`."""

    now_ms: int
    """The server's time."""
    entries: list[Entry]


def time(keys: Keys, reckoned_ms: int | None, era: str) -> Call[LeaseTime]:
    """Advance the lease clock to the caller's estimate, and read it."""

    def read(reply: list[Any]) -> LeaseTime:
        ms, era, server_ms = reply
        return LeaseTime(int(ms), era.decode(), int(server_ms))

    args = ("" if reckoned_ms is None else reckoned_ms, era, LONGEST_MS)
    return scripted("lease_time", (keys.lease_clock,), args, read)


def lease(keys: ShardKeys, group: str, now_ms: int, ends_ms: int, count: int, *, looks: bool) -> Call[Leased]:
    """Lease up to `count` deliveries: those whose lease has ended by `now_ms`, then new ones.

    With very many leases open, only a call that `looks` finds ended ones; returned deliveries are always found.
    """

    def read(reply: list[Any]) -> Leased:
        now_ms, *rest = reply
        threes = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        entries = [read_entry(entry_id, fields, number) for entry_id, number, fields in threes]
        return Leased(int(now_ms), entries)

    args = (group, CONSUMER, now_ms - LONGEST_MS, ends_ms - LONGEST_MS, count, UNLEASED, int(looks))
    return scripted("lease", (keys.ready, keys.counts), args, read)


class LeasesAcked(NamedTuple):
    """The answer to `ack`."""

    done: list[bool]
    """For each lease, whether it was still valid."""
    outgoing: list[Outgoing]
    """The followers of those that were, and reports of their bundles."""
    is_full: bool = False
    """Whether a job was not acknowledged because `outgoing` has no room for its followers."""


def ack(
    keys: ShardKeys,
    group: str,
    topic: TopicSettings,
    leases: Sequence[LeaseId],
    dropped: int = 0,
    result: bytes = b"",
    followers: Sequence[Sequence[Follower]] = (),
) -> Call[LeasesAcked]:
    """Acknowledge up to 500 leases, with the packed result and followers of each; the last `dropped` did not run."""
    args: list[Argument] = [group, CONSUMER, topic.retention_ms, topic.keep_done_ms, result, dropped, keys.near]
    args.append(len(leases))
    for item in leases:
        args += item[:3]
    args += outgoing.packed(followers)

    def read(reply: list[Any]) -> LeasesAcked:
        behind = len(leases) + sum(map(len, followers))
        states, entries = reply[: len(leases)], reply[len(leases) : behind]
        found = outgoing.outgoing_of(followers, entries) + outgoing.claimed(reply[behind:])
        return LeasesAcked([state == 1 for state in states], found, is_full=2 in states)

    wanted = (keys.ready, keys.jobs, keys.done, keys.ended, keys.news, keys.counts, keys.progress, keys.outgoing)
    has_members = any(item.in_bundle for item in leases)
    return scripted("ack_leased", (*wanted, keys.bundles) if has_members else wanted, args, read)


def note(keys: ShardKeys, group: str, leases: Sequence[LeaseId], note: bytes) -> Call[list[bool]]:
    """Record the progress of up to 500 leased jobs. Returns for each whether its lease was still valid."""
    args: list[Argument] = [group, CONSUMER, PROGRESS_KEEP_MS]
    for item in leases:
        args += (item.entry_id, item.member, note, item.number)
    return scripted("note", (keys.ready, keys.progress), args, _each)


def extend(keys: ShardKeys, group: str, ends_ms: int, leases: Sequence[LeaseId]) -> Call[list[bool]]:
    """Move the end of up to 500 leases to `ends_ms`. Returns for each lease whether it was still valid."""
    args: list[Argument] = [group, CONSUMER, ends_ms - LONGEST_MS]
    for item in leases:
        args += (item.entry_id, item.number)
    return scripted("extend_leased", (keys.ready,), args, _each)


def entry_of(keys: ShardKeys, lease: LeaseId) -> Call[Entry | None]:
    """Read the entry of a lease; None if it is gone."""

    def read(reply: list[Any]) -> Entry | None:
        if not reply:
            return None
        entry_id, fields = reply[0]
        return read_entry(entry_id, fields, lease.number)

    return command("XRANGE", keys.ready, lease.entry_id, lease.entry_id, read=read, key=keys.ready)


def release(
    keys: ShardKeys, group: str, from_ms: int, leases: Sequence[LeaseId], counts: bool = True
) -> Call[list[bool]]:
    """Give up to 500 leases back, free again from `from_ms` on. Returns for each whether it was still valid.

    `counts`: whether the lease counts as a delivery. It does not if no consumer received it.
    """
    args: list[Argument] = [group, CONSUMER, UNLEASED, from_ms - LONGEST_MS, int(counts)]
    for item in leases:
        args += (item.entry_id, item.number)
    return scripted("release_leased", (keys.ready, keys.counts), args, _each)


def take(keys: ShardKeys, group: str, id: str) -> Call[bool]:
    """Remove a promoted job from the queue by its id; False if it is not there, or another group needs it."""
    wanted = (keys.ready, keys.jobs, keys.counts, keys.bundles, keys.outgoing)
    return scripted("take_ready", wanted, (group, id, keys.near), bool)


def last_entry(keys: ShardKeys) -> Call[str]:
    """The id of the last ready entry; "0-0" if there is none."""

    def read(reply: list[Any]) -> str:
        return reply[0][0].decode() if reply else START

    return command("XREVRANGE", keys.ready, "+", "-", "COUNT", 1, read=read, key=keys.ready)


def wait_for_entries(after: Sequence[tuple[ShardKeys, str]], block_ms: int) -> Call[dict[str, str]]:
    """Wait for ready entries after the named ones.

    Returns stream key → new entry; empty if none came. In a cluster all streams must lie in one slot.
    """

    def read(reply: list[Any] | None) -> dict[str, str]:
        return {stream.decode(): entries[-1][0].decode() for stream, entries in reply or ()}

    streams = [keys.ready for keys, _ in after]
    args: list[Argument] = ["COUNT", 1, "BLOCK", block_ms, "STREAMS", *streams, *(entry for _, entry in after)]
    return command("XREAD", *args, read=read, wait_ms=block_ms, key=streams[0])


def _each(reply: list[int]) -> list[bool]:
    return [done == 1 for done in reply]
