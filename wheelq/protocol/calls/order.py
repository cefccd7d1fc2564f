"""Calls of a worker on a shard whose jobs run in order: hold it, read it, postpone a job, release it.

The hash `order:GROUP` of a shard says which consumer holds it and which one wants it. It also keeps, by entry id, the
time and record of the next run of each failed delivery. Failed deliveries stay pending, which keeps their places.

| field                                | value                                                           |
|--------------------------------------|-----------------------------------------------------------------|
| `owner`, `until`                     | the consumer that holds the shard, and until when (server ms)   |
| `asker`, `asks_until`, `asker_holds` | a consumer that wants it, until when, and how many it holds now |
| an entry id                          | `due_ms`, a space, and the record of its next run               |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Argument, Call, command, nothing, scripted
from wheelq.protocol.calls.worker import Counted, Entry, read_entry
from wheelq.protocol.keys import ShardKeys


class Hold(NamedTuple):
    """The answer to `hold`."""

    is_held: bool
    wait_ms: int = 0
    """For how many milliseconds another consumer has claimed the shard; 0 if the caller holds it."""
    server_us: int = 0
    is_busy: bool = False
    """Whether others still run deliveries of the shard: nothing may start before these are done."""
    asker: str | None = None
    """Another consumer that wants the shard."""
    asker_holds: int = 0
    entry_ids: Sequence[str] = ()
    """The deliveries taken over; with `tell_own` the consumer's own too."""
    others: Sequence[str] = ()
    """The other consumers that have deliveries of the shard."""
    held: str = ""
    """Another consumer's hold; it changes whenever that consumer renews it."""


class HeldEntries(NamedTuple):
    """The answer to `read_held`."""

    last_id: str
    """The last entry delivered to the group."""
    overdue_ms: int | None
    """Due time of the first waiting job, if it is due and not promoted yet."""
    entries: list[Entry]


class PutOff(NamedTuple):
    """The next run of a delivery that failed."""

    due_ms: int
    record: bytes


def hold(
    keys: ShardKeys,
    group: str,
    consumer: str,
    abandoned_ms: int,
    holds: int,
    *,
    tell_own: bool,
    finished: Sequence[str] = (),
    over: str = "",
    gone: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> Call[Hold]:
    """Take the shard, or renew the hold, for `abandoned_ms`; forget up to 500 `finished` deliveries.

    Ends the hold named by `over`. Takes over all deliveries of `gone` consumers, and of `unknown` ones those that were
    not renewed for `abandoned_ms`.
    """

    def read(reply: list[Any]) -> Hold:
        if not reply[0]:
            return Hold(False, int(reply[1]), held=reply[2].decode())
        server_us, busy, asker, asker_holds = reply[1:5]
        others = [name.decode() for name in reply[5]]
        ids = [entry_id.decode() for entry_id in reply[6:]]
        return Hold(True, 0, int(server_us), bool(busy), asker.decode() or None, int(asker_holds), ids, others)

    args: list[Argument] = [group, consumer, abandoned_ms, abandoned_ms, holds, int(tell_own), over]
    args += [len(gone), len(unknown), *gone, *unknown, *finished]
    return scripted("hold", (keys.ready, keys.order(group), keys.counts), args, read)


def read_held(keys: ShardKeys, group: str, consumer: str, count: int) -> Call[HeldEntries | None]:
    """Read up to `count` new entries; None if the consumer no longer holds the shard."""

    def read(reply: list[Any]) -> HeldEntries | None:
        if not reply[0]:
            return None
        entries = [read_entry(entry_id, fields) for entry_id, fields in reply[3:]]
        return HeldEntries(reply[1].decode(), int(float(reply[2])) if reply[2] else None, entries)

    return scripted("read_held", (keys.ready, keys.order(group), keys.delayed), (group, consumer, count), read)


def put_off(
    keys: ShardKeys,
    group: str,
    consumer: str,
    entry: Entry,
    pause_ms: int,
    record: bytes,
    counted: Counted = "retried",
) -> Call[int]:
    """Keep a failed delivery in place until its next run. Returns when that is due; 0 if another consumer has it."""
    args = (group, consumer, entry.entry_id, pause_ms, record, counted, entry.id)
    return scripted("put_off", (keys.ready, keys.order(group), keys.counts), args, int)


def put_off_before(keys: ShardKeys, group: str, entry_ids: Sequence[str]) -> Call[list[PutOff | None]]:
    """The next run of each delivery, in order; None for those that have not failed."""

    def read_one(value: bytes | None) -> PutOff | None:
        due_ms, _, record = (value or b"").partition(b" ")
        return PutOff(int(due_ms), record) if due_ms.isdigit() and len(due_ms) < 17 else None

    key = keys.order(group)
    return command("HMGET", key, *entry_ids, read=lambda reply: [read_one(value) for value in reply], key=key)


def forget(keys: ShardKeys, group: str, entry_ids: Sequence[str]) -> Call[None]:
    """Forget the next runs of deliveries that have ended. Any consumer may do this, even without holding the shard."""
    return command("HDEL", keys.order(group), *entry_ids, read=nothing, key=keys.order(group))


def tidy(keys: ShardKeys, group: str, cursor: str) -> Call[str]:
    """Forget next runs of deliveries that are no longer pending. Returns the next cursor, "0" at the end."""
    return scripted("tidy_order", (keys.ready, keys.order(group)), (group, cursor), lambda reply: reply.decode())


def let_go(keys: ShardKeys, group: str, consumer: str, successor: str | None, lease_ms: int) -> Call[bool]:
    """Release the shard and pass it on to `successor`; False if another consumer held it."""
    return scripted("let_go", (keys.order(group),), (consumer, successor or "", lease_ms), bool)
