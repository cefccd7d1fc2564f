"""The shapes of a load: steady, with a spike in the middle, or up and down for hours.

steady   ───────────────────      the rate all the time
                ┌───┐
spike    ───────┘   └───────      a fifth of the rate, and twice the rate in the middle fifth of the time
         ╱╲_╱╲│╱╲_╱╲│╱╲_╱╲│
soak     ───────────────────      waves between half the rate and the rate, and each tenth minute half as much again
"""

import math
import time
from abc import abstractmethod

from locust import LoadTestShape

JOBS_PER_USER = 10  # a second
SPAWN_RATE = 1_000.0  # users a second, so that the load changes at once


class _Shape(LoadTestShape):
    abstract = True

    def __init__(self, jobs_per_second: float, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Locust's is not annotated
        self._users = max(1, round(jobs_per_second / JOBS_PER_USER))
        self._seconds = seconds

    def tick(self) -> tuple[int, float] | None:
        """Users and spawn rate now; None when the time is over."""
        share = (time.perf_counter() - self.start_time) / self._seconds
        return (max(1, round(self._users * self.level(share))), SPAWN_RATE) if share < 1 else None

    @abstractmethod
    def level(self, share: float) -> float:
        """Returns the share of the full rate when this share (0 to 1) of the time has passed."""


class Steady(_Shape):
    """The full rate all the time."""

    abstract = False

    def level(self, share: float) -> float:
        return 1.0


class Spike(_Shape):
    """Little before and after, a lot in between."""

    abstract = False

    def level(self, share: float) -> float:
        return 2.0 if 0.4 <= share < 0.6 else 0.2


class Soak(_Shape):
    """Waves of load for hours, which reveal growth, leaks and drift."""

    abstract = False

    def level(self, share: float) -> float:
        minutes = share * self._seconds / 60
        return 1.5 if minutes % 10 >= 9 else 0.75 + 0.25 * math.sin(minutes * math.pi)


SHAPES: dict[str, type[_Shape]] = {"steady": Steady, "spike": Spike, "soak": Soak}
