"""What the shards of an ordered lane know together: how they are ordered, and how many of them are held here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

READ_AHEAD = 100
"""Deliveries held of a shard that runs one at a time."""
READ_AHEAD_BY_KEY = 1_000
"""Deliveries held of a shard that runs by key: when so many wait behind busy keys, all other keys wait too."""


@dataclass(slots=True, eq=False)
class Course:
    """What the shards of one ordered lane have in common."""

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
