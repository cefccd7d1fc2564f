"""What a handler's result means for its job. Pure."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import StrEnum

from wheelq.retry import Retry

ERROR_CHARS = 4_000
"""Most of a traceback's end that is kept with a dead job."""


class Reason(StrEnum):
    """Why a job was buried."""

    FAILED = "failed"
    """Its handler failed and the attempts are used up."""
    UNREADABLE = "unreadable"
    """Its record cannot be read by this release."""
    DELIVERIES = "deliveries"
    """It was delivered too often without an answer: it seems to kill its workers."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished: acknowledge it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The job failed and runs again after a pause, in this group."""

    pause_ms: int


@dataclass(frozen=True, slots=True)
class Buried:
    """The job is given up and kept among the dead."""

    reason: Reason
    error: str


Outcome = Done | Again | Buried
DONE = Done()


def of_failure(error: BaseException, attempt: int, retry: Retry, draw: float) -> Again | Buried:
    """What follows when attempt number `attempt` raised `error`; `draw` in [0, 1) decides the jitter."""
    pause_ms = retry.pause_ms(attempt, draw)
    return Buried(Reason.FAILED, error_text(error)) if pause_ms is None else Again(pause_ms)


def error_text(error: BaseException) -> str:
    """The end of the traceback, as text."""
    text = "".join(traceback.format_exception(error))[-ERROR_CHARS:]
    return text.encode(errors="backslashreplace").decode()  # a file name that is no UTF-8 comes as lone surrogates
