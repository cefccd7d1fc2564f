"""What a shard's leader asks. Every script but `acquire` checks the lease token first: see `lua/lib/leader.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from wheelq.errors import NotLeader
from wheelq.protocol.call import Call, scripted
from wheelq.protocol.keys import ShardKeys


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
    promoted: int
    waiting: list[tuple[str, int]]
    """Members that are not due yet by the server's clock, with their due_ms."""


class Swept(NamedTuple):
    """The answer to `sweep`."""

    server_us: int
    promoted: int
    is_partial: bool
    """More may be due."""


class Looked(NamedTuple):
    """The answer to `look`."""

    server_us: int
    first_due_ms: int | None
    token: str
    """The leader's; empty when nobody holds the lease."""
    left_ms: int
    """How long the leader's lease still lasts."""


def acquire(keys: ShardKeys, node: str, connection: str, lease_ms: int, replaceable: str = "") -> Call[Acquired]:
    """Take the lease, if it is free, this node's, or held by the token `replaceable`."""

    def read(reply: list[Any]) -> Acquired:
        return Acquired(reply[0] == 1, reply[1].decode(), int(reply[2]), 0 if reply[0] == 1 else reply[3])

    return scripted("acquire", (keys.lease, keys.epoch), (node, connection, lease_ms, replaceable), read)


def renew(keys: ShardKeys, token: str, lease_ms: int) -> Call[Renewed]:
    """Prolong the lease. Raises NotLeader."""

    def read(reply: list[Any]) -> Renewed:
        _lead(reply, keys)
        return Renewed(int(reply[1]), int(reply[2]) if reply[2] else None)

    return scripted("renew", (keys.lease, keys.delayed), (token, lease_ms), read)


def release(keys: ShardKeys, token: str) -> Call[bool]:
    """Give the lease back; False when it was not this node's any more."""
    return scripted("release", (keys.lease,), (token, keys.near), bool)


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
        return Promoted(int(reply[1]), reply[2], _jobs(reply[3:]))

    return scripted("promote", _promotion_keys(keys), (token, lease_ms, *members), read)


def sweep(keys: ShardKeys, token: str, lease_ms: int, limit: int) -> Call[Swept]:
    """Promote up to `limit` jobs of what is due, earliest first. Raises NotLeader."""

    def read(reply: list[Any]) -> Swept:
        _lead(reply, keys)
        return Swept(int(reply[1]), reply[2], reply[3] == 1)

    return scripted("sweep", _promotion_keys(keys), (token, lease_ms, limit), read)


def look(keys: ShardKeys) -> Call[Looked]:
    """Let a standby see how the shard is doing."""

    def read(reply: list[Any]) -> Looked:
        return Looked(int(reply[0]), int(reply[1]) if reply[1] else None, reply[2].decode(), reply[3])

    return scripted("look", (keys.lease, keys.delayed), (), read)


def hedge(keys: ShardKeys, hedge_ms: int, limit: int) -> Call[Swept]:
    """Promote up to `limit` jobs without a lease, if the first has been overdue for `hedge_ms`."""

    def read(reply: list[Any]) -> Swept:
        return Swept(int(reply[0]), reply[1], reply[2] == 1)

    return scripted("hedge", (keys.delayed, keys.jobs, keys.ready, keys.dead), (hedge_ms, limit), read)


def _promotion_keys(keys: ShardKeys) -> tuple[str, ...]:
    return keys.lease, keys.delayed, keys.jobs, keys.ready, keys.dead


def _lead(reply: list[Any], keys: ShardKeys) -> None:
    if reply[0] != 1:
        raise NotLeader(f"the lease of {keys.topic}:{keys.shard} is not this node's")


def _jobs(flat: list[bytes]) -> list[tuple[str, int]]:
    return [(member.decode(), int(due_ms)) for member, due_ms in zip(flat[::2], flat[1::2], strict=True)]


def read_near(message: bytes) -> list[tuple[str, int]]:
    """The jobs named by a message on the `near` channel: lines of due_ms and member. Empty: the lease became free.

    What makes no sense is passed over: anybody may publish there, and a sweep finds what is due.
    """
    lines = (line.partition(" ") for line in message.decode(errors="replace").split("\n"))
    return [(member, int(due_ms)) for due_ms, _, member in lines if member and due_ms.isdecimal()]
