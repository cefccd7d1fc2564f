"""Time: the only module that reads a clock.

The Redis server's clock (milliseconds since the Unix epoch) decides when a job is due. A node only *estimates* that
clock: it takes the time stamps that come with replies and counts on from there with its own monotonic clock. A node
whose wall clock is an hour off does no harm.

    request sent          reply read
       t0 ──────────────────▶ t1          the server read its clock somewhere between: its time at t0 was at most
             server_us                    server_us, at t1 at least server_us. The narrower [t0, t1], the better.

`Clock` is the seam for tests: `SystemClock` is the real one, `ManualClock` moves only when told to.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar


def wall_ms() -> int:
    """This machine's idea of milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def sleep(seconds: float) -> None:
    """Block the calling thread."""
    time.sleep(seconds)


class Wake:
    """An `asyncio.Event` for one task, in a tenth of the memory: a node may have thousands."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._is_set

    def set(self) -> None:
        """Let the task that waits go on; it stays set until `clear`."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Let the next `wait` wait."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set. Only one task may wait at a time."""
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None


class Clock(Protocol):
    """The clocks and timers that loops use."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""
        ...

    def uptime(self) -> float:
        """Like `monotonic`, but also counts the time in which the machine sleeps."""
        ...

    def boot_id(self) -> str | None:
        """Identifies the boot within which all processes share `uptime`; None if this machine does not tell."""
        ...

    def wall_ms(self) -> int:
        """This machine's idea of milliseconds since the Unix epoch (never used to decide what is due)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause the calling task."""
        ...

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` once `monotonic()` has reached `when`. Returns a function that cancels the call."""
        ...

    async def wait(self, event: asyncio.Event | Wake, seconds: float) -> None:
        """Wait until `event` is set; set it after that many seconds."""
        cancel = self.call_at(self.monotonic() + seconds, event.set)
        try:
            await event.wait()
        finally:
            cancel()


class SystemClock(Clock):
    """The machine's clocks."""

    _UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock does not stop

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime(self) -> float:
        return time.clock_gettime(self._UPTIME)

    def boot_id(self) -> str | None:
        return _boot_id()

    wall_ms = staticmethod(wall_ms)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, when - time.monotonic()), wake).cancel


@functools.cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


class ManualClock(Clock):
    """A clock for tests: stands still until `advance`, which calls the timers that fall due, in order.

    Each has a boot of its own.
    """

    _boots = itertools.count()

    def __init__(self, *, monotonic: float = 1_000.0, wall_ms: int = 1_750_000_000_000) -> None:
        self._monotonic = monotonic
        self._wall_ahead_ms = wall_ms - monotonic * 1000
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._cancelled: set[int] = set()
        self._boot_id = f"manual {next(self._boots)}"

    def monotonic(self) -> float:
        return self._monotonic

    def uptime(self) -> float:
        return self._monotonic

    def boot_id(self) -> str | None:
        return self._boot_id

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

    def step_wall(self, seconds: float) -> None:
        """Set the machine's clock forwards or back; no time passes."""
        self._wall_ahead_ms += seconds * 1000

    def advance(self, seconds: float) -> None:
        """Move time on, calling every timer that falls due on the way at its own moment."""
        end = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= end:
            when, number, wake = heapq.heappop(self._timers)
            self._monotonic = max(when, self._monotonic)
            if number not in self._cancelled:
                wake()
        self._monotonic = end


class Timed(Protocol):
    """A reply that carries the server's time."""

    @property
    def server_us(self) -> int:
        """The server's clock, in microseconds since the Unix epoch."""
        ...


Reply = TypeVar("Reply", bound="int | Timed")


class _Sample(NamedTuple):
    """The estimate from one reply; replaced as a whole, because threads share a clock."""

    offset: float
    error: float
    taken_at: float


class ServerClock:
    """An estimate of the server's clock, from the best of the recent round trips.

    A sample is a reply that carries the server's time. The server is assumed to have read its clock in the middle of
    the round trip, so the error is at most half the round trip. A new sample replaces the current one if its round trip
    is no longer than the current one's allowance. The allowance grows with age (`DRIFT` seconds per second), because
    clocks drift apart and a server's clock may be stepped.
    """

    DRIFT = 0.000_2
    JUMP = 0.1
    UNIT = 0.000_002
    """By how much two samples may differ because each is in whole microseconds."""
    WELL_KNOWN = 0.01
    """By how many seconds the estimate of a well-known clock may be off."""

    def __init__(self, clock: Clock, now: Callable[[], float] | None = None) -> None:
        """`now` is the clock that counts on between samples: `clock.monotonic` by default, or `clock.uptime`."""
        self._clock = clock
        self._now = now or clock.monotonic
        self._sample: _Sample | None = None
        self.jumps = 0
        """How many steps of the server's clock by `JUMP` or more were seen."""

    def like(self) -> ServerClock:
        """A clock for another server or cluster node; it starts with this clock's estimate."""
        other = ServerClock(self._clock, self._now)
        other._sample = self._sample
        return other

    def instant(self) -> float:
        """The current instant, in the form that `observe` and `at` take."""
        return self._now()

    @property
    def is_set(self) -> bool:
        """Whether a sample has been taken."""
        return self._sample is not None

    @property
    def is_well_known(self) -> bool:
        """Whether a sample has been taken whose round trip was short."""
        return self._sample is not None and self._sample.error <= self.WELL_KNOWN

    @property
    def error_ms(self) -> float:
        """Half the round trip of the current sample: the estimate is at most this far off (± drift)."""
        return 0.0 if self._sample is None else self._sample.error * 1000

    def observe(self, sent_at: float, server_us: int) -> bool:
        """Take a reply that was requested at monotonic `sent_at`, was read just now, and carries `server_us`.

        Returns whether the server's clock was stepped by at least `JUMP` seconds since the current sample.
        """
        now = self._now()
        error = (now - sent_at) / 2
        offset = server_us / 1e6 - (sent_at + error)
        kept, has_jumped = self._sample, False
        if kept is not None:
            allowed = kept.error + (now - kept.taken_at) * self.DRIFT
            off_by = abs(offset - kept.offset) - error - allowed - self.UNIT
            if error > allowed and off_by <= 0:
                return False
            has_jumped = off_by > self.JUMP
        self._sample = _Sample(offset, error, now)
        self.jumps += has_jumped
        return has_jumped

    async def asking(self, reply: Awaitable[Reply]) -> Reply:
        """Await a reply that is the server's time in microseconds, or carries it, and take it as a sample."""
        sent_at = self._now()
        answer = await reply
        self.observe(sent_at, answer if isinstance(answer, int) else answer.server_us)
        return answer

    def now_ms(self) -> float:
        """The server's time now, in milliseconds with fractions; needs a sample."""
        kept = self._sample or self._kept()  # one frame less: it is asked twice for every job
        return (self._now() + kept.offset) * 1000

    def at(self, monotonic: float) -> float:
        """The server's time in milliseconds at a monotonic instant of this node."""
        return (monotonic + self._kept().offset) * 1000

    def latest_at(self, monotonic: float) -> float:
        """The latest time, in milliseconds, that the server's clock can have shown at a monotonic instant.

        The server read its clock after it was asked, and either clock may have drifted since.
        """
        kept = self._kept()
        sent_at = kept.taken_at - 2 * kept.error
        drift = abs(monotonic - sent_at) * self.DRIFT
        return (monotonic + kept.offset + kept.error + drift) * 1000

    def monotonic_at(self, server_ms: float) -> float:
        """The monotonic instant of this node at which the server's clock will show `server_ms`."""
        return server_ms / 1000 - self._kept().offset

    @property
    def skew_ms(self) -> float:
        """This machine's wall clock minus the server's, in milliseconds."""
        return self._clock.wall_ms() - self.now_ms()

    def _kept(self) -> _Sample:
        assert self._sample is not None, "no sample of the server's clock was taken yet"
        return self._sample


async def until_stopped(stopping: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until `stopping` is set. Raises: the error of a task that ended earlier; RuntimeError if it had none.

    The `tasks` must run until they are cancelled: if one were missing, the process would do only part of its work.
    """
    stop = asyncio.ensure_future(stopping.wait())
    try:
        ended, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in ended - {stop}:
            raise_unexpected_end(task)
    finally:
        stop.cancel()


def raise_unexpected_end(task: asyncio.Future[Any]) -> None:
    """Raises: the error of a task that ended unexpectedly; RuntimeError if it had none."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        raise error
    name = task.get_name() if isinstance(task, asyncio.Task) else repr(task)
    raise RuntimeError(f"the background task {name!r} has ended unexpectedly") from error
