"""When a failed job runs again, decided by a pure function; and what a handler can raise to decide it itself.

With the defaults the pauses before attempts 2, 3, 4 … are drawn from 0.5–1 s, 1–2 s, 2–4 s … up to the cap ("equal
jitter": half fixed, half random, so that jobs that failed together do not come back together, and none comes back at
once). Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Retry()                                     five attempts, growing pauses
    Retry(delays=[1, 10, 60])                   four attempts, after 1, 10 and 60 s sharp
    Retry(delays=[60], max_attempts=None)       every minute, for ever
    Retry(delays=lambda attempt, error: …)      seconds, or None to give up
    Retry(not_on=(ValueError, KeyError))        these are not worth another attempt

    raise RetryAfter(30)                        later, and this was no failure
    raise RetryAfter(30, counts=True)           it was one, and the pause is 30 s
    raise Bury("the order does not exist")      give up at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from wheelq.errors import InvalidInput

FITTING = -1
LONGEST_PAUSE = 366 * 86_400.0
"""Seconds: a longer pause is nearly always a unit mistaken."""

Errors = type[BaseException] | tuple[type[BaseException], ...]
Delays = Sequence[float] | Callable[[int, BaseException], float | None]


class RetryAfter(Exception):
    """Raised by a handler: run this job again after `delay` (seconds or timedelta).

    It counts neither as an attempt nor as a failure, and may go on for ever; with `counts=True` it is a failed
    attempt like any other, and only the pause is the handler's: when the attempts are used up the job is buried.
    `message` is shown as the job's last error.
    """

    def __init__(self, delay: float | timedelta, message: str = "", *, counts: bool = False) -> None:
        super().__init__(str(message))
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self.pause_ms = _pause_ms(seconds, "delay")
        self.counts = counts


class Bury(Exception):
    """Raised by a handler: give this job up at once; `message` is kept with the dead job as its error."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed job is tried again.

    `max_attempts` counts the first run: 1 means never retried, None means for ever. By default it is 5, or one more
    than there are `delays`. Without `delays` pauses grow: `base` and `cap` are seconds, `factor` from one to the
    next, `jitter` the random share of each (0 = none, 0.5 = half).

    `delays` are the pauses themselves, in seconds, of which the last is used again if there are more attempts; or a
    function of the failed attempt (1 = the first) and its error, that returns seconds, or None to give up.

    An error is worth another attempt if it is one of `on` and none of `not_on`; otherwise the job is buried at once.
    """

    max_attempts: int | None = FITTING
    base: float = 1.0
    cap: float = 300.0
    factor: float = 2.0
    jitter: float = 0.5
    delays: Delays | None = None
    on: Errors = BaseException
    not_on: Errors = ()

    def __post_init__(self) -> None:
        if self.delays is not None and not callable(self.delays):
            if not self.delays:
                raise InvalidInput("delays", "must not be empty; max_attempts=1 means no retry")
            for delay in self.delays:
                _pause_ms(delay, "delays")
            object.__setattr__(self, "delays", tuple(self.delays))
        if self.max_attempts == FITTING:
            is_list = isinstance(self.delays, tuple)
            object.__setattr__(self, "max_attempts", len(self.delays) + 1 if is_list else 5)  # type: ignore[arg-type]
        if self.max_attempts is not None and self.max_attempts < 1:
            raise InvalidInput("max_attempts", f"must be at least 1, or None for ever, not {self.max_attempts}")
        if not 0 <= self.base <= self.cap < float("inf"):  # so that NaN is refused too
            raise InvalidInput("base", f"needs 0 <= base <= cap, both finite, not base={self.base} cap={self.cap}")
        if not 1 <= self.factor < float("inf"):
            raise InvalidInput("factor", f"must be at least 1 and finite, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise InvalidInput("jitter", f"must be between 0 and 1, not {self.jitter}")

    def pause_ms(self, attempt: int, draw: float, error: BaseException | None = None) -> int | None:
        """Milliseconds to wait after failed `attempt` (1 = the first), or None when the job is to be given up.

        `draw` is a random number in [0, 1); `error` is what the attempt raised.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        if error is not None and (not isinstance(error, self.on) or isinstance(error, self.not_on)):
            return None
        if isinstance(self.delays, tuple):
            return _pause_ms(self.delays[min(attempt, len(self.delays)) - 1], "delays")
        if callable(self.delays) and error is not None:
            delay = self.delays(attempt, error)
            return None if delay is None else _pause_ms(delay, "delays")
        try:
            full = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.cap
        return round(1000 * full * (1 - self.jitter * draw))

    def without_delays(self) -> Retry:
        """The same with growing pauses."""
        return replace(self, delays=None)


def _pause_ms(seconds: float, field: str) -> int:
    """Raises: InvalidInput, unless these are seconds to wait."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidInput(field, f"must be seconds (a number), not {seconds!r}")
    if not 0 <= seconds <= LONGEST_PAUSE:  # so that NaN is refused too
        raise InvalidInput(field, f"must be 0 to {LONGEST_PAUSE:,.0f} seconds, not {seconds!r}")
    return round(seconds * 1000)
