"""`World`: virtual time. The next event is at the top of a heap; nothing here waits.

Every random number of a run comes from a generator that is made from the seed and a name (`World.random`), so leaving
out a fault does not change the draws of everything else.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from loadtest.simulation.story import Story

EPOCH_S = 1_767_225_600.0
"""The time that correct clocks show at the beginning: 2026-01-01, in seconds since 1970."""

MOST_EVENTS, MOST_EVENTS_A_SECOND = 250_000, 3_000
"""A normal run has 2,000 events a second, and up to 15,000 while the server refuses every command."""


class TooMuch(Exception):
    """The run has so many events that it may never end."""


class World:
    """One run: its time, its chances, its story."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        """Seconds since the beginning."""
        self.story = Story(lambda: self.now)
        self.events = 0
        self.numbers = iter(range(1 << 62))
        """The numbers of tasks and futures."""
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._until = 0.0

    def random(self, name: str) -> Random:
        """Returns the generator of this name."""
        return Random(f"{self.seed}/{name}")

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Call `do` at this time; if the time has passed, call it next."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Call `do` after this many seconds."""
        self.at(self.now + seconds, do)

    def run(self, until: float) -> None:
        """Make every call that is due until then. Raises: TooMuch."""
        heap, self._until = self._heap, until
        while heap and heap[0][0] <= until:
            when, _, do = heapq.heappop(heap)
            self._reach(when)
            do()
        self.now = max(self.now, until)

    def goes_on(self, when: float) -> bool:
        """Advance to this time at once, if nothing else is due before it and `run` lasts so long. Raises: TooMuch.

        Does the same as `at` for a caller that can continue by itself, without a place in the heap.
        """
        if when > self._until or (self._heap and self._heap[0][0] <= when):
            return False
        self._reach(when)
        return True

    def _reach(self, when: float) -> None:
        if when > self.now:
            self.now = when
        self.events += 1
        if self.events > MOST_EVENTS and self.events > MOST_EVENTS + MOST_EVENTS_A_SECOND * self.now:
            raise TooMuch(f"circles: {self.events:,} events by second {self.now:.0f}")
