"""`World`: virtual time. What happens next is at the top of a heap; nothing here waits.

Everything random in a run is drawn from generators that are made of the seed and a name (`World.random`), so that a
fault which is left out does not change the draws of everything else.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from loadtest.simulation.story import Story

EPOCH_S = 1_767_225_600.0
"""What all clocks show at the beginning, unless theirs is wrong: 2026-01-01, in seconds since 1970."""


MOST_EVENTS, MOST_EVENTS_A_SECOND = 150_000, 3_000
"""A run that goes well has two thousand a second; while the server refuses all that is asked, up to 15,000."""


class TooMuch(Exception):
    """A run that would not end."""


class World:
    """One run: its time, its chances, its story."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        """Seconds since the beginning."""
        self.story = Story(lambda: self.now)
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._until = 0.0

    def random(self, name: str) -> Random:
        """A generator of its own for whatever has this name."""
        return Random(f"{self.seed}/{name}")

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Let something happen at a moment; what is past happens next."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Let something happen after some time."""
        self.at(self.now + seconds, do)

    def run(self, until: float) -> None:
        """Let everything happen that is due by then. Raises: TooMuch."""
        heap, self._until = self._heap, until
        while heap and heap[0][0] <= until:
            when, _, do = heapq.heappop(heap)
            self._reach(when)
            do()
        self.now = max(self.now, until)

    def goes_on(self, when: float) -> bool:
        """Go to a moment at once, if nothing else happens before it and this run lasts so long. Raises: TooMuch.

        The same as `at`, for a caller that goes on itself, without a place in the heap.
        """
        if when > self._until or (self._heap and self._heap[0][0] <= when):
            return False
        self._reach(when)
        return True

    def _reach(self, when: float) -> None:
        self.now = max(self.now, when)
        self.events += 1
        if self.events > MOST_EVENTS + MOST_EVENTS_A_SECOND * self.now:
            raise TooMuch(f"circles: {self.events:,} events by second {self.now:.0f}")
