"""`Membership`: which nodes live, and which shards each of them looks after.

A node says every `heartbeat_ms` that it lives, and is taken for dead when it has not said so three times. The
assignment of shards to nodes stands in Redis. When it does not fit the living nodes and the topics any more, the first
of the living (by name) makes a new one from it (see `assignment`) and tells all; should two do so at once, the script
lets one win. A node that comes or goes in good order says so at once.

Nothing rests on it but evenness: that each shard has one leader at a time is the lease's work, that a dead leader is
replaced at once the standby's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wheelq.clock import Clock, ServerClock
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.scheduler.assignment import Assignment, Post, ShardName, assign
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

BEATS_TO_DEATH = 3
FORGOTTEN_AFTER_MS = 3_600_000
"""A node that ended without a word is taken off the list after an hour."""


class Membership:
    """One node's view of all nodes, and of who looks after what."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        node: str,
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._node = node
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._version = 0
        self.posts: Assignment = {}
        """Leader and standby of every shard, as last read."""
        self.seen_ms: Mapping[str, int] = {}
        """When each living node last said so, by the server's clock."""

    async def beat(self, what: Mapping[str, Any]) -> None:
        """Say that this node lives, and what it does."""
        told = {"seen_ms": int(self._server.now_ms()), **what}
        await self._transport.send(registry.beat_node(self._keys, self._node, told))

    async def join(self, what: Mapping[str, Any]) -> None:
        """Say so for the first time, and let all others know."""
        await self.beat(what)
        await self._transport.send(registry.announce(self._keys, self._node))

    async def leave(self) -> None:
        """Say that this node goes, and let all others know."""
        await self._transport.send(registry.gone(self._keys.nodes, self._node))
        await self._transport.send(registry.announce(self._keys, self._node))

    async def refresh(self, shards: Iterable[ShardName]) -> None:
        """Read who lives and who looks after what; if that does not fit `shards` any more, mend it."""
        await self._read_nodes()
        await self._read_posts()
        wanted = set(shards)
        nodes = {node for post in self.posts.values() for node in post if node is not None}
        has_standbys = all(post.standby is not None for post in self.posts.values())
        fits = wanted == set(self.posts) and nodes <= set(self.seen_ms) and has_standbys == (len(self.seen_ms) > 1)
        if fits and (nodes == set(self.seen_ms) or len(wanted) < len(self.seen_ms)):
            return
        if self._node == min(self.seen_ms, default=self._node):
            posts = assign(wanted, self.seen_ms or [self._node], self.posts)
            call = registry.put_assignment(self._keys, self._version, self._version + 1, posts)
            if await self._transport.send(call):
                self._version, self.posts = self._version + 1, posts
            else:
                await self._read_posts()

    async def _read_nodes(self) -> None:
        told = await self._transport.send(registry.alive(self._keys.nodes))
        now_ms = self._server.now_ms()
        dead_before_ms = now_ms - BEATS_TO_DEATH * self._settings.heartbeat_ms
        self.seen_ms = {node: what["seen_ms"] for node, what in told.items() if what["seen_ms"] > dead_before_ms}
        for node, what in told.items():
            if what["seen_ms"] < now_ms - FORGOTTEN_AFTER_MS:
                await self._transport.send(registry.gone(self._keys.nodes, node))

    async def _read_posts(self) -> None:
        version = await self._transport.send(registry.assignment_version(self._keys))
        if version != self._version:
            posts = await self._transport.send(registry.assignment(self._keys))
            self.posts = {name: Post(*nodes) for name, nodes in posts.items()}
            self._version = version
