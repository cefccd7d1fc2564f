"""Waits for facts that other processes or tasks bring about, and that no event announces."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat
from typing import Self, TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which a test gives up waiting. What it waits for takes far less, but on a busy machine anything may."""

CLOCK_ERROR_MS = 5_000
"""How far off a worker may be that estimates the server's clock: by half the time that an answer took."""


def eventually(fact: Callable[[], bool], within_s: float = PATIENCE) -> bool:
    """Waits until `fact` is true; False if it takes too long. For facts that other processes bring about."""
    deadline, pauses = time.monotonic() + within_s, _pauses()
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(next(pauses))
    return True


def _pauses() -> Iterator[float]:
    """Seconds between two looks: most facts come about soon, those of other processes later."""
    return chain((0.001, 0.002, 0.004, 0.008), repeat(0.016))


class Stalls:
    """How late the machine itself is: sleeps that last longer than asked for, while the block runs.

    A bound on lateness has to allow for them, several times where several processes wait for each other.
    """

    def __init__(self) -> None:
        self._late_ms = [0.0]
        self._ended = threading.Event()
        self._measuring = threading.Thread(target=self._measure, daemon=True)

    def percentile(self, percent: int) -> float:
        """Returns the milliseconds by which this percentage of the sleeps were late at most."""
        measured = sorted(self._late_ms)  # a copy: the thread goes on adding
        return measured[(len(measured) - 1) * percent // 100]

    def _measure(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            time.sleep(0.005)
            self._late_ms.append((time.monotonic() - began) * 1000 - 5)

    def __enter__(self) -> Self:
        self._measuring.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._measuring.join()


async def until(fact: Callable[[], bool | Awaitable[bool]], within: float = PATIENCE) -> None:
    """Let other tasks of this event loop run until `fact` is true. Raises: TimeoutError."""
    async with asyncio.timeout(within):
        for pause in _pauses():
            found = fact()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(pause)


async def in_time(what: Awaitable[T]) -> T:
    """Waits for an awaitable, and returns what it gives. Raises: TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        return await what
