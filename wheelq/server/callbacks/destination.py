"""`Destination`: what one receiver bears, and whether it is well.

A request takes its `turn`: it goes when there is a place, after a short queue; or it is told after how many seconds to
come back, because the receiver is not well, has asked for a pause, or too many wait already. Then its job gives its
place in the worker up, so that a slow or dead receiver costs the others nothing: what it can hold there is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from wheelq.breaker import Breaker, BreakerState
from wheelq.clock import Clock
from wheelq.server.callbacks.services import Terms
from wheelq.settings import BreakerSettings

SHORTEST_WAIT = 0.1
LONGEST_WAIT = 30.0
FIRST_GUESS = 0.2  # seconds that a request takes, before any was seen
SMOOTHING = 0.1
QUEUE = 4
"""As many requests as go at once, times this, may queue for a place."""


@dataclass(frozen=True, slots=True)
class DestinationInfo:
    """How a receiver stands, as this process sees it."""

    name: str
    state: BreakerState
    in_flight: int
    deferred: int
    """Jobs that were put off since the last request that went."""
    succeeded: int
    failed: int
    last_error: str | None


class Destination:
    """One receiver."""

    def __init__(self, name: str, terms: Terms, breaker: BreakerSettings, clock: Clock) -> None:
        self.name = name
        self._terms = terms
        self._breaker = Breaker(breaker, clock)
        self._clock = clock
        self._places = asyncio.Semaphore(terms.concurrency)
        self._in_flight = 0
        self._queued = 0
        self._deferred = 0
        self._succeeded = 0
        self._failed = 0
        self._took = FIRST_GUESS
        self._not_before = 0.0
        self._next_slot = 0.0
        self._last_error: str | None = None

    @asynccontextmanager
    async def turn(self, draw: float) -> AsyncIterator[float]:
        """Around each request. Gives 0: it may go now. Else it may not, and should come back after so many seconds.

        `draw` in [0, 1) spreads those who come back.
        """
        waiting = self._blocked_for()
        if not waiting and self._queued >= self._terms.concurrency * QUEUE:
            waiting = SHORTEST_WAIT
        if waiting:
            yield self._put_off(waiting, draw)
            return
        self._queued += 1
        try:
            await self._places.acquire()
        finally:
            self._queued -= 1
        try:
            waiting = self._blocked_for() or self._breaker.refuse_for()  # it may have been long
            if waiting:
                yield self._put_off(waiting, draw)
                return
            self._deferred = 0
            started = self._clock.monotonic()
            if self._terms.max_rate:
                self._next_slot = max(self._next_slot, started) + 1 / self._terms.max_rate
            self._in_flight += 1
            try:
                yield 0.0
            finally:
                self._in_flight -= 1
                self._took += SMOOTHING * (self._clock.monotonic() - started - self._took)
        finally:
            self._places.release()

    def succeeded(self) -> None:
        """It answered, and is well."""
        self._succeeded += 1
        self._breaker.succeeded()

    def failed(self, why: str) -> None:
        """It did not answer, or answered that it cannot."""
        self._failed += 1
        self._last_error = why
        self._breaker.failed()

    def leave_alone(self, seconds: float) -> None:
        """It has asked for a pause."""
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    @property
    def info(self) -> DestinationInfo:
        """How it stands."""
        return DestinationInfo(
            self.name,
            self._breaker.state,
            self._in_flight,
            self._deferred,
            self._succeeded,
            self._failed,
            self._last_error,
        )

    def _blocked_for(self) -> float:
        """Seconds until it may be asked at all, as far as can be said without asking the breaker for a probe."""
        now = self._clock.monotonic()
        waiting = max(self._not_before - now, self._next_slot - now, 0.0)
        if self._breaker.state is BreakerState.OPEN:
            waiting = max(waiting, self._breaker.refuse_for())
        return waiting

    def _put_off(self, waiting: float, draw: float) -> float:
        """Whoever is put off comes back when those before him can have gone, not all at once."""
        self._deferred += 1
        queue = self._took * self._deferred / self._terms.concurrency
        if self._terms.max_rate:
            queue = max(queue, self._deferred / self._terms.max_rate)
        return min(max(waiting, SHORTEST_WAIT) + queue * draw, LONGEST_WAIT)


class Destinations:
    """Every receiver that was called so far."""

    def __init__(self, make: Callable[[str, Terms], Destination]) -> None:
        self._make = make
        self._by_name: dict[str, Destination] = {}

    def of(self, name: str, terms: Terms) -> Destination:
        """The receiver of this name."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = self._make(name, terms)
        return found

    def infos(self) -> list[DestinationInfo]:
        """How each stands, by name."""
        return [self._by_name[name].info for name in sorted(self._by_name)]
