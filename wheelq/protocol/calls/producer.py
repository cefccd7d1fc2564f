"""Calls of producers: schedule, cancel, reschedule, run now. Look-ups are in `state`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from wheelq.errors import Refused
from wheelq.model.job import CancelOutcome, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.codec import LAST_MS
from wheelq.protocol.keys import ShardKeys, id_and_group, member_of, raw_member

BATCH = 500
"""The most jobs in one call, which keeps the server busy for about two milliseconds."""

KEPT, CREATED, REPLACED, KEPT_PROMOTED, NOT_HERE, FULL = 0, 1, 2, 3, 4, 5


NewJob = tuple[str, str, bytes]
"""A checked and packed job, as the schedule script takes it: id, due, record.

`due` is "+ms" after the server's now, or "ms" since the epoch. It is a plain tuple because bulk producers make one
every microsecond or two, and a named tuple takes six times as long to make.
"""


_receipt: Callable[[tuple[Any, ...]], Receipt] = partial(tuple.__new__, Receipt)
"""Makes a receipt from all its fields, in a third of the time of `Receipt(...)`."""


class Placed(NamedTuple):
    """The answer to `schedule`."""

    receipts: list[Receipt | None]
    """One per job, in order; None if no live job here has the id and the call must not create one."""
    terms_in_force: str | None = None
    """The topic's new terms, if they have changed: then nothing was done."""
    full: Collection[int] = ()
    """The indexes of jobs that were refused because too many wait already."""
    server_ms: int = 0
    """The server's time when it answered; 0 when nothing was done."""
    is_heard: bool = True
    """False: the user may not publish, so the leader was not told of jobs that are due soon."""
    are_all_here: bool = False
    """Whether each job has a receipt."""
    is_first: bool = False
    """Whether the shard counted no job before: it is new, or the server has lost its data."""

    @property
    def server_us(self) -> int:
        """`server_ms` in microseconds, rounded up, because it was cut to whole milliseconds."""
        return (self.server_ms + 1) * 1000


def schedule(keys: ShardKeys, jobs: Sequence[NewJob], on_duplicate: OnDuplicate, terms: str | None) -> Call[Placed]:
    """Schedule up to 500 jobs of one shard.

    `terms` are the topic's terms that placed the jobs here; with None, only ids of live jobs are written.
    """
    args: list[Argument] = [keys.near, "replace" if on_duplicate == "replace" else "keep", terms or ""]
    for job in jobs:
        args += job

    def read(reply: list[Any]) -> Placed:
        if len(reply) == 1:
            return Placed([], reply[0].decode(errors="replace"))
        end = 2 * len(jobs)
        statuses = reply[:end:2]
        are_all_here = max(statuses, default=KEPT) < NOT_HERE
        full = () if are_all_here else [n for n, status in enumerate(statuses) if status == FULL]
        pairs, topic = zip(jobs, statuses, reply[1:end:2], strict=True), keys.topic
        return Placed(
            [
                _receipt((id, due_ms, 0 < status < 3, status == REPLACED, False, topic, None))
                if status < NOT_HERE
                else None
                for (id, _, _), status, due_ms in pairs
            ],
            full=full,
            server_ms=reply[end],
            are_all_here=are_all_here,
            is_heard=len(reply) == end + 1 or reply[end + 1] != 0,
            is_first=len(reply) > end + 1 and reply[-1] == 1,
        )

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.horizon, keys.shards, keys.done, keys.counts)
    return scripted("schedule", wanted, args, read)


HALF_MS = 0.5
"""The scores of one due time, which depend on the priority, lie within this of it: see `score` in `lua/lib/due.lua`."""


class WaitingMember(NamedTuple):
    """A member of the sorted set."""

    member: str
    score: float

    @property
    def id(self) -> str:
        """The job's id."""
        return _shown(id_and_group(self.member)[0])

    @property
    def group(self) -> str | None:
        """The group in which it waits for a retry; None before its first run."""
        group = id_and_group(self.member)[1]
        return None if group is None else _shown(group)

    @property
    def due_ms(self) -> int:
        """When it is due."""
        return int(min(self.score + HALF_MS, LAST_MS))


def _shown(name: str) -> str:
    """A name that another program may have written, as text that can be printed and sent."""
    return name if name.isascii() else raw_member(name).decode(errors="backslashreplace")


def waiting(keys: ShardKeys, score: float, to: float, member: bytes, limit: int) -> Call[list[WaitingMember]]:
    """Up to `limit` waiting jobs from `score` to `to`; among those with exactly `score`, only those after `member`."""

    def read(reply: list[bytes]) -> list[WaitingMember]:
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return [WaitingMember(member_of(member), float(score)) for member, score in pairs]

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
    return scripted("cancel", (keys.delayed, keys.jobs, keys.news, keys.counts), (id,), _CANCEL.__getitem__)


def ask_to_cancel(keys: ShardKeys, channels: str, id: str) -> Call[int]:
    """Ask the workers that run a job to cancel it. Returns the number of deliveries concerned."""
    return scripted("ask_to_cancel", (keys.jobs, keys.ready), (id, channels), int)


def reschedule(keys: ShardKeys, id: str, due: str, if_due_ms: int | None = None) -> Call[RescheduleOutcome]:
    """Give a waiting job a new due time; with `if_due_ms`, only if it is due at that time."""

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

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.dead, keys.shards, keys.counts)
    return scripted("run_now", wanted, (id,), read)
