"""`LimitedRuns`: runs the deliveries of one handler, or of all plain ones, in the worker's pool, `limit` at a time.

    worker's pool    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░    20 places for everything
    plain handlers   ▓▓▓▓▓▓▓▓                 8 of them, because there are 8 threads
    one of these     ▓▓▓▓▓                    5 of those: full, so its jobs stay in Redis

It counts what it holds, so that its lane reads nothing that could not start, and passes on to the pool what may start.
A delivery taken over from a dead worker may find the handler full, and waits here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any

from wheelq.worker.delivery.held import Delivery
from wheelq.worker.delivery.pool import Pool


class LimitedRuns:
    """The part of a pool that one handler, or several, may fill."""

    def __init__(self, pool: Pool[Delivery] | LimitedRuns, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._waiting: deque[Delivery] = deque()
        self._in_pool = 0
        self.changed = asyncio.Event()
        """Set whenever `left` may have grown."""

    def resize(self, limit: int) -> None:
        """Change how many deliveries may run at a time. If they are fewer now, none of those that run is stopped."""
        self._limit = limit
        self.changed.set()
        self._pass_on()

    @property
    def left(self) -> int:
        """How many more deliveries its own limit allows."""
        return max(0, self._limit - self._in_pool - len(self._waiting))

    @property
    def free(self) -> int:
        """How many more deliveries could start at once."""
        return min(self.left, self._pool.free)

    @property
    def patience_ms(self) -> int | None:
        """A read may wait for any time, because nothing here depends on it."""
        return None

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Run these deliveries as soon as there is room."""
        self._waiting.extend(deliveries)
        self._pass_on()

    async def counted(self, run: Coroutine[Any, Any, None]) -> None:
        """Await the run of a delivery in the pool; its place is free afterwards."""
        try:
            await run
        finally:
            self._in_pool -= 1
            self._pass_on()
            self.changed.set()

    async def idle(self) -> None:
        """Wait until nothing waits or runs here."""
        while self._in_pool or self._waiting:
            self.changed.clear()
            await self.changed.wait()

    quiet = idle
    """The same, because nothing is gathered here."""

    async def abandon(self) -> None:
        """Cancel what runs in the pool, and forget what waits."""
        self._waiting.clear()
        await self._pool.abandon()

    def _pass_on(self) -> None:
        """Pass on to the pool what may start."""
        while self._waiting and self._in_pool < self._limit:
            self._in_pool += 1
            self._pool.add([self._waiting.popleft()])
