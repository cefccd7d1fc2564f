"""Runs jobs again in one group after their promotion."""

from __future__ import annotations

from typing import NamedTuple

from wheelq.protocol.call import Call, scripted
from wheelq.protocol.keys import ShardKeys

BATCH = 100
"""The most entries that one call looks at, which keeps the server busy for less than a millisecond."""
REMEMBERED_MS = 86_400_000
"""How long a shard remembers the progress of a rerun after its latest call."""
_LAST_OF_A_MS = 2**64 - 1


class RerunPart(NamedTuple):
    """The answer to `rerun`."""

    is_all: bool
    jobs: int
    """Jobs run again so far on this shard, by all calls of this rerun."""
    left_out: int


def rerun(
    keys: ShardKeys, name: str, group: str, since_ms: int, until_ms: int | None, most: int
) -> Call[RerunPart | None]:
    """Run the next part of a named rerun; None if the group is not here. `until_ms` None: up to the first call."""

    def read(reply: list[int]) -> RerunPart | None:
        return RerunPart(reply[0] == 1, reply[1], reply[2]) if reply else None

    behind = f"{max(since_ms - 1, 0)}-{_LAST_OF_A_MS if since_ms else 0}"
    last = "" if until_ms is None else f"{until_ms}-{_LAST_OF_A_MS}"
    args = (name, behind, last, group, most, REMEMBERED_MS)
    return scripted("rerun", (keys.ready, keys.jobs, keys.replays, keys.counts), args, read)
