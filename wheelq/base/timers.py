"""`PreciseClock`: a `SystemClock` whose timers fire within 0.1 ms of their time, where the system supports it.

Event loops count in whole milliseconds, so their timers fire up to 1 ms late, always by about the same amount: it
depends on when the machine was booted. On Linux all timers of this clock share one `timerfd` instead, a file that
the kernel makes readable after a given number of nanoseconds:

    call_at ──▶ heap ──the earliest──▶ timerfd ──readable──▶ event loop ──▶ calls what is due

On other systems, or if the process may not open such a file, it uses the event loop's own timers.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import sys
from collections.abc import Callable
from typing import Any

from wheelq.base.clock import SystemClock

CLOCK_MONOTONIC = 1
TFD_NONBLOCK, TFD_CLOEXEC = 0o4000, 0o2000000
"""From <sys/timerfd.h>."""
MOST_CANCELLED = 100
"""Cancelled timers that stay in the heap, as long as they are not most of it."""


class PreciseClock(SystemClock):
    """For one event loop; `close` it in the end."""

    def __init__(self) -> None:
        self._kernel: KernelTimer | None = None
        self._timers: list[_Timer] = []
        self._cancelled = 0
        self._set_to = float("inf")
        self._is_tried = False

    def call_at(self, when: float, wake: Callable[[], object]) -> Callable[[], None]:
        if not self._is_tried:
            self._is_tried = True
            self._kernel = KernelTimer.open(self._fire)
        if self._kernel is None:
            return super().call_at(when, wake)
        timer = _Timer(when, wake, self)
        heapq.heappush(self._timers, timer)
        if when < self._set_to:
            self._set(self._kernel, when)
        return timer.cancel

    def close(self) -> None:
        """No timer fires any more."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
        self._timers.clear()

    def _set(self, kernel: KernelTimer, when: float) -> None:
        self._set_to = when
        kernel.set(when - self.monotonic())

    def _fire(self) -> None:
        """Call what is due, and set the kernel's timer for the rest."""
        timers, now = self._timers, self.monotonic()
        self._set_to = float("inf")
        while timers and (timers[0].when <= now or timers[0].wake is None):
            timer = heapq.heappop(timers)
            wake, timer.wake = timer.wake, None
            if wake is None:
                self._cancelled -= 1
            else:
                wake()
        if timers and self._kernel is not None and timers[0].when < self._set_to:
            self._set(self._kernel, timers[0].when)

    def forget_one(self) -> None:
        """Count a timer that was cancelled. It leaves the heap with others, or when its time comes."""
        self._cancelled += 1
        if self._cancelled > MOST_CANCELLED and self._cancelled * 2 > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if timer.wake is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0


class _Timer:
    """One call to come; `wake` is None when it was cancelled or has been made."""

    __slots__ = ("_clock", "wake", "when")

    def __init__(self, when: float, wake: Callable[[], object], clock: PreciseClock) -> None:
        self.when = when
        self.wake: Callable[[], object] | None = wake
        self._clock = clock

    def cancel(self) -> None:
        """Make the call no more. Does nothing once it was made."""
        if self.wake is not None:
            self.wake = None
            self._clock.forget_one()

    def __lt__(self, other: _Timer) -> bool:
        return self.when < other.when


class KernelTimer:
    """A timerfd that is read by the running event loop."""

    def __init__(self, fd: int, settime: Callable[..., int], spec: Any, fire: Callable[[], None]) -> None:
        self._fd = fd
        self._settime = settime
        self._spec = spec
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._readable)

    @classmethod
    def open(cls, fire: Callable[[], None]) -> KernelTimer | None:
        """A timer that calls `fire`; None where there is no such thing, or the loop watches no files.

        The loop's own timers must serve then.
        """
        watches_files = type(asyncio.get_running_loop()).add_reader is not asyncio.AbstractEventLoop.add_reader
        if sys.platform != "linux" or not watches_files:
            return None
        import ctypes  # only a scheduler needs it

        libc = ctypes.CDLL(None)
        if not hasattr(libc, "timerfd_create"):
            return None
        fd = libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if fd < 0:
            return None
        return cls(fd, libc.timerfd_settime, (ctypes.c_long * 4)(), fire)

    def set(self, seconds: float) -> None:
        """Fire that many seconds from now, and not at the moment set before.

        It is not an instant, because a program under libfaketime has another monotonic clock than the kernel.
        """
        whole = max(0, int(seconds))
        # The first two are for a timer that repeats. All zero would turn it off.
        self._spec[2], self._spec[3] = whole, max(1, int((seconds - whole) * 1e9))
        self._settime(self._fd, 0, self._spec, None)

    def close(self) -> None:
        """Fire no more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set again meanwhile
            return
        self._fire()
