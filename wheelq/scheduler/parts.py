"""`NodeParts` and `ShardParts`: the objects that all parts of a node share, and those of a shard on it.

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
from dataclasses import dataclass, field

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.topic import Topic
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport


@dataclass(slots=True, eq=False)
class NodeParts:
    """One scheduler node."""

    transport: AsyncTransport
    keys: Keys
    clock: Clock
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    node: str = ""
    """The node's name."""
    connection: str = ""
    """The connection on which it listens, "run id:client id". When this is closed, the node is gone."""
    server: ServerClock = field(init=False)
    coalescing: PromotionCoalescing = field(init=False)

    def __post_init__(self) -> None:
        self.server = ServerClock(self.clock)
        self.coalescing = PromotionCoalescing(self.settings)


@dataclass(slots=True, eq=False)
class ShardParts:
    """One shard on one node. Only this object holds the settings of its topic."""

    node: NodeParts
    keys: ShardKeys
    topic: Topic
    """The topic as last read."""
    server: ServerClock = field(init=False)
    """The clock of the Redis server; in a cluster, of the Redis node that has this shard."""

    def __post_init__(self) -> None:
        self.server = self.node.server.like()


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
