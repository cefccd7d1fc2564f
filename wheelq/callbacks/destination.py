"""`Destination`: limits the requests to one receiver, and tracks its health.

A request waits for its `turn` in a queue of at most `QUEUE_S`. It is postponed instead, for a number of seconds, if the
receiver is unhealthy or has asked for a pause, or if too many requests already wait. A postponed job gives up its place
in the worker. So a slow or dead receiver does not slow down the others: it can hold only as many places as it handles
requests in `QUEUE_S`, and only a share of the free ones.

Each postponed request gets its own moment to come back, in order. These moments follow each other slightly faster than
the receiver works, so that it never idles, but not so fast that the many requests of a dead receiver keep this process
busy.

Each path of a receiver that fails has a circuit breaker of its own, and only its first failure in a row counts against
the whole receiver: one broken page stops no calls to the others, and a dead receiver is found by its failing paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.callbacks.services import Terms
from wheelq.producer.breaker import Breaker, BreakerState
from wheelq.settings import BreakerSettings

QUEUE_S = 5.0
LATE_S = 0.01
"""How late a request may take its slot without delaying those behind it: timers are late by a millisecond or two."""
PROBED_S = 5.0
"""How long others are put off while one request probes whether a receiver is well again."""
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


FAILING_PATHS = 100
"""The most failing paths of one receiver that are told apart; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class DestinationInfo:
    """The state of a receiver in this process."""

    name: str
    state: BreakerState
    """That of the receiver's breaker, or of a failing path's."""
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


@dataclass(slots=True)
class Health:
    """The health of a receiver, or of one of its paths."""

    breaker: Breaker
    queue_ends: float = 0.0
    """When the last of its postponed requests comes back."""

    @property
    def state(self) -> BreakerState:
        return self.breaker.state


class Destination:
    """One receiver."""

    def __init__(self, name: str, terms: Terms, breaker: BreakerSettings, room: Room, clock: Clock) -> None:
        self.name = name
        self.asked_at = clock.monotonic()
        """When a request to it was last wanted."""
        self._terms = terms
        self._breaker = breaker
        self._whole = Health(Breaker(breaker, clock))
        self._failing: dict[str, Health] = {}
        """Its paths that have failed last."""
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
        self._line = asyncio.Lock()
        self._next_slot = 0.0
        self._last_error: str | None = None

    @asynccontextmanager
    async def turn(self, path: str = "") -> AsyncIterator[float]:
        """Wraps each request to a path. Yields 0 if it may be sent now, else the seconds after which to come back."""
        waiting = self._unwell_for(path)
        if waiting or self._queued >= self._queue_max():
            yield self._put_off(waiting, path)
            return
        with self._room.taken():
            await self._queue()
            try:
                waiting = self._unwell_for(path)  # the wait may have been long
                # While another request is the probe, the pause would be far too long: the receiver may be well again.
                waiting = waiting or min(max(one.breaker.refuse_for() for one in self._healths(path)), PROBED_S)
                if waiting:
                    yield self._put_off(waiting, path)
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

    def succeeded(self, path: str = "") -> None:
        """Record an answer of the healthy receiver."""
        if self._whole.state is not BreakerState.CLOSED:
            self._whole.queue_ends = 0.0  # the queue was that long because nothing was sent
        self._succeeded += 1
        self._failing.pop(path, None)
        self._whole.breaker.succeeded()

    def failed(self, why: str, path: str = "") -> None:
        """Record that the receiver did not answer, or answered that it cannot serve."""
        self._failed += 1
        self._last_error = why
        is_first = path not in self._failing
        if is_first and len(self._failing) == FAILING_PATHS:
            del self._failing[next(iter(self._failing))]
        self._failing.setdefault(path, Health(Breaker(self._breaker, self._clock))).breaker.failed()
        if is_first or self._whole.state is not BreakerState.CLOSED:
            self._whole.breaker.failed()

    def leave_alone(self, seconds: float) -> None:
        """Send nothing for the pause that the receiver has asked for."""
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    def why_not(self, path: str) -> str:
        """Returns why a request is put off, for people."""
        if any(one.state is not BreakerState.CLOSED for one in self._healths(path)):
            return f"{self.name} is left alone for a while: {self._last_error}"
        if self._clock.monotonic() < self._not_before:
            return f"{self.name} has asked to be left alone for a while"
        return f"{self.name} has as many requests queued as it can answer soon"

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight or queued."""
        return bool(self._in_flight or self._queued)

    @property
    def info(self) -> DestinationInfo:
        return DestinationInfo(
            self.name,
            self._state,
            self._in_flight,
            self._deferred,
            self._succeeded,
            self._failed,
            self._last_error,
        )

    @property
    def _state(self) -> BreakerState:
        states = {one.state for one in (self._whole, *self._failing.values())}
        return next(state for state in _WORST_FIRST if state in states)

    def _healths(self, path: str) -> Sequence[Health]:
        failing = self._failing.get(path)
        return (self._whole,) if failing is None else (self._whole, failing)

    async def _queue(self) -> None:
        """Take a place, which the caller releases, and wait for the request's moment, if there is a rate."""
        self._queued += 1
        try:
            await self._places.acquire()
            if self._terms.max_rate:
                try:
                    await self._wait_for_slot()
                except asyncio.CancelledError:
                    self._places.release()
                    raise
        finally:
            self._queued -= 1

    async def _wait_for_slot(self) -> None:
        """Wait in line for the next slot. Slots that passed unused are lost, so that no stall ends in a burst."""
        async with self._line:
            now = self._clock.monotonic()
            if now < self._next_slot:
                await self._clock.sleep(self._next_slot - now)
                now = self._clock.monotonic()
            is_on_time = now < self._next_slot + LATE_S
            self._next_slot = (self._next_slot if is_on_time else now) + 1 / self._terms.max_rate

    def _unwell_for(self, path: str) -> float:
        """Returns the seconds until it may be called, without asking a breaker for a probe."""
        refused = [one.breaker.refuse_for() for one in self._healths(path) if one.state is BreakerState.OPEN]
        return max(self._not_before - self._clock.monotonic(), 0.0, *refused)

    def _per_second(self) -> float:
        return min(self._speed.per_second, self._terms.max_rate or self._speed.per_second)

    def _queue_max(self) -> int:
        return min(max(1, int(self._per_second() * QUEUE_S)), int(self._room.free * SHARE))

    def _put_off(self, waiting: float, path: str) -> float:
        """Returns the seconds to wait at the end of the queue: that of the path, if only the path is unwell."""
        self._deferred += 1
        pace = EAGER * self._per_second()
        if not self._terms.max_rate:
            pace = max(pace, RETURNS)
        now = self._clock.monotonic()
        # After half of the time that a full queue takes, it has room again.
        unwell = next((one for one in self._healths(path) if one.state is not BreakerState.CLOSED), self._whole)
        unwell.queue_ends = max(unwell.queue_ends, now + (waiting or QUEUE_S / 2)) + 1 / pace
        return max(unwell.queue_ends - now, SHORTEST_WAIT)


_WORST_FIRST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)
