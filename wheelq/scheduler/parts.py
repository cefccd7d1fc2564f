"""`NodeParts` and `ShardParts`: the objects that all parts of a node share, and those of a shard on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wheelq.base.clock import Clock, ServerClock
from wheelq.base.metrics import Promotions
from wheelq.model.topic import Topic
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.promoter import Gathering, Lookout, Promoter, PromotionCoalescing
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
    found_outgoing: Callable[[ShardKeys], object] = lambda keys: None
    """Called when followers were seen in a shard's `outgoing`."""
    promotions: Promotions = field(default_factory=Promotions)
    server: ServerClock = field(init=False)
    coalescing: PromotionCoalescing = field(init=False)
    promoter: Promoter = field(init=False)
    gathering: Gathering = field(init=False)
    lookout: Lookout = field(init=False)

    def __post_init__(self) -> None:
        self.server = ServerClock(self.clock)
        self.coalescing = PromotionCoalescing(self.settings)
        self.promoter = Promoter(self.transport, self.clock, self.settings, self.coalescing)
        self.gathering = Gathering(self.transport, self.clock)
        self.lookout = Lookout(self.transport, self.clock, self.settings)

    def clock_of(self, keys: ShardKeys) -> ServerClock:
        """The clock of the server that has this shard. In a cluster each shard has its own: it may move."""
        return self.server if self.transport.server_of(keys.ready) is None else self.server.like()


@dataclass(slots=True, eq=False)
class ShardParts:
    """One shard on one node. Only this object holds the settings of its topic."""

    node: NodeParts
    keys: ShardKeys
    topic: Topic
    """The topic as last read."""
    server: ServerClock = field(init=False)
    """See `NodeParts.clock_of`."""

    def __post_init__(self) -> None:
        self.server = self.node.clock_of(self.keys)
