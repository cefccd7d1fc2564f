"""What is asked about dead jobs: find, replay, purge.

The dead stream of a shard is read by name; each entry is one job that one group gave up:

| field       | holds                                                                                    |
|-------------|------------------------------------------------------------------------------------------|
| `id`        | job id                                                                                   |
| `group`     | who gave it up; "" for a job without a record, which no group ever saw                   |
| `reason`    | `failed`, `given_up`, `unreadable`, `deliveries` or `no record`                          |
| `error`     | the last error in one line                                                               |
| `traceback` | the end of its traceback, or ""                                                          |
| `attempt`   | number of the last attempt                                                               |
| `due`       | when that was due, ms                                                                    |
| `first_due` | when the job was first due, ms                                                           |
| `entry`     | the ready entry that all groups were given; "0-0" if it had been called back before      |
| `record`    | the job's record, as in `protocol.codec`                                                 |

The entry's own id tells when it was buried, in ms by the server's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.dead import DeadFilter, DeadJob, Position, ReplayOutcome
from wheelq.protocol import codec
from wheelq.protocol.call import Argument, Call, scripted
from wheelq.protocol.keys import ShardKeys

LOOKED_AT = 500
"""Most entries that one call looks at: keeps the server busy for about a millisecond."""
REPLAY_BATCH = 100
"""Most jobs replayed in one call."""


class Found(NamedTuple):
    """The answer to `find`."""

    jobs: list[tuple[DeadJob, bytes]]
    """Each with its record as stored."""
    now_ms: int
    looked_to: Position | None
    """Where to go on; None: that was all."""


class Purged(NamedTuple):
    """The answer to `purge`."""

    purged: int
    now_ms: int
    looked_to: Position | None
    """Where to go on; None: that was all."""


class ReplayAnswer(NamedTuple):
    """The answer to `replay`."""

    outcomes: list[ReplayOutcome]
    next_due_ms: float
    """Before that, the next job is not to be due."""


class Span(NamedTuple):
    """A part of a dead stream, from and to entry ids as XRANGE takes them."""

    first: str
    last: str

    @classmethod
    def of(cls, where: DeadFilter) -> Span:
        """All that may match."""
        first = "-" if where.since_ms is None else str(where.since_ms)
        last = "+" if where.until_ms is None else str(max(0, where.until_ms - 1))
        return cls(first, last)

    @classmethod
    def one(cls, entry_id: str) -> Span:
        return cls(entry_id, entry_id)


def find(keys: ShardKeys, where: DeadFilter, span: Span, limit: int, *, newest_first: bool) -> Call[Found]:
    """Up to `limit` dead jobs of a shard."""

    def read(reply: list[Any]) -> Found:
        now_ms, looked_to, *entries = reply
        pairs = zip(entries[::2], entries[1::2], strict=True)
        jobs = [_dead_job(keys, entry_id.decode(), fields) for entry_id, fields in pairs]
        return Found(jobs, int(now_ms), _position(looked_to, keys))

    order, ends = ("newest", (span.last, span.first)) if newest_first else ("oldest", (span.first, span.last))
    args: list[Argument] = [order, *ends, LOOKED_AT, limit, where.group, where.reason, where.id]
    return scripted("find_dead", (keys.dead,), args, read)


def purge(keys: ShardKeys, where: DeadFilter, span: Span) -> Call[Purged]:
    """Remove those that match among the first entries of the span."""

    def read(reply: list[Any]) -> Purged:
        now_ms, looked_to, purged = reply
        return Purged(purged, int(now_ms), _position(looked_to, keys))

    return scripted("purge", (keys.dead, keys.buried), (*span, LOOKED_AT, where.group, where.reason, where.id), read)


_OUTCOMES = (ReplayOutcome.NOT_FOUND, ReplayOutcome.REPLAYED, ReplayOutcome.ALIVE, ReplayOutcome.NO_RECORD)


def replay(
    keys: ShardKeys, jobs: Sequence[tuple[DeadJob, bytes]], due_ms: float, spacing_ms: float
) -> Call[ReplayAnswer]:
    """Let up to 100 dead jobs run again, `spacing_ms` apart and the first not before `due_ms`."""

    def read(reply: list[Any]) -> ReplayAnswer:
        return ReplayAnswer([_OUTCOMES[status] for status in reply[1:]], float(reply[0]))

    args: list[Argument] = [keys.near, f"{due_ms:.3f}", f"{spacing_ms:.6f}"]
    for job, record in jobs:
        args += [Position.parse(job.dead_id).entry_id, _anew(record)]
    return scripted("replay", (keys.dead, keys.delayed, keys.jobs, keys.horizon, keys.buried), args, read)


def _anew(record: bytes) -> bytes:
    try:
        return codec.replayed(record)
    except codec.UnreadableRecord:
        return record  # a newer worker may read it


def _position(looked_to: bytes, keys: ShardKeys) -> Position | None:
    return Position.of(looked_to.decode(), keys.shard) if looked_to else None


def _dead_job(keys: ShardKeys, entry_id: str, flat: list[bytes]) -> tuple[DeadJob, bytes]:
    """What the entry tells; it may be none of wheelq's."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="backslashreplace")

    def number(name: bytes) -> int:
        value = fields.get(name, b"")
        return int(value) if value.isdigit() else 0

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
