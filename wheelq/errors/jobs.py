"""Errors of single jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheelq.base.plural import counted
from wheelq.errors.base import WheelqError


class DuplicateJob(WheelqError):
    """A live job has this id and `on_duplicate="raise"` was asked for; the live job was not changed.

    `ids` are the jobs that were not scheduled, `receipts` (index → receipt) the jobs that were.
    """

    def __init__(self, topic: str, ids: list[str], receipts: Mapping[int, Any]) -> None:
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(f"topic {topic!r} already has a live job with id {shown}")
        self.topic = topic
        self.ids = ids
        self.receipts = receipts


class BatchFailed(WheelqError):
    """For a batch handler to raise when only some of its jobs failed: `failures` is job id → error.

    The named jobs are retried or buried, each as if its handler had raised that error; the others are done. If an id
    is not one of the batch, all jobs count as failed.
    """

    def __init__(self, failures: Mapping[str, BaseException | str]) -> None:
        """A text in place of an error stands for a RuntimeError with this message."""
        super().__init__(f"{counted(len(failures), 'job')} of a batch failed: {', '.join(list(failures)[:5])}")
        self.failures: Mapping[str, BaseException] = {
            id: error if isinstance(error, BaseException) else RuntimeError(str(error))
            for id, error in failures.items()
        }


class JobNotFound(WheelqError):
    """Nothing is known of this job: never scheduled, cancelled, or finished longer ago than its topic keeps."""

    def __init__(self, topic: str, id: str, what: str) -> None:
        super().__init__(f"job {id} of {topic!r} {what}")
        self.topic = topic
        self.id = id


class JobFailed(WheelqError):
    """A group gave the job up and buried it. `reason` says why; `error` is its last traceback."""

    def __init__(self, topic: str, id: str, group: str, reason: str, error: str, attempt: int) -> None:
        last_line = error.strip().rpartition("\n")[2]
        super().__init__(f"job {id} of {topic!r} was given up by group {group!r} at attempt {attempt}: {last_line}")
        self.topic = topic
        self.id = id
        self.group = group
        self.reason = reason
        self.error = error
        self.attempt = attempt


class NotFinished(WheelqError, TimeoutError):
    """The job did not finish within the timeout, and keeps running. `state` is its current state."""

    def __init__(self, topic: str, id: str, state: str, timeout: float) -> None:
        super().__init__(f"job {id} of {topic!r} is {state} after {timeout:g} s of waiting")
        self.topic = topic
        self.id = id
        self.state = state
