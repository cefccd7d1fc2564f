"""Chains in torture: some jobs are followed by another, and that by a third, each with a key made of the job's id.

A follower is promised as the job before it is: it runs once if that job runs, and never otherwise. That holds on one
server. After a failover a worker may still carry what follows an acknowledgement that was undone, and the job is
acknowledged again: then its follower may come twice, as the guide says. So there are no chains where servers fail over.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from loadtest.judge import Promise

CHAINED = "torture-chained"
"""The topic of the followers."""
PREFIX = "after-"
LINKS = 2
"""The most followers of one job."""
ONE_IN = 6
"""One job in so many is followed."""
OTHERS = ("key-", "bundle-")
"""Jobs with such ids are not: they may run several times, or follow something else."""


def follower(id: str) -> str | None:
    """Returns the key of the job that follows this one, if one does."""
    first = id
    while first.startswith(PREFIX):
        first = first.removeprefix(PREFIX)
    links = (len(id) - len(first)) // len(PREFIX)
    is_followed = not first.startswith(OTHERS) and zlib.crc32(first.encode()) % ONE_IN == 0
    return f"{PREFIX}{id}" if is_followed and links < LINKS else None


def with_followers(promises: Mapping[str, Promise]) -> dict[str, Promise]:
    """Returns promises, and those for what follows their jobs."""
    found = dict(promises)
    for id, promise in promises.items():
        while (after := follower(id)) is not None:
            found[after], id = promise, after
    return found
