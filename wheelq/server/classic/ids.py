"""Numeric task ids: unix seconds × 10000 + counter, unique over all processes, for one trip to Redis in a hundred.

A process takes a hundred at a time and uses them within a second. It drops the rest, so that an id still tells the
second in which it was assigned.
"""

from __future__ import annotations

import asyncio

from wheelq.base.clock import Clock
from wheelq.protocol.calls import notes
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport

BLOCK = 100
FRESH_S = 1.0


class TaskIds:
    """Assigns ids."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._left = range(0)
        self._stale_at = 0.0
        self._taking = asyncio.Lock()

    async def next(self) -> int:
        """Returns a new id. Raises: ServerError."""
        while not self._left or self._clock.monotonic() >= self._stale_at:
            async with self._taking:
                if not self._left or self._clock.monotonic() >= self._stale_at:  # no other task did meanwhile
                    stale_at = self._clock.monotonic() + FRESH_S
                    first = await self._transport.send(notes.take_ids(self._keys, BLOCK))
                    self._left, self._stale_at = range(first, first + BLOCK), stale_at
        id, self._left = self._left[0], self._left[1:]
        return id
