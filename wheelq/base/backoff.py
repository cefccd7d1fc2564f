"""`Backoff`: how long a loop pauses after a failure: twice as long each time in a row, up to a limit."""

from __future__ import annotations

import math

MOST_DOUBLINGS = 30


class Backoff:
    """The pauses of one loop, in seconds: `first`, then twice as long for each failure in a row, up to `longest`."""

    __slots__ = ("failures", "first", "longest")

    def __init__(self, first: float = 0.02, longest: float = 1.0) -> None:
        self.first = first
        self.longest = longest
        self.failures = 0
        """Failures in a row. A loop that succeeds sets this to 0, which costs it no call."""

    def pause(self) -> float:
        """Count one more failure; returns the seconds to pause after it."""
        pause = min(math.ldexp(self.first, min(self.failures, MOST_DOUBLINGS)), self.longest)
        self.failures += 1
        return pause
