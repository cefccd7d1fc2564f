"""Topics as people see them, and what a client remembers of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from datetime import datetime

from wheelq.job import from_ms
from wheelq.settings import TopicSettings

SHARDS_LIMIT = 10_000
"""A topic of more shards is nearly always a mistake: each has a leader, a lease and a connection's attention."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What one topic holds now, all shards together."""

    name: str
    shards: int
    delayed: int
    """Jobs that wait for their due time."""
    ready: int
    """Entries in the ready streams: promoted, and not yet acked by every group or kept for the topic's retention."""
    dead: int
    """Jobs that were given up and wait for a decision."""
    first_due_ms: int | None
    """When the first waiting job is due; None when nothing waits."""
    overdue_ms: int
    """How long the first waiting job has been due; 0 when none is. More than a second means no scheduler runs."""

    @property
    def first_due(self) -> datetime | None:
        """`first_due_ms` as an aware datetime in UTC."""
        return None if self.first_due_ms is None else from_ms(self.first_due_ms)


@dataclass(frozen=True, slots=True)
class Topic(TopicSettings):
    """A topic as it stands in Redis: its settings, and what is left of former numbers of shards.

    After a change of `shards`, jobs that were placed by a former number stay where they are until they have run: no
    new ones are placed so (the shards refuse them), and look-ups ask there too.
    """

    draining: tuple[int, ...] = ()
    """Former numbers of shards by which jobs may still be placed, the latest first."""
    drained_by_ms: int = field(default=0, metadata={"lowest": 0})
    """When the last of those jobs is due."""

    @property
    def all_shards(self) -> int:
        """How many shards hold jobs, or did until lately: so many are led and read."""
        return max((self.shards, *self.draining))

    def places(self, partition_key: str) -> list[int]:
        """The shard where a job with this partition key (or else id) belongs, then those where it may be."""
        found = [shard_of(partition_key, shards) for shards in (self.shards, *self.draining)]
        return list(dict.fromkeys(found))

    def resharded(self, shards: int, last_due_ms: int) -> Topic:
        """The topic with another number of shards, `last_due_ms` being when the last waiting job is due."""
        former = tuple(count for count in (self.shards, *self.draining) if count != shards)
        return replace(
            self,
            shards=shards,
            draining=tuple(dict.fromkeys(former)),
            drained_by_ms=max(self.drained_by_ms, last_due_ms),
        )


def shard_of(partition_key: str, shards: int) -> int:
    """The shard of a job: a stable hash of its partition key (its id, if none was given). Same on every machine."""
    return 0 if shards == 1 else zlib.crc32(partition_key.encode()) % shards


class KnownTopics:
    """Topics a client has met, each trusted for a while. Times are monotonic seconds."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl = ttl_ms / 1000
        self._known: dict[str, tuple[float, Topic]] = {}

    def find(self, topic: str, now: float) -> Topic | None:
        """What is known, unless it is too old."""
        found = self._known.get(topic)
        return found[1] if found is not None and found[0] > now else None

    def remember(self, topic: str, found: Topic, now: float) -> Topic:
        """Keep what was found for a while."""
        self._known[topic] = (now + self._ttl, found)
        return found
