"""`ShardParts`: the objects that all parts of a shard share, on its leader or standby."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.topic import Shaping, Topic
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.gathering import Gathering
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
    gathering: Gathering
    """Shared by all shards of the node."""

    def configure(self, topic: Topic) -> None:
        """Take the topic's settings as just read."""
        self.topic = topic
        self.shaping = topic.shaping
