"""Calls of a worker: read, ack, retry, bury, and recovery.

A ready entry is a raw list of fields: `id`, `due`, `attempt`, `record`, and `group` in a retry, in this order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

from wheelq.base.ids import make_tag
from wheelq.errors import BeingRemoved, Refused
from wheelq.protocol import codec, scores
from wheelq.protocol.call import Argument, Call, command, nothing, scripted
from wheelq.protocol.calls import outgoing
from wheelq.protocol.codec import LAST_MS
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
        """The job's name in the `jobs` hash: the id, or id and group of a retry."""
        return self.id if self.group is None else f"{self.id}{MEMBER_SEPARATOR}{self.group}"

    @property
    def promoted_ms(self) -> int:
        """When it was promoted, by the server's clock."""
        return int(self.entry_id.partition("-")[0])


_entry = partial(tuple.__new__, Entry)
"""Makes an entry from all its fields. Called for every job, so it takes a third of the time of `Entry(...)`."""


class ReadTo(NamedTuple):
    """The entries that `read_some` read from one shard."""

    last_id: str
    """The last entry that the group received, if nothing came after it; "": there may be more."""
    entries: list[Entry]


GroupStart = Literal["beginning", "now"]
"""Where a new group starts to read: at the first kept entry, or after the last."""


def make_group(keys: ShardKeys, group: str, start: GroupStart = "beginning") -> Call[bool]:
    """Create the group; False if it exists.

    The first group of a stream always starts at the beginning, and for a minute from then on every entry is kept, so
    that groups made within it miss none. Raises BeingRemoved while the group is being removed.
    """

    def read(reply: int) -> bool:
        if reply < 0:
            raise BeingRemoved(f"group {group!r} of topic {keys.topic!r}")
        return reply == 1

    return scripted("make_group", (keys.ready, keys.groups, keys.counts), (group, start), read)


def make_group_if_kept(keys: ShardKeys, group: str) -> Call[None]:
    """Create the group, unless it is being removed."""
    return scripted("make_group", (keys.ready, keys.groups, keys.counts), (group, "beginning"), nothing)


def read(
    shards: Sequence[ShardKeys], group: str, consumer: str, count: int, block_ms: int | None
) -> Call[list[list[Entry]]]:
    """Read up to `count` new entries of each shard; one list per shard, in order.

    Waits up to `block_ms` for the first; None: does not wait. In a cluster all shards must lie in one slot.
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


def read_some(shards: Sequence[ShardKeys], group: str, consumer: str, most: int) -> Call[list[ReadTo | str]]:
    """Read up to `most` new entries in total from up to 500 shards, without waiting.

    One answer per shard, in order, until `most` is reached: its entries, or the error. In a cluster all shards must lie
    in one slot.
    """

    def read_one(one: Any) -> ReadTo | str:
        if isinstance(one, bytes):
            return one.decode(errors="replace")
        return ReadTo(one[0].decode(), [read_entry(entry_id, fields) for entry_id, fields in one[1:]])

    keys = [shard.ready for shard in shards]
    return scripted("read_some", keys, (group, consumer, most), lambda reply: [read_one(one) for one in reply])


def listen(shards: Sequence[tuple[ShardKeys, str]], block_ms: int) -> Call[list[int]]:
    """Wait up to `block_ms` for an entry after those named, consuming none.

    Returns the indexes of shards that have one. In a cluster all shards must lie in one slot.
    """
    places = {keys.ready.encode(): place for place, (keys, _) in enumerate(shards)}
    args: list[Argument] = ["COUNT", 1, "BLOCK", block_ms, "STREAMS"]
    args += [keys.ready for keys, _ in shards]
    args += [last_id for _, last_id in shards]

    def read(reply: list[Any] | None) -> list[int]:
        return [places[stream] for stream, _ in reply or ()]

    return command("XREAD", *args, read=read, wait_ms=block_ms, key=shards[0][0].ready)


def ack(
    keys: ShardKeys,
    group: str,
    consumer: str,
    safe_until_ms: int,
    retention_ms: int,
    deliveries: Sequence[tuple[str, str]],
    dropped: int = 0,
) -> Call[int]:
    """Acknowledge up to 500 deliveries (entry id, member).

    Returns how many this consumer still held. The last `dropped` of them expired and never ran.
    """
    args: list[Argument] = [group, consumer, safe_until_ms, retention_ms]
    args.extend(chain.from_iterable(deliveries))
    if dropped:
        args.append(dropped)
    return scripted("ack", (keys.ready, keys.jobs, keys.counts), args, int)


class Acks(NamedTuple):
    """Finished deliveries of one shard, for `ack_some`; the fields are the arguments of `ack`."""

    keys: ShardKeys
    safe_until_ms: int
    retention_ms: int
    deliveries: Sequence[tuple[str, str]]
    dropped: int = 0


def ack_some(shards: Sequence[Acks], group: str, consumer: str) -> Call[Sequence[int | str]]:
    """Acknowledge deliveries in several shards, up to 500 in all; see `ack`.

    One answer per shard, in order; or the text of an error, if it is unknown what was acknowledged there. In a cluster
    all shards must lie in one slot.
    """
    keys: list[str] = []
    args: list[Argument] = [group, consumer]
    for one in shards:
        keys += (one.keys.ready, one.keys.jobs, one.keys.counts)
        args += (one.safe_until_ms, one.retention_ms, one.dropped, len(one.deliveries))
        args.extend(chain.from_iterable(one.deliveries))

    def read(replies: list[Any]) -> Sequence[int | str]:
        return [reply.decode(errors="replace") if isinstance(reply, bytes) else reply for reply in replies]

    return scripted("ack_some", keys, args, read)


Counted = Literal["retried", "mismatched"]
"""What a delivery counts as that runs again later."""


def retry(
    keys: ShardKeys,
    group: str,
    consumer: str,
    entry: Entry,
    pause_ms: int,
    record: bytes,
    lease: int | None = None,
    counted: Counted = "retried",
) -> Call[bool]:
    """Acknowledge a failed delivery, and put the job back to wait for `pause_ms`, with the `record` of its next run.

    Returns False if this consumer no longer held the delivery, or its `lease` has another number.
    """
    args: list[Argument] = [group, consumer, entry.entry_id, entry.id, pause_ms, keys.near, record]
    args += ["" if lease is None else lease, counted]
    wanted = (keys.ready, keys.jobs, keys.delayed, keys.horizon, keys.retries, keys.counts)
    return scripted("retry", wanted, args, bool)


class Burial(NamedTuple):
    """The details of a job that is given up."""

    reason: str
    error: str
    traceback: str
    attempt: int
    first_due_ms: int
    record: bytes = b""
    """The record with its last attempt; empty if the entry has the same."""


TOLD = "wheelq-tells-of-death"
"""The header of a job that tells of a dead one: nothing tells of its own death, so that no circle arises."""
TARGET = "wheelq-target"
"""The header that names the receiver of a callback."""
CALLED_ON_DEATH = "wheelq-on-dead"
"""The topic of jobs that tell a service of dead ones."""
_NOTICE_BYTES = 2**31
"""A notice may be larger than a payload, because it has one in it."""


def bury(
    keys: ShardKeys,
    group: str,
    consumer: str,
    entry: Entry,
    burial: Burial,
    settings: TopicSettings,
    lease: int | None = None,
) -> Call[bool]:
    """Move a job to the dead stream; False if this consumer no longer held the delivery, as for `retry`.

    What tells of its death is left in `outgoing`. Raises Refused if that has no room: then nothing was done.
    """
    facts = (burial.attempt, burial.first_due_ms, burial.reason, burial.error, burial.traceback)
    kept = (settings.retention_ms, settings.dead_retention_ms, settings.dead_max)
    args: list[Argument] = [group, consumer, entry.entry_id, entry.id, entry.member, *facts, *kept, burial.record]
    notice = notice_of(keys, group, entry, burial, settings)
    args += ["" if lease is None else lease, keys.near, *([] if notice is None else outgoing.sent_on(notice))]

    def read(reply: bytes) -> bool:
        if reply == outgoing.FULL:
            raise Refused(f"{keys.outgoing} has no room for the job that tells of the death of {entry.id}")
        return bool(reply)

    wanted = (keys.ready, keys.jobs, keys.dead, keys.buried, keys.progress, keys.news, keys.counts, keys.outgoing)
    return scripted("bury", (*wanted, keys.bundles), args, read)


def notice_of(
    keys: ShardKeys, group: str, entry: Entry, burial: Burial, settings: TopicSettings
) -> outgoing.Follower | None:
    """Returns the job that tells of a dead one; None if nothing is to tell of it."""
    record = None
    with suppress(codec.UnreadableRecord):
        record = codec.decode(burial.record or entry.record)
    to = (record and record.on_dead) or settings.on_dead
    if not to or (record and TOLD in record.headers):
        return None
    payload = {
        "id": entry.id,
        "topic": keys.topic,
        "group": group,
        "reason": burial.reason,
        "error": burial.error,
        "attempt": burial.attempt,
        "first_due_ms": burial.first_due_ms,
        "due_ms": entry.due_ms,
        "scheduled_ms": record.scheduled_ms if record else None,
        "attempts": [list(one) for one in record.attempts] if record else [],
        "payload": record.payload if record else None,
    }
    headers, topic = {TOLD: entry.id}, to
    if ":" in to:
        service, _, path = to.partition(":")
        headers[TARGET], topic = json.dumps({"service": service, "path": path}), CALLED_ON_DEATH
    source = "\0".join((keys.topic, str(keys.shard), entry.entry_id, group))
    id = f"dead-{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    packed = codec.encode(payload, headers, _NOTICE_BYTES)
    return outgoing.Follower(topic, id, "+0", "", "", packed, make_tag())


def keep(keys: ShardKeys, group: str, consumer: str, entry_ids: Sequence[str]) -> Call[tuple[int, list[str]]]:
    """Renew up to 500 deliveries. Returns the server's time in microseconds, and the deliveries lost to others."""

    def read(reply: list[Any]) -> tuple[int, list[str]]:
        return int(reply[0]), [entry_id.decode() for entry_id in reply[1:]]

    return scripted("keep", (keys.ready,), (group, consumer, *entry_ids), read)


def holders(shards: Sequence[ShardKeys], group: str) -> Call[list[dict[str, int]]]:
    """Count the deliveries that each consumer holds, in up to 100 shards; one map per shard.

    In a cluster all shards must lie in one slot.
    """

    def read(reply: list[list[Any]]) -> list[dict[str, int]]:
        return [{name.decode(): count for name, count in zip(one[::2], one[1::2], strict=True)} for one in reply]

    return scripted("holders", [keys.ready for keys in shards], (group,), read)


def take_over(
    keys: ShardKeys,
    group: str,
    consumer: str,
    count: int,
    abandoned_ms: int,
    gone: Sequence[str],
    others: Sequence[str],
) -> Call[list[str]]:
    """Take over up to `count` deliveries: all of `gone` consumers, and abandoned ones of `others`.

    `adopt` then reads their entries.
    """
    args: list[Argument] = [group, consumer, count, abandoned_ms, len(gone), *gone, *others]
    return scripted(
        "take_over", (keys.ready, keys.counts), args, lambda reply: [entry_id.decode() for entry_id in reply]
    )


def own(keys: ShardKeys, group: str, consumer: str, count: int) -> Call[list[str]]:
    """The entry ids of up to `count` deliveries that a consumer holds."""
    args = (keys.ready, group, "-", "+", count, consumer)
    return command("XPENDING", *args, read=lambda reply: [one[0].decode() for one in reply], key=keys.ready)


def adopt(
    keys: ShardKeys, group: str, consumer: str, entry_ids: Sequence[str], *, counts: bool = True
) -> Call[list[Entry]]:
    """Read the entries of up to 500 claimed deliveries, and count the deliveries unless they start later.

    A delivery without an entry is acknowledged and left out.
    """

    def read(reply: list[Any]) -> list[Entry]:
        groups_of_three = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return [read_entry(entry_id, fields, deliveries) for entry_id, deliveries, fields in groups_of_three]

    args = (group, consumer, *entry_ids) if counts else (group, consumer, "look", *entry_ids)
    return scripted("adopt", (keys.ready,), args, read)


def hand_back(
    keys: ShardKeys, group: str, consumer: str, idle_ms: int, entry_ids: Sequence[str], uncounted: Collection[str] = ()
) -> Call[int]:
    """Let others take over up to 500 deliveries at their next look. Returns how many this consumer still held.

    Each is taken off the count of deliveries, but for those `uncounted` here.
    """
    ids = [f"={entry_id}" if entry_id in uncounted else entry_id for entry_id in entry_ids]
    return scripted("hand_back", (keys.ready,), (group, consumer, idle_ms, *ids), int)


def leave(keys: ShardKeys, group: str, consumer: str) -> Call[bool]:
    """Remove this consumer if it holds no deliveries."""
    return scripted("leave", (keys.ready,), (group, consumer), bool)


class ClearedOut(NamedTuple):
    """The answer to `clear_out`, for one shard."""

    consumers: int
    dead: int
    first_due_ms: int | None
    """When the first waiting job is due; None if none waits."""


def clear_out(shards: Sequence[tuple[ShardKeys, TopicSettings]], group: str, silent_ms: int) -> Call[list[ClearedOut]]:
    """From each of up to 25 shards, remove empty consumers that were silent for long, and up to 20 excess dead jobs.

    Returns both numbers and the first due time of each shard. In a cluster all shards must lie in one slot.
    """

    def read(reply: list[Any]) -> list[ClearedOut]:
        return [
            ClearedOut(consumers, dead, scores.due_ms(first) if first else None) for consumers, dead, first in reply
        ]

    keys: list[str] = []
    limits: list[Argument] = []
    for shard, topic in shards:
        keys += (shard.ready, shard.dead, shard.buried, shard.delayed, shard.bundles, shard.outgoing)
        limits += (topic.dead_retention_ms, topic.dead_max, shard.near)
    args: list[Argument] = [group, silent_ms, *limits]
    return scripted("clear_out", keys, args, read)


def read_to(keys: ShardKeys, group: str) -> Call[str]:
    """The last entry that a group was given; "0-0" for a group that is not there. The stream must exist."""

    def read(reply: list[list[Any]]) -> str:
        groups = [dict(zip(one[::2], one[1::2], strict=True)) for one in reply]
        return next((one[b"last-delivered-id"].decode() for one in groups if one[b"name"] == group.encode()), "0-0")

    return command("XINFO GROUPS", keys.ready, read=read, key=keys.ready)


def entries_after(keys: ShardKeys, entry_id: str, count: int) -> Call[list[Entry]]:
    """The next `count` entries of the stream."""

    def read(reply: list[tuple[bytes, list[bytes]]]) -> list[Entry]:
        return [read_entry(found, fields) for found, fields in reply]

    return command("XRANGE", keys.ready, f"({entry_id}", "+", "COUNT", count, read=read, key=keys.ready)


def read_entry(entry_id: bytes, fields: list[bytes], deliveries: int = 1) -> Entry:
    """Returns a ready entry as delivered.

    An entry that another program wrote gets no record, so that it is buried instead of tried for ever.
    """
    try:
        due_ms, attempt = int(fields[3]), int(fields[5])
        if not 0 <= due_ms <= LAST_MS:
            raise ValueError("no due time")
        group = fields[9].decode() if len(fields) > 8 else None
        return _entry((entry_id.decode(), fields[1].decode(), due_ms, attempt, fields[7], group, deliveries))
    except (ValueError, IndexError):  # UnicodeDecodeError is a ValueError
        return Entry(entry_id.decode(), f"entry {entry_id.decode()}", 0, 1, b"", None, deliveries)
