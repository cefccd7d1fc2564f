"""What a shard's leader asks. Every script but `acquire` checks the lease token first: see `lua/lib/leader.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from wheelq.errors import NotLeader
from wheelq.metrics import Lateness
from wheelq.protocol import codec
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.keys import ShardKeys
from wheelq.topics import Shaping

GOING = "going"
"""Told on the `near` channel by a node that stops and so gives its lease back: the standby may take it at once."""


class LeaderAnswer(Protocol):
    """What every answer to a leader has."""

    @property
    def server_us(self) -> int:
        """The server's clock, in microseconds since the Unix epoch."""
        ...


class Acquired(NamedTuple):
    """The answer to `acquire`."""

    is_ours: bool
    token: str
    """Ours, or the holder's."""
    server_us: int
    left_ms: int
    """How long the holder's lease still lasts; 0 when it is ours."""
    is_outdated: bool = False
    """The caller does not know the topic's terms: it has to read them first."""


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
    """More are due within the window than were read."""
    jobs: list[tuple[str, int]]
    """Member and due_ms, earliest first."""


class Promoted(NamedTuple):
    """The answer to `promote`."""

    server_us: int
    lateness: Lateness
    """Of those promoted."""
    waiting: list[tuple[str, int]]
    """Members that are not due yet by the server's clock, with their due_ms."""

    @property
    def promoted(self) -> int:
        """How many jobs."""
        return self.lateness.jobs


class Swept(NamedTuple):
    """The answer to `sweep`."""

    server_us: int
    lateness: Lateness
    """Of those promoted."""
    is_partial: bool
    """More may be due."""
    wait_ms: float = 0.0
    """How long the topic's shaping holds the rest back."""

    @property
    def promoted(self) -> int:
        """How many jobs."""
        return self.lateness.jobs


class Tidied(NamedTuple):
    """The answer to `tidy`."""

    server_us: int
    is_partial: bool
    """There may be more to remove."""


class Looked(NamedTuple):
    """The answer to `look`."""

    server_us: int
    first_due_ms: int | None
    token: str
    """The leader's; empty when nobody holds the lease."""
    left_ms: int
    """How long the leader's lease still lasts."""


def acquire(
    keys: ShardKeys, node: str, connection: str, lease_ms: int, terms: str, replaceable: str = ""
) -> Call[Acquired]:
    """Take the lease, if it is free, this node's, or held by the token `replaceable`, and `terms` are in force."""

    def read(reply: list[Any]) -> Acquired:
        how, token, server_us, *left_ms = reply
        return Acquired(how == 1, token.decode(), int(server_us), left_ms[0] if left_ms else 0, how == 2)

    args = (node, connection, lease_ms, replaceable, terms)
    return scripted("acquire", (keys.lease, keys.epoch, keys.shards), args, read)


def renew(keys: ShardKeys, token: str, lease_ms: int) -> Call[Renewed]:
    """Prolong the lease. Raises NotLeader."""

    def read(reply: list[Any]) -> Renewed:
        _lead(reply, keys)
        return Renewed(int(reply[1]), codec.due_ms(reply[2]) if reply[2] else None)

    return scripted("renew", (keys.lease, keys.delayed), (token, lease_ms), read)


def release(keys: ShardKeys, token: str, *, is_going: bool = False) -> Call[bool]:
    """Give the lease back to the shard's leader, or to whoever is there; False when it was not this node's any more."""
    return scripted("release", (keys.lease,), (token, keys.near, GOING if is_going else ""), bool)


def open_window(
    keys: ShardKeys, token: str, lease_ms: int, loaded_to: int | None, window_ms: int, limit: int, idle_ms: int
) -> Call[Opened]:
    """Move the horizon and read what is due up to it. Raises NotLeader."""

    def read(reply: list[Any]) -> Opened:
        _lead(reply, keys)
        return Opened(int(reply[1]), int(reply[2]), reply[3] == 1, _jobs(reply[4:]))

    args = (token, lease_ms, "" if loaded_to is None else loaded_to, window_ms, limit, idle_ms)
    return scripted("open_window", (keys.lease, keys.horizon, keys.delayed), args, read)


def promote(keys: ShardKeys, token: str, lease_ms: int, members: Sequence[str]) -> Call[Promoted]:
    """Promote those of up to 500 members that are due. Raises NotLeader."""

    def read(reply: list[Any]) -> Promoted:
        _lead(reply, keys)
        return Promoted(int(reply[1]), _lateness(reply[2]), _jobs(reply[3:]))

    return scripted("promote", _promotion_keys(keys), (token, lease_ms, *members), read)


def sweep(keys: ShardKeys, token: str, lease_ms: int, limit: int, shaping: Shaping | None = None) -> Call[Swept]:
    """Promote up to `limit` jobs of what is due, earliest first, as `shaping` allows. Raises NotLeader."""

    def read(reply: list[Any]) -> Swept:
        _lead(reply, keys)
        return Swept(int(reply[1]), _lateness(reply[2]), reply[3] == 1, sum(reply[4:]) / 1000)

    return scripted("sweep", (*_promotion_keys(keys), keys.rate), (token, lease_ms, limit, *_args(shaping)), read)


def tidy(keys: ShardKeys, token: str, lease_ms: int, retention_ms: int, keep_done_ms: int) -> Call[Tidied]:
    """Remove some of what the shard has kept for long enough. Raises NotLeader."""

    def read(reply: list[Any]) -> Tidied:
        _lead(reply, keys)
        return Tidied(int(reply[1]), reply[2] == 1)

    args = (token, lease_ms, retention_ms, keep_done_ms)
    return scripted("tidy", (keys.lease, keys.ready, keys.done, keys.ended), args, read)


def look(keys: ShardKeys) -> Call[Looked]:
    """Let a standby see how the shard is doing."""

    def read(reply: list[Any]) -> Looked:
        return Looked(int(reply[0]), codec.due_ms(reply[1]) if reply[1] else None, reply[2].decode(), reply[3])

    return scripted("look", (keys.lease, keys.delayed), (), read)


def hedge(keys: ShardKeys, hedge_ms: int, limit: int, terms: str, shaping: Shaping | None = None) -> Call[Swept]:
    """Promote up to `limit` jobs without a lease, if the first has been overdue for `hedge_ms`, on these terms."""

    def read(reply: list[Any]) -> Swept:
        return Swept(int(reply[0]), _lateness(reply[1]), reply[2] == 1, sum(reply[3:]) / 1000)

    args: list[Argument] = [hedge_ms, limit, terms, *_args(shaping)]
    return scripted("hedge", (*_promotion_keys(keys)[1:], keys.rate, keys.shards), args, read)


def _promotion_keys(keys: ShardKeys) -> tuple[str, ...]:
    return keys.lease, keys.delayed, keys.jobs, keys.ready, keys.dead


def _args(shaping: Shaping | None) -> tuple[int, ...]:
    return () if shaping is None else (shaping.interval_us, shaping.burst, shaping.most_ready)


def _lateness(told: list[int]) -> Lateness:
    return Lateness(told[0], tuple(told[1:]))


def _lead(reply: list[Any], keys: ShardKeys) -> None:
    if reply[0] != 1:
        raise NotLeader(f"the lease of {keys.topic}:{keys.shard} is not this node's")


def _jobs(flat: list[bytes]) -> list[tuple[str, int]]:
    return [(member.decode(), codec.due_ms(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def read_near(message: bytes) -> list[tuple[str, int]]:
    """The jobs named by a message on the `near` channel: lines of due_ms and member. Empty: the lease became free.

    What makes no sense is passed over: anybody may publish there, and a sweep finds what is due.
    """
    lines = (line.partition(" ") for line in message.decode(errors="replace").split("\n"))
    return [(member, int(due_ms)) for due_ms, _, member in lines if member and due_ms.isdecimal()]
