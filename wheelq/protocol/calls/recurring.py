"""What is asked about recurring jobs. Those of a topic live in its shard 0, and so do their occurrences: whatever the
number of shards, a definition and the job it makes change in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.job import Priority
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.entries import Entry, State, read_terms
from wheelq.protocol.keys import ShardKeys
from wheelq.recurrence import Rule

NOTICE = b"recurring"
"""Said on the shard's `near` channel when there is something to make that nobody expects."""

PAGE = 100


class Found(NamedTuple):
    """The answer to `read_one`."""

    server_us: int
    entry: Entry | None
    is_waiting: bool
    """Whether the occurrence made last waits for its due time."""


class Coming(NamedTuple):
    """A recurring job whose next occurrence is to be made."""

    name: str
    state: State
    rule: Rule
    priority: Priority


class Near(NamedTuple):
    """The answer to `near`."""

    server_us: int
    look_ms: int | None
    """When the first of the others is to be looked at; None when there is no other."""
    coming: list[Coming]


def read_one(keys: ShardKeys, name: str) -> Call[Found]:
    """One recurring job."""

    def read(reply: list[Any]) -> Found:
        return Found(int(reply[0]), Entry.unpack(reply[1]) if reply[1] else None, reply[2] == 1)

    return scripted("recurring_read", (keys.recurring, keys.delayed), (name,), read)


def page(keys: ShardKeys, cursor: bytes) -> Call[tuple[bytes, dict[str, Entry]]]:
    """Some of the recurring jobs of a topic, from a cursor on (b"0": from the first), and the next (b"0": the end)."""

    def read(reply: list[Any]) -> tuple[bytes, dict[str, Entry]]:
        following, flat = reply
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return following, {name.decode(): Entry.unpack(stored) for name, stored in pairs}

    return command("HSCAN", keys.recurring, cursor, "COUNT", PAGE, read=read, key=keys.recurring)


def change(
    keys: ShardKeys, name: str, before: State | None, after: Entry | None, look_ms: int | None, withdrawn: str | None
) -> Call[bool]:
    """Put or remove a recurring job (`after` None); False when it is no longer as `before`, and nothing was done.

    `look_ms` is when its next occurrence is due, `withdrawn` the id of one that waits and is taken back.
    """
    args: tuple[Argument, ...] = (
        keys.near,
        NOTICE,
        name,
        "" if before is None else str(before),
        "" if after is None else after.pack(),
        "" if look_ms is None else look_ms,
        withdrawn or "",
    )
    shard = (keys.recurring, keys.occurrences, keys.delayed, keys.jobs, keys.news)
    return scripted("recurring_change", shard, args, bool)


def near(keys: ShardKeys, ahead_ms: int) -> Call[Near]:
    """The first recurring jobs (up to 100) with an occurrence due up to `ahead_ms` from now."""

    def read(reply: list[Any]) -> Near:
        triples = zip(reply[2::3], reply[3::3], reply[4::3], strict=True)
        coming = [Coming(name.decode(), State.read(line), *read_terms(terms)[:2]) for name, line, terms in triples]
        return Near(int(reply[0]), int(float(reply[1])) if reply[1] else None, coming)

    return scripted("recurring_near", (keys.recurring, keys.occurrences), (ahead_ms, PAGE), read)


def make(
    keys: ShardKeys,
    name: str,
    before: State,
    after: State,
    look_ms: int | None,
    jobs: Sequence[tuple[str, str]],
    superseded: str | None,
) -> Call[bool]:
    """Make occurrences (id, due as `schedule` takes it); False when it is no longer as `before`: nothing was done.

    `look_ms` is when to look at it again; None: never. `superseded` is the id of an earlier occurrence for which the
    last of these stands: if it waits it is taken back, and if it was promoted later than the last of these is due, it
    stands for that one.
    """
    args: list[Argument] = [
        keys.near,
        name,
        str(before),
        str(after),
        "" if look_ms is None else look_ms,
        superseded or "",
    ]
    for job in jobs:
        args += job
    shard = (keys.recurring, keys.occurrences, keys.delayed, keys.jobs, keys.horizon, keys.news)
    return scripted("recurring_make", shard, args, bool)
