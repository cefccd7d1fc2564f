"""What a worker asks of a shard whose jobs run in order: hold it, read it, put a job off, let it go.

The hash `order:GROUP` of a shard says who holds it, and who asks for it; beside that it keeps, by entry id, time and
record of the next run of deliveries that failed. These stay pending, which is what keeps their places.

| field                                | value                                                           |
|--------------------------------------|-----------------------------------------------------------------|
| `owner`, `until`                     | the consumer that holds the shard, and until when (server ms)   |
| `asker`, `asks_until`, `asker_holds` | one that wants it, until when, and how many shards it holds now |
| an entry id                          | `due_ms`, a space, and the record of its next run               |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.calls.worker import Entry, read_entry
from wheelq.protocol.keys import ShardKeys


class Hold(NamedTuple):
    """The answer to `hold`."""

    is_held: bool
    wait_ms: int = 0
    """How long another consumer holds it at most."""
    server_us: int = 0
    is_busy: bool = False
    """Others still run deliveries of it: nothing may start before these are done."""
    asker: str | None = None
    """Who else wants it."""
    asker_holds: int = 0
    entry_ids: Sequence[str] = ()
    """Deliveries taken over; with `tell_own` the consumer's own too."""


class HeldEntries(NamedTuple):
    """The answer to `read_held`."""

    last_id: str
    """The last entry that the group was given."""
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
) -> Call[Hold]:
    """Take the shard, or renew that it is held, for `abandoned_ms`; forget up to 500 `finished` deliveries."""

    def read(reply: list[Any]) -> Hold:
        if not reply[0]:
            return Hold(False, int(reply[1]))
        server_us, busy, asker, asker_holds = reply[1:5]
        ids = [entry_id.decode() for entry_id in reply[5:]]
        return Hold(True, 0, int(server_us), bool(busy), asker.decode() or None, int(asker_holds), ids)

    args: list[Argument] = [group, consumer, abandoned_ms, abandoned_ms, holds, int(tell_own), *finished]
    return scripted("hold", (keys.ready, keys.order(group)), args, read)


def read_held(keys: ShardKeys, group: str, consumer: str, count: int) -> Call[HeldEntries | None]:
    """Up to `count` new entries; None when the consumer does not hold the shard any more."""

    def read(reply: list[Any]) -> HeldEntries | None:
        if not reply[0]:
            return None
        entries = [read_entry(entry_id, fields) for entry_id, fields in reply[3:]]
        return HeldEntries(reply[1].decode(), int(float(reply[2])) if reply[2] else None, entries)

    return scripted("read_held", (keys.ready, keys.order(group), keys.delayed), (group, consumer, count), read)


def bell(keys: ShardKeys, last_id: str, block_ms: int) -> Call[bool]:
    """Wait up to `block_ms` for an entry after `last_id`; reads nothing away."""
    args: list[Argument] = ["COUNT", 1, "BLOCK", block_ms, "STREAMS", keys.ready, last_id]
    return command("XREAD", *args, read=bool, wait_ms=block_ms, key=keys.ready)


def put_off(keys: ShardKeys, group: str, consumer: str, entry_id: str, pause_ms: int, record: bytes) -> Call[int]:
    """Keep a failed delivery in its place until its next run; when that is due, or 0 if it is another's now."""
    args = (group, consumer, entry_id, pause_ms, record)
    return scripted("put_off", (keys.ready, keys.order(group)), args, int)


def put_off_before(keys: ShardKeys, group: str, entry_ids: Sequence[str]) -> Call[list[PutOff | None]]:
    """The next runs of deliveries, where they failed before; one per delivery, in order."""

    def read_one(value: bytes | None) -> PutOff | None:
        due_ms, _, record = (value or b"").partition(b" ")
        return PutOff(int(due_ms), record) if due_ms else None

    key = keys.order(group)
    return command("HMGET", key, *entry_ids, read=lambda reply: [read_one(value) for value in reply], key=key)


def let_go(keys: ShardKeys, group: str, consumer: str, successor: str | None, lease_ms: int) -> Call[bool]:
    """Hold the shard no longer, and pass it on to `successor`; False when it was another's."""
    return scripted("let_go", (keys.order(group),), (consumer, successor or "", lease_ms), bool)
