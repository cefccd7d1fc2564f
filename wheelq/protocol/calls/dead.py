"""Calls for dead jobs: find, replay, purge.

Each entry of a shard's dead stream is one job that one group gave up. Its fields are read by name:

| field       | holds                                                                                    |
|-------------|------------------------------------------------------------------------------------------|
| `id`        | job id                                                                                   |
| `group`     | the group that gave it up; "" for a job without a record, which no group saw             |
| `reason`    | `failed`, `given_up`, `unreadable`, `deliveries` or `no record`                          |
| `error`     | the last error in one line                                                               |
| `traceback` | the end of its traceback, or ""                                                          |
| `attempt`   | number of the last attempt                                                               |
| `due`       | when the last attempt was due, ms                                                        |
| `first_due` | when the job was first due, ms                                                           |
| `entry`     | the ready entry that all groups got; "0-0" if the job had been replayed before           |
| `record`    | the job's record, as in `protocol.codec`                                                 |

The entry's id holds the time of the burial, in ms by the server's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.model.dead import DeadFilter, DeadJob, Position, ReplayOutcome
from wheelq.protocol import codec
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.keys import ShardKeys

LOOKED_AT = 500
"""The most entries that one call looks at, which keeps the server busy for about a millisecond."""
ERROR_BYTES = 300
"""The most bytes of an error that `newest` returns."""
REPLAY_BATCH = 100
"""The most jobs that one call replays."""


class FoundDead(NamedTuple):
    """The answer to `find`."""

    jobs: list[tuple[DeadJob, bytes]]
    """Each with its record as stored."""
    now_ms: int
    looked_to: Position | None
    """Where to continue; None: that was all."""


class DeadSummary(NamedTuple):
    """A dead job without its record and traceback."""

    dead_id: str
    id: str
    group: str
    reason: str
    error: str
    """At most `ERROR_BYTES` of it."""
    attempt: int
    buried_ms: int


class Purged(NamedTuple):
    """The answer to `purge`."""

    purged: int
    now_ms: int
    looked_to: Position | None
    """Where to continue; None: that was all."""


class ReplayAnswer(NamedTuple):
    """The answer to `replay`."""

    outcomes: list[ReplayOutcome]
    next_due_ms: float
    """The earliest due time for the next job, which keeps the rate."""


class DeadRange(NamedTuple):
    """A part of a dead stream, between two entry ids as XRANGE takes them."""

    first: str
    last: str

    @classmethod
    def of(cls, where: DeadFilter) -> DeadRange:
        """Returns the range that holds all jobs that may match."""
        first = "-" if where.since_ms is None else str(where.since_ms)
        last = "+" if where.until_ms is None else str(max(0, where.until_ms - 1))
        return cls(first, last)

    @classmethod
    def one(cls, entry_id: str) -> DeadRange:
        return cls(entry_id, entry_id)


def find(keys: ShardKeys, where: DeadFilter, span: DeadRange, limit: int, *, newest_first: bool) -> Call[FoundDead]:
    """Find up to `limit` dead jobs of a shard."""

    def read(reply: list[Any]) -> FoundDead:
        now_ms, looked_to, *entries = reply
        pairs = zip(entries[::2], entries[1::2], strict=True)
        jobs = [_dead_job(keys, entry_id.decode(), fields) for entry_id, fields in pairs]
        return FoundDead(jobs, int(now_ms), _position(looked_to, keys))

    order, ends = ("newest", (span.last, span.first)) if newest_first else ("oldest", (span.first, span.last))
    args: list[Argument] = [order, *ends, LOOKED_AT, limit, where.group, where.reason, where.id]
    return scripted("find_dead", (keys.dead,), args, read)


def newest(keys: ShardKeys, before: str | None) -> Call[list[DeadSummary]]:
    """Read the newest `LOOKED_AT` dead jobs of a shard, or the newest before an entry id."""

    def read(reply: list[list[bytes]]) -> list[DeadSummary]:
        return [_summary(keys, *(field.decode(errors="backslashreplace") for field in entry)) for entry in reply]

    first = "+" if before is None else f"({before}"
    return scripted("newest_dead", (keys.dead,), (first, LOOKED_AT, ERROR_BYTES), read)


def _summary(keys: ShardKeys, entry_id: str, id: str, group: str, reason: str, error: str, attempt: str) -> DeadSummary:
    position = Position.of(entry_id, keys.shard)
    attempts = int(attempt) if attempt.isdecimal() and len(attempt) < 17 else 0
    return DeadSummary(str(position), id, group, reason, error, attempts, position.ms)


def purge(keys: ShardKeys, where: DeadFilter, span: DeadRange) -> Call[Purged]:
    """Remove the matching jobs among the first entries of the span."""

    def read(reply: list[Any]) -> Purged:
        now_ms, looked_to, purged = reply
        return Purged(purged, int(now_ms), _position(looked_to, keys))

    args = (*span, LOOKED_AT, where.group, where.reason, where.id, keys.near)
    return scripted("purge", (keys.dead, keys.buried, keys.bundles, keys.outgoing), args, read)


_OUTCOMES = (ReplayOutcome.NOT_FOUND, ReplayOutcome.REPLAYED, ReplayOutcome.ALIVE, ReplayOutcome.NO_RECORD)


def replay(
    keys: ShardKeys, jobs: Sequence[tuple[DeadJob, bytes]], due_ms: float, spacing_ms: float
) -> Call[ReplayAnswer]:
    """Replay up to 100 dead jobs, `spacing_ms` apart, the first not before `due_ms`."""

    def read(reply: list[Any]) -> ReplayAnswer:
        return ReplayAnswer([_OUTCOMES[status] for status in reply[1:]], float(reply[0]))

    args: list[Argument] = [keys.near, f"{due_ms:.3f}", f"{spacing_ms:.6f}"]
    for job, record in jobs:
        args += [Position.parse(job.dead_id).entry_id, _replayed(record)]
    wanted = (keys.dead, keys.delayed, keys.jobs, keys.horizon, keys.buried, keys.retries, keys.replays)
    return scripted("replay", (*wanted, keys.bundles, keys.outgoing, keys.ready), args, read)


def _replayed(record: bytes) -> bytes:
    try:
        return codec.replayed(record)
    except codec.UnreadableRecord:
        return record  # a newer worker may read it


def _position(looked_to: bytes, keys: ShardKeys) -> Position | None:
    return Position.of(looked_to.decode(), keys.shard) if looked_to else None


def _dead_job(keys: ShardKeys, entry_id: str, flat: list[bytes]) -> tuple[DeadJob, bytes]:
    """Returns the dead job of an entry, which another program may have written, and its record."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="backslashreplace")

    def number(name: bytes) -> int:
        value = fields.get(name, b"")
        return int(value) if value.isdigit() and len(value) < 17 else 0

    packed = fields.get(b"record", b"")
    try:
        record = codec.decode(packed)
    except codec.UnreadableRecord:
        record = codec.Record(0, None, {})
    position = Position.of(entry_id, keys.shard)
    due_ms = number(b"due")
    return (
        DeadJob(
            str(position),
            keys.topic,
            text(b"id"),
            text(b"group"),
            text(b"reason"),
            text(b"error"),
            text(b"traceback"),
            number(b"attempt"),
            number(b"first_due") or due_ms,
            due_ms,
            position.ms,
            record.payload,
            record.headers,
            record.replays,
        ),
        packed,
    )
