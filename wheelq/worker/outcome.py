"""Decides the outcome of a job: if it is too late to start, and after its handler has returned or raised. Pure.

    expires      of the job: after this the job never runs; it is dropped, or buried if the topic buries late jobs
    misfire      of the topic: a job that is later than `grace_ms` runs anyway, is dropped, or is buried

Both are checked at the start of every run. For a retry, `expires` still counts from the first due time, but the grace
from the due time of the retry. A job that is delivered again because its worker died is checked again. A job that may
have started before is never dropped: it has perhaps done half its work, so it is buried, with its last error.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import Any

from wheelq.errors import PayloadMismatch
from wheelq.model.dead import Reason
from wheelq.model.retry import Bury, Postponed, Retry, RetryAfter
from wheelq.protocol.codec import Record
from wheelq.settings import OnMismatch, TopicSettings

TRACEBACK_CHARS = 4_000
"""The most characters of a traceback's end that a dead job keeps."""
ERROR_CHARS = 500
"""The most characters of an error's beginning that a dead or retried job keeps."""
SHORTEST_MISMATCH_MS = 1_000
LONGEST_MISMATCH_MS = 30_000
"""A job whose payload does not fit pauses for as long as it has waited for a worker, within these bounds."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished: acknowledge it."""


@dataclass(frozen=True, slots=True)
class Again:
    """The job runs again after a pause, in this group."""

    pause_ms: int
    error: str | None = None
    """The error to keep from this run; None: nothing new."""
    counts: bool = True
    """Whether the next run is another attempt; False: the handler only asked for more time."""
    mismatched_ms: int | None = None
    """When its payload was first found not to fit; None: it fits."""


@dataclass(frozen=True, slots=True)
class Buried:
    """The job is given up and kept among the dead."""

    reason: Reason
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The job is forgotten, as if it had run."""

    why: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """The delivery was given to another worker, which settles it."""


Outcome = Done | Again | Buried
NotRun = Done | Dropped | Buried | Superseded
"""The outcome of a delivery whose handler is not called."""
DONE = Done()
SUPERSEDED = Superseded()


def too_late(
    now_ms: float, due_ms: int, record: Record, topic: TopicSettings, *, is_redelivered: bool
) -> Dropped | Buried | None:
    """Returns the outcome of a job that is too late to start now; None if it may start.

    `is_redelivered`: whether another worker had this delivery before.
    """
    expires_ms = record.expires_ms(due_ms)
    if now_ms > expires_ms:
        due_ms = record.first_due_ms or due_ms  # from which `expires` counts
        reason, why = Reason.EXPIRED, f"it could start until {expires_ms - due_ms:,.0f} ms after its due time"
    elif topic.misfire != "run" and now_ms > due_ms + topic.grace_ms:
        reason, why = Reason.MISFIRED, f"its grace of {topic.grace_ms:,} ms has passed"
    else:
        return None
    why += f", and it is {now_ms - due_ms:,.0f} ms late"
    if record.has_run:
        return Buried(reason, f"{why}; before: {record.last_error or 'no error'}"[:ERROR_CHARS])
    if is_redelivered:
        return Buried(reason, f"{why}; a worker that stopped or died may have started it")
    return Buried(reason, why) if topic.misfire == "bury" else Dropped(why)


def of_failure(error: BaseException, attempt: int, retry: Retry, draw: float) -> Again | Buried:
    """Returns the outcome after attempt number `attempt` raised `error`; `draw` in [0, 1) decides the jitter."""
    if isinstance(error, Postponed):
        return Again(retry.pause_uncounted_ms(error.failures, draw), _message(error), counts=False)
    if isinstance(error, RetryAfter) and not error.counts:
        return Again(error.pause_ms, _message(error) or None, counts=False)
    if isinstance(error, Bury):
        return _buried(Reason.GIVEN_UP, error)
    asked = error.pause_ms if isinstance(error, RetryAfter) else None
    pause_ms = retry.pause_ms(attempt, draw, error if asked is None else None)
    if pause_ms is None:
        return _buried(Reason.FAILED, error)
    return Again(pause_ms if asked is None else asked, error_line(error))


def of_mismatch(
    error: PayloadMismatch, first_ms: int | None, now_ms: float, mismatch_ms: int, on_mismatch: OnMismatch
) -> Again | Buried:
    """Returns the outcome of a job whose payload does not fit its handler, first at `first_ms`; None: now.

    It runs again without losing an attempt, so that a worker with other code can take it. The pauses double.
    """
    text = _text(_message(error)[:ERROR_CHARS])
    first_ms = min(int(now_ms), int(now_ms) if first_ms is None else first_ms)
    waited_ms = round(now_ms) - first_ms
    if on_mismatch == "bury" or waited_ms >= mismatch_ms:
        return Buried(Reason.PAYLOAD_MISMATCH, text)
    pause_ms = min(max(waited_ms, SHORTEST_MISMATCH_MS), LONGEST_MISMATCH_MS, mismatch_ms - waited_ms)
    return Again(pause_ms, text, counts=False, mismatched_ms=first_ms)


def as_failure(error: BaseException, task: asyncio.Task[Any] | None) -> Exception:
    """Returns the failure of a handler that raised `error` in `task`: itself, or a RuntimeError if it is no Exception.

    Examples are SystemExit, KeyboardInterrupt and the outcomes of pytest: the worker goes on. Raises: the error, if the
    handler did not raise it, because its coroutine was closed: the event loop is gone.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, GeneratorExit) and _current_task() is not task:
        raise error
    if isinstance(error, SystemExit):
        failure = RuntimeError(f"the handler called sys.exit({error.code!r})")
    else:
        failure = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def readable(error: BaseException) -> BaseException:
    """Returns the error; if its class lets nobody read its attributes, a RuntimeError that names the class."""
    try:
        _ = error.__class__, error.__traceback__, error.__cause__, error.__context__
    except BaseException:  # noqa: BLE001  # the user's code
        return unreadable(error)
    return error


def unreadable(error: BaseException) -> RuntimeError:
    """Returns the failure to record instead of an error that cannot be read."""
    return RuntimeError(f"the handler raised {type(error).__name__}, which cannot be read")


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None


def _buried(reason: Reason, error: BaseException) -> Buried:
    return Buried(reason, error_line(error), traceback_text(error))


def error_line(error: BaseException) -> str:
    """The error in one line: its type and message."""
    message = _message(error) if isinstance(error, (Bury, RetryAfter)) else ""
    message = message or "".join(traceback.format_exception_only(error))  # safe even with a broken __str__
    return _text(" ".join(message.split())[:ERROR_CHARS])


def traceback_text(error: BaseException) -> str:
    """The end of the traceback, as text."""
    return _text("".join(traceback.format_exception(error))[-TRACEBACK_CHARS:])


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a class of the user's, with a __str__ that raises
        return ""


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # a file name that is not UTF-8 holds lone surrogates
