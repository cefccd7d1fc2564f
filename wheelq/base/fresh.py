"""`Fresh`: a value that many ask for, read at most once in so many seconds; all who ask during a read share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from wheelq.base.clock import Clock

T = TypeVar("T")


class Fresh(Generic[T]):
    """Reads a value when it is asked for, unless the last read began less than `fresh_s` seconds ago.

    A read that failed raises its error for all who waited for it, and is not kept: the next caller reads again.
    """

    def __init__(self, read: Callable[[], Coroutine[Any, Any, T]], fresh_s: float, clock: Clock) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._clock = clock
        self._reading: asyncio.Task[T] | None = None
        self._began = float("-inf")

    async def get(self, within_s: float | None = None) -> T:
        """Returns the value. Raises what the read raises; TimeoutError, `within_s` after a read began that goes on."""
        now, reading = self._clock.monotonic(), self._reading
        if reading is None or (reading.done() and (_has_failed(reading) or now - self._began >= self._fresh_s)):
            self._began = now
            reading = self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(None if within_s is None else max(0.0, self._began + within_s - now)):
            return await asyncio.shield(reading)

    def forget(self) -> None:
        """Read again the next time, because something was changed."""
        self._began = float("-inf")

    def close(self) -> None:
        """End a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()


def _has_failed(reading: asyncio.Task[Any]) -> bool:
    return reading.cancelled() or reading.exception() is not None
