"""Removing a consumer group from a shard, or a whole shard, in bounded steps.

    remove_group   drops pending deliveries and destroys the group; from then on no worker creates it again
    purge          its dead jobs
    release_ids    its retries, and the ids that only this group kept in use
    drop_entries   its entries among the ready ones
    forget_group   its progress notes, and its results of finished jobs
    end_removal    the entries that only this group kept in the stream; then nothing names the group

Each step finds out by itself what is left to do. So a removal can be repeated or run twice at the same time, and a
scheduler finishes it if the process that began it is gone: it is begun in every shard before it ends in one, so as
long as it has not ended everywhere, some shard shows it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from wheelq.errors import NotPermitted
from wheelq.model.dead import DeadFilter
from wheelq.model.topic import KEPT_HOURS, REMOVING
from wheelq.protocol.call import Call, command, scripted, together
from wheelq.protocol.calls import bundles, dead
from wheelq.protocol.calls.bundles import CheckedPage
from wheelq.protocol.calls.counts import HOUR_MS
from wheelq.protocol.calls.dead import DeadRange, Purged
from wheelq.protocol.keys import ShardKeys

AT_ONCE = 500
"""The jobs that one call looks at, which takes about a millisecond."""

Begins = Literal["begin", "if gone", ""]
BEGIN: Begins = "begin"
IF_GONE: Begins = "if gone"
"""Begin only if the group does not exist, because another program destroyed it."""
GO_ON: Begins = ""
"""Only continue a removal that was begun."""

Steps = Generator[Call[Any], Any, bool]
"""Yields calls and receives their answers."""


class Begun(NamedTuple):
    """The answer to `remove_group`."""

    dropped: int
    """The number of deliveries that were pending."""
    was_here: bool
    is_here: bool


class Released(NamedTuple):
    """The answer to `release_ids`."""

    cursor: str
    """The next cursor; empty at the end."""
    forgotten: int


def group_removed(keys: ShardKeys, group: str, retention_ms: int, *, begins: Begins = BEGIN) -> Steps:
    """Remove a group from a shard. Returns whether there was anything to remove."""
    was_there = False
    while True:
        begun: Begun | None = yield remove_group(keys, group, begins)
        if begun is None:
            return was_there
        was_there |= begun.was_here
        begins = GO_ON
        if begun.is_here:
            continue
        was_there |= yield from _dead_purged(keys, group)
        was_there |= yield from _ids_released(keys, group)
        yield from _members_counted(keys)
        was_there |= yield from _entries_dropped(keys, group)
        yield from _forgotten(keys, group)
        ended = 2
        while ended == 2:
            ended = yield scripted(
                "end_removal",
                (keys.ready, keys.groups, keys.order(group), keys.dead, keys.counts),
                (group, retention_ms),
                int,
            )
        if ended:
            return was_there


def _members_counted(keys: ShardKeys) -> Steps:
    """Counts members of bundles whose ids were released after another group had trimmed their entries."""
    cursor, is_all = "0", False
    while not is_all:
        page: CheckedPage = yield bundles.check_members(keys, cursor)
        cursor, is_all = page.cursor, page.cursor == "0"
    return False


def remove_group(keys: ShardKeys, group: str, begins: Begins = BEGIN) -> Call[Begun | None]:
    """Take the first steps, or the next ones. None if the group is not being removed.

    From the first call on, the shard records that the group is being removed, until that has ended.
    """

    def read(reply: list[int]) -> Begun | None:
        return Begun(reply[0], reply[1] == 1, reply[2] == 1) if reply else None

    return scripted("remove_group", (keys.ready, keys.groups), (group, begins), read)


def is_begun(keys: ShardKeys, group: str) -> Call[bool]:
    """Whether a group is being removed from a shard."""
    return command("HGET", keys.groups, group, read=bool, key=keys.groups)


def release_ids(keys: ShardKeys, group: str, cursor: str) -> Call[Released | None]:
    """Forget some jobs that no group must run, and retries of the group that is being removed.

    None if the group is no longer being removed, or exists again.
    """

    def read(reply: list[Any]) -> Released | None:
        if not reply:
            return None
        cursor, forgotten = reply
        return Released("" if cursor == b"0" else cursor.decode(), forgotten)

    wanted = (keys.jobs, keys.delayed, keys.ready, keys.retries, keys.groups, keys.news, keys.bundles, keys.outgoing)
    return scripted("release_ids", wanted, (group, cursor, AT_ONCE, keys.near), read)


def watch_groups(keys: ShardKeys) -> Call[list[str]]:
    """Record a shard's groups. Returns the recorded groups that were destroyed or are being removed."""
    return scripted("watch_groups", (keys.ready, keys.groups), (), _texts)


def groups_known(keys: ShardKeys) -> Call[set[str]]:
    """The recorded names of the groups that the shard has or had."""

    def read(reply: list[bytes]) -> set[str]:
        return set(_texts(reply[::2]))

    return command("HGETALL", keys.groups, read=read, key=keys.groups)


def consumers(keys: ShardKeys, group: str, lately_ms: int) -> Call[list[str]]:
    """The consumers of a group that were active in the last `lately_ms`."""
    return scripted("consumers", (keys.ready,), (group, lately_ms), _texts)


def recurring_jobs(keys: ShardKeys) -> Call[int]:
    """How many recurring jobs are defined in a topic's first shard."""
    return command("HLEN", keys.recurring, read=int, key=keys.recurring)


def is_shard(keys: ShardKeys) -> Call[bool]:
    """Whether a shard beyond the topic's current number was once in use."""
    return command("EXISTS", keys.shards, keys.ready, read=bool, key=keys.shards)


def drop_shard(keys: ShardKeys, groups: Iterable[str], now_ms: int, *, is_last: bool) -> Call[int]:
    """Delete every key of a shard whose topic is being removed, with the data of these groups and its history.

    Only the last such call deletes the keys that fence producers out.
    """
    names = [getattr(keys, name) for name in keys.names() if name not in ("near", "shards", "fence")]
    names += [keys.order(group) for group in groups]
    names += [keys.history(now_ms // HOUR_MS - ago) for ago in range(KEPT_HOURS + 2)]
    return scripted("drop_shard", (keys.shards, keys.fence, *names), (REMOVING, "last" if is_last else ""), int)


def may_remove(keys: ShardKeys) -> Call[None]:
    """Raises: NotPermitted, unless the user may run what removals need besides a producer's rights. Changes nothing."""
    nothing_there = keys.order("")  # no group has this name
    calls = [
        command("UNLINK", nothing_there, read=int, key=keys.ready),
        command("XACK", nothing_there, "none", "0-1", read=int, key=keys.ready),
        command("XTRIM", nothing_there, "MINID", "0", read=int, key=keys.ready),
        command("XGROUP DESTROY", nothing_there, "none", read=int, key=keys.ready),
        command("XINFO CONSUMERS", nothing_there, "none", read=int, key=keys.ready),
        command("ZMSCORE", nothing_there, "none", read=int, key=keys.ready),
    ]

    def read(replies: Sequence[Any]) -> None:
        for reply in replies:
            if isinstance(reply, NotPermitted):
                raise reply

    return together(calls, read)


def _texts(names: Sequence[bytes]) -> list[str]:
    """The names that are text; another program may have written others."""
    found = []
    for name in names:
        with suppress(UnicodeDecodeError):
            found.append(name.decode())
    return found


def _dead_purged(keys: ShardKeys, group: str) -> Steps:
    where, span, any_purged = DeadFilter(group=group), DeadRange("-", "+"), False
    while True:
        answer: Purged = yield dead.purge(keys, where, span)
        any_purged |= answer.purged > 0
        if answer.looked_to is None:
            return any_purged
        span = DeadRange(f"({answer.looked_to.entry_id}", "+")


def _ids_released(keys: ShardKeys, group: str) -> Steps:
    cursor, any_forgotten = "0", False
    while cursor:
        found = yield release_ids(keys, group, cursor)
        if found is None:
            break
        cursor, any_forgotten = found.cursor, any_forgotten or found.forgotten > 0
    return any_forgotten


def _entries_dropped(keys: ShardKeys, group: str) -> Steps:
    def read(reply: list[Any]) -> tuple[str, int]:
        return reply[0].decode(), reply[1]

    cursor, any_dropped = "0-0", False
    while cursor:
        args = (group, cursor, AT_ONCE)
        cursor, dropped = yield scripted("drop_entries", (keys.ready, keys.groups), args, read)
        any_dropped |= dropped > 0
    return any_dropped


def _forgotten(keys: ShardKeys, group: str) -> Generator[Call[Any], Any, None]:
    def read(reply: list[bytes]) -> tuple[str, str]:
        return reply[0].decode(), reply[1].decode()

    wanted = (keys.progress, keys.done, keys.ended, keys.groups)
    cursors = "0", "0"
    while any(cursors):
        cursors = yield scripted("forget_group", wanted, (group, *cursors, AT_ONCE), read)
