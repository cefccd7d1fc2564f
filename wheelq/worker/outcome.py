"""What a handler's result means for its job. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from wheelq.dead import Reason
from wheelq.retry import Bury, Retry, RetryAfter

TRACEBACK_CHARS = 4_000
"""Most of a traceback's end that is kept with a dead job."""
ERROR_CHARS = 500
"""Most of an error's beginning that is kept, with a dead job or while it is retried."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished: acknowledge it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The job runs again after a pause, in this group."""

    pause_ms: int
    error: str | None = None
    """What to remember of this run; None: nothing new."""
    counts: bool = True
    """Whether the next run is another attempt; False: the handler only asked for more time."""


@dataclass(frozen=True, slots=True)
class Buried:
    """The job is given up and kept among the dead."""

    reason: Reason
    error: str
    traceback: str = ""


Outcome = Done | Again | Buried
DONE = Done()


def of_failure(error: BaseException, attempt: int, retry: Retry, draw: float) -> Again | Buried:
    """What follows when attempt number `attempt` raised `error`; `draw` in [0, 1) decides the jitter."""
    if isinstance(error, RetryAfter) and not error.counts:
        return Again(error.pause_ms, str(error) or None, counts=False)
    if isinstance(error, Bury):
        return _buried(Reason.GIVEN_UP, error)
    asked = error.pause_ms if isinstance(error, RetryAfter) else None
    pause_ms = retry.pause_ms(attempt, draw, error if asked is None else None)
    if pause_ms is None:
        return _buried(Reason.FAILED, error)
    return Again(pause_ms if asked is None else asked, error_line(error))


def _buried(reason: Reason, error: BaseException) -> Buried:
    return Buried(reason, error_line(error), traceback_text(error))


def error_line(error: BaseException) -> str:
    """The error in one line: its type and what it says."""
    said = str(error) if isinstance(error, (Bury, RetryAfter)) else ""
    said = said or "".join(traceback.format_exception_only(error))  # which no broken __str__ can stop
    return _text(" ".join(said.split())[:ERROR_CHARS])


def traceback_text(error: BaseException) -> str:
    """The end of the traceback, as text."""
    return _text("".join(traceback.format_exception(error))[-TRACEBACK_CHARS:])


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # a file name that is no UTF-8 comes as lone surrogates
