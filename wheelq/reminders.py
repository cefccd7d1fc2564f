"""Logs a repeating error once, then a reminder each minute while it lasts, and its end.

    10:00:00  jobs of orders are not read until the server is back: no connection to redis://db:6379
    10:01:00  still, after 60 s: jobs of orders are not read until the server is back: no connection to redis://db:6379
    10:01:50  over, it lasted 90 s: jobs of orders are not read until the server is back

A worker or scheduler has many loops, and in an outage each of them keeps failing. Errors of the same kind count as one
outage, in all loops: the first is logged, the others only at level DEBUG. Missing permissions are told apart by their
message, because each must be granted separately.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.errors import NotPermitted, OutcomeUnknown, Unavailable

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


class Reminders:
    """The outages of one worker, scheduler or server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outages: dict[Hashable, _Outage] = {}
        self._is_looking = False

    def warn(self, logger: logging.Logger, what: str, error: Exception) -> None:
        """Log `what` the error leads to, unless that was logged less than a minute ago."""
        now = self._clock.monotonic()
        self._look(now)
        outage = self._outages.setdefault(_kind(error), _Outage(logger, what, now, now, now))
        outage.met_at = now
        if now < outage.remind_at:
            logger.debug("%s: %s", what, error)
            return
        still = f"still, after {now - outage.began:.0f} s: " if now > outage.began else ""
        logger.warning("%s%s: %s", still, what, error)
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
                outage.logger.info("over, it lasted %.0f s: %s", outage.met_at - outage.began, outage.what)


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
    """Log `what` the error leads to: within `kept` once, then each minute; elsewhere every time."""
    current = _current.get()
    if current is None:
        logger.warning("%s: %s", what, error)
    else:
        current.warn(logger, what, error)


def _kind(error: Exception) -> Hashable:
    match error:
        case Unavailable() | OutcomeUnknown():
            return "away"
        case NotPermitted():
            return str(error)
        case _:
            return type(error), str(error).partition(" ")[0]
