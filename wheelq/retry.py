"""When a failed job runs again: exponential backoff with jitter, decided by a pure function.

With the defaults the pauses before attempts 2, 3, 4 … are drawn from 0.5–1 s, 1–2 s, 2–4 s … up to the cap ("equal
jitter": half fixed, half random, so that jobs that failed together do not come back together, and none comes back at
once). Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.errors import InvalidInput

ATTEMPTS_LIMIT = 255
"""Attempts are kept in one byte of the stored record."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed job is tried again.

    `max_attempts` counts the first run: 1 means never retried. `base` and `cap` are seconds; `jitter` is the random
    share of each pause (0 = none, 0.5 = half).
    """

    max_attempts: int = 5
    base: float = 1.0
    cap: float = 300.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= ATTEMPTS_LIMIT:
            raise InvalidInput("max_attempts", f"must be 1 to {ATTEMPTS_LIMIT}, not {self.max_attempts}")
        if not 0 <= self.base <= self.cap < float("inf"):  # so that NaN is refused too
            raise InvalidInput("base", f"needs 0 <= base <= cap, both finite, not base={self.base} cap={self.cap}")
        if not 1 <= self.factor < float("inf"):
            raise InvalidInput("factor", f"must be at least 1 and finite, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise InvalidInput("jitter", f"must be between 0 and 1, not {self.jitter}")

    def pause_ms(self, attempt: int, draw: float) -> int | None:
        """Milliseconds to wait after failed `attempt` (1 = the first), or None when the attempts are used up.

        `draw` is a random number in [0, 1).
        """
        if attempt >= self.max_attempts:
            return None
        try:
            full = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.cap
        return round(1000 * full * (1 - self.jitter * draw))


NO_RETRY = Retry(max_attempts=1)
"""Buried at the first failure."""
