"""`ShardParts`: the objects that all parts of a shard share, on its leader or standby.

One of them is `PromotionCoalescing`: after a promotion a node waits a little, so that jobs that are due close together
share the next call.

    due          │       ││ │  │ ││ │                      ms →
    promoted     ▲ (3)      ▲ (1)   ▲ (2)                  (1) the answer, which starts a wait of `gather_ms`
                                                           (2) jobs that fell due since, in one call per shard
                                                           (3) after a quiet moment: at once

Each call wakes the node, the server and the workers, which costs more than the jobs in it. Coalescing only delays: no
job is promoted before it is due. All shards of a node wait for the same moment, so that their calls leave in one write.
The wait ends with a whole millisecond of the server's clock, as due times do: a little later the call would promote no
more, and a little earlier it would leave a millisecond's jobs to the next call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.topic import Shaping, Topic
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport


@dataclass(slots=True, eq=False)
class ShardParts:
    """One shard on one node. Only this object holds the settings of its topic."""

    keys: ShardKeys
    transport: AsyncTransport
    settings: SchedulerSettings
    clock: Clock
    server: ServerClock
    """The clock of the Redis server; in a cluster, of the Redis node that has this shard."""
    topic: Topic
    """The topic as last read."""
    shaping: Shaping | None
    """The topic's limits on promotion; None: no limits."""
    coalescing: PromotionCoalescing
    """Shared by all shards of the node."""

    def configure(self, topic: Topic) -> None:
        """Take the topic's settings as just read."""
        self.topic = topic
        self.shaping = topic.shaping


class PromotionCoalescing:
    """When the shards of one node may promote again."""

    def __init__(self, settings: SchedulerSettings) -> None:
        # If it were longer, standbys would take waiting jobs for overlooked ones.
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
