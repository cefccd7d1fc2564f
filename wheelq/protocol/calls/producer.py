"""Calls of producers: schedule, cancel, reschedule, run now. Look-ups are in `state`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from wheelq.base.ids import make_tag
from wheelq.errors import Refused
from wheelq.model.job import CancelOutcome, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.codec import LAST_MS, LIFE
from wheelq.protocol.keys import ShardKeys, id_and_group, member_of, raw_member, tag_keys
from wheelq.settings import ClientSettings

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


class Tag(NamedTuple):
    """Tells a repeated call from a new one: the server keeps the answer under it, and a repeated call gets that."""

    name: bytes
    """Twelve random bytes; the repeated call has the same."""
    turn_ms: int
    """The answer is kept this long at least, and twice as long at most."""
    within_ms: int
    """It is kept only if one of the jobs is due within this time."""
    done: bytes = b""
    """The tag of an earlier call, which will not be repeated: its answer is forgotten."""


_tag: Callable[[tuple[Any, ...]], Tag] = partial(tuple.__new__, Tag)


class Fixed(NamedTuple):
    """Where a job is being sent, fixed before the call: a repeated call is the same call."""

    tag: bytes
    shard: int
    terms: str
    """The topic's terms by which the shard was chosen; "": the shard writes only if a live job has the id."""
    turn_ms: int
    """How long the server keeps the answer at least."""


class Tagging(NamedTuple):
    """How the calls of a client are tagged."""

    turn_ms: int
    within_ms: int

    @classmethod
    def of(cls, settings: ClientSettings, reply_timeout_ms: int) -> Self:
        """Returns what fits the settings."""
        window_ms = min((max(settings.repeats, 1) + 1) * reply_timeout_ms + ON_ITS_WAY_MS, TURNS_MS[-1])
        return cls(next(turn_ms for turn_ms in TURNS_MS if turn_ms >= window_ms), window_ms)

    def tag(self, has_key: bool) -> Tag:
        """Returns the tag of a new call. `has_key`: the id of one of its jobs was given, so others may change it."""
        return _tag((make_tag(), self.turn_ms, LAST_MS if has_key else self.within_ms, b""))


ON_ITS_WAY_MS = 10_000
"""How long a call may be on its way after its caller has given it up."""
TURNS_MS = (30_000, 60_000, 120_000)
"""How long answers are kept at least: clients with like settings share the hashes."""


def schedule(
    keys: ShardKeys,
    jobs: Sequence[NewJob],
    on_duplicate: OnDuplicate,
    terms: str | None,
    tag: Tag | None = None,
) -> Call[Placed]:
    """Schedule up to 500 jobs of one shard.

    `terms` are the topic's terms that placed the jobs here; with None, only ids of live jobs are written. With a `tag`,
    the call can be repeated, whatever has happened to its jobs since.
    """
    how = "replace" if on_duplicate == "replace" else "keep"
    args: list[Argument] = [keys.near, how, terms or "", *(tag or UNTAGGED)]
    for job in jobs:
        args += job

    def read(reply: list[Any]) -> Placed:
        if len(reply) == 1:
            return Placed([], reply[0].decode(errors="replace"))
        end = 2 * len(jobs)
        statuses, dues, topic = reply[:end:2], reply[1:end:2], keys.topic
        full: Collection[int] = ()
        receipts: list[Receipt | None]
        if are_all_here := statuses.count(CREATED) == len(jobs):
            pairs = zip(jobs, dues, strict=True)
            receipts = [
                _receipt((id, due_ms, True, False, False, topic, None, record[LIFE]))
                for (id, _, record), due_ms in pairs
            ]
        else:
            receipts = [_told(topic, *one) for one in zip(jobs, statuses, dues, strict=True)]
            are_all_here = max(statuses, default=KEPT) < NOT_HERE
            full = [n for n, status in enumerate(statuses) if status == FULL]
        return Placed(
            receipts,
            full=full,
            server_ms=reply[end],
            are_all_here=are_all_here,
            is_heard=len(reply) == end + 1 or reply[end + 1] != 0,
            is_first=len(reply) > end + 1 and reply[-1] == 1,
        )

    wanted: tuple[str, ...] = (keys.delayed, keys.jobs, keys.ready, keys.horizon, keys.shards, keys.done, keys.counts)
    if tag is not None:
        wanted += tag_keys(keys.prefix, keys.topic, keys.shard, tag.turn_ms)
    return scripted("schedule", wanted, args, read)


UNTAGGED = ("", 0, 0, "")


def _told(topic: str, job: NewJob, status: int, due: int | list[Any]) -> Receipt | None:
    """Returns the receipt of a job; None if it was refused, or no live job here has its id."""
    if status >= NOT_HERE:
        return None
    due_ms, life = due if isinstance(due, list) else (due, b"" if status in (KEPT, KEPT_PROMOTED) else job[2][LIFE])
    return Receipt(job[0], due_ms, 0 < status < 3, status == REPLACED, topic=topic, life=life)


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


def records(keys: ShardKeys, members: Sequence[str]) -> Call[list[bytes | None]]:
    """The records of up to 500 waiting jobs; None for one that has been promoted meanwhile."""

    def read(reply: list[bytes | None]) -> list[bytes | None]:
        return [None if one is None or one[:1].isdigit() else one for one in reply]

    return command("HMGET", keys.jobs, *map(raw_member, members), read=read, key=keys.jobs)


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
