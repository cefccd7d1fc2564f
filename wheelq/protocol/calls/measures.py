"""The figures that metrics and `doctor` read from many shards at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Call, scripted
from wheelq.protocol.calls.counts import read_counted
from wheelq.protocol.calls.shard_counts import ShardCounts, read_counts
from wheelq.protocol.keys import ShardKeys

AT_ONCE = 50
"""The most shards in one call, which takes about two milliseconds. In a cluster it is one: each shard has its own
slot."""
WITHIN_MS = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}


class Measure(NamedTuple):
    """One shard."""

    counts: ShardCounts
    due: Sequence[int]
    """How many jobs are due within each of `WITHIN_MS`, including overdue ones."""
    has_leader: bool
    counted: Mapping[tuple[str, str], int]
    """Total jobs of the shard, by outcome and group."""
    recurring: int
    """How many recurring jobs have a next occurrence."""


def measure(shards: Sequence[ShardKeys]) -> Call[list[Measure]]:
    """Measure up to 50 shards, in order. In a cluster all of them must lie in one slot."""
    keys = [
        name
        for one in shards
        for name in (one.delayed, one.ready, one.dead, one.jobs, one.retries, one.lease, one.counts, one.occurrences)
    ]

    def read(reply: list[Any]) -> list[Measure]:
        return [
            Measure(read_counts(counts), due, leaders > 0, read_counted(counted), recurring)
            for counts, due, leaders, counted, recurring in reply
        ]

    return scripted("measure", keys, tuple(WITHIN_MS.values()), read)
