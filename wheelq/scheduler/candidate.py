"""`Candidate`: asks for the lease of a shard, and replaces a holder that is gone. Times are monotonic seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from wheelq.errors import TopicUnreadable
from wheelq.model.topic import HALF_DONE_S, Topic
from wheelq.protocol.calls import draining, registry
from wheelq.protocol.calls import leader as calls
from wheelq.scheduler.lease import WatchedLease, holder_node
from wheelq.scheduler.parts import ShardParts
from wheelq.scheduler.standby import is_gone

logger = logging.getLogger("wheelq.scheduler")

UNPUBLISHED_PAUSE = 0.02
"""Seconds until terms that a shard requires, but that are not published yet, are read again."""
UNREADABLE_PAUSE = 1.0
"""Seconds until a topic with unreadable settings is read again."""


class Granted(NamedTuple):
    """This node has the lease."""

    token: str
    asked_at: float


class Denied(NamedTuple):
    """Another node has the lease, at most until `until`."""

    again_at: float


class Unpublished(NamedTuple):
    """The shard requires terms that are not published yet."""

    again_at: float


class Candidate:
    """Asks for the lease of one shard on behalf of one node."""

    def __init__(self, parts: ShardParts, report_gone: Callable[[str], None]) -> None:
        self._parts = parts
        self._keys = parts.keys
        self._node = parts.node
        self._transport = parts.node.transport
        self._settings = parts.node.settings
        self._clock = parts.node.clock
        self._server = parts.server
        self._report_gone = report_gone
        self._unpublished: tuple[int, float] | None = None  # the version that the shard requires, and since when
        self._held = WatchedLease(self._settings.lease_ms)

    async def ask(self, over: str = "") -> Granted | Denied | Unpublished | Topic:
        """Ask once, and once more if the holder is gone. Raises: ServerError.

        Returns the topic, if the shard requires terms that this node did not know.
        """
        asked_at = self._clock.monotonic()
        connection = self._node.connection
        answer = await self._acquire(connection, replaceable=over)
        if answer.is_outdated:
            try:
                return await self._catch_up(asked_at)
            except TopicUnreadable:  # the terms of a newer release must not be undone here
                return Unpublished(asked_at + UNREADABLE_PAUSE)
        self._unpublished = None
        if not answer.is_ours and await self._may_replace(answer):
            asked_at = self._clock.monotonic()
            answer = await self._acquire(connection, replaceable=answer.token)
        if answer.is_ours:
            return Granted(answer.token, asked_at)
        return self._denied(asked_at, answer)

    def _denied(self, asked_at: float, answer: calls.Acquired) -> Denied:
        """Returns until when the holder keeps the lease: as the server says, but no longer than leaders ask for."""
        return Denied(asked_at + min(max(answer.left_ms, 10), self._settings.lease_ms) / 1000)

    async def _may_replace(self, answer: calls.Acquired) -> bool:
        """Whether the holder is gone, or has not renewed the lease for its whole duration."""
        ends_ms = answer.server_us / 1000 + answer.left_ms
        if self._held.is_over(self._clock.monotonic(), answer.token, ends_ms):
            return True
        if is_dead := await is_gone(self._transport, answer.token):
            self._report_gone(holder_node(answer.token))
        return is_dead

    async def _catch_up(self, asked_at: float) -> Granted | Denied | Unpublished | Topic:
        """Read the terms that the shard requires.

        A change gives the shards its terms first and publishes them afterwards. If its client is slow, or dies in
        between, the shard is led by the published settings, under the terms that it requires. A shard that is behind
        gets the published terms.
        """
        topic = await self._transport.send(registry.topic(self._node.keys, self._keys.topic))
        if topic is not None and topic != self._parts.topic:
            return topic
        terms = await self._transport.send(draining.terms_in_force(self._keys))
        version = await self._transport.send(registry.fenced_version(self._keys))  # so the terms are no later ones
        if self._unpublished is None or self._unpublished[0] != version:  # else the same change still takes its time
            self._unpublished = version, self._clock.monotonic()
        elif topic is not None and asked_at > self._unpublished[1] + HALF_DONE_S:
            if topic.is_behind(version):
                return await self._lead_by(terms or topic.terms)
            await self._transport.send(registry.fence(self._keys, topic.terms, topic.version))
        return Unpublished(asked_at + UNPUBLISHED_PAUSE)

    async def _lead_by(self, terms: str) -> Granted | Denied | Unpublished | Topic:
        """Ask for the lease with terms that are not published yet. Publishing them ends that lease."""
        asked_at = self._clock.monotonic()
        answer = await self._acquire(self._node.connection, terms=terms)
        if answer.is_outdated:
            return Unpublished(asked_at + UNPUBLISHED_PAUSE)
        if not answer.is_ours:
            return self._denied(asked_at, answer)
        topic = await self._transport.send(registry.topic(self._node.keys, self._keys.topic))
        if topic is not None and topic != self._parts.topic:  # it was published before this node had the lease
            return topic
        logger.warning(
            "%s:%d: a change of the topic takes long, or was left half done", self._keys.topic, self._keys.shard
        )
        return Granted(answer.token, asked_at)

    async def _acquire(self, connection: str, replaceable: str = "", terms: str | None = None) -> calls.Acquired:
        named, lease_ms = self._parts.topic.terms if terms is None else terms, self._settings.lease_ms
        call = calls.acquire(self._keys, self._node.node, connection, lease_ms, named, replaceable)
        return await self._server.asking(self._transport.send(call))
