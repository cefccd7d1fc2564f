"""Decides when a failed job runs again, and defines the exceptions by which a handler decides it itself. Pure.

By default the pauses before attempts 2, 3, 4 … are drawn from 0.5–1 s, 1–2 s, 2–4 s … up to the cap. This is "equal
jitter", half fixed and half random: jobs that failed together are not retried together, and none is retried at once.
Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Retry()                                     five attempts, growing pauses
    Retry(delays=[1, 10, 60])                   four attempts, after pauses of exactly 1, 10 and 60 s
    Retry(delays=[60], max_attempts=None)       every minute, for ever
    Retry(delays=lambda attempt, error: …)      seconds, or None to give up
    Retry(not_on=(ValueError, KeyError))        never retry these errors

    raise RetryAfter(30)                        run again in 30 s; not counted as a failure
    raise RetryAfter(30, counts=True)           run again in 30 s; counted as a failed attempt
    raise Bury("the order does not exist")      give up at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from wheelq.errors import InvalidInput
from wheelq.model.checks import span_ms


class _Fitting(int):
    """The default of `max_attempts`; no number that somebody gives is it."""


FITTING = _Fitting(-1)
LONGEST_PAUSE_MS = 366 * 86_400_000
"""A longer pause is nearly always a wrong unit."""

Errors = type[BaseException] | tuple[type[BaseException], ...]
Delays = Sequence[float] | Callable[[int, BaseException], float | None]


class RetryAfter(Exception):
    """Raised by a handler: run this job again after `delay` (seconds or timedelta).

    It counts neither as an attempt nor as a failure, and may go on for ever. With `counts=True` it is a failed attempt
    like any other, except that the handler chooses the pause: a job with no attempts left is buried. `message` is shown
    as the job's last error.
    """

    def __init__(self, delay: float | timedelta, message: str = "", *, counts: bool = False) -> None:
        super().__init__(str(message))
        self.pause_ms = span_ms(delay, LONGEST_PAUSE_MS, "delay")
        """The pause in milliseconds."""
        self.counts = counts
        """Whether it counts as a failed attempt."""


class Postponed(RetryAfter):
    """Raised by a sink while its target is away: run this job again after the pause of its handler's `retry`.

    `failures` in a row decide the pause, as failed attempts would; they count neither as attempts nor as failures of
    the job. The sink logs what is wrong.
    """

    def __init__(self, message: str, failures: int) -> None:
        super().__init__(0, message)
        self.failures = failures


class Bury(Exception):
    """Raised by a handler: give this job up at once. The dead job keeps the message as its error."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed job is tried again.

        @worker.handler("orders", retry=Retry(max_attempts=8, base=2, cap=60, not_on=(ValueError,)))
        async def close_order(job: Job) -> None: ...

    `max_attempts` includes the first run: 1 means never retried, None means for ever. By default it is 5, or one more
    than the number of `delays`. A job that was scheduled with `attempts` gets that many instead of the default or None,
    but never more than `max_attempts` or the `delays` allow. Without `delays` the pauses grow: `base` is the first and
    `cap` the longest, in seconds, `factor` the growth from one to the next, and `jitter` the random share of each (0 =
    none, 0.5 = half).

    `delays` are the pauses themselves, in seconds, and the last is repeated if there are more attempts. Or it is a
    function that takes the failed attempt (1 = the first) and its error, and returns seconds, or None to give up.

    An error is retried if it is an instance of `on` and not of `not_on`; otherwise the job is buried at once.
    """

    max_attempts: int | None = FITTING
    base: float = 1.0
    cap: float = 300.0
    factor: float = 2.0
    jitter: float = 0.5
    delays: Delays | None = None
    on: Errors = BaseException
    not_on: Errors = ()
    _is_default: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the number of attempts is only the default, which a job's own wins over."""

    def __post_init__(self) -> None:
        if self.delays is not None and not callable(self.delays):
            if not self.delays:
                raise InvalidInput("delays", "must not be empty; max_attempts=1 means no retry")
            for delay in self.delays:
                span_ms(delay, LONGEST_PAUSE_MS, "delays")
            object.__setattr__(self, "delays", tuple(self.delays))
        if self.max_attempts is FITTING:
            is_list = isinstance(self.delays, tuple)
            object.__setattr__(self, "_is_default", not is_list)
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
        """Returns the milliseconds to wait after failed `attempt` (1 = the first), or None to give the job up.

        `draw` is a random number in [0, 1); `error` is what the attempt raised.
        """
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        if error is not None and (not isinstance(error, self.on) or isinstance(error, self.not_on)):
            return None
        if isinstance(self.delays, tuple):
            return span_ms(self.delays[min(attempt, len(self.delays)) - 1], LONGEST_PAUSE_MS, "delays")
        if callable(self.delays) and error is not None:
            delay = self.delays(attempt, error)
            return None if delay is None else span_ms(delay, LONGEST_PAUSE_MS, "delays")
        try:
            full = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:
            full = self.cap
        return round(1000 * full * (1 - self.jitter * draw))

    def pause_uncounted_ms(self, failures: int, draw: float) -> int:
        """Returns the milliseconds to wait after so many failures that count no attempt: none is the last."""
        return replace(self, max_attempts=None).pause_ms(failures, draw) or 0

    def for_job(self, attempts: int | None) -> Retry:
        """Returns the policy for a job that was scheduled with `attempts`: at most what this policy states itself."""
        if attempts is None:
            return self
        attempts = max(1, attempts)  # another program may have written any number
        if self.max_attempts is not None and not self._is_default:
            attempts = min(attempts, self.max_attempts)
        return replace(self, max_attempts=attempts)

    def without_delays(self) -> Retry:
        """Returns the same policy with growing pauses."""
        return replace(self, delays=None)
