"""Calls for bundles: jobs that are counted, so that another one follows when all of them have ended.

    open     in the shard that keeps the bundle: make it, or note shards that get members
    enter    in each of these, before that        then `schedule` writes members there, whose heads name the bundle
    close    in the keeping shard; then `shut` in each of the others
    tally    in the keeping shard: what a closed shard without a member left reports; after the last report, the
             follower is in `outgoing`
    forget   in the shard of the report, once it has arrived

Every script that ends a job counts it in its shard: see `lua/lib/bundles.lua`. A report goes through `outgoing`, as
followers do. It has the numbers of its shard and a version, so one that comes twice, or late, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.errors import BundleClosed, BundleNotFound, Refused
from wheelq.model.bundle import BundleState, When
from wheelq.protocol import codec
from wheelq.protocol.call import Call, answers, as_it_is, command, scripted, together
from wheelq.protocol.calls import outgoing
from wheelq.protocol.calls.outgoing import Follower, Outgoing
from wheelq.protocol.codec import UnreadableRecord
from wheelq.protocol.keys import Keys, ShardKeys

LOOKED_AT = 200
"""How many fields one call looks at that looks for members."""
GONE, FULL, OVER = 0, 2, 3
FLAGS_AT, HAS_PARTS = 8, 1
"""Which byte of a record tells whether its head has parts."""
_LENGTH = re.compile(rb"(\d{1,19}):")


class Totals(NamedTuple):
    """How many members a shard has had, and what became of them."""

    members: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    version: int = 0

    @property
    def left(self) -> int:
        return self.members - self.done - self.dead - self.cancelled


NONE = Totals()


class Home(NamedTuple):
    """What the keeping shard knows of a bundle."""

    state: BundleState
    when: When
    follower: Follower
    reports: dict[str, Totals | None]
    """By the names of the shards that may have members; None: it has not reported yet."""


class CheckedPage(NamedTuple):
    """The answer to `check_members`."""

    cursor: str
    """The next one, "0" at the end."""
    counted: int
    over: list[str]
    """Bundles without a member left in the shard."""


class Tallied(NamedTuple):
    """The answer to `tally`."""

    is_full: bool = False
    """Whether nothing was done, because `outgoing` has no room for the follower."""
    has_ended: bool = False
    """Whether the bundle has ended, now or before."""
    outgoing: tuple[Outgoing, ...] = ()
    """The follower, if it was made now."""


def bundle_of(record: bytes) -> str | None:
    """Returns the bundle that the head of a record names; None if it names none, or cannot be read."""
    try:
        return codec.parts_of(record).bundle if len(record) > FLAGS_AT and record[FLAGS_AT] & HAS_PARTS else None
    except UnreadableRecord:
        return None


def keeping(keys: Keys, bundle: str) -> ShardKeys:
    """The shard that keeps a bundle: the first one of its follower's topic."""
    return keys.shard(bundle.partition(":")[0], 0)


def name_of(keys: ShardKeys) -> str:
    return f"{keys.topic}:{keys.shard}"


def named(keys: Keys, name: str) -> ShardKeys:
    topic, _, shard = name.rpartition(":")
    return keys.shard(topic, int(shard))


def open(
    keys: ShardKeys, bundle: str, when: When | None, follower: Follower | None, shards: Sequence[str]
) -> Call[None]:
    """Make a bundle, if `follower` is given, and note shards. Raises: BundleClosed, BundleNotFound."""

    def read(reply: int) -> None:
        if reply < 0:
            raise BundleNotFound(bundle)
        if not reply:
            raise BundleClosed(bundle)

    packed = b"" if follower is None else _packed(outgoing.sent_on(follower))
    return scripted("open_bundle", (keys.bundles, keys.done), (bundle, when or "", packed, *shards), read)


def enter(keys: ShardKeys, bundle: str) -> Call[int]:
    """Let a shard take members, unless it was shut, or the topic has given it up and nothing is left there."""
    return scripted("enter_bundle", (keys.bundles, keys.shards, keys.jobs), (bundle, keys.shard), int)


def close(keys: ShardKeys, bundle: str, state: BundleState) -> Call[list[str]]:
    """Close or cancel a bundle; returns its shards. Raises: BundleNotFound, also if it has ended."""

    def read(reply: list[Any]) -> list[str]:
        if reply == [0]:
            raise BundleNotFound(bundle)
        return [name.decode() for name in reply]

    return scripted("close_bundle", (keys.bundles,), (bundle, state.value), read)


def shut(keys: ShardKeys, bundle: str) -> Call[str]:
    """Let a shard take no more members; returns its report, "" while members are left."""
    return scripted("shut_bundle", (keys.bundles,), (bundle,), lambda reply: reply.decode())


def tally(keys: ShardKeys, bundle: str, reports: Sequence[str | bytes]) -> Call[Tallied]:
    """Take reports of shards."""

    def read(reply: list[Any]) -> Tallied:
        made = outgoing.claimed(reply[1:]) if reply[1:] else []
        return Tallied(reply[0] == FULL, reply[0] in (GONE, OVER), tuple(made))

    wanted = (keys.bundles, keys.done, keys.ended, keys.outgoing)
    return scripted("tally_bundle", wanted, (keys.near, bundle, *reports), read)


def forget(keys: ShardKeys, bundle: str, report: str | bytes, entry_id: str, has_ended: bool) -> Call[int]:
    """Remove a report that has arrived, and forget the bundle here if nothing is left of it."""
    version = report.split()[-1]
    args = (bundle, entry_id, version, int(has_ended))
    return scripted("forget_bundle", (keys.bundles, keys.outgoing), args, int)


def cancel_members(keys: ShardKeys, bundle: str, cursor: str) -> Call[tuple[str, int]]:
    """Cancel some of the members that wait for their first run; returns the next cursor, "0" at the end."""
    wanted = (keys.bundles, keys.delayed, keys.jobs, keys.news, keys.counts, keys.outgoing)
    return scripted("cancel_members", wanted, (bundle, keys.near, cursor, LOOKED_AT), _page)


def check_members(keys: ShardKeys, cursor: str) -> Call[CheckedPage]:
    """Count some of the members whose end was not counted."""

    def read(reply: list[Any]) -> CheckedPage:
        return CheckedPage(reply[0].decode(), reply[1], [name.decode() for name in reply[2:]])

    wanted = (keys.bundles, keys.jobs, keys.ready, keys.buried, keys.dead, keys.outgoing)
    return scripted("check_members", wanted, (keys.near, cursor, LOOKED_AT), read)


def kept(keys: ShardKeys, bundle: str) -> Call[Home | None]:
    """Look a bundle up."""

    def read(replies: Sequence[Any]) -> Home | None:
        there, done = answers(asked, replies)
        found = there or done
        return None if found is None else _kept(found[1:])

    asked = [
        command("HGET", keys.bundles, f"={bundle}", read=as_it_is, key=keys.bundles),
        command("HGET", keys.done, f"\x1fbundle\x1f{bundle}", read=as_it_is, key=keys.bundles),
    ]
    return together(asked, read)


def totals(keys: ShardKeys, bundle: str) -> Call[Totals | None]:
    """What a shard has counted; None if it has no members of the bundle, or has forgotten them."""

    def read(reply: bytes | None) -> Totals | None:
        return None if reply is None else Totals(*map(int, reply.split()[:5]))

    return command("HGET", keys.bundles, bundle, read=read, key=keys.bundles)


def all_totals(keys: ShardKeys, cursor: str) -> Call[tuple[str, dict[str, Totals]]]:
    """Some of the bundles with members in a shard; and the next cursor, "0" at the end."""

    def read(reply: list[Any]) -> tuple[str, dict[str, Totals]]:
        after, pairs = reply
        found = zip(pairs[::2], pairs[1::2], strict=True)
        named = {name.decode(): Totals(*map(int, value.split()[:5])) for name, value in found}
        return after.decode(), named

    return command("HSCAN", keys.bundles, cursor, "MATCH", "[^=\x1f]*", "COUNT", 500, read=read, key=keys.bundles)


def report(keys: ShardKeys, totals: Totals) -> str:
    """Returns what a shard reports."""
    return " ".join(map(str, (name_of(keys), *totals)))


def _page(reply: list[Any]) -> tuple[str, int]:
    return reply[0].decode(), reply[1]


def _packed(parts: Sequence[object]) -> bytes:
    """As `pack` in `lua/lib/done.lua`."""
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(b"%d:%b" % (len(part), part) for part in raw)


def unpacked(packed: bytes) -> list[bytes]:
    """Returns the fields that `pack` packed (`lua/lib/done.lua`), up to the first that is not whole."""
    found, at = list[bytes](), 0
    while length := _LENGTH.match(packed, at):
        begin, at = length.end(), length.end() + int(length[1])
        if at > len(packed):
            break
        found.append(packed[begin:at])
    return found


def _kept(packed: bytes) -> Home:
    state, when, follower, *rest = unpacked(packed)
    topic, id, due, key, how, record, tag, *_ = unpacked(follower)
    one = Follower(topic.decode(), id.decode(), due.decode(), key.decode(), how.decode(), record, tag)
    reports = {
        name.decode(): Totals(*map(int, report.split())) if report else None
        for name, report in zip(rest[::2], rest[1::2], strict=True)
    }
    return Home(BundleState(state.decode()), "all_ended" if when == b"all_ended" else "all_done", one, reports)


def no_room(keeper: ShardKeys, bundle: str, remedy: str) -> Refused:
    """Returns the error for a bundle that cannot end, because its shard has too many followers to carry."""
    return Refused(f"{keeper.outgoing} has no room for the follower of bundle {bundle}: {remedy}")
