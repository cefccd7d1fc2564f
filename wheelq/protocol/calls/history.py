"""What was fired before, run again in one group."""

from __future__ import annotations

from typing import NamedTuple

from wheelq.protocol.call import Call, scripted
from wheelq.protocol.keys import ShardKeys

BATCH = 100
"""Most entries looked at in one call: keeps the server busy for less than a millisecond."""
REMEMBERED_MS = 86_400_000
"""How long a shard knows how far its replays are, after the latest call for one."""
_LAST_OF_A_MS = 2**64 - 1


class Part(NamedTuple):
    """The answer to `fire_again`."""

    is_all: bool
    replayed: int
    """All calls of this replay together, on this shard."""
    left_out: int


def fire_again(
    keys: ShardKeys, name: str, group: str, since_ms: int, until_ms: int | None, most: int
) -> Call[Part | None]:
    """The next part of the replay of this name; None: the group is not here. `until_ms` None: until the first call."""

    def read(reply: list[int]) -> Part | None:
        return Part(reply[0] == 1, reply[1], reply[2]) if reply else None

    behind = f"{max(since_ms - 1, 0)}-{_LAST_OF_A_MS if since_ms else 0}"
    last = "" if until_ms is None else f"{until_ms}-{_LAST_OF_A_MS}"
    args = (name, behind, last, group, most, REMEMBERED_MS)
    return scripted("fire_again", (keys.ready, keys.jobs, keys.replays), args, read)
