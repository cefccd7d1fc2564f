"""`Standby`: watches the leader of one shard, and promotes in its place while it is silent.

`StandbyRules` decides when to look and what to do then; it is pure, and its times are server milliseconds.

A standby needs no copy of the window: it looks at the first waiting job, and again `hedge_ms` after that job was due,
when it should have been promoted. While no job is near it does not look at all; a hint brings the next look forward.
Jobs beyond the horizon send no hint, so a standby rests until the horizon at most: a live leader has moved it forward
by then.

    first job not due, or due just now      rest until `hedge_ms` after it, or after the horizon
    jobs are held back, and no node leads   take the lease
    jobs are held back, the leader silent   suspect it, as below: it looks at them every `sweep_ms`
    the horizon is over, and no node leads  take the lease
    overdue, and no node leads              take the lease
    overdue, but the leader has just acted  leave it alone: it is working off a backlog
    overdue, and the leader is silent       suspect it: if its connection is closed take the lease, else promote in
                                            its place, and look again soon, until it acts or its lease ends
"""

from __future__ import annotations

import logging
from enum import Enum, auto

from wheelq.model.topic import shaping_of
from wheelq.protocol.calls import leader as calls
from wheelq.scheduler.lease import WatchedLease, holder_connection
from wheelq.scheduler.parts import ShardParts
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")


class Advice(Enum):
    """What a standby should do after a look."""

    REST = auto()
    """Do nothing until the next look."""
    TAKE = auto()
    """Take the free lease."""
    SUSPECT = auto()
    """Find out whether the leader is gone; then take the lease or promote in its place."""


CLOCK_MS = 1_000
"""How many milliseconds longer than its longest duration a lease may seem to last."""
UNLED_MS = 1_000
"""Milliseconds until the next look at a shard that has had no leader yet."""


class StandbyRules:
    """Decides when to look next, and what to do after a look."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._hedge_ms = settings.hedge_ms
        self._lease_ms = settings.lease_ms
        self._idle_ms = settings.idle_ms
        self._beat_ms = settings.sweep_ms + settings.hedge_ms
        self.look_at = 0.0
        """When to look, in server milliseconds."""
        self._hinted_at = float("inf")

    def hint(self, jobs: list[tuple[str, int]], now_ms: float) -> bool:
        """Take jobs (member, due_ms) that were scheduled before the horizon, and keys that may have room (`KEY_MARK`).

        A hint of any job (`ANY_MS`) comes if no horizon is in force: its due time is not known, and perhaps nobody
        leads. Returns whether to look earlier than before.
        """
        before = self.look_at
        for job, due_ms in jobs:
            if job.startswith(calls.KEY_MARK):
                self.look_by(now_ms + self._beat_ms)
            else:
                self.look_by((now_ms if due_ms == calls.ANY_MS else due_ms) + self._hedge_ms)
        return self.look_at < before

    def look_by(self, at_ms: float) -> None:
        """Look at this time at the latest, also if a look is under way, which may not know why."""
        self.look_at, self._hinted_at = min(self.look_at, at_ms), min(self._hinted_at, at_ms)

    def looking(self) -> None:
        """Record that a look begins: it knows of all hints so far."""
        self._hinted_at = float("inf")

    def looked(self, look: calls.Looked) -> Advice:
        """Returns the advice after a look."""
        advice = self._advice(look)
        self.look_at = min(self.look_at, self._hinted_at)
        return advice

    def _advice(self, look: calls.Looked) -> Advice:
        now_ms = look.server_us / 1000
        is_blind = look.horizon_ms is not None and look.horizon_ms + self._hedge_ms <= now_ms
        # A lease that lasts longer than leaders ask for was made before the server's clock was stepped back.
        quiet_ms = self._lease_ms - (look.left_ms if look.left_ms <= self._lease_ms + CLOCK_MS else 0)
        if look.has_held and (not look.token or quiet_ms >= self._beat_ms):
            self.look_at = now_ms + self._hedge_ms
            return Advice.SUSPECT if look.token else Advice.TAKE
        if look.first_due_ms is None or look.first_due_ms + self._hedge_ms > now_ms:
            if not is_blind:
                self.look_at = self._rest_until(look, now_ms)
                return Advice.REST
            self.look_at = now_ms + self._hedge_ms
            return Advice.REST if look.token else Advice.TAKE
        if not look.token:
            self.look_at = now_ms + self._hedge_ms  # in case another node is quicker
            return Advice.TAKE
        if quiet_ms < self._hedge_ms:
            self.look_at = now_ms + self._hedge_ms
            return Advice.REST
        self.look_at = now_ms + self._hedge_ms / 4
        return Advice.SUSPECT

    def _rest_until(self, look: calls.Looked, now_ms: float) -> float:
        instants = [now_ms + (self._beat_ms if look.has_held else self._idle_ms)]
        if look.first_due_ms is not None:
            instants.append(look.first_due_ms + self._hedge_ms)
        instants.append(now_ms + UNLED_MS if look.horizon_ms is None else look.horizon_ms + self._hedge_ms)
        return min(instants)


class Standby:
    """Watches the leader of one shard."""

    def __init__(self, parts: ShardParts, rules: StandbyRules) -> None:
        self._parts = parts
        self._keys = parts.keys
        self._transport = parts.node.transport
        self._settings = parts.node.settings
        self._clock = parts.node.clock
        self._server = parts.server
        self._rules = rules
        self._held = WatchedLease(self._settings.lease_ms)
        self.over = ""
        """The token of a lease that may be replaced, because its holder has not renewed it for too long."""

    async def look(self) -> bool:
        """Look once and act on it; returns whether the lease should be taken. Raises: ServerError."""
        self._rules.looking()
        look = await self._server.asking(self._transport.send(calls.look(self._keys)))
        if look.has_outgoing:
            self._parts.node.found_outgoing(self._keys)
        ends_ms = look.server_us / 1000 + look.left_ms
        is_over = self._held.is_over(self._clock.monotonic(), look.token, ends_ms)
        self.over = look.token if is_over else ""
        match self._rules.looked(look):
            case Advice.TAKE:
                return True
            case Advice.SUSPECT if is_over:
                logger.warning("%s:%d: the leader is silent, taking over", self._keys.topic, self._keys.shard)
                return True
            case Advice.SUSPECT if await is_gone(self._transport, look.token):
                logger.warning("%s:%d: the leader is gone, taking over", self._keys.topic, self._keys.shard)
                return True
            case Advice.SUSPECT:
                await self._hedge()
        return False

    async def _hedge(self) -> None:
        """Promote in place of a leader that still holds its lease but does not promote."""
        behind = True
        while behind:
            topic, hedge_ms = self._parts.topic, self._settings.hedge_ms
            call = calls.hedge(
                self._keys, hedge_ms, self._settings.batch, topic.terms, shaping_of(topic, self._keys.shard)
            )
            answer = await self._transport.send(call)
            self._parts.node.promotions.add(self._keys.topic, answer.lateness)
            behind = answer.is_partial and answer.promoted > 0 and not answer.wait_ms
            if answer.wait_ms:
                self._rules.look_at = answer.server_us / 1000 + answer.wait_ms + hedge_ms


async def is_gone(transport: AsyncTransport, token: str) -> bool:
    """Whether the connection of the lease's holder is known to be closed. Raises: ServerError."""
    holder = holder_connection(token)
    return holder is not None and not await transport.is_open(*holder)
