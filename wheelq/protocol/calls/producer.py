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

KEPT, CREATED, REPLACED, KEPT_PROMOTED, NOT_HERE = 0, 1, 2, 3, 4


NewJob = tuple[str, str, bytes]
"""A checked and packed job, as the schedule script takes it: id, due, record.

`due` is "+ms" after the server's now, or "ms" since the epoch. A plain tuple, because bulk producers make one for every
microsecond or two, and a named one takes six times as long to make.
"""


class Placed(NamedTuple):
    """The answer to `schedule`."""

    receipts: list[Receipt | None]
    """One per job, in order; None: no live job here has the id, and none was to be made."""
    shards_in_force: int | None = None
    """Not None: the topic has another number of shards now, and nothing was done."""


def schedule(keys: ShardKeys, jobs: Sequence[NewJob], on_duplicate: OnDuplicate, placed_by: int | None) -> Call[Placed]:
    """Schedule up to 500 jobs of one shard.

    `placed_by` is the number of shards by which they were placed here; None writes only where a live job has the id.
    """
    args: list[Argument] = [keys.near, "replace" if on_duplicate == "replace" else "keep", placed_by or ""]
    for job in jobs:
        args += job

    def read(reply: list[int]) -> Placed:
        if len(reply) == 1:
            return Placed([], reply[0])
        pairs = zip(jobs, reply[::2], reply[1::2], strict=True)
        return Placed(
            [
                Receipt(id, due_ms, 0 < status < 3, status == REPLACED) if status != NOT_HERE else None
                for (id, _, _), status, due_ms in pairs
            ]
        )

    return scripted("schedule", (keys.delayed, keys.jobs, keys.ready, keys.horizon, keys.shards), args, read)


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
            entry, is_delivered, is_retrying = reply[2:]
            promoted_ms = int(entry.partition(b"-")[0])
            state = JobState.RETRYING if is_retrying else JobState.RUNNING if is_delivered else JobState.READY
        return JobInfo(
            id, keys.topic, state, due_ms, record.payload, record.headers, record.attempt, promoted_ms, keys.shard
        )

    return scripted("get", (keys.delayed, keys.jobs, keys.ready), (id,), read)
