"""The state of jobs: how workers record it, how it is looked up, and how jobs are listed by it.

worker   conclude (an ack that keeps something) · note (progress) ──▶ done · ended · progress · news
anyone   get ◀── everything known about one job                       news_since ◀── which jobs ended just now

The lists of a shard's jobs by state; each call looks at a bounded number of jobs:

waiting, retrying   list_due       by due time              page: `Scored`, places by score and member
done                list_done      latest first
ready               list_ready     by promotion             page: `InStream`, places by entry id
running             list_running
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack

from wheelq.model.dead import Position
from wheelq.model.state import ATTEMPTS_KEPT, Attempt, GroupInfo, JobInfo, JobState, ListedJob, Progress, least_far
from wheelq.protocol import attempts, codec, scores
from wheelq.protocol.call import Argument, Call, command, scripted, text
from wheelq.protocol.calls import outgoing
from wheelq.protocol.calls.bundles import bundle_of, unpacked
from wheelq.protocol.calls.outgoing import Conclusion, Follower
from wheelq.protocol.calls.producer import WaitingMember
from wheelq.protocol.keys import ShardKeys, member_of

PROGRESS_KEEP_MS = 86_400_000
"""Progress reports of a shard expire this long after the last one, so that those of dead workers do not stay for
ever."""
TEXT_CHARS = 500
"""The most characters of a progress text that are kept."""
UNLEASED = "released"
"""The consumer that holds deliveries whose lease was given back, until they are leased again: their jobs are ready."""
CALLED_BACK = b"0-0"
"""Stands for the entry of a replayed job, whose runs concern only one group."""
NEWS_MS = 600_000
"""How long a shard announces finished jobs after a client began to wait for one."""

_ENTRY, _MS = re.compile(rb"\d{1,20}-\d{1,20}"), re.compile(rb"\d{1,16}")


class Concluded(NamedTuple):
    """A finished delivery, and the data to keep of it."""

    entry_id: str
    member: str
    started_ms: int
    result: bytes
    """Packed; empty for None."""
    record: bytes = b""
    """The record as the producer made it; empty if the entry has the same."""
    attempts: bytes = b""
    """Its earlier attempts in this group, packed; empty if there are none."""
    attempt: int = 0
    """The attempt that succeeded; 0: that of the entry."""
    life: bytes = b""
    """The life of a member of a bundle; empty for other jobs."""


def conclude(
    keys: ShardKeys,
    group: str,
    consumer: str,
    retention_ms: int,
    keep_done_ms: int,
    deliveries: Sequence[Concluded],
    dropped: int = 0,
    followers: Sequence[Sequence[Follower]] = (),
    safe_until_ms: int = 0,
) -> Call[Conclusion]:
    """Acknowledge up to 500 deliveries, keep their results, and leave the `followers` of each in `outgoing`.

    The last `dropped` of them expired and never ran. Until the server's time `safe_until_ms` no other worker can have
    claimed them.
    """
    size = len(deliveries)
    args: list[Argument] = [group, consumer, retention_ms, keep_done_ms, dropped, keys.near, size, safe_until_ms]
    has_members = any(delivery.life for delivery in deliveries)
    needed = len(Concluded._fields) - 1 if keep_done_ms > 0 else 2
    for delivery in deliveries:
        args += (*delivery[:needed], delivery.life) if has_members else delivery[:needed]
    args += outgoing.packed(followers)

    def read(reply: list[Any]) -> Conclusion:
        numbers = [number for number, some in enumerate(followers) for _ in some]
        acknowledged, behind = reply[0], 1 + len(numbers)
        entries, reports = reply[1:behind], outgoing.claimed(reply[behind:])
        held = {number for number, entry in zip(numbers, entries, strict=True) if entry == outgoing.FULL}
        return Conclusion(acknowledged, [*outgoing.outgoing_of(followers, entries), *reports], frozenset(held))

    wanted = (keys.ready, keys.jobs, keys.done, keys.ended, keys.progress, keys.news, keys.counts, keys.outgoing)
    needless = () if has_members or any(followers) else FOR_WHAT_FOLLOWS
    if not keep_done_ms > 0:
        needless += FOR_RESULTS
    return scripted("conclude", (*wanted, keys.bundles) if has_members else wanted, args, read, without=needless)


FOR_WHAT_FOLLOWS: tuple[str, ...] = ("head_parts", "outgoing", "followers", "bundles", "ended_members")
"""What `conclude` uses only for followers and members of bundles."""
FOR_RESULTS: tuple[str, ...] = ("pack", "field", "kept_record", "without", "keep_done", "forget")
"""What it uses only to keep results."""


def note(keys: ShardKeys, group: str, consumer: str, notes: Sequence[tuple[str, str, bytes]]) -> Call[int]:
    """Record the progress of up to 500 running jobs (entry id, id, note). Returns how many this consumer still held."""
    args: list[Argument] = [group, consumer, PROGRESS_KEEP_MS]
    for one in notes:
        args += (*one, "")
    return scripted("note", (keys.ready, keys.progress), args, sum)


def pack_note(fraction: float, words: str, at_ms: int, started_ms: int | None) -> bytes:
    """Packs a progress note. `started_ms` None: it is not known."""
    packed: bytes = msgpack.packb((fraction, words, at_ms, started_ms))
    return packed


def news_since(keys: ShardKeys, cursor: str, wait_ms: int) -> Call[tuple[str, set[str]]]:
    """The ids of jobs that finished after `cursor`, and the next cursor; waits up to `wait_ms` if there are none."""

    def read(reply: list[Any] | None) -> tuple[str, set[str]]:
        entries = reply[0][1] if reply else ()
        ended = {id for _, fields in entries for id in fields[1].decode(errors="replace").split("\n")}
        return (entries[-1][0].decode() if entries else cursor), ended

    args = ("BLOCK", wait_ms, "STREAMS", keys.news, cursor)
    return command("XREAD", *args, read=read, wait_ms=wait_ms, key=keys.news)


def listen(keys: ShardKeys) -> Call[str]:
    """Make the shard announce finished jobs for a while. Returns the cursor after the latest announcement."""
    return scripted("listen", (keys.news,), (NEWS_MS,), text)


def get(keys: ShardKeys, id: str, life: bytes = b"") -> Call[JobInfo | None]:
    """Look one job up: the one with this `life`, or the latest with the id."""

    def read(reply: list[Any]) -> JobInfo | None:
        if not reply:
            return None
        has_second = type(reply[-1]) is list and not reply[-1][0]
        _, its_id, second = map(text, reply.pop()) if has_second else ("", id, "")
        info: JobInfo | None
        if len(reply) == 2:
            score, record = reply
            waiting = GroupInfo(JobState.WAITING, scores.due_ms(score), is_held_back=scores.is_held_back(score))
            info = _info(keys, its_id, waiting, record, None, {})
        else:
            info = _promoted(keys, its_id, reply)
        return replace(info, second_id=second) if info and second else info

    wanted = (keys.delayed, keys.jobs, keys.ready, keys.done, keys.buried, keys.dead, keys.progress)
    return scripted("get", wanted, (id, life), read)


def _info(
    keys: ShardKeys,
    id: str,
    leading: GroupInfo,
    packed: bytes,
    promoted_ms: int | None,
    groups: Mapping[str, GroupInfo],
) -> JobInfo:
    """Returns the overall state, which `leading` decides."""
    record = _record(packed) or codec.Record(1, None, {})
    return JobInfo(
        id,
        keys.topic,
        leading.state,
        leading.due_ms or 0,
        record.payload,
        record.headers,
        leading.attempt or record.attempt,
        promoted_ms,
        keys.shard,
        leading.last_error or record.last_error,
        record.replays,
        record.scheduled_ms or None,
        leading.started_ms,
        leading.finished_ms,
        leading.worker,
        leading.result,
        leading.progress,
        groups,
        leading.attempts,
        record.max_attempts,
        record.timeout,
        bundle=bundle_of(packed),
        partition_key=record.partition_key,
        is_held_back=leading.is_held_back,
        expires=None if record.expires_after_ms is None else record.expires_after_ms / 1000,
        on_dead=record.on_dead,
    )


def _promoted(keys: ShardKeys, id: str, reply: list[Any]) -> JobInfo | None:
    """Returns the state of a promoted job from the script's reply; None if what is kept under its id is of no job."""
    due, packed, entry, kept = reply[:4]
    first, its_due, kept_record, groups = _kept(kept)
    its_record = kept_record
    if entry not in (b"", CALLED_BACK):
        first = entry
    for name, state, *details in reply[4:]:
        group = name.decode()
        if state == b"kept":
            if group in groups:
                groups[group] = _with_earlier(groups[group], details[0])
            continue
        info, found = _group(state.decode(), details)
        if info.is_finished and group in groups and (groups[group].finished_ms or 0) > (info.finished_ms or 0):
            continue  # it was done after another job with this id was buried
        groups[group], its_record = info, found or its_record
    if not entry and not groups:
        return None
    if not entry and its_record and codec.life_of(its_record) != codec.life_of(kept_record):
        first = b""  # it is that of an earlier job, which is kept
    leading = least_far(groups) if groups else GroupInfo(JobState.READY)  # there was no group yet
    leading = replace(leading, due_ms=leading.due_ms or int(due or its_due or 0))
    return _info(keys, id, leading, its_record or packed, int(first.partition(b"-")[0] or 0) or None, groups)


def _group(state: str, details: Sequence[Any]) -> tuple[GroupInfo, bytes]:
    """Returns the state of the job in a group, and its record if the details hold it."""
    match state, details:
        case "finished", _:
            return GroupInfo(JobState.DONE), b""
        case "dead", [dead_id, flat]:
            return _dead(dead_id, dict(zip(flat[::2], flat[1::2], strict=True)))
        case _, [due, packed, *more]:
            record = _record(packed)
            progress, started_ms = _note(more[0]) if more else (None, None)
            worker = more[1].decode() if len(more) > 2 else None
            if worker == UNLEASED:
                state, worker = JobState.READY, None
            info = GroupInfo(
                JobState(state),
                scores.due_ms(due) if due else None,
                record.attempt if record else None,
                worker,
                more[2] if len(more) > 2 else None,
                started_ms,
                last_error=record.last_error if record else None,
                progress=progress,
                attempts=record.attempts if record else (),
                is_held_back=state == JobState.RETRYING and scores.is_held_back(due),
            )
            return info, packed
    raise ValueError(f"the script reported {state!r} for a group, which is not a state")


def _dead(dead_id: bytes, fields: Mapping[bytes, bytes]) -> tuple[GroupInfo, bytes]:
    packed = fields.get(b"record", b"")
    info = GroupInfo(
        JobState.DEAD,
        int(fields.get(b"due", 0)) or None,
        int(fields.get(b"attempt", 0)) or None,
        finished_ms=int(dead_id.partition(b"-")[0]),
        reason=fields.get(b"reason", b"").decode(),
        last_error=fields.get(b"error", b"").decode(errors="replace"),
        attempts=record.attempts if (record := _record(packed)) else (),
    )
    return info, packed


def _record(packed: bytes) -> codec.Record | None:
    """Returns the record; without payload, and with the problem as its last error, if it cannot be read."""
    try:
        return codec.decode(packed) if packed else None
    except codec.UnreadableRecord as error:
        return codec.Record(1, None, {}, f"its record is unreadable: {error}")


def _note(packed: bytes) -> tuple[Progress | None, int | None]:
    if not packed:
        return None, None
    fraction, words, at_ms, started_ms = msgpack.unpackb(packed)
    return Progress(fraction, words, at_ms), started_ms


def _kept(packed: bytes) -> tuple[bytes, bytes, bytes, dict[str, GroupInfo]]:
    """First entry, due time and record of a job, and its end in each group: see `keep_done` in `lua/lib/done.lua`.

    What another program wrote there is left out.
    """
    fields = unpacked(packed)
    if len(fields) < 3 or not _ENTRY.fullmatch(fields[0]) or not _MS.fullmatch(fields[1]):
        return b"", b"", b"", {}
    first, due, record, *rest = fields
    groups = {}
    for n in range(0, len(rest) - 5, 6):
        with contextlib.suppress(ValueError):
            groups[rest[n].decode()] = _end(*rest[n + 1 : n + 6])
    return first, due, record, groups


def _end(started: bytes, ended: bytes, attempt: bytes, consumer: bytes, result: bytes) -> GroupInfo:
    """Returns the end of a job in a group. Raises: ValueError."""
    last = Attempt(int(started), max(int(ended) - int(started), 0), consumer.decode())
    return GroupInfo(
        JobState.DONE,
        attempt=int(attempt),
        worker=last.worker,
        started_ms=last.started_ms or None,
        finished_ms=int(ended),
        result=msgpack.unpackb(result) if result else None,
        attempts=(last,) if last.started_ms else (),  # a leased job has no known start
    )


def kept(packed: bytes) -> tuple[int, dict[str, GroupInfo]]:
    """When a finished job was due, and its end in each group, as kept in `done`."""
    _, due, _, groups = _kept(packed)
    return int(due or 0), groups


def _with_earlier(info: GroupInfo, packed: bytes) -> GroupInfo:
    """Adds the earlier attempts to a finished run, if they belong to it."""
    fields = unpacked(packed)
    if len(fields) < 6 or fields[5] != b"%d" % (info.finished_ms or 0):  # they belong to an earlier job with this id
        return info
    return replace(info, attempts=(*attempts.unpack(fields[2]), *info.attempts)[-ATTEMPTS_KEPT:])


LOOKED_AT = 500
"""The most jobs that one call looks at, which keeps the server busy for about a millisecond."""
MOST_BYTES = 1_000_000
"""An answer ends with the record that passes this number of bytes."""


class Score(NamedTuple):
    """The place of a job in a sorted set."""

    score: float
    member: bytes


class Scored(NamedTuple):
    """A part of a sorted set."""

    jobs: list[tuple[Score, ListedJob]]
    looked_to: Score | None
    """Where to continue; None: that was all."""


class InStream(NamedTuple):
    """A part of a stream."""

    jobs: list[tuple[Position, ListedJob]]
    looked_to: Position | None
    """Where to continue; None: that was all."""


def due(keys: ShardKeys, which: JobState, behind: Score, to: float) -> Call[Scored]:
    """List jobs that wait for their first run (WAITING) or a retry (RETRYING), after a place and up to a score."""

    def read(reply: list[bytes]) -> Scored:
        looked_to, rows = _looked_to(reply)
        return Scored([_due(which, *row) for row in rows], looked_to)

    args = (repr(behind.score), repr(to), behind.member, str(which), LOOKED_AT, MOST_BYTES)
    return scripted("list_due", (keys.delayed, keys.jobs, keys.ready), args, read)


def done(keys: ShardKeys, before: Score, to: float) -> Call[Scored]:
    """List kept finished jobs, latest first, before a place and down to a score."""

    def read(reply: list[bytes]) -> Scored:
        looked_to, rows = _looked_to(reply)
        return Scored([_done(*row) for row in rows], looked_to)

    args = (repr(before.score), repr(to), before.member, LOOKED_AT, MOST_BYTES)
    return scripted("list_done", (keys.ended, keys.done), args, read)


def ready(keys: ShardKeys, first: str, last: str) -> Call[InStream]:
    """List promoted jobs that some group has not received yet."""

    def read(reply: list[bytes]) -> InStream:
        return InStream([_ready(keys, *row) for row in _rows(reply, 1, 5)], _position(keys, reply[0]))

    begin = f"{first}-0" if first.isdigit() else first
    return scripted("list_ready", (keys.ready,), (begin, last, LOOKED_AT), read)


def running(keys: ShardKeys, first: str, last: str) -> Call[InStream]:
    """List the deliveries that consumers hold, also those whose lease was given back, which are ready."""

    def read(reply: list[Any]) -> InStream:
        return InStream([_running(keys, *row) for row in _rows(reply, 1, 7)], _position(keys, reply[0]))

    return scripted("list_running", (keys.ready,), (first, last, LOOKED_AT), read)


def _rows(reply: Sequence[Any], first: int, width: int) -> list[Sequence[Any]]:
    return [reply[n : n + width] for n in range(first, len(reply), width)]


def _looked_to(reply: Sequence[bytes]) -> tuple[Score | None, list[Sequence[bytes]]]:
    return Score(scores.unheld(float(reply[0])), reply[1]) if reply[0] else None, _rows(reply, 2, 3)


def _position(keys: ShardKeys, looked_to: bytes) -> Position | None:
    return Position.of(looked_to.decode(), keys.shard) if looked_to else None


def _due(which: JobState, member: bytes, score: bytes, packed: bytes) -> tuple[Score, ListedJob]:
    job = WaitingMember(member_of(member), float(score))
    record = _record(packed) or codec.Record(1, None, {})
    listed = ListedJob(job.id, which, job.due_ms, job.due_ms, job.group, record.attempt, error=record.last_error)
    return Score(scores.unheld(job.score), member), listed


def _done(id: bytes, score: bytes, packed: bytes) -> tuple[Score, ListedJob]:
    ended_ms = scores.due_ms(score)
    due_ms, groups = kept(packed)
    last = max(groups.values(), key=lambda info: info.finished_ms or 0, default=None)
    listed = ListedJob(_text(id), JobState.DONE, ended_ms, due_ms)
    if last is not None:
        listed = listed._replace(attempt=last.attempt, worker=last.worker)
    return Score(float(score), id), listed


def _ready(
    keys: ShardKeys, entry: bytes, id: bytes, due_ms: bytes, attempt: bytes, group: bytes
) -> tuple[Position, ListedJob]:
    position = Position.of(entry.decode(), keys.shard)
    only = _text(group) if group else None
    return position, ListedJob(_text(id), JobState.READY, position.ms, _number(due_ms), only, _number(attempt))


def _running(
    keys: ShardKeys, entry: bytes, group: bytes, consumer: bytes, _: int, id: bytes, due_ms: bytes, attempt: bytes
) -> tuple[Position, ListedJob]:
    position = Position.of(entry.decode(), keys.shard)
    listed = ListedJob(_text(id), JobState.READY, position.ms, _number(due_ms), _text(group), _number(attempt))
    worker = _text(consumer)
    return position, listed if worker == UNLEASED else listed._replace(state=JobState.RUNNING, worker=worker)


def _text(name: bytes) -> str:
    """Decodes a name that another program may have written."""
    return name.decode(errors="backslashreplace")


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) < 17 else 0
