"""`LeaseClock`: the clock by which HTTP leases end. It follows the clocks of the HTTP servers, not that of Redis.

    Redis holds the clock's time     ─┬─▶ each server counts on from there with its own monotonic clock
                                      └── and once a second sends Redis its estimate: the highest one counts

So the clock keeps running while one server is alive, all servers agree on it, and steps of the Redis server's clock do
not affect it. While no server runs, it stands still, and leases last that much longer. A server leases nothing before
it has read the clock. After a slow answer the time is only known to lie between two moments: existing leases are
checked against the earlier one, and new leases end by the later one.
"""

from __future__ import annotations

import asyncio
import logging

from wheelq import reminders
from wheelq.base.clock import Clock
from wheelq.errors import InvalidInput, ServerError
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.calls.leases import LONGEST_MS, LeaseTime
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.server")

TELL_EVERY_S = 1.0
TOLERATED_MS = 1_000
"""How far the clock may be ahead of the Redis server's before leases are limited."""


class LeaseClock:
    """The clock of leases."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._told: LeaseTime | None = None
        self._asked_at = self._told_at = 0.0
        self._is_wanted = asyncio.Event()

    async def now_ms(self) -> int:
        """Returns its time, or slightly less: leases that end by then have ended. Raises: ServerError."""
        if self._told is None:
            await self.tell()
            self._is_wanted.set()
        return self._reckoned(self._told_at)

    async def in_ms(self, span_ms: int, field: str) -> int:
        """Returns its time after `span_ms`. Raises: InvalidInput, which names `field`; ServerError."""
        await self.now_ms()
        assert self._told is not None, "told just now"
        ahead_ms = self._told.ms - self._told.server_ms
        if ahead_ms > TOLERATED_MS and span_ms > LONGEST_MS - ahead_ms:
            most_s = (LONGEST_MS - ahead_ms) // 1000
            raise InvalidInput(field, f"must be at most {most_s:,} seconds, because the clock of Redis was set back")
        return self._reckoned(self._asked_at) + span_ms

    async def run(self) -> None:
        """Send the clock's time to Redis once a second, after the first lease."""
        await self._is_wanted.wait()
        while True:
            await self._clock.sleep(TELL_EVERY_S)
            try:
                await self.tell()
            except ServerError as error:
                reminders.warn(logger, "the clock of leases is not updated until the server is back", error)

    async def tell(self) -> None:
        """Send this server's estimate to Redis, and take over a higher one. Raises: ServerError."""
        asked_at = self._clock.uptime()
        reckoned, era = (None, "") if self._told is None else (self._reckoned(self._told_at), self._told.era)
        told = await self._transport.send(calls.time(self._keys, reckoned, era))
        told_at = self._clock.uptime()
        if self._told is None or told.era != self._told.era or told.ms > self._reckoned(self._told_at):
            self._asked_at, self._told_at = asked_at, told_at
            self._told = told
        else:  # only the Redis server's own time has changed
            behind_ms = told.ms - told.server_ms
            self._told = self._told._replace(server_ms=self._told.ms - behind_ms)

    def _reckoned(self, since: float) -> int:
        assert self._told is not None, "told before"
        return self._told.ms + int((self._clock.uptime() - since) * 1000)
