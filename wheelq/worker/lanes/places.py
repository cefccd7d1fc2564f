"""`SharedPlaces`: how the readers of a lane share its free places. Each read reserves some that it may fill.

    places of the pool   ▓▓▓▓▓▓▓ running  ▒▒▒ reserved for current reads  ░░░░ free

While a read waits in the server it reserves few places, so that one busy shard can have nearly all of them. A read that
filled its places is followed by one that does not wait, with all places that are free then. With fewer than four places
for each reader, none can be reserved for long: reads then wait 50 ms at most, and the readers take turns.
"""

from __future__ import annotations

import asyncio

from wheelq.base.clock import Clock
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.held import Delivery
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.lanes.batching import Batcher

Runs = Pool[Delivery] | Batcher
"""Runs deliveries, and says how many more could start at once."""

SCARCE = 4
"""With fewer places for each reader, none is reserved for long."""
SCARCE_BLOCK_MS = 50
NEARLY_FULL = 8
"""With less than 1/8 of the places free, more will be free in a moment, and one read for all is cheaper."""


class SharedPlaces:
    """The places of one lane, for its readers."""

    def __init__(self, runs: Runs, settings: WorkerSettings, clock: Clock) -> None:
        self._runs = runs
        self._reserved = 0
        self._concurrency = settings.concurrency
        self._block_ms = settings.block_ms
        self._clock = clock
        self._readers = 0
        self._turn = asyncio.Lock()

    def share(self, readers: int, block_ms: int) -> None:
        """Set how many readers share the places, and how long each read may wait in the server."""
        self._readers = readers
        self._block_ms = block_ms

    async def take(self, *, waits: bool) -> int:
        """Wait until a place is free, and reserve some. Readers are served in the order they came."""
        async with self._turn:
            free = await self._room()
            if free * NEARLY_FULL < self._concurrency:
                await self._clock.sleep(0.001)
                free = await self._room()
            taken = max(1, free // (SCARCE * self._readers)) if waits and not self.is_alone else free
            self._reserved += taken
            return taken

    def give_back(self, places: int) -> None:
        """Release the places that a read reserved, after the read."""
        self._reserved -= places
        self._runs.changed.set()

    async def _room(self) -> int:
        """Wait until there are free places that are not reserved. Returns how many."""
        while (free := self._runs.free - self._reserved) <= 0:
            self._runs.changed.clear()
            await self._runs.changed.wait()
        return free

    @property
    def is_alone(self) -> bool:
        """Whether there is only one reader, which can have all places for any time."""
        return self._readers == 1

    @property
    def block_ms(self) -> int:
        """How long a read may wait in the server."""
        is_scarce = not self.is_alone and self._concurrency < SCARCE * self._readers
        most = min(self._block_ms, SCARCE_BLOCK_MS) if is_scarce else self._block_ms
        patience_ms = self._runs.patience_ms
        return most if patience_ms is None else min(most, patience_ms)
