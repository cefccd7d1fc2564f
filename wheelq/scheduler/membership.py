"""`Membership`: which nodes are alive, and which shards each of them serves.

A node writes a heartbeat every `heartbeat_ms`. The others consider it dead when three heartbeats are missing, by their
own clocks (`liveness`), or at once when one of them takes over its lease because its connection is closed. The
assignment of shards to nodes is kept in Redis. When it no longer fits the live nodes and the topics, the first live
node (by name) replaces it (see `assignment`) and tells all the others. While it does not, because it hangs, the next
node does so a second later, and so on. If two nodes do so at once, the script accepts one. A node that starts or stops
cleanly announces it at once.

Membership only spreads the shards evenly. The lease ensures that each shard has one leader at a time, and the standby
replaces a dead leader at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from wheelq.base.liveness import Watch
from wheelq.errors import Refused
from wheelq.protocol.calls import heartbeats, registry
from wheelq.scheduler.assignment import Assignment, Post, ShardName, assign
from wheelq.scheduler.parts import NodeParts

BEATS_TO_DEATH = 3
TURN_S = 1.0
"""Seconds that each node leaves to those before it to replace an assignment that does not fit."""
FORGOTTEN_AFTER_S = 3_600.0
"""Seconds after which a dead node is removed from the list."""


class Membership:
    """One node's view of all nodes and of the assignment."""

    def __init__(self, parts: NodeParts, report: Callable[[], Mapping[str, Any]]) -> None:
        """`report()` returns what each heartbeat says of the node."""
        self._transport = parts.transport
        self._keys = parts.keys
        self._node = parts.node
        self._clock = parts.clock
        self._server = parts.server
        self._report = report
        self._connections: dict[str, str] = {}  # by node: "run id:client id"
        self.version = 0
        """The version of the assignment, as last read."""
        self._fitted: object = None  # versions of topics and assignment, and the nodes, that fitted together
        self.posts: Assignment = {}
        """Leader and standby of every shard, as last read."""
        self.seen_at: dict[str, float] = {}
        """When the latest heartbeat of each live node was first seen, by this node's monotonic clock."""
        self._silence = BEATS_TO_DEATH * parts.settings.heartbeat_ms / 1000
        self._watch = Watch(self._silence / BEATS_TO_DEATH, self._silence / 2)
        self._unfit_since: float | None = None  # when this node found that the assignment does not fit
        self._old_words: dict[str, int] = {}  # last heartbeats of nodes that were already stale when first seen

    async def beat(self) -> int:
        """Write this node's heartbeat and report; takes a sample of the server's time, and returns it."""
        report = {"seen_ms": int(self._server.now_ms()), **self._report()}
        with suppress(Refused):  # the server is full, and takes what the script writes
            return await self._server.asking(self._transport.send(heartbeats.beat_node(self._keys, self._node, report)))
        call = heartbeats.beat_node_though_full(self._keys, self._node, report)
        return await self._server.asking(self._transport.send(call))

    async def join(self) -> None:
        """Write the first heartbeat, find dead nodes, and tell all others."""
        await self.beat()
        await self._read_nodes()
        for node in list(self.seen_at):
            await self._forget_if_gone(node)
        await self._transport.send(registry.announce(self._keys, self._node))

    async def leave(self) -> None:
        """Remove this node from the list, and tell all others."""
        await self.report_gone(self._node)

    async def report_gone(self, node: str) -> None:
        """Remove `node` from the list and tell all others; a live node returns with its next heartbeat."""
        await self._transport.send(heartbeats.gone(self._keys.nodes, node))
        await self._transport.send(registry.announce(self._keys, node))

    @property
    def is_alone(self) -> bool:
        """Whether no other node lives, as last read. A node that starts announces itself."""
        return self.seen_at.keys() == {self._node}

    async def refresh(
        self, shards: Iterable[ShardName], unreadable: Collection[str] = (), version: int | None = None
    ) -> float:
        """Read the live nodes and the assignment; replace the assignment if it no longer fits `shards`.

        The shards of `unreadable` topics stay assigned: a newer node may be able to serve them. With the same `version`
        both are the same as before. Returns the seconds after which to call this again, if another node has not
        replaced the assignment; infinity if it fits.
        """
        await self._read_nodes()
        if self._node not in self.seen_at:  # the list was lost, or another node removed this one
            await self.beat()
            await self._read_nodes()
        await self._read_posts()
        together = (version, self.version, frozenset(self.seen_at))
        if version is not None and together == self._fitted:
            return inf
        wanted = set(shards) | {name for name in self.posts if name[0] in unreadable}
        if self._fits(wanted):
            self._unfit_since, self._fitted = None, together
            return inf
        before = sorted(node for node in self.seen_at if node < self._node)
        while before and await self._forget_if_gone(before[0]):
            del before[0]
        now = self._clock.monotonic()
        self._unfit_since = now if self._unfit_since is None else self._unfit_since
        if (left := self._unfit_since + len(before) * TURN_S - now) > 0:
            return left
        self._unfit_since = None
        posts = assign(wanted, self.seen_at or [self._node], self.posts)
        call = heartbeats.put_assignment(self._keys, self.version, self.version + 1, posts)
        if await self._transport.send(call):
            self.version, self.posts = self.version + 1, posts
        else:
            await self._read_posts()
        return inf

    def _fits(self, wanted: set[ShardName]) -> bool:
        """Whether the assignment covers these shards with live nodes, and uses all nodes if there are enough shards."""
        posted = {node for post in self.posts.values() for node in post if node is not None}
        alive = set(self.seen_at)
        if wanted != set(self.posts) or not posted <= alive:
            return False
        if not wanted:
            return True
        has_standbys = all(post.standby is not None for post in self.posts.values())
        return has_standbys == (len(alive) > 1) and (posted == alive or len(wanted) < len(alive))

    async def _read_nodes(self) -> None:
        found = await self._transport.send(heartbeats.alive(self._keys.nodes))
        reports = {node: what for node, what in found.items() if "seen_ms" in what}  # others were not written by wheelq
        words = {node: what["seen_ms"] for node, what in reports.items()}
        self._note_old(words)
        self._watch.looked(self._clock.monotonic(), words)
        self.seen_at = {node: self._watch.changed_at(node) for node in words if self._lives(node)}
        self._connections = {node: str(what.get("connection", "")) for node, what in reports.items()}
        for node in words:
            if self._watch.silent(node) >= FORGOTTEN_AFTER_S:
                await self._transport.send(heartbeats.gone(self._keys.nodes, node))

    def _lives(self, node: str) -> bool:
        return node not in self._old_words and self._watch.silent(node) < self._silence

    def _note_old(self, words: Mapping[str, int]) -> None:
        """Record nodes, seen for the first time, whose heartbeat is stale by the server's clock: they count as dead.

        Later only this node's own clock counts, because the server's clock may be stepped.
        """
        dead_before_ms = self._server.now_ms() - 1000 * self._silence
        for node, seen_ms in words.items():
            if node not in self._watch and seen_ms <= dead_before_ms:
                self._old_words[node] = seen_ms
        self._old_words = {node: seen_ms for node, seen_ms in self._old_words.items() if words.get(node) == seen_ms}

    async def _forget_if_gone(self, node: str) -> bool:
        """Whether `node` is gone: its connection is known to be closed. If so, forget it."""
        run_id, _, connection_id = self._connections.get(node, "").partition(":")
        if (
            node == self._node
            or not connection_id.isdecimal()
            or await self._transport.is_open(run_id, int(connection_id))
        ):
            return False
        self.seen_at.pop(node, None)  # the list may have been read again meanwhile
        await self._transport.send(heartbeats.gone(self._keys.nodes, node))
        return True

    async def _read_posts(self) -> None:
        version = await self._transport.send(heartbeats.assignment_version(self._keys))
        if version != self.version:
            posts = await self._transport.send(heartbeats.assignment(self._keys))
            self.posts = {name: Post(*nodes) for name, nodes in posts.items()}
            self.version = version
