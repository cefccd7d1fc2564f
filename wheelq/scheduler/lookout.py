"""`Lookout`: what a standby does: looks after the leader, and promotes in its place while it is quiet (`standby`)."""

from __future__ import annotations

import logging

from wheelq.clock import Clock, ServerClock
from wheelq.metrics import Lateness
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.lease import holder_connection
from wheelq.scheduler.standby import Advice, Standby
from wheelq.settings import SchedulerSettings
from wheelq.topics import Topic
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")


class Lookout:
    """Looks after the leader of one shard."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        standby: Standby,
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
        topic: Topic,
    ) -> None:
        self.topic = topic
        """As last read."""
        self.lateness = Lateness()
        """How late the jobs were that were promoted in a leader's place so far."""
        self._keys = keys
        self._transport = transport
        self._standby = standby
        self._settings = settings
        self._clock = clock
        self._server = server_clock

    async def look(self) -> bool:
        """Look once, and do what is to be done; whether that is to take the lease. Raises: ServerError."""
        asked_at = self._clock.monotonic()
        look = await self._transport.send(calls.look(self._keys))
        self._server.observe(asked_at, look.server_us)
        match self._standby.looked(look):
            case Advice.TAKE:
                return True
            case Advice.SUSPECT if await is_gone(self._transport, look.token):
                logger.warning("%s:%d: the leader is gone, taking over", self._keys.topic, self._keys.shard)
                return True
            case Advice.SUSPECT:
                await self._hedge()
        return False

    async def _hedge(self) -> None:
        """Promote in place of a leader that lives, or has not lost its lease yet, but does not promote."""
        behind = True
        while behind:
            topic, hedge_ms = self.topic, self._settings.hedge_ms
            call = calls.hedge(self._keys, hedge_ms, self._settings.batch, topic.terms, topic.shaping)
            answer = await self._transport.send(call)
            self.lateness += answer.lateness
            behind = answer.is_partial and answer.promoted > 0 and not answer.wait_ms
            if answer.wait_ms:
                self._standby.look_at = answer.server_us / 1000 + answer.wait_ms + hedge_ms


async def is_gone(transport: AsyncTransport, token: str) -> bool:
    """Whether the connection of the lease's holder is closed, as far as that can be told. Raises: ServerError."""
    holder = holder_connection(token)
    return holder is not None and not await transport.is_open(*holder)
