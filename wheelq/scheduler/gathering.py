"""`Gathering`: after a promotion a node waits a little, so that jobs that are due close together share the next call.

    due          │       ││ │  │ ││ │                      ms →
    promoted     ▲ (3)      ▲ (1)   ▲ (2)                  (1) the answer, which starts a wait of `gather_ms`
                                                           (2) jobs that fell due since, in one call per shard
                                                           (3) after a quiet moment: at once

Each call wakes the node, the server and the workers, which costs more than the jobs in it. Gathering only delays; a job
is never promoted before it is due. All shards of a node wait for the same moment, so that their calls leave in one
write. Pure: times are monotonic seconds, as arguments.
"""

from __future__ import annotations

from wheelq.settings import SchedulerSettings


class Gathering:
    """When the shards of one node may promote again."""

    def __init__(self, settings: SchedulerSettings) -> None:
        # If it were longer, standbys would take gathered jobs for overlooked ones.
        self._seconds = min(settings.gather_ms, settings.hedge_ms / 4) / 1000
        self.until = float("-inf")
        """Nothing is promoted before this moment."""

    def promoted(self, now: float) -> None:
        """Record the server's answer to a promotion. Others may be in flight; the first answer counts."""
        if now >= self.until:
            self.until = now + self._seconds
