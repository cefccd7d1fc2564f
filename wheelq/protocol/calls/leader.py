"""Calls of a shard's leader. Every script but `acquire` checks the lease token first: see `lua/lib/leader.lua`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.base.metrics import Lateness
from wheelq.errors import NotLeader
from wheelq.model.topic import Shaping
from wheelq.protocol import scores
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.calls.counts import HOUR_MS, MINUTE_MS
from wheelq.protocol.keys import ShardKeys, member_of, raw_member

GOING = "going"
"""Published on the `near` channel when a stopping node gives its lease back, so that the standby takes it at once."""


KEY_MARK = "\x1f"
"""In a hint, and so in a leader's wheel, a partition key stands behind this mark, where others have a member."""
ANY_MS = 2**53
"""In place of a due time, in the hint that there may be a job that no leader knows of."""
MOST_KEYS = 100
"""The most keys that one sweep serves because of hints."""
_DUE_MS = re.compile("[0-9]{1,16}")


class Acquired(NamedTuple):
    """The answer to `acquire`."""

    is_ours: bool
    token: str
    """The caller's token, or the holder's."""
    server_us: int
    left_ms: int
    """How many milliseconds the holder's lease still lasts; 0 if the caller holds it."""
    is_outdated: bool = False
    """Whether the caller must read the topic's terms first, because they have changed."""


class Renewed(NamedTuple):
    """The answer to `renew`."""

    server_us: int
    first_due_ms: int | None
    """When the first waiting job of the shard is due."""


class Opened(NamedTuple):
    """The answer to `open_window`."""

    server_us: int
    horizon_ms: int
    is_partial: bool
    """Whether more jobs are due within the window than were read."""
    has_kept: bool
    """Whether there are entries or finished jobs that may be due for removal."""
    jobs: list[tuple[str, int]]
    """Member and due_ms, earliest first."""
    has_outgoing: bool = False
    """Whether followers are outgoing."""


class Promoted(NamedTuple):
    """The answer to `promote`."""

    server_us: int
    lateness: Lateness
    """How late the promoted jobs were."""
    first_due_ms: int | None
    """When the first job that still waits in the shard is due."""
    waiting: list[tuple[str, int]]
    """Members that are not due yet by the server's clock, with their due_ms."""
    has_renewed: bool = True
    """Whether the lease was prolonged, and the first waiting job looked for."""

    @property
    def promoted(self) -> int:
        """How many jobs."""
        return self.lateness.jobs


class Swept(NamedTuple):
    """The answer to `sweep`."""

    server_us: int
    lateness: Lateness
    """How late the promoted jobs were."""
    is_partial: bool
    """Whether more may be due."""
    wait_ms: float = 0.0
    """For how many milliseconds the topic's limits hold the rest back."""
    keys: HeldKeys | None = None
    """What is held back for its key; None without limits per key."""

    @property
    def promoted(self) -> int:
        """How many jobs."""
        return self.lateness.jobs


class HeldKeys(NamedTuple):
    """The jobs of a shard that limits per key concern."""

    left: int
    """How many are held back or have permits."""
    place: LookPlace
    """Where to look next."""
    lateness: Lateness
    """How late those of the promoted jobs were that had been held back."""
    later: list[tuple[str, int]]
    """Keys, as they are hinted, and when (ms) to serve each again."""
    put_back: int
    """How many due jobs were held back by this call."""


class LookPlace(NamedTuple):
    """Where a sweep looks for keys with jobs that may go, and for permits that are over."""

    held: bytes = b""
    permits: bytes = b""


class Tidied(NamedTuple):
    """The answer to `tidy`."""

    server_us: int
    is_partial: bool
    """Whether there may be more to remove."""


class Looked(NamedTuple):
    """The answer to `look`."""

    server_us: int
    first_due_ms: int | None
    token: str
    """The leader's token; empty when the lease is free."""
    left_ms: int
    """How many milliseconds the leader's lease still lasts."""
    horizon_ms: int | None = None
    """The leader is not told of jobs due later than this; None: there has been no leader yet."""
    has_outgoing: bool = False
    """Whether followers are outgoing."""
    has_held: bool = False
    """Whether jobs are held back because their keys are at their limits; none of them is the first."""


class Rested(NamedTuple):
    """The answer to `rest`."""

    server_us: int
    horizon_ms: int | None
    """None: the shard cannot rest, because there is work to do."""
    has_outgoing: bool
    """Whether followers are outgoing in a shard that rests."""


def acquire(
    keys: ShardKeys, node: str, connection: str, lease_ms: int, terms: str, replaceable: str = ""
) -> Call[Acquired]:
    """Take the lease if `terms` are in force and it is free, this node's own, or held by the token `replaceable`."""

    def read(reply: list[Any]) -> Acquired:
        how, token, server_us, *left_ms = reply
        return Acquired(
            how == 1, token.decode(errors="replace"), int(server_us), left_ms[0] if left_ms else 0, how == 2
        )

    args = (node, connection, lease_ms, replaceable, terms)
    return scripted("acquire", (keys.lease, keys.epoch, keys.shards, keys.counts), args, read)


def renew(keys: ShardKeys, token: str, lease_ms: int, now_ms: float | None = None) -> Call[Renewed]:
    """Prolong the lease. Raises NotLeader. For `now_ms` see `open_window`."""

    def read(reply: list[Any]) -> Renewed:
        _lead(reply, keys)
        return Renewed(int(reply[1]), scores.due_ms(reply[2]) if reply[2] else None)

    history, hour = _history(keys, now_ms)
    return scripted("renew", (keys.lease, keys.delayed, keys.counts, history), (token, lease_ms, hour), read)


class ToLookAt(NamedTuple):
    """A shard, and what its leader knows."""

    keys: ShardKeys
    token: str
    """Of the lease; "" if it need not be prolonged."""
    known_ms: int
    """Before this time no job is due, as far as the leader knows."""


def look_some(shards: Sequence[ToLookAt], lease_ms: int) -> Call[list[int]]:
    """Prolong leases; returns the places of shards with a job that its leader does not know of, or with another leader.

    In a cluster all shards must lie in one slot.
    """
    args: list[Argument] = [lease_ms]
    for one in shards:
        args += (one.token, one.known_ms)
    return scripted("look_some", [key for one in shards for key in (one.keys.lease, one.keys.delayed)], args, list)


def release(keys: ShardKeys, token: str, *, is_going: bool = False) -> Call[bool]:
    """Give the lease back; False if this node no longer held it. `is_going`: the node is stopping."""
    return scripted("release", (keys.lease,), (token, keys.near, GOING if is_going else ""), bool)


def open_window(
    keys: ShardKeys,
    token: str,
    lease_ms: int,
    loaded_to: int | None,
    window_ms: int,
    limit: int,
    idle_ms: int,
    now_ms: float | None = None,
) -> Call[Opened]:
    """Move the horizon and read the jobs that are due up to it. Raises NotLeader.

    With `now_ms`, the server's time as the caller knows it, the last minute is added to the shard's history.
    """

    def read(reply: list[Any]) -> Opened:
        _lead(reply, keys)
        return Opened(int(reply[1]), int(reply[2]), reply[3] == 1, reply[4] % 2 == 1, _jobs(reply[5:]), reply[4] >= 2)

    history, hour = _history(keys, now_ms)
    args = (token, lease_ms, "" if loaded_to is None else loaded_to, window_ms, limit, idle_ms, hour)
    places = (keys.lease, keys.horizon, keys.delayed, keys.ready, keys.ended, keys.counts, history, keys.outgoing)
    return scripted("open_window", places, args, read)


def promote(keys: ShardKeys, token: str, lease_ms: int, members: Sequence[str]) -> Call[Promoted]:
    """Promote the members that are due, of up to 500 given. Raises NotLeader."""

    def read(reply: list[Any]) -> Promoted:
        _lead(reply, keys)
        return _promoted(reply)

    return scripted("promote", (*_promotion_keys(keys), keys.counts), (token, lease_ms, *map(_as_sent, members)), read)


class ToPromote(NamedTuple):
    """Members of one shard that are due."""

    keys: ShardKeys
    token: str
    """Of the lease under which they are promoted."""
    members: Sequence[str]
    renews: bool = True
    """Whether to prolong the lease, and to look for the first waiting job."""


def promote_some(shards: Sequence[ToPromote], lease_ms: int) -> Call[list[Promoted | NotLeader | str]]:
    """Promote the members that are due in several shards: up to 500 in all.

    One answer per shard, in order; NotLeader, or the text of an error, if nothing is known to be promoted there. In a
    cluster all shards must lie in one slot.
    """

    def read_one(shard: ShardKeys, reply: Any) -> Promoted | NotLeader | str:
        if isinstance(reply, bytes):
            return reply.decode(errors="replace")
        return _promoted(reply) if reply[0] == 1 else _not_leader(shard)

    def read(replies: list[Any]) -> list[Promoted | NotLeader | str]:
        return [read_one(shard.keys, reply) for shard, reply in zip(shards, replies, strict=True)]

    keys: list[str] = []
    args: list[Argument] = []
    for shard, token, members, renews in shards:
        keys += _promotion_keys(shard)
        keys.append(shard.counts)
        args += (token, lease_ms if renews else "", len(members), *map(_as_sent, members))
    return scripted("promote_some", keys, args, read)


def sweep(
    keys: ShardKeys,
    token: str,
    lease_ms: int,
    limit: int,
    shaping: Shaping | None = None,
    freed: Sequence[str] = (),
    look: LookPlace | None = None,
) -> Call[Swept]:
    """Promote up to `limit` due jobs, earliest first, as `shaping` allows. Raises NotLeader.

    With limits per key, it serves the keys in `freed`, up to `MOST_KEYS`, which may not be at their limit any more, and
    with `look` also looks for such keys itself.
    """

    def read(reply: list[Any]) -> Swept:
        _lead(reply, keys)
        wait_us = reply[4] if len(reply) > 4 else 0
        found = Swept(int(reply[1]), _lateness(reply[2]), reply[3] == 1, (wait_us or 0) / 1000)
        if len(reply) <= 5:
            return found
        left, place, permit, lateness, put_back, *later = reply[5:]
        again = [(member_of(key), int(ms)) for key, ms in zip(later[::2], later[1::2], strict=True)]
        return found._replace(keys=HeldKeys(left, LookPlace(place, permit), _lateness(lateness), again, put_back))

    args: list[Argument] = [token, lease_ms, limit, *_args(shaping)]
    if shaping is not None:
        args += look or ("-", "")
        args += [raw_member(key.removeprefix(KEY_MARK)) for key in freed]
    return scripted("sweep", (*_promotion_keys(keys), keys.rate, keys.counts), args, read)


def tidy(keys: ShardKeys, token: str, lease_ms: int, retention_ms: int, keep_done_ms: int) -> Call[Tidied]:
    """Remove some entries and finished jobs whose retention has passed. Raises NotLeader."""

    def read(reply: list[Any]) -> Tidied:
        _lead(reply, keys)
        return Tidied(int(reply[1]), reply[2] == 1)

    args = (token, lease_ms, retention_ms, keep_done_ms)
    return scripted("tidy", (keys.lease, keys.ready, keys.done, keys.ended, keys.counts), args, read)


def look(keys: ShardKeys) -> Call[Looked]:
    """Read the state of the shard, for a standby."""

    def read(reply: list[Any]) -> Looked:
        server_us, first, token, left_ms, horizon, outgoing, held = reply
        first_due_ms = scores.due_ms(first) if first else None
        horizon_ms = int(horizon) if horizon.isdigit() else None
        token = token.decode(errors="replace")
        return Looked(int(server_us), first_due_ms, token, left_ms, horizon_ms, outgoing == 1, held > 0)

    return scripted("look", (keys.lease, keys.delayed, keys.horizon, keys.outgoing), (), read)


def rest(keys: ShardKeys, terms: str, window_ms: int, idle_ms: int, now_ms: float | None = None) -> Call[Rested]:
    """Move the horizon of an idle shard forward without a lease; see `open_window`."""

    def read(reply: list[Any]) -> Rested:
        can_rest = reply[0] == 1
        return Rested(int(reply[1]), int(reply[2]) if can_rest else None, can_rest and reply[3] == 1)

    history, hour = _history(keys, now_ms)
    places = (keys.lease, keys.horizon, keys.delayed, keys.shards, keys.ready, keys.ended, keys.counts, history)
    others = (keys.outgoing, keys.held, keys.permits)
    return scripted("rest", (*places, *others), (terms, window_ms, idle_ms, hour), read)


def hedge(keys: ShardKeys, hedge_ms: int, limit: int, terms: str, shaping: Shaping | None = None) -> Call[Swept]:
    """Promote up to `limit` jobs without a lease, if `terms` are in force and the first is overdue by `hedge_ms`."""

    def read(reply: list[Any]) -> Swept:
        return Swept(int(reply[0]), _lateness(reply[1]), reply[2] == 1, sum(reply[3:]) / 1000)

    args: list[Argument] = [hedge_ms, limit, terms, *_args(shaping)]
    return scripted("hedge", (*_promotion_keys(keys)[1:], keys.rate, keys.shards, keys.counts), args, read)


def _promotion_keys(keys: ShardKeys) -> tuple[str, ...]:
    return keys.lease, keys.delayed, keys.jobs, keys.ready, keys.dead, keys.retries


def _history(keys: ShardKeys, now_ms: float | None) -> tuple[str, Argument]:
    """Returns the key and the hour of the last minute's row; "" and no hour write none."""
    if now_ms is None:
        return keys.history(0), ""
    hour = int(now_ms - MINUTE_MS) // HOUR_MS
    return keys.history(hour), hour


def _args(shaping: Shaping | None) -> tuple[Argument, ...]:
    if shaping is None:
        return ()
    of_keys = (shaping.key_concurrency, repr(shaping.key_rate))
    return (shaping.interval_us, shaping.burst, shaping.most_ready, *of_keys)


def _as_sent(member: str) -> str | bytes:
    return member if member.isascii() else raw_member(member)  # sending an ASCII text as it is costs next to nothing


def _lateness(reply: list[int]) -> Lateness:
    return Lateness(reply[0], tuple(reply[1:]))


def _promoted(reply: list[Any]) -> Promoted:
    first = scores.due_ms(reply[3]) if reply[3] else None
    return Promoted(int(reply[1]), _lateness(reply[2]), first, _jobs(reply[4:]), reply[3] is not None)


def _lead(reply: list[Any], keys: ShardKeys) -> None:
    if reply[0] != 1:
        raise _not_leader(keys)


def _not_leader(keys: ShardKeys) -> NotLeader:
    return NotLeader(f"the lease of {keys.topic}:{keys.shard} is not this node's")


def _jobs(flat: list[bytes]) -> list[tuple[str, int]]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [(member_of(member), scores.due_ms(score)) for member, score in pairs]


def read_near(message: bytes) -> list[tuple[str, int]]:
    """Returns the jobs (member, due_ms) that a message on the `near` channel names; none: the lease became free.

    Each line of a message has a due_ms and a member, or 0 and a key that may not be at its limit any more (`KEY_MARK`).
    Other lines are ignored: any program may publish there, and a sweep finds every due job.
    """
    lines = (line.partition(" ") for line in member_of(message).split("\n"))
    return [(member, int(due_ms)) for due_ms, _, member in lines if member and _DUE_MS.fullmatch(due_ms)]
