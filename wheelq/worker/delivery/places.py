"""`SharedPlaces`: how those that fill one pool or batcher share its free places.

Each read reserves some that it may fill:

    places of the pool   ▓▓▓▓▓▓▓ running  ▒▒▒ reserved for current reads  ░░░░ free

While a read waits in the server it reserves few places, so that one busy shard can have nearly all of them. A read that
filled its places is followed by one that does not wait, with all places that are free then. With fewer than four places
for each reader, none can be reserved for long: reads then wait 50 ms at most, and the readers take turns.

Ordered lanes start their deliveries in places of the same pool that are neither filled nor reserved. One that finds
none takes its turn with the readers: a read that waits in the server is ended then, and the next ones do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from wheelq.base.clock import Clock
from wheelq.settings import WorkerSettings

LEND_S = 0.02
"""Seconds between checks whether places reserved for a read are free again."""
SCARCE = 4
"""With fewer places for each reader, none is reserved for long."""
SCARCE_BLOCK_MS = 50
NEARLY_FULL = 8
"""With less than 1/8 of the places free, more will be free in a moment, and one read for all is cheaper."""


class Runs(Protocol):
    """Runs deliveries, and says how many more could start at once."""

    changed: asyncio.Event
    """Set whenever `free` may have grown."""

    @property
    def free(self) -> int:
        """How many more deliveries could start at once."""
        ...

    @property
    def patience_ms(self) -> int | None:
        """How long a read may wait in the server; None: for any time."""
        ...


class SharedPlaces:
    """The places of one pool or batcher, for the readers of its lane and for ordered lanes."""

    def __init__(
        self, runs: Runs, settings: WorkerSettings, clock: Clock, end_waits: Callable[[], Awaitable[None]]
    ) -> None:
        """`end_waits()` ends reads that wait in the server."""
        self.ordered_lanes = 0
        """How many ordered lanes use these places too."""
        self.wanted = 0
        """How many of them wait for their turn."""
        self._end_waits = end_waits
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

    async def take(self, *, waits: bool, shards: int = 1) -> int:
        """Wait until a place is free, and reserve some. Readers are served in the order they came.

        A read that waits reserves few, but one for each of its `shards` if it can: else it could not ask all at once.
        """
        async with self._turn:
            free = await self._room()
            if free * NEARLY_FULL < self._concurrency:
                await self._clock.sleep(0.001)
                free = await self._room()
            sharers = self._readers + self.ordered_lanes
            taken = max(min(shards, free), free // (SCARCE * sharers)) if waits and not self.is_alone else free
            self._reserved += taken
            return taken

    @property
    def spare(self) -> int:
        """How many deliveries an ordered lane may start at once; 0 while anybody else waits for a place."""
        return 0 if self._turn.locked() else max(0, self._runs.free - self._reserved)

    async def take_for_ordered(self) -> int:
        """Wait in turn until a place is free, and reserve all that are."""
        self.wanted += 1
        taking = asyncio.ensure_future(self.take(waits=False))
        try:
            while not taking.done():
                if self._reserved:
                    await self._end_waits()  # again, because a read that is being sent does not wait yet
                await asyncio.wait([taking], timeout=LEND_S if self._reserved else None)
            return taking.result()
        finally:
            self.wanted -= 1
            taking.cancel()

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
        return self._readers == 1 and not self.ordered_lanes

    @property
    def block_ms(self) -> int:
        """How long a read may wait in the server."""
        is_scarce = self._readers > 1 and self._concurrency < SCARCE * self._readers
        most = min(self._block_ms, SCARCE_BLOCK_MS) if is_scarce else self._block_ms
        patience_ms = self._runs.patience_ms
        return most if patience_ms is None else min(most, patience_ms)
