"""What producers ask: schedule, cancel, reschedule, run now, look up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.errors import Refused
from wheelq.job import CancelOutcome, JobInfo, JobState, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.protocol import codec
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.keys import ShardKeys

BATCH = 500
"""Most jobs in one call: keeps the server busy for about two milliseconds."""

KEPT, CREATED, REPLACED, KEPT_PROMOTED = 0, 1, 2, 3


class NewJob(NamedTuple):
    """A checked and packed job, as the schedule script takes it."""

    id: str
    due: str
    """ "+ms" after the server's now, or "ms" since the epoch."""
    record: bytes


def schedule(keys: ShardKeys, jobs: Sequence[NewJob], on_duplicate: OnDuplicate) -> Call[list[Receipt]]:
    """Schedule up to 500 jobs of one shard; one receipt each, in order."""
    args: list[Argument] = [keys.near, "replace" if on_duplicate == "replace" else "keep"]
    for job in jobs:
        args += job

    def read(reply: list[int]) -> list[Receipt]:
        pairs = zip(jobs, reply[::2], reply[1::2], strict=True)
        return [Receipt(job.id, due_ms, 0 < status < 3, status == REPLACED) for job, status, due_ms in pairs]

    return scripted("schedule", (keys.delayed, keys.jobs, keys.ready, keys.horizon), args, read)


_CANCEL = {1: CancelOutcome.CANCELLED, 2: CancelOutcome.RUNNING, 0: CancelOutcome.NOT_FOUND}
_RESCHEDULE = {1: RescheduleOutcome.RESCHEDULED, 2: RescheduleOutcome.RUNNING, 0: RescheduleOutcome.NOT_FOUND}
_RUN_NOW = {1: RunNowOutcome.PROMOTED, 2: RunNowOutcome.RUNNING, 0: RunNowOutcome.NOT_FOUND}


def cancel(keys: ShardKeys, id: str) -> Call[CancelOutcome]:
    """Cancel a waiting job."""
    return scripted("cancel", (keys.delayed, keys.jobs), (id,), _CANCEL.__getitem__)


def reschedule(keys: ShardKeys, id: str, due: str) -> Call[RescheduleOutcome]:
    """Give a waiting job a new due time."""

    def read(reply: list[int]) -> RescheduleOutcome:
        return _RESCHEDULE[reply[0]]

    return scripted("reschedule", (keys.delayed, keys.jobs, keys.horizon), (keys.near, id, due), read)


def run_now(keys: ShardKeys, id: str) -> Call[RunNowOutcome]:
    """Promote a waiting job at once."""

    def read(reply: int) -> RunNowOutcome:
        if reply == -1:
            raise Refused(f"the ready stream did not take job {id!r}; it still waits")
        return _RUN_NOW[reply]

    return scripted("run_now", (keys.delayed, keys.jobs, keys.ready, keys.dead), (id,), read)


def get(keys: ShardKeys, id: str) -> Call[JobInfo | None]:
    """Look a live job up."""

    def read(reply: list[Any]) -> JobInfo | None:
        if not reply:
            return None
        due_ms, packed = int(reply[0]), reply[1]
        record = codec.decode(packed) if packed else codec.Record(1, None, {})
        state, promoted_ms = JobState.DELAYED, None
        if len(reply) > 2:
            entry, deliveries, retries = reply[2:]
            promoted_ms = int(entry.partition(b"-")[0])
            state = JobState.RETRYING if retries else JobState.RUNNING if deliveries else JobState.READY
        return JobInfo(
            id, keys.topic, state, due_ms, record.payload, record.headers, record.attempt, promoted_ms, keys.shard
        )

    return scripted("get", (keys.delayed, keys.jobs, keys.ready), (id,), read)
