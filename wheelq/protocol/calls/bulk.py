"""Calls that change many jobs, a part at a time: cancel and move those due in a range, run promoted ones again.

A shard remembers the progress of a change under its name.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelq.protocol.call import Call, command, scripted
from wheelq.protocol.calls.producer import HALF_MS
from wheelq.protocol.keys import ShardKeys
from wheelq.protocol.scores import HELD

BATCH = 500
"""The most jobs that one call looks at, which keeps the server busy for about a millisecond."""
REMEMBERED_MS = 86_400_000
"""How long a shard remembers the progress of a change after its latest call."""
RERUN_BATCH = 100
"""The most entries that one call of a rerun looks at, which keeps the server busy for less than a millisecond."""
_END = 1e15
_LAST_OF_A_MS = 2**64 - 1


class DueRange(NamedTuple):
    """A range of due times, as scores."""

    since: float
    until: float

    @classmethod
    def of(cls, since_ms: int | None, until_ms: int | None) -> DueRange:
        """Returns the range from `since_ms` to before `until_ms`."""
        return cls((since_ms or 0) - HALF_MS, _END if until_ms is None else until_ms - HALF_MS)

    def bands(self, behind: float | None = None) -> list[DueRange]:
        """Returns the scores of its jobs and of those held back; with `behind`, only what is from there on."""
        since, until = self.since if behind is None else behind, min(self.until, HELD - 1)
        return [DueRange(since, until), DueRange(since + HELD, until + HELD)]


class BulkPart(NamedTuple):
    """The answer to `cancel` and `move`."""

    is_all: bool
    jobs: int
    """Jobs changed so far on this shard, by all calls with this name."""


class RerunPart(NamedTuple):
    """The answer to `rerun`."""

    is_all: bool
    jobs: int
    """Jobs run again so far on this shard, by all calls of this rerun."""
    left_out: int


def count(keys: ShardKeys, due: DueRange) -> Call[int]:
    """Count the jobs with scores in the range, including retries; see `DueRange.bands`."""
    return command("ZCOUNT", keys.delayed, repr(due.since), repr(due.until), read=int, key=keys.delayed)


def cancel(keys: ShardKeys, name: str, due: DueRange) -> Call[BulkPart]:
    """Cancel the next jobs of the range."""
    args = (f":cancel:{name}", repr(due.since), repr(due.until), BATCH, REMEMBERED_MS, keys.near)
    wanted = (keys.delayed, keys.jobs, keys.news, keys.replays, keys.bundles, keys.outgoing, keys.counts)
    return scripted("cancel_due", wanted, args, _read)


def move(keys: ShardKeys, name: str, due: DueRange, target: str, by_ms: int) -> Call[BulkPart]:
    """Give the next jobs of the range the due time `target` ("+ms" or "ms"), or with "" move each by `by_ms`."""
    args = (keys.near, f":move:{name}", repr(due.since), repr(due.until), target, by_ms, BATCH, REMEMBERED_MS)
    return scripted("move_due", (keys.delayed, keys.horizon, keys.replays), args, _read)


def rerun(
    keys: ShardKeys, name: str, group: str, since_ms: int, until_ms: int | None, most: int, terms: str = ""
) -> Call[RerunPart | None]:
    """Run the next part of a named rerun; None if the group is not here. `until_ms` None: up to the first call."""

    def read(reply: list[int]) -> RerunPart | None:
        return RerunPart(reply[0] == 1, reply[1], reply[2]) if reply else None

    behind = f"{max(since_ms - 1, 0)}-{_LAST_OF_A_MS if since_ms else 0}"
    last = "" if until_ms is None else f"{until_ms}-{_LAST_OF_A_MS}"
    args = (name, behind, last, group, most, REMEMBERED_MS, keys.near, terms)
    wanted = (keys.ready, keys.jobs, keys.replays, keys.counts, keys.delayed, keys.retries, keys.shards, keys.horizon)
    return scripted("rerun", wanted, args, read)


def _read(reply: list[int]) -> BulkPart:
    return BulkPart(reply[0] == 1, reply[1])
