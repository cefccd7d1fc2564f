"""`Destination`: limits the requests to one receiver, and tracks its health.

A request waits for its `turn` in a queue of at most `QUEUE_S`. It is postponed instead, for a number of seconds, if the
receiver is unhealthy or has asked for a pause, or if too many requests already wait. A postponed job gives up its place
in the worker. So a slow or dead receiver does not slow down the others: it can hold only as many places as it handles
requests in `QUEUE_S`, and only a share of the free ones.

Each postponed request gets its own moment to come back, in order. These moments follow each other slightly faster than
the receiver works, so that it never idles, but not so fast that the many requests of a dead receiver keep this process
busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.callbacks.services import Terms
from wheelq.producer.breaker import Breaker, BreakerState
from wheelq.settings import BreakerSettings

QUEUE_S = 5.0
SHARE = 1 / 8
"""The share of the free places that one receiver's queue may hold: ten hanging receivers leave a quarter to the
others."""
SHORTEST_WAIT = 0.1
FIRST_GUESS = 0.05  # seconds that a request takes, before any was seen
WINDOW_S = 0.5
REMEMBERED_S = 10.0
EAGER = 1.1
"""How much faster postponed requests come back than the receiver handles them."""
RETURNS = 200.0
"""At least this many come back each second, however slow the receiver, because it may have recovered."""


@dataclass(frozen=True, slots=True)
class DestinationInfo:
    """The state of a receiver in this process."""

    name: str
    state: BreakerState
    in_flight: int
    deferred: int
    """Jobs postponed since the last request was sent."""
    succeeded: int
    failed: int
    last_error: str | None


class Room:
    """The places of a process, for the requests to all its receivers."""

    def __init__(self, places: int) -> None:
        self.free = places

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Takes a place during the block."""
        self.free -= 1
        try:
            yield
        finally:
            self.free += 1


class Speed:
    """How many requests a receiver handles in a second when there are enough: the highest rate seen lately.

    The highest rate is taken because other work of this process can make a receiver look slower than it is, but nothing
    can make it look faster.
    """

    def __init__(self, guess: float, clock: Clock) -> None:
        self.per_second = guess
        self._clock = clock
        self._since = clock.monotonic()
        self._done = 0
        self._holds_until = self._since + REMEMBERED_S

    def done(self, others_wait: bool) -> None:
        """Record the end of a request.

        It counts only while other requests wait: otherwise the receiver could have handled more.
        """
        now = self._clock.monotonic()
        self._done += 1
        if others_wait and now - self._since < WINDOW_S:
            return
        if others_wait:
            seen = self._done / (now - self._since)
            if seen >= self.per_second or now >= self._holds_until:
                self.per_second, self._holds_until = seen, now + REMEMBERED_S
        self._since, self._done = now, 0


class Destination:
    """One receiver."""

    def __init__(self, name: str, terms: Terms, breaker: BreakerSettings, room: Room, clock: Clock) -> None:
        self.name = name
        self._terms = terms
        self._breaker = Breaker(breaker, clock)
        self._room = room
        self._clock = clock
        self._places = asyncio.Semaphore(terms.concurrency)
        self._in_flight = 0
        self._queued = 0
        self._deferred = 0
        self._succeeded = 0
        self._failed = 0
        self._speed = Speed(terms.concurrency / FIRST_GUESS, clock)
        self._not_before = 0.0
        self._next_slot = 0.0
        self._queue_ends = 0.0
        self._last_error: str | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wraps each request. Yields 0 if it may be sent now, otherwise the seconds after which it should come back."""
        waiting = self._unwell_for()
        if waiting or self._queued >= self._queue_max():
            yield self._put_off(waiting)
            return
        with self._room.taken():
            await self._queue()
            try:
                waiting = self._unwell_for() or self._breaker.refuse_for()  # the wait may have been long
                if waiting:
                    yield self._put_off(waiting)
                    return
                self._deferred = 0
                self._in_flight += 1
                try:
                    yield 0.0
                finally:
                    self._in_flight -= 1
                    self._speed.done(others_wait=self._queued > 0)
            finally:
                self._places.release()

    def succeeded(self) -> None:
        """Record an answer of the healthy receiver."""
        if self._breaker.state is not BreakerState.CLOSED:
            self._queue_ends = 0.0  # the queue was that long because nothing was sent
        self._succeeded += 1
        self._breaker.succeeded()

    def failed(self, why: str) -> None:
        """Record that the receiver did not answer, or answered that it cannot serve."""
        self._failed += 1
        self._last_error = why
        self._breaker.failed()

    def leave_alone(self, seconds: float) -> None:
        """Send nothing for the pause that the receiver has asked for."""
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    @property
    def info(self) -> DestinationInfo:
        return DestinationInfo(
            self.name,
            self._breaker.state,
            self._in_flight,
            self._deferred,
            self._succeeded,
            self._failed,
            self._last_error,
        )

    async def _queue(self) -> None:
        """Wait for the request's moment, if there is a rate, and take a place, which the caller releases."""
        self._queued += 1
        try:
            if self._terms.max_rate:
                now = self._clock.monotonic()
                slot = max(self._next_slot, now)
                self._next_slot = slot + 1 / self._terms.max_rate
                if slot > now:
                    await self._clock.sleep(slot - now)
            await self._places.acquire()
        finally:
            self._queued -= 1

    def _unwell_for(self) -> float:
        """Returns the seconds until it may be called, without asking the breaker for a probe."""
        waiting = max(self._not_before - self._clock.monotonic(), 0.0)
        if self._breaker.state is BreakerState.OPEN:
            waiting = max(waiting, self._breaker.refuse_for())
        return waiting

    def _per_second(self) -> float:
        return min(self._speed.per_second, self._terms.max_rate or self._speed.per_second)

    def _queue_max(self) -> int:
        return min(max(1, int(self._per_second() * QUEUE_S)), int(self._room.free * SHARE))

    def _put_off(self, waiting: float) -> float:
        """Returns the seconds to wait at the end of the queue."""
        self._deferred += 1
        pace = EAGER * self._per_second()
        if not self._terms.max_rate:
            pace = max(pace, RETURNS)
        now = self._clock.monotonic()
        # After half of the time that a full queue takes, it has room again.
        self._queue_ends = max(self._queue_ends, now + (waiting or QUEUE_S / 2)) + 1 / pace
        return max(self._queue_ends - now, SHORTEST_WAIT)
