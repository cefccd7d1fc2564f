"""Calls that list the jobs of a shard by state. Each looks at a bounded number of jobs.

waiting, retrying   list_due       by due time              page: `Scored`, places by score and member
done                list_done      latest first
ready               list_ready     by promotion             page: `InStream`, places by entry id
running             list_running
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.model.dead import Position
from wheelq.model.state import JobState, ListedJob
from wheelq.protocol import codec
from wheelq.protocol.call import Call, scripted
from wheelq.protocol.calls import state
from wheelq.protocol.calls.producer import WaitingMember
from wheelq.protocol.keys import ShardKeys, member_of

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
    return scripted("list_due", (keys.delayed, keys.jobs), args, read)


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
    """List the deliveries that consumers hold."""

    def read(reply: list[Any]) -> InStream:
        return InStream([_running(keys, *row) for row in _rows(reply, 1, 7)], _position(keys, reply[0]))

    return scripted("list_running", (keys.ready,), (first, last, LOOKED_AT), read)


def _rows(reply: Sequence[Any], first: int, width: int) -> list[Sequence[Any]]:
    return [reply[n : n + width] for n in range(first, len(reply), width)]


def _looked_to(reply: Sequence[bytes]) -> tuple[Score | None, list[Sequence[bytes]]]:
    return Score(float(reply[0]), reply[1]) if reply[0] else None, _rows(reply, 2, 3)


def _position(keys: ShardKeys, looked_to: bytes) -> Position | None:
    return Position.of(looked_to.decode(), keys.shard) if looked_to else None


def _due(which: JobState, member: bytes, score: bytes, packed: bytes) -> tuple[Score, ListedJob]:
    job = WaitingMember(member_of(member), float(score))
    attempt, error = 1, None
    try:
        record = codec.decode(packed) if packed else None
    except codec.UnreadableRecord:
        record = None
    if record is not None:
        attempt, error = record.attempt, record.last_error
    listed = ListedJob(job.id, which, job.due_ms, job.due_ms, job.group, attempt, error=error)
    return Score(job.score, member), listed


def _done(id: bytes, score: bytes, packed: bytes) -> tuple[Score, ListedJob]:
    ended_ms = codec.due_ms(score)
    due_ms, groups = state.kept(packed)
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
    listed = ListedJob(
        _text(id), JobState.RUNNING, position.ms, _number(due_ms), _text(group), _number(attempt), _text(consumer)
    )
    return position, listed


def _text(name: bytes) -> str:
    """Decodes a name that another program may have written."""
    return name.decode(errors="backslashreplace")


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) < 17 else 0
