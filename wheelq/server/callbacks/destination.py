"""`Destination`: what one receiver bears, and whether it is well.

A request takes its `turn`: it goes when there is a place, after a queue of at most `QUEUE_S`; or it is told after how
many seconds to come back, because the receiver is not well, has asked for a pause, or too many wait already. Then its
job gives its place in the worker up, so that a slow or dead receiver costs the others nothing: what it can hold there
is bounded, by what it works off in that time and by a share of what is free.

Those who are told to come back form a line: each gets a moment of its own, in the order they were told, a little
faster than the receiver works them off, so that it never waits for one of them; and not so many a second that a long
line of a dead receiver would keep this process busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from wheelq.breaker import Breaker, BreakerState
from wheelq.clock import Clock
from wheelq.server.callbacks.services import Terms
from wheelq.settings import BreakerSettings

QUEUE_S = 5.0
SHARE = 1 / 8
"""Of the places that are free, as many one receiver's queue may hold: ten that hang leave a quarter to the others."""
SHORTEST_WAIT = 0.1
FIRST_GUESS = 0.05  # seconds that a request takes, before any was seen
WINDOW_S = 0.5
REMEMBERED_S = 10.0
EAGER = 1.1
"""How much faster than they are worked off those come back who were put off."""
RETURNS = 200.0
"""As many come back each second at the least, however slow the receiver is: it may have recovered meanwhile."""


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


class Room:
    """The places of a process, for the requests to all its receivers."""

    def __init__(self, places: int) -> None:
        self.free = places

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One of them, meanwhile."""
        self.free -= 1
        try:
            yield
        finally:
            self.free += 1


class Speed:
    """How many requests a receiver works off in a second when there are enough: the most that was seen lately.

    The most, because whatever else keeps this process busy lets a receiver look slower than it is, and nothing lets it
    look faster.
    """

    def __init__(self, guess: float, clock: Clock) -> None:
        self.per_second = guess
        self._clock = clock
        self._since = clock.monotonic()
        self._done = 0
        self._holds_until = self._since + REMEMBERED_S

    def done(self, others_wait: bool) -> None:
        """A request has ended. If no others wait for its place, this tells nothing: it could have done more."""
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
        self._line_ends = 0.0
        self._last_error: str | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Around each request. Gives 0: it may go now. Else it may not, and should come back after so many seconds."""
        waiting = self._unwell_for()
        if waiting or self._queued >= self._queue_max():
            yield self._put_off(waiting)
            return
        with self._room.taken():
            await self._queue()
            try:
                waiting = self._unwell_for() or self._breaker.refuse_for()  # it may have been long
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
        """It answered, and is well."""
        if self._breaker.state is not BreakerState.CLOSED:
            self._line_ends = 0.0  # the line was as long as it was because nothing went
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

    async def _queue(self) -> None:
        """Wait for one's moment, if there is a rate, and for a place, which is to be released."""
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
        """Seconds until it may be asked at all, as far as can be said without asking the breaker for a probe."""
        waiting = max(self._not_before - self._clock.monotonic(), 0.0)
        if self._breaker.state is BreakerState.OPEN:
            waiting = max(waiting, self._breaker.refuse_for())
        return waiting

    def _per_second(self) -> float:
        return min(self._speed.per_second, self._terms.max_rate or self._speed.per_second)

    def _queue_max(self) -> int:
        return min(max(1, int(self._per_second() * QUEUE_S)), int(self._room.free * SHARE))

    def _put_off(self, waiting: float) -> float:
        """The end of the line."""
        self._deferred += 1
        pace = EAGER * self._per_second()
        if not self._terms.max_rate:
            pace = max(pace, RETURNS)
        now = self._clock.monotonic()
        # By half of the time that a full queue takes there is room in it again.
        self._line_ends = max(self._line_ends, now + (waiting or QUEUE_S / 2)) + 1 / pace
        return max(self._line_ends - now, SHORTEST_WAIT)


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
