"""Calls of producers: schedule, cancel, reschedule, run now. Look-ups are in `state`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from wheelq.base.ids import make_tag
from wheelq.errors import BundleClosed, Refused
from wheelq.model.job import SECOND, CancelOutcome, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.protocol import scores
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.calls.bundles import FLAGS_AT, HAS_PARTS, bundle_of
from wheelq.protocol.codec import LAST_MS, LIFE
from wheelq.protocol.keys import ShardKeys, id_and_group, member_of, raw_member, tag_keys
from wheelq.settings import ClientSettings

BATCH = 500
"""The most jobs in one call, which keeps the server busy for about two milliseconds."""
MEMBERS = 250
"""The most members of a bundle in one call: each takes the server nearly twice as long."""

KEPT, CREATED, REPLACED, KEPT_PROMOTED, NOT_HERE, FULL, OF_SECOND = 0, 1, 2, 3, 4, 5, 6


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
    the call can be repeated, whatever has happened to its jobs since. The jobs are members of one bundle, or of none.
    """
    how = "replace" if on_duplicate == "replace" else "keep"
    args: list[Argument] = [keys.near, how, terms or "", *(tag or UNTAGGED)]
    bundle = bundle_of(jobs[0][2]) if jobs and jobs[0][2][FLAGS_AT] & HAS_PARTS else None
    for job in jobs:
        args += job

    def read(reply: list[Any]) -> Placed:
        if reply == [b""]:
            raise BundleClosed(bundle or "")
        if len(reply) == 1:
            return Placed([], reply[0].decode(errors="replace"))
        end = 2 * len(jobs)
        statuses, dues, topic = reply[:end:2], reply[1:end:2], keys.topic
        full: Collection[int] = ()
        receipts: list[Receipt | None]
        if are_all_here := statuses.count(CREATED) == len(jobs):
            pairs = zip(jobs, dues, strict=True)
            receipts = [
                _receipt((id, due_ms, True, False, False, topic, None, record[LIFE], bundle))
                for (id, _, record), due_ms in pairs
            ]
        else:
            receipts = [_told(topic, bundle, *one) for one in zip(jobs, statuses, dues, strict=True)]
            are_all_here = NOT_HERE not in statuses and FULL not in statuses
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
        if bundle is not None or how == "replace":
            wanted += (keys.bundles, keys.outgoing)
    is_plain = bundle is None and how == "keep"
    return scripted("schedule", wanted, args, read, without=FOR_MEMBERS_AND_REPLACED if is_plain else ())


UNTAGGED = ("", 0, 0, "")
FOR_MEMBERS_AND_REPLACED = ("head", "head_parts", "debounce", "debounced", "outgoing", "bundles", "joining")
"""What the script uses only for members of bundles, and for jobs that may replace one."""


def _told(topic: str, bundle: str | None, job: NewJob, status: int, due: int | list[Any]) -> Receipt | None:
    """Returns the receipt of a job; None if it was refused, or no live job here has its id."""
    if status in (NOT_HERE, FULL):
        return None
    id = job[0]
    if status >= OF_SECOND:
        id, status = id + SECOND, status - OF_SECOND
    due_ms, life = due if isinstance(due, list) else (due, b"" if status in (KEPT, KEPT_PROMOTED) else job[2][LIFE])
    is_made = 0 < status < 3
    bundle = bundle if is_made else None
    return Receipt(id, due_ms, is_made, status == REPLACED, topic=topic, life=life, bundle=bundle)


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
        return scores.due_ms(repr(self.score).encode())


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
_RUN_NOW = {
    0: RunNowOutcome.NOT_FOUND,
    1: RunNowOutcome.PROMOTED,
    2: RunNowOutcome.RUNNING,
    3: RunNowOutcome.PAUSED,
    4: RunNowOutcome.HELD_BACK,
}


def cancel(keys: ShardKeys, id: str, life: bytes = b"") -> Call[CancelOutcome]:
    """Cancel a waiting job, and the second of a debounced key; with a `life`, only the job that has it."""
    wanted = (keys.delayed, keys.jobs, keys.news, keys.counts, keys.ready, keys.bundles, keys.outgoing)
    return scripted("cancel", wanted, (id, life, keys.near), _CANCEL.__getitem__)


class StillWaiting(NamedTuple):
    """A job that waits for its first run. A change that names its due time and its life changes no other job."""

    shard: int
    due_ms: int
    record: bytes

    @property
    def life(self) -> bytes:
        return self.record[LIFE]


def still_waiting(keys: ShardKeys, id: str) -> Call[StillWaiting | None]:
    """Look up the job that waits under this id; None if none does."""

    def read(reply: list[Any]) -> StillWaiting | None:
        is_waiting = len(reply) == 2 or (len(reply) == 3 and reply[2][1] == id.encode())
        return StillWaiting(keys.shard, scores.due_ms(reply[0]), reply[1]) if is_waiting else None

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.done, keys.buried, keys.dead, keys.progress)
    return scripted("get", wanted, (id, b""), read)


def ask_to_cancel(keys: ShardKeys, channels: str, id: str, *, only_second: bool = False) -> Call[int]:
    """Ask the workers that run a job, and the second one of a debounced key, to cancel it, or only the second.

    Returns the number of deliveries concerned.
    """
    args = (id, channels, "second") if only_second else (id, channels)
    return scripted("ask_to_cancel", (keys.jobs, keys.ready), args, int)


def reschedule(
    keys: ShardKeys,
    id: str,
    due: str,
    if_due_ms: int | None = None,
    life: bytes = b"",
    until_ms: int | None = None,
) -> Call[RescheduleOutcome]:
    """Give a waiting job a new due time; with `if_due_ms` and `life`, only if it has these.

    A call that arrives after `until_ms`, by the server's clock, changes nothing, and is answered CHANGED.
    """

    def read(reply: list[int]) -> RescheduleOutcome:
        return _RESCHEDULE[reply[0]]

    until = () if until_ms is None else (until_ms,)
    args = (keys.near, id, due, "" if if_due_ms is None else if_due_ms, life, *until)
    return scripted("reschedule", (keys.delayed, keys.jobs, keys.horizon), args, read)


def run_now(keys: ShardKeys, id: str, terms: str = "") -> Call[RunNowOutcome]:
    """Promote a waiting job at once, as the terms of its topic allow. A shard may have later ones."""

    def read(reply: int) -> RunNowOutcome:
        if reply == -1:
            raise Refused(f"the ready stream did not take job {id!r}; it still waits")
        return _RUN_NOW[reply]

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.dead, keys.shards, keys.counts)
    return scripted("run_now", wanted, (id, terms), read)
