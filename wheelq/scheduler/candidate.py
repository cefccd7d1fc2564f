"""`Candidate`: asks for the lease of a shard, also in place of a holder that is gone. Times are monotonic seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from wheelq.clock import Clock, ServerClock
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.lease import holder_node
from wheelq.scheduler.lookout import is_gone
from wheelq.settings import SchedulerSettings
from wheelq.topics import Topic
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

UNPUBLISHED_PAUSE = 0.02
"""Seconds until terms are read again that a shard asks for and nobody has published yet."""
HALF_DONE_S = 0.3
"""How long terms may be in force that nobody has published: who changes them is done within a few round trips."""


class Granted(NamedTuple):
    """The lease is this node's."""

    token: str
    asked_at: float
    server_us: int


class Denied(NamedTuple):
    """Another node has it, at most until then."""

    again_at: float


class Outdated(NamedTuple):
    """The shard asks for other terms than those that this node knew: these."""

    topic: Topic


class Unpublished(NamedTuple):
    """The shard asks for terms that are nowhere to be read yet."""

    again_at: float


class Candidate:
    """One node, as it asks for the lease of one shard."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        node: str,
        connection: Callable[[], str],
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
        topic: Topic,
        report_gone: Callable[[str], None],
    ) -> None:
        self.topic = topic
        """As last read."""
        self._keys = keys
        self._transport = transport
        self._node = node
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._report_gone = report_gone
        self._outdated_since: float | None = None

    async def ask(self) -> Granted | Denied | Outdated | Unpublished:
        """Ask once, and once more if the holder is gone. Raises: ServerError."""
        asked_at = self._clock.monotonic()
        connection = self._connection()
        answer = await self._acquire(connection)
        if answer.is_outdated:
            return await self._catch_up(asked_at)
        self._outdated_since = None
        if not answer.is_ours and await is_gone(self._transport, answer.token):
            self._report_gone(holder_node(answer.token))
            asked_at = self._clock.monotonic()
            answer = await self._acquire(connection, replaceable=answer.token)
        if answer.is_ours:
            return Granted(answer.token, asked_at, answer.server_us)
        return Denied(asked_at + max(answer.left_ms, 10) / 1000)

    async def _catch_up(self, asked_at: float) -> Outdated | Unpublished:
        """Read the terms that the shard asks for. Who changes them tells the shards first, and then everyone.

        Should that one have died in between, the shard would have no leader: then it is told the terms that stand.
        """
        topic = await self._transport.send(registry.topic(Keys(self._keys.prefix), self._keys.topic))
        if topic is not None and topic != self.topic:
            return Outdated(topic)
        if self._outdated_since is None:
            self._outdated_since = asked_at
        elif asked_at > self._outdated_since + HALF_DONE_S:
            logger.warning("%s:%d: a change of the topic was left half done", self._keys.topic, self._keys.shard)
            await self._transport.send(registry.fence(self._keys, self.topic.terms))
        return Unpublished(asked_at + UNPUBLISHED_PAUSE)

    async def _acquire(self, connection: str, replaceable: str = "") -> calls.Acquired:
        asked_at = self._clock.monotonic()
        terms, lease_ms = self.topic.terms, self._settings.lease_ms
        call = calls.acquire(self._keys, self._node, connection, lease_ms, terms, replaceable)
        answer = await self._transport.send(call)
        self._server.observe(asked_at, answer.server_us)
        return answer
