"""`Membership`: which nodes live, and which shards each of them looks after.

A node says every `heartbeat_ms` that it lives, and is taken for dead when it has not said so three times, or at once
by whoever takes a lease over because its connection is closed. The
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
        self._connections: dict[str, str] = {}  # of each node: "run id:client id"
        self.posts: Assignment = {}
        """Leader and standby of every shard, as last read."""
        self.seen_ms: dict[str, int] = {}
        """When each living node last said so, by the server's clock."""

    async def beat(self, what: Mapping[str, Any]) -> None:
        """Say that this node lives, and what it does."""
        told = {"seen_ms": int(self._server.now_ms()), **what}
        await self._transport.send(registry.beat_node(self._keys, self._node, told))

    async def join(self, what: Mapping[str, Any]) -> None:
        """Say so for the first time, find out who is gone without a word, and let all others know."""
        await self.beat(what)
        await self._read_nodes()
        for node in list(self.seen_ms):
            await self._forget_if_gone(node)
        await self._transport.send(registry.announce(self._keys, self._node))

    async def leave(self) -> None:
        """Say that this node goes, and let all others know."""
        await self.report_gone(self._node)

    async def report_gone(self, node: str) -> None:
        """Let all others know that `node` is gone; should that be wrong, its next heartbeat brings it back."""
        await self._transport.send(registry.gone(self._keys.nodes, node))
        await self._transport.send(registry.announce(self._keys, node))

    async def refresh(self, shards: Iterable[ShardName]) -> None:
        """Read who lives and who looks after what; if that does not fit `shards` any more, mend it."""
        await self._read_nodes()
        await self._read_posts()
        wanted = set(shards)
        if self._fits(wanted):
            return
        while (first := min(self.seen_ms, default=self._node)) != self._node:
            if not await self._forget_if_gone(first):
                return  # it lives, and will mend it
        posts = assign(wanted, self.seen_ms or [self._node], self.posts)
        call = registry.put_assignment(self._keys, self._version, self._version + 1, posts)
        if await self._transport.send(call):
            self._version, self.posts = self._version + 1, posts
        else:
            await self._read_posts()

    def _fits(self, wanted: set[ShardName]) -> bool:
        """Whether the assignment is of these shards, to living nodes, all of them if there is enough to do."""
        posted = {node for post in self.posts.values() for node in post if node is not None}
        alive = set(self.seen_ms)
        if wanted != set(self.posts) or not posted <= alive:
            return False
        has_standbys = all(post.standby is not None for post in self.posts.values())
        return has_standbys == (len(alive) > 1) and (posted == alive or len(wanted) < len(alive))

    async def _read_nodes(self) -> None:
        told = await self._transport.send(registry.alive(self._keys.nodes))
        now_ms = self._server.now_ms()
        dead_before_ms = now_ms - BEATS_TO_DEATH * self._settings.heartbeat_ms
        self.seen_ms = {node: what["seen_ms"] for node, what in told.items() if what["seen_ms"] > dead_before_ms}
        self._connections = {node: what["connection"] for node, what in told.items()}
        for node, what in told.items():
            if what["seen_ms"] < now_ms - FORGOTTEN_AFTER_MS:
                await self._transport.send(registry.gone(self._keys.nodes, node))

    async def _forget_if_gone(self, node: str) -> bool:
        """Whether `node` is gone: its connection is closed, as far as that can be told."""
        run_id, _, connection_id = self._connections.get(node, "").partition(":")
        if node == self._node or not connection_id or await self._transport.is_open(run_id, int(connection_id)):
            return False
        self.seen_ms.pop(node, None)  # the list may have been read anew meanwhile
        await self._transport.send(registry.gone(self._keys.nodes, node))
        return True

    async def _read_posts(self) -> None:
        version = await self._transport.send(registry.assignment_version(self._keys))
        if version != self._version:
            posts = await self._transport.send(registry.assignment(self._keys))
            self.posts = {name: Post(*nodes) for name, nodes in posts.items()}
            self._version = version
