"""Time: the only module that reads a clock.

Due times are decided by the Redis server's clock (milliseconds since the Unix epoch). A node only *estimates* that
clock, from the time stamps that come with replies, and counts on from there with its own monotonic clock; a node
whose wall clock is an hour off changes nothing.

    request sent          reply read
       t0 ──────────────────▶ t1          the server read its clock somewhere between: its time at t0 was at most
             server_us                    server_us, at t1 at least server_us. The narrower [t0, t1], the better.

`Clock` is the seam for tests: `SystemClock` is the real one, `ManualClock` moves only when told to.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Protocol


def wall_ms() -> int:
    """This machine's idea of milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def sleep(seconds: float) -> None:
    """Block the calling thread."""
    time.sleep(seconds)


class Clock(Protocol):
    """What loops need of time."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """This machine's idea of milliseconds since the Unix epoch (never used to decide what is due)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause the calling task."""
        ...

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` once `monotonic()` has reached `when`; returns what takes the call back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return wall_ms()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, when - time.monotonic()), wake).cancel


class ManualClock:
    """A clock for tests: stands still until `advance`, then wakes what fell due, in order."""

    def __init__(self, *, monotonic: float = 1_000.0, wall_ms: int = 1_750_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ahead_ms = wall_ms - monotonic * 1000
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._cancelled: set[int] = set()

    def monotonic(self) -> float:
        return self._monotonic

    def wall_ms(self) -> int:
        return int(round(self._monotonic * 1000 + self._wall_ahead_ms, 2))  # a sum of floats may be a hair too small

    async def sleep(self, seconds: float) -> None:
        done = asyncio.Event()
        self.call_at(self._monotonic + seconds, done.set)
        await done.wait()

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        number = next(self._numbers)
        heapq.heappush(self._timers, (when, number, wake))
        return lambda: self._cancelled.add(number)

    def advance(self, seconds: float) -> None:
        """Move time on, calling every timer that falls due on the way at its own moment."""
        end = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= end:
            when, number, wake = heapq.heappop(self._timers)
            self._monotonic = max(when, self._monotonic)
            if number not in self._cancelled:
                wake()
        self._monotonic = end


class ServerClock:
    """An estimate of the server's clock, kept by the best of the recent round trips.

    A sample is a reply that carries the server's time: the middle of the round trip is taken as the moment the server
    read it, so the error is at most half the round trip. A newer sample replaces the kept one when its round trip is
    no longer than the kept one's allowance, which grows with age (`DRIFT` seconds per second) because clocks drift
    apart and a server's clock may be stepped.
    """

    DRIFT = 0.000_2

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._error = 0.0
        self._taken_at = 0.0

    def like(self) -> ServerClock:
        """A clock for another server, or another node of a cluster: the same until a sample of its own is taken."""
        other = ServerClock(self._clock)
        other._offset, other._error, other._taken_at = self._offset, self._error, self._taken_at
        return other

    @property
    def is_set(self) -> bool:
        """Whether any sample was taken yet."""
        return self._offset is not None

    @property
    def error_ms(self) -> float:
        """Half the round trip of the kept sample: the estimate is at most this far off (± drift)."""
        return self._error * 1000

    def observe(self, sent_at: float, server_us: int) -> None:
        """Take a reply that was asked for at monotonic `sent_at`, has just been read, and says `server_us`."""
        now = self._clock.monotonic()
        error = (now - sent_at) / 2
        offset = server_us / 1e6 - (sent_at + error)
        allowed = self._error + (now - self._taken_at) * self.DRIFT
        stepped = self._offset is not None and abs(offset - self._offset) > error + allowed
        if self._offset is None or stepped or error <= allowed:
            self._offset, self._error, self._taken_at = offset, error, now

    def now_ms(self) -> float:
        """The server's time now, in milliseconds with fractions. Needs one sample first."""
        return self.at(self._clock.monotonic())

    def at(self, monotonic: float) -> float:
        """The server's time in milliseconds at a monotonic instant of this node."""
        assert self._offset is not None, "no sample of the server's clock was taken yet"
        return (monotonic + self._offset) * 1000

    def monotonic_at(self, server_ms: float) -> float:
        """The monotonic instant of this node at which the server's clock will show `server_ms`."""
        assert self._offset is not None, "no sample of the server's clock was taken yet"
        return server_ms / 1000 - self._offset

    @property
    def skew_ms(self) -> float:
        """This machine's wall clock minus the server's, in milliseconds."""
        return self._clock.wall_ms() - self.now_ms()


async def until_stopped(stopping: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until `stopping` is set, or one of the `tasks`, which are to run as long, has ended; raises its error."""
    stop = asyncio.ensure_future(stopping.wait())
    try:
        ended, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {stop}:
            task.result()
    finally:
        stop.cancel()
