"""Calls for recurring jobs.

A topic's recurring jobs and their occurrences live in its shard 0. So a definition and the job made from it change in
one step, whatever the number of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from wheelq.errors import RecurringUnreadable
from wheelq.model.job import Priority
from wheelq.model.recurring import Rule
from wheelq.protocol import codec, scores
from wheelq.protocol.call import Argument, Call, command, nothing, scripted
from wheelq.protocol.keys import ShardKeys
from wheelq.protocol.recurring_codec import RecurringState, StoredRecurring, read_terms

NOTICE = b"recurring"
"""Published on the shard's `near` channel when an occurrence is due that no scheduler expects."""

PAGE = 100


class FoundRecurring(NamedTuple):
    """The answer to `read_one`."""

    server_us: int
    entry: StoredRecurring | None
    is_waiting: bool
    """Whether the last occurrence made still waits for its due time."""


class Coming(NamedTuple):
    """A recurring job whose next occurrence must be made."""

    name: str
    state: RecurringState
    rule: Rule
    priority: Priority


class Near(NamedTuple):
    """The answer to `near`."""

    server_us: int
    look_ms: int | None
    """When the first recurring job that is not among these must be looked at; None if there is no other."""
    coming: list[Coming]
    unreadable: list[bytes]
    """The names of recurring jobs that are near and cannot be read: a newer release or another program wrote them."""


def read_one(keys: ShardKeys, name: str, to_change: bool = False) -> Call[FoundRecurring]:
    """Read one recurring job; `to_change` it, only from a primary. Raises: RecurringUnreadable."""

    def read(reply: list[Any]) -> FoundRecurring:
        try:
            stored = StoredRecurring.unpack(reply[1]) if reply[1] else None
        except ValueError as error:
            raise RecurringUnreadable(keys.topic, name, str(error)) from error
        return FoundRecurring(int(reply[0]), stored, reply[2] == 1)

    return scripted("recurring_read", (keys.recurring, keys.delayed), (name, int(to_change)), read)


def page(keys: ShardKeys, cursor: bytes) -> Call[tuple[bytes, dict[str, StoredRecurring]]]:
    """Read some recurring jobs of a topic from a cursor on (b"0": the first), and the next cursor (b"0": the end).

    Leaves out entries that cannot be read.
    """

    def read(reply: list[Any]) -> tuple[bytes, dict[str, StoredRecurring]]:
        following, flat = reply
        found = {}
        for name, stored in zip(flat[::2], flat[1::2], strict=True):
            with suppress(ValueError):
                entry = StoredRecurring.unpack(stored)
                codec.decode(entry.record)  # checked, because people will see it
                found[name.decode()] = entry
        return following, found

    return command("HSCAN", keys.recurring, cursor, "COUNT", PAGE, read=read, key=keys.recurring)


def change(
    keys: ShardKeys,
    name: str,
    before: RecurringState | None,
    after: StoredRecurring | None,
    look_ms: int | None,
    withdrawn: str | None,
) -> Call[bool]:
    """Put a recurring job, or remove it if `after` is None.

    Returns False if its state is no longer `before`: then nothing was done. `look_ms` is when its next occurrence is
    due, `withdrawn` the id of a waiting occurrence to withdraw.
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
    shard = (keys.recurring, keys.occurrences, keys.delayed, keys.jobs, keys.news, keys.counts)
    return scripted("recurring_change", shard, args, bool)


def near(keys: ShardKeys, ahead_ms: int) -> Call[Near]:
    """The first recurring jobs (up to 100) with an occurrence due up to `ahead_ms` from now."""

    def read(reply: list[Any]) -> Near:
        triples = zip(reply[2::3], reply[3::3], reply[4::3], strict=True)
        near = Near(int(reply[0]), scores.due_ms(reply[1]) if reply[1] else None, [], [])
        for name, line, terms in triples:
            try:
                near.coming.append(Coming(name.decode(), RecurringState.read(line), *read_terms(terms)[:2]))
            except ValueError:
                near.unreadable.append(name)
        return near

    return scripted("recurring_near", (keys.recurring, keys.occurrences), (ahead_ms, PAGE), read)


def put_off(keys: ShardKeys, name: bytes, look_ms: int) -> Call[None]:
    """Do not look at a recurring job again before this time."""
    return command("ZADD", keys.occurrences, "XX", look_ms, name, read=nothing, key=keys.occurrences)


def make(
    keys: ShardKeys,
    name: str,
    before: RecurringState,
    after: RecurringState,
    look_ms: int | None,
    jobs: Sequence[tuple[str, str]],
    superseded: str | None,
) -> Call[bool]:
    """Make the occurrences `jobs` of a recurring job: the id of each, and its due time as `schedule` takes it.

    Returns False if the job's state is no longer `before`: then nothing was done. `look_ms` is when to look at the job
    again; None: never. The last new occurrence replaces the earlier one with the id `superseded`, which is withdrawn if
    it still waits. If that one was promoted after the new one was due, it counts as the new one, and none is made.
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
    shard = (keys.recurring, keys.occurrences, keys.delayed, keys.jobs, keys.horizon, keys.news, keys.counts)
    return scripted("recurring_make", shard, args, bool)
