"""Logs a repeating error once, then a reminder each minute while it lasts, and its end.

    10:00:00  jobs of orders are not read until the server is back: no connection to redis://db:6379
    10:01:00  still, after 60 s: jobs of orders are not read until the server is back: no connection to redis://db:6379
    10:01:50  over, it lasted 90 s: jobs of orders are not read until the server is back

A worker or scheduler has many loops, and in an outage each of them keeps failing. Errors of the same kind count as one
outage, in all loops: the first is logged, the others only at level DEBUG. Missing permissions are told apart by their
message, because each must be granted separately. If a loop that met one kind of error keeps failing with another, as
when a server comes back as a replica, the outage is not over.

`Loop` is what these loops have in common: a step, a warning when it fails, a growing pause, the next step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from wheelq.base.clock import Clock
from wheelq.errors import NotPermitted, OutcomeUnknown, ServerError, Unavailable

T = TypeVar("T")

REMIND_S = 60.0
OVER_S = 20.0
"""An error that was not seen for this long is over. Loops fail more often than this, also when the server is silent."""


@dataclass(slots=True)
class _Outage:
    logger: logging.Logger
    what: str
    began: float
    remind_at: float
    met_at: float
    met_by: set[str] = field(default_factory=set)
    """What the error led to, in all loops."""


class Reminders:
    """The outages of one worker, scheduler or server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outages: dict[Hashable, _Outage] = {}
        self._is_looking = False

    def warn(self, logger: logging.Logger, what: str, error: Exception, until: str = "") -> None:
        """Log `what` the error leads to, and `until` when, unless that was logged less than a minute ago."""
        now = self._clock.monotonic()
        self._look(now)
        outage = self._outages.setdefault(_kind(error), _Outage(logger, what + until, now, now, now))
        outage.met_at = now
        outage.met_by.add(what)
        if now < outage.remind_at:
            logger.debug("%s%s: %s", what, until, error)
            return
        still = f"still, after {now - outage.began:.0f} s: " if now > outage.began else ""
        logger.warning("%s%s%s: %s", still, what, until, error)
        outage.remind_at = now + REMIND_S
        if not self._is_looking:
            self._is_looking = True
            self._clock.call_at(now + OVER_S, self._look_again)

    def _look_again(self) -> None:
        """Look until nothing is wrong any more."""
        self._look(self._clock.monotonic())
        self._is_looking = bool(self._outages)
        if self._is_looking:
            first_s = min(outage.met_at for outage in self._outages.values()) + OVER_S
            self._clock.call_at(first_s, self._look_again)

    def _look(self, now: float) -> None:
        """Say which outages are over."""
        for kind, outage in list(self._outages.items()):
            if now - outage.met_at >= OVER_S:
                del self._outages[kind]
                if (heir := self._heir(outage)) is not None:
                    heir.began = outage.began
                    continue
                outage.logger.info("over, it lasted %.0f s: %s", outage.met_at - outage.began, outage.what)

    def _heir(self, over: _Outage) -> _Outage | None:
        """Returns the outage that began during another, was met after it, and by a loop that had met the other, too."""
        for outage in self._outages.values():
            if over.began <= outage.began and over.met_at < outage.met_at and not over.met_by.isdisjoint(outage.met_by):
                return outage
        return None


_current: ContextVar[Reminders | None] = ContextVar("wheelq reminders", default=None)


@contextmanager
def kept(clock: Clock) -> Iterator[None]:
    """Let `warn` treat all calls in this context, and in tasks created there, as one process's."""
    token = _current.set(Reminders(clock))
    try:
        yield
    finally:
        _current.reset(token)


def warn(logger: logging.Logger, what: str, error: Exception) -> None:
    """Log `what` the error leads to, and until when: within `kept` once, then each minute; elsewhere every time."""
    match error:
        case Unavailable() | OutcomeUnknown():
            until = " until the server is back"
        case NotPermitted():
            until = " until the server permits it"
        case _:
            until = ""
    current = _current.get()
    if current is None:
        logger.warning("%s%s: %s", what, until, error)
    else:
        current.warn(logger, what, error, until)


def _kind(error: Exception) -> Hashable:
    match error:
        case Unavailable() | OutcomeUnknown():
            return "away"
        case NotPermitted():
            return str(error)
        case _:
            return type(error), str(error).partition(" ")[0]


class Loop:
    """Repeats a step, and goes on after errors of the server, with a growing pause. Other errors end it."""

    def __init__(
        self,
        clock: Clock,
        logger: logging.Logger,
        what: str | Callable[[], str],
        first: float = 0.02,
        longest: float = 1.0,
        *,
        errors: type[Exception] = ServerError,
        unexpected: str | None = None,
    ) -> None:
        """`what` a failed step leads to is logged by `warn`; `first` and `longest` are the pauses, in seconds.

        `errors` are those after which it goes on. If `unexpected` is given, it goes on after all errors; others are
        logged as that, with their tracebacks.
        """
        self._clock = clock
        self._logger = logger
        self._what = what
        self._errors = errors
        self._unexpected = unexpected
        self.backoff = Backoff(first, longest)

    async def run(
        self,
        step: Callable[[], Awaitable[float | None]],
        wake: asyncio.Event | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Repeat `step()`, which returns the seconds until the next, until `is_over()`; `wake` ends a pause early."""
        while not is_over():
            rest = await self.attempt(step)
            if wake is not None:
                await self._clock.wait(wake, rest)
                wake.clear()
            elif rest > 0:
                await self._clock.sleep(rest)

    async def attempt(self, step: Callable[[], Awaitable[float | None]]) -> float:
        """Do a step once. Returns the seconds until the next: what it returned, or the pause after its failure."""
        try:
            rest = await step()
        except self._errors as error:
            return self.failed(error)
        except Exception:
            if self._unexpected is None:
                raise
            self._logger.exception("%s", self._unexpected)
            return self.backoff.longest
        self.backoff.failures = 0
        return rest or 0.0

    async def insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat `step()` until it succeeds; returns what it returned."""
        while True:
            try:
                return await step()
            except self._errors as error:
                await self._clock.sleep(self.failed(error))

    def failed(self, error: Exception) -> float:
        """Log a failure. Returns the seconds to pause after it."""
        warn(self._logger, self._what if isinstance(self._what, str) else self._what(), error)
        return self.backoff.pause()


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
