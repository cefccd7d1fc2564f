"""What the ordered shards of a lane stand on together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from wheelq.clock import Clock, ServerClock
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.held import Held
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Settler

READ_AHEAD = 100
"""Deliveries held of a shard that runs one at a time."""
READ_AHEAD_BY_KEY = 1_000
"""Deliveries held of a shard that runs by key: when so many wait behind busy keys, all other keys wait too."""


@dataclass(slots=True, eq=False)
class Ground:
    """The worker's parts that ordered shards use, and what concerns all shards of the lane."""

    transport: AsyncTransport
    group: str
    consumer: str
    settings: WorkerSettings
    held: Held
    settler: Settler
    recovery: Recovery
    clock: Clock
    server: ServerClock
    is_by_key: bool
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    holds: int = 0
    """How many of the shards are held."""
    next_pass_at: float = 0.0
    """When another shard may be passed on, by the monotonic clock."""

    @property
    def read_ahead(self) -> int:
        """Most deliveries held of a shard."""
        return READ_AHEAD_BY_KEY if self.is_by_key else READ_AHEAD
