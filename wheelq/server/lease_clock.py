"""`LeaseClock`: the clock by which HTTP leases end."""

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
"""How often a server tells Redis the time by the clock of leases."""
TOLERATED_MS = 1_000
"""How far the clock may be ahead of the Redis server's before leases are limited."""


class LeaseClock:
    """The clock by which HTTP leases end. It follows the clocks of the HTTP servers, not that of Redis.

        Redis holds the clock's time     ─┬─▶ each server counts on from there with its own monotonic clock
                                          └── and once a second sends Redis its estimate: the highest one counts

    So the clock keeps running while one server is alive, all servers agree on it, and steps of the Redis server's clock
    do not affect it. While no server runs, it stands still, and leases last that much longer. A server leases nothing
    before it has read the clock. After a slow answer the time is only known to lie between two moments: existing leases
    are checked against the earlier one, and new leases end by the later one.
    """

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._last: LeaseTime | None = None
        self._asked_at = self._read_at = 0.0
        self._is_wanted = asyncio.Event()

    async def now_ms(self) -> int:
        """Returns its time, or slightly less: leases that end by then have ended. Raises: ServerError."""
        if self._last is None:
            await self.tell()
            self._is_wanted.set()
        return self._reckoned(self._read_at)

    async def in_ms(self, span_ms: int, field: str) -> int:
        """Returns its time after `span_ms`. Raises: InvalidInput, which names `field`; ServerError."""
        await self.now_ms()
        assert self._last is not None, "read just now"
        ahead_ms = self._last.ms - self._last.server_ms
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
                reminders.warn(logger, "the clock of leases is not updated", error)

    async def tell(self) -> None:
        """Send this server's estimate to Redis, and take over a higher one. Raises: ServerError."""
        asked_at = self._clock.uptime()
        reckoned, era = (None, "") if self._last is None else (self._reckoned(self._read_at), self._last.era)
        found = await self._transport.send(calls.time(self._keys, reckoned, era))
        read_at = self._clock.uptime()
        if self._last is None or found.era != self._last.era or found.ms > self._reckoned(self._read_at):
            self._asked_at, self._read_at = asked_at, read_at
            self._last = found
        else:  # only the Redis server's own time has changed
            behind_ms = found.ms - found.server_ms
            self._last = self._last._replace(server_ms=self._last.ms - behind_ms)

    def _reckoned(self, since: float) -> int:
        assert self._last is not None, "read before"
        return self._last.ms + int((self._clock.uptime() - since) * 1000)
