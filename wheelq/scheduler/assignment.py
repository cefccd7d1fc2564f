"""Decides which node leads each shard, and which is its standby. Pure.

    assign(shards, nodes, before)      the same arguments give the same answer on every node

Every node gets its even share (±1) of the shards to lead, and as few shards as possible change hands. A live node keeps
the shards that it leads, up to its share. Each other shard goes to its standby, if that has room, or else to a node
with room, by a hash of the shard's name. Standbys are distributed the same way, never to the shard's own leader.

The result depends on the previous one, which is kept in Redis; the first node that finds it out of date replaces it. It
is advice: only a lease makes a leader. (Rendezvous hashing needs no memory, but with an exact bound on each node's
share an additional node moves up to twice as many shards as necessary, and each move is a handover.)

Costs O(shards × log shards + nodes²): a second for 100,000 shards on 1,000 nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

ShardName = tuple[str, int]
"""Topic and shard number."""


class Post(NamedTuple):
    """The nodes that serve one shard."""

    leader: str
    standby: str | None
    """None while there is only one node."""


Assignment = Mapping[ShardName, Post]


def assign(shards: Iterable[ShardName], nodes: Iterable[str], before: Assignment) -> dict[ShardName, Post]:
    """Returns a post for every shard; empty without nodes."""
    names, alive = sorted(shards), sorted(set(nodes))
    if not alive:
        return {}
    old = {name: before[name] for name in names if name in before}
    led = {name: post.leader for name, post in old.items()}
    heirs = {name: post.standby for name, post in old.items()}
    leading = _Sharing("leader", names, alive, {})
    leading.keep(led)
    leaders = leading.spread(heirs)
    if len(alive) == 1:
        return {name: Post(leaders[name], None) for name in names}
    standing_by = _Sharing("standby", names, alive, leaders)
    standing_by.keep(heirs)
    standbys = standing_by.spread(led)
    return {name: Post(leaders[name], standbys[name]) for name in names}


class _Sharing:
    """The distribution of one role: the shards given so far, and the room that each node has left."""

    def __init__(
        self, role: str, names: Sequence[ShardName], nodes: Sequence[str], barred: Mapping[ShardName, str]
    ) -> None:
        """No shard goes to the node that is `barred` from it."""
        self.chosen: dict[ShardName, str] = {}
        self._role = role
        self._names = names
        self._nodes = nodes
        self._barred = barred
        self._room: dict[str, int] = {}
        self._open: list[str] = []

    def keep(self, holders: Mapping[ShardName, str | None]) -> None:
        """Let nodes keep what they hold, up to their shares."""
        held: dict[str, list[ShardName]] = {node: [] for node in self._nodes}
        for name in self._names:
            holder = holders.get(name)
            if holder in held and holder != self._barred.get(name):
                held[holder].append(name)
        self._room = _shares(len(self._names), self._nodes, {node: len(mine) for node, mine in held.items()})
        self._open = list(self._room)
        for node, mine in held.items():
            for name in mine[: self._room.get(node, 0)]:
                self._give(name, node)

    def spread(self, heirs: Mapping[ShardName, str | None]) -> dict[ShardName, str]:
        """Give each remaining shard to its heir, if that has room, else to a node by a hash of the name."""
        for name in self._names:
            heir = heirs.get(name)
            if name not in self.chosen and heir in self._room and heir != self._barred.get(name):
                self._give(name, heir)
        for name in self._names:
            if name not in self.chosen:  # if only the barred node has room, it goes to another
                node = self._pick(name, self._open) or self._pick(name, self._nodes)
                assert node is not None, "of two nodes one is not barred"
                self._give(name, node)
        return self.chosen

    def _give(self, name: ShardName, node: str) -> None:
        self.chosen[name] = node
        left = self._room.get(node, 0) - 1
        if left > 0:
            self._room[node] = left
        elif self._room.pop(node, None) is not None:
            self._open.remove(node)

    def _pick(self, name: ShardName, nodes: Sequence[str]) -> str | None:
        if not nodes:
            return None
        digest = blake2b(f"{self._role} {name[0]}:{name[1]}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest) % len(nodes)
        candidates = (nodes[place], nodes[(place + 1) % len(nodes)])
        return next((node for node in candidates if node != self._barred.get(name)), None)


def _shares(shards: int, nodes: Sequence[str], held: Mapping[str, int]) -> dict[str, int]:
    """Returns each node's share. Nodes that hold most get the remainder, so that they need not give a shard away."""
    share, odd = divmod(shards, len(nodes))
    by_holding = sorted(nodes, key=lambda node: -held[node])
    shares = {node: share + (place < odd) for place, node in enumerate(by_holding)}
    return {node: shares[node] for node in nodes if shares[node]}
