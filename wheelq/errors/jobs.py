"""Errors of jobs and topics, and of the input and the settings for them; the root of all errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheelq.base.plural import counted


class WheelqError(Exception):
    """Something went wrong in wheelq."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class InvalidInput(WheelqError, ValueError):
    """An argument is not acceptable; `field` names it and the message says how to correct it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidInput):
    """The packed payload exceeds the limit; `payload_bytes` and `limit_bytes` tell by how much."""

    def __init__(self, payload_bytes: int, limit_bytes: int, setting: str = "payload_max_bytes") -> None:
        super().__init__(
            "payload",
            f"{payload_bytes:,} bytes packed, the limit is {limit_bytes:,}; store the data elsewhere and send "
            f"a reference to it, or raise {setting}",
        )
        self.payload_bytes = payload_bytes
        self.limit_bytes = limit_bytes


class InvalidJob(InvalidInput):
    """One of many jobs is not acceptable. `place` is its index, `receipts` (index → receipt) are the jobs scheduled.

    Correct the job and schedule those whose index is missing in `receipts`: they were not sent.
    """

    def __init__(self, place: int, error: InvalidInput, receipts: Mapping[int, Any]) -> None:
        super().__init__(f"jobs[{place}].{error.field}", error.problem)
        self.place = place
        self.receipts = receipts


class PayloadMismatch(WheelqError):
    """A payload, argument or result does not fit its type; `field` names the part. A worker buries the job at once."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ConfigurationError(WheelqError):
    """A setting, URL, binary or module is wrong; nothing was started."""


class InvalidSetting(ConfigurationError):
    """A setting has a value it cannot have. `setting` names it, `problem` says what it must be."""

    def __init__(self, setting: str, problem: str, where: str = "") -> None:
        super().__init__(f"{where}{setting} {problem}")
        self.setting = setting
        self.problem = problem


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


class TopicFull(WheelqError):
    """As many jobs wait as the topic's `max_pending` allows. Try again when some have run.

    `refused` (index → id) are the jobs that were not scheduled, `receipts` (index → receipt) the jobs that were.
    """

    def __init__(self, topic: str, refused: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        jobs = "a job was refused" if len(refused) == 1 else f"{len(refused):,} jobs were refused"
        super().__init__(f"topic {topic!r} is full: {jobs}, because as many wait as its max_pending allows")
        self.topic = topic
        self.refused = refused
        self.receipts = receipts


class TopicNotFound(WheelqError):
    """No job was ever scheduled to this topic; `topic` is the name in the call."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: the first job of a topic creates it")
        self.topic = topic


class TopicUnreadable(WheelqError):
    """A topic's settings cannot be read here: a newer release or another program wrote them; nothing was done.

    `topic` names it. Upgrade this program, or correct the settings with the program that wrote them.
    """

    def __init__(self, topic: str, problem: str) -> None:
        super().__init__(f"the settings of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.problem = problem


class RecurringUnreadable(WheelqError):
    """A recurring job cannot be read here: a newer release or another program wrote it; nothing was done.

    `topic` and `name` name it. Upgrade this program, or correct the definition with the program that wrote it.
    """

    def __init__(self, topic: str, name: str, problem: str) -> None:
        super().__init__(f"recurring job {name!r} of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.name = name
        self.problem = problem


class InUse(WheelqError):
    """A group or topic was not removed, because it is in use. Nothing was changed; `workers` are its live workers.

    Stop the workers, wait until the jobs have run, or remove it with `force=True`.
    """

    def __init__(self, what: str, why: str, workers: Sequence[str] = ()) -> None:
        super().__init__(f"{what} is in use: {why}")
        self.workers = tuple(workers)


class NotLeader(WheelqError):
    """This node does not hold the shard's lease; the call changed nothing."""
