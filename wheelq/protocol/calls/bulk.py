"""Calls for all jobs that are due in a range: count, cancel and move them, a part at a time."""

from __future__ import annotations

from typing import NamedTuple

from wheelq.protocol.call import Call, command, scripted
from wheelq.protocol.calls.producer import HALF_MS
from wheelq.protocol.keys import ShardKeys

BATCH = 500
"""The most jobs that one call looks at, which keeps the server busy for about a millisecond."""
REMEMBERED_MS = 86_400_000
"""How long a shard remembers the progress of a change after its latest call."""
_END = 1e15


class DueRange(NamedTuple):
    """A range of due times, as scores."""

    since: float
    until: float

    @classmethod
    def of(cls, since_ms: int | None, until_ms: int | None) -> DueRange:
        """Returns the range from `since_ms` to before `until_ms`."""
        return cls((since_ms or 0) - HALF_MS, _END if until_ms is None else until_ms - HALF_MS)


class BulkPart(NamedTuple):
    """The answer to `cancel` and `move`."""

    is_all: bool
    jobs: int
    """Jobs changed so far on this shard, by all calls with this name."""


def count(keys: ShardKeys, due: DueRange) -> Call[int]:
    """Count the jobs that are due in the range, including retries."""
    return command("ZCOUNT", keys.delayed, repr(due.since), repr(due.until), read=int, key=keys.delayed)


def cancel(keys: ShardKeys, name: str, due: DueRange) -> Call[BulkPart]:
    """Cancel the next jobs of the range."""
    args = (f":cancel:{name}", repr(due.since), repr(due.until), BATCH, REMEMBERED_MS)
    return scripted("cancel_due", (keys.delayed, keys.jobs, keys.news, keys.replays), args, _read)


def move(keys: ShardKeys, name: str, due: DueRange, target: str, by_ms: int) -> Call[BulkPart]:
    """Give the next jobs of the range the due time `target` ("+ms" or "ms"), or with "" move each by `by_ms`."""
    args = (keys.near, f":move:{name}", repr(due.since), repr(due.until), target, by_ms, BATCH, REMEMBERED_MS)
    return scripted("move_due", (keys.delayed, keys.horizon, keys.replays), args, _read)


def _read(reply: list[int]) -> BulkPart:
    return BulkPart(reply[0] == 1, reply[1])
