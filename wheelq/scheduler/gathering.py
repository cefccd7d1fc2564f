"""`Gathering`: after a promotion a node waits a little, so that jobs that are due close together share the next call.

    due          │       ││ │  │ ││ │                      ms →
    promoted     ▲ (3)      ▲ (1)   ▲ (2)                  (1) the answer, which starts a wait of `gather_ms`
                                                           (2) jobs that fell due since, in one call per shard
                                                           (3) after a quiet moment: at once

Each call wakes the node, the server and the workers, which costs more than the jobs in it. Gathering only delays; a job
is never promoted before it is due. All shards of a node wait for the same moment, so that their calls leave in one
write. The wait ends with a whole millisecond of the server's clock, as due times do: a little later the call would
promote no more, and a little earlier it would leave a millisecond's jobs to the next call.

Pure: times are monotonic seconds, as arguments.
"""

from __future__ import annotations

import math

from wheelq.base.clock import ServerClock
from wheelq.settings import SchedulerSettings


class Gathering:
    """When the shards of one node may promote again."""

    def __init__(self, settings: SchedulerSettings) -> None:
        # If it were longer, standbys would take gathered jobs for overlooked ones.
        self._seconds = min(settings.gather_ms, settings.hedge_ms / 4) / 1000
        self.until = 0.0
        """The wait lasts at least until this moment."""

    def ends_ms(self, server: ServerClock) -> int:
        """When something may be promoted again, by this server's clock."""
        return math.ceil(server.at(self.until))

    def promoted(self, now: float) -> None:
        """Record the server's answer to a promotion. Others may be in flight; the first answer counts."""
        if self._seconds and now >= self.until:
            self.until = now + self._seconds
