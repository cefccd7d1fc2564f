"""What producers ask: schedule, cancel, reschedule, run now. Looking up is in `state`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from wheelq.errors import Refused
from wheelq.job import CancelOutcome, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.keys import ShardKeys, id_and_group

BATCH = 500
"""Most jobs in one call: keeps the server busy for about two milliseconds."""

KEPT, CREATED, REPLACED, KEPT_PROMOTED, NOT_HERE, FULL = 0, 1, 2, 3, 4, 5


NewJob = tuple[str, str, bytes]
"""A checked and packed job, as the schedule script takes it: id, due, record.

`due` is "+ms" after the server's now, or "ms" since the epoch. A plain tuple, because bulk producers make one for every
microsecond or two, and a named one takes six times as long to make.
"""


class Placed(NamedTuple):
    """The answer to `schedule`."""

    receipts: list[Receipt | None]
    """One per job, in order; None: no live job here has the id, and none was to be made."""
    terms_in_force: str | None = None
    """Not None: the topic has other terms now, and nothing was done."""
    full: Collection[int] = ()
    """Places of jobs that were refused, because too many wait already."""


def schedule(keys: ShardKeys, jobs: Sequence[NewJob], on_duplicate: OnDuplicate, terms: str | None) -> Call[Placed]:
    """Schedule up to 500 jobs of one shard.

    `terms` are the topic's, by which they were placed here; None writes only where a live job has the id.
    """
    args: list[Argument] = [keys.near, "replace" if on_duplicate == "replace" else "keep", terms or ""]
    for job in jobs:
        args += job

    def read(reply: list[Any]) -> Placed:
        if len(reply) == 1:
            return Placed([], reply[0].decode())
        full = [n for n, status in enumerate(reply[::2]) if status == FULL] if FULL in reply[::2] else ()
        pairs = zip(jobs, reply[::2], reply[1::2], strict=True)
        return Placed(
            [
                Receipt(id, due_ms, 0 < status < 3, status == REPLACED) if status < NOT_HERE else None
                for (id, _, _), status, due_ms in pairs
            ],
            full=full,
        )

    return scripted("schedule", _schedule_keys(keys), args, read)


def _schedule_keys(keys: ShardKeys) -> tuple[str, ...]:
    return keys.delayed, keys.jobs, keys.ready, keys.horizon, keys.shards, keys.done


HALF_MS = 0.5
"""Scores of one due time lie within so much of it, by priority: see lib/score.lua."""


class Waiting(NamedTuple):
    """A member of the sorted set."""

    member: str
    score: float

    @property
    def id(self) -> str:
        """The job's id."""
        return id_and_group(self.member)[0]

    @property
    def group(self) -> str | None:
        """The group in which it waits for a retry, if it does."""
        return id_and_group(self.member)[1]

    @property
    def due_ms(self) -> int:
        """When it is due."""
        return int(self.score + HALF_MS)


def waiting(keys: ShardKeys, score: float, to: float, member: bytes, limit: int) -> Call[list[Waiting]]:
    """Up to `limit` waiting jobs from `score` to `to`; those with the very score only behind `member`."""

    def read(reply: list[bytes]) -> list[Waiting]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [Waiting(member.decode(), float(score)) for member, score in pairs]

    return scripted("waiting", (keys.delayed,), (repr(score), repr(to), member, limit), read)


_CANCEL = {1: CancelOutcome.CANCELLED, 2: CancelOutcome.RUNNING, 0: CancelOutcome.NOT_FOUND}
_RESCHEDULE = {
    1: RescheduleOutcome.RESCHEDULED,
    2: RescheduleOutcome.RUNNING,
    3: RescheduleOutcome.CHANGED,
    0: RescheduleOutcome.NOT_FOUND,
}
_RUN_NOW = {1: RunNowOutcome.PROMOTED, 2: RunNowOutcome.RUNNING, 0: RunNowOutcome.NOT_FOUND, 3: RunNowOutcome.PAUSED}


def cancel(keys: ShardKeys, id: str) -> Call[CancelOutcome]:
    """Cancel a waiting job."""
    return scripted("cancel", (keys.delayed, keys.jobs, keys.news), (id,), _CANCEL.__getitem__)


def ask_to_cancel(keys: ShardKeys, channels: str, id: str) -> Call[int]:
    """Ask the workers that run a job to cancel it; how many deliveries that concerns."""
    return scripted("ask_to_cancel", (keys.jobs, keys.ready), (id, channels), int)


def reschedule(keys: ShardKeys, id: str, due: str, if_due_ms: int | None = None) -> Call[RescheduleOutcome]:
    """Give a waiting job a new due time; with `if_due_ms` only one that is due then."""

    def read(reply: list[int]) -> RescheduleOutcome:
        return _RESCHEDULE[reply[0]]

    args = (keys.near, id, due, "" if if_due_ms is None else if_due_ms)
    return scripted("reschedule", (keys.delayed, keys.jobs, keys.horizon), args, read)


def run_now(keys: ShardKeys, id: str) -> Call[RunNowOutcome]:
    """Promote a waiting job at once."""

    def read(reply: int) -> RunNowOutcome:
        if reply == -1:
            raise Refused(f"the ready stream did not take job {id!r}; it still waits")
        return _RUN_NOW[reply]

    return scripted("run_now", (keys.delayed, keys.jobs, keys.ready, keys.dead, keys.shards), (id,), read)
