"""`SharedPlaces`: how those that fill one pool or batcher share its free places.

Each read reserves some that it may fill:

    places of the pool   ▓▓▓▓▓▓▓ running  ▒▒▒ reserved for current reads  ░░░░ free

While a read waits in the server it reserves few places, so that one busy shard can have nearly all of them. A read that
filled its places is followed by one that does not wait, with all places that are free then. With fewer than four places
for each reader, none can be reserved for long: reads then wait 50 ms at most, and the readers take turns.

Ordered lanes start their deliveries in places of the same pool that are neither filled nor reserved. One that finds
none takes its turn with the readers: a read that waits in the server is ended then, and the next ones do not wait.

A call that takes over abandoned deliveries is lent places that are not filled, also reserved ones, because a read may
leave them unused. No two calls are lent the same place. If a call has filled places that reads have reserved, the reads
that wait in the server are ended.

`LimitedPlaces` are those of a handler with a limit of its own, or of all plain handlers. Their lane waits first until
it is below its limit, and only then for the pool: so a full one keeps no place from others, and nobody waits behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from wheelq.base.clock import Clock
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.limited import LimitedRuns

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
    """The places of one pool or batcher, for the readers of its lane and for other lanes."""

    def __init__(
        self, runs: Runs, settings: WorkerSettings, clock: Clock, end_waits: Callable[[], Awaitable[None]]
    ) -> None:
        """`end_waits()` ends reads that wait in the server."""
        self.other_lanes = 0
        """How many ordered and limited lanes use these places too."""
        self.wanted = 0
        """How many of them wait for their turn."""
        self._end_waits = end_waits
        self._runs = runs
        self._reserved = 0
        self._lent = 0
        self._concurrency = settings.concurrency
        self._block_ms = settings.block_ms
        self._clock = clock
        self._readers = 0
        self._turn = asyncio.Lock()

    def share(self, readers: int, block_ms: int) -> None:
        """Set how many readers share the places, and how long each read may wait in the server."""
        self._readers = readers
        self._block_ms = block_ms

    def resize(self, concurrency: int) -> None:
        """Note how many places there are now."""
        self._concurrency = concurrency

    async def take(self, *, waits: bool, shards: int = 1, most: int | None = None) -> int:
        """Wait until a place is free, and reserve some, at most `most`. Readers are served in the order they came.

        A read that waits reserves few, but one for each of its `shards` if it can: else it could not ask all at once.
        """
        async with self._turn:
            free = await self._room()
            sharers = self._readers + self.other_lanes
            taken = max(min(shards, free), free // (SCARCE * sharers)) if waits and not self.is_alone else free
            taken = taken if most is None else min(taken, most)
            self._reserved += taken
            return taken

    @property
    def spare(self) -> int:
        """How many deliveries another lane may start at once; 0 while anybody else waits for a place."""
        return 0 if self._turn.locked() else max(0, self._free)

    async def take_for_other(self, most: int | None = None) -> int:
        """Reserve the free places, at most `most`; if there are none, wait for some in turn with the readers."""
        if spare := self.spare:
            self._reserved += (taken := spare if most is None else min(spare, most))
            return taken
        self.wanted += 1
        taking = asyncio.ensure_future(self.take(waits=False, most=most))
        try:
            while not taking.done():
                if self._reserved:
                    await self._end_waits()  # again, because a read that is being sent does not wait yet
                await asyncio.wait([taking], timeout=LEND_S if self._reserved else None)
            return taking.result()
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled():
                self.give_back(taking.result())
            raise
        finally:
            self.wanted -= 1
            taking.cancel()

    def give_back(self, places: int) -> None:
        """Release the places that a read reserved, after the read."""
        self._reserved -= places
        self._runs.changed.set()

    @property
    def can_lend(self) -> int:
        """How many places are neither filled nor lent; some may be reserved."""
        return max(0, self._runs.free - self._lent)

    def lend(self, most: int) -> int:
        """Lend these places, at most `most`. Returns how many."""
        lent = min(self.can_lend, most)
        self._lent += lent
        return lent

    def end_loan(self, places: int) -> None:
        """Take back places that were lent, of which some may be filled now."""
        self._lent -= places
        self._runs.changed.set()

    async def end_filled_reads(self) -> None:
        """End reads that wait in the server, if some places that they have reserved are filled."""
        if self._reserved > self._runs.free:
            await self._end_waits()

    @property
    def _free(self) -> int:
        """How many places are not filled, reserved or lent; less than 0 if some are lent that were reserved."""
        return self._runs.free - self._reserved - self._lent

    async def _room(self) -> int:
        """Wait until there are free places, and a moment longer if they are few. Returns how many."""
        for pause in (0.001, None):
            while (free := self._free) <= 0:
                self._runs.changed.clear()
                await self._runs.changed.wait()
            if pause is None or free * NEARLY_FULL >= self._concurrency:
                break
            await self._clock.sleep(pause)
        return free

    @property
    def is_alone(self) -> bool:
        """Whether there is only one reader, which can have all places for any time."""
        return self._readers == 1 and not self.other_lanes

    @property
    def block_ms(self) -> int:
        """How long a read may wait in the server."""
        is_scarce = self._readers > 1 and self._concurrency < SCARCE * self._readers
        most = min(self._block_ms, SCARCE_BLOCK_MS) if is_scarce else self._block_ms
        patience_ms = self._runs.patience_ms
        return most if patience_ms is None else min(most, patience_ms)


class LimitedPlaces(SharedPlaces):
    """The places of handlers with a limit: those of the worker's pool, as far as they are below their limit."""

    def __init__(self, runs: LimitedRuns, pool: SharedPlaces, settings: WorkerSettings, clock: Clock) -> None:
        """`settings` with the limit as their concurrency."""
        super().__init__(runs, settings, clock, _end_none)
        self._limited = runs
        self._pool = pool

    async def take(self, *, waits: bool, shards: int = 1, most: int | None = None) -> int:
        """Wait until the handlers are below their limit, then for places of the pool, and reserve them in both.

        It never reserves for a read that waits: others could not use these places meanwhile.
        """
        async with self._turn:
            room = await self._room()
            taken = await self._pool.take_for_other(room if most is None else min(room, most))
            self._reserved += taken
            return taken

    async def take_for_other(self, most: int | None = None) -> int:
        """Reserve places of both, at most `most`, and wait for some if there are none."""
        return await self.take(waits=False, most=most)

    @property
    def spare(self) -> int:
        """How many deliveries may start at once."""
        return min(super().spare, self._pool.spare)

    def give_back(self, places: int) -> None:
        """Release the places that a read reserved, after the read."""
        super().give_back(places)
        self._pool.give_back(places)

    @property
    def can_lend(self) -> int:
        """How many places of the handler and of the pool are neither filled nor lent."""
        return min(super().can_lend, self._pool.can_lend)

    def lend(self, most: int) -> int:
        """Lend places of both, at most `most`. Returns how many."""
        return self._pool.lend(super().lend(most))

    def end_loan(self, places: int) -> None:
        """Take back places that were lent, of which some may be filled now."""
        super().end_loan(places)
        self._pool.end_loan(places)

    async def end_filled_reads(self) -> None:
        """End reads of the pool, as there."""
        await self._pool.end_filled_reads()

    @property
    def _free(self) -> int:
        return self._limited.left - self._reserved - self._lent

    @property
    def block_ms(self) -> int:
        """How long a read may wait in the server: it keeps no places."""
        return self._block_ms


async def _end_none() -> None:
    """End no reads: those of a limited lane wait in the server without any places."""
