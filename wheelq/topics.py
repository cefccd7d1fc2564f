"""Topics as people see them, the terms on which their shards are written to, and what a client remembers of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict

from wheelq.errors import InvalidInput, InvalidSetting
from wheelq.job import from_ms
from wheelq.settings import DAY_MS, Misfire, TopicSettings

SHARDS_LIMIT = 10_000
"""A topic of more shards is nearly always a mistake: each has a leader, a lease and a connection's attention."""

BURST_S = 0.1
"""How much of a topic's rate may be promoted at once, in seconds: what a leader that was late may catch up."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """How the leader of one shard holds promotion back. 0: not by this."""

    interval_us: int
    """One job in so many microseconds."""
    burst: int
    """So many jobs at once, when none were promoted for a while."""
    most_ready: int
    """As long as so many are unread, none is promoted."""


@dataclass(frozen=True, slots=True)
class Topic(TopicSettings):
    """A topic as it stands in Redis: its settings, and what is left of former numbers of shards.

    After a change of `shards`, jobs that were placed by a former number stay where they are until they have run: no
    new ones are placed so (the shards refuse them), and look-ups ask there too. A scheduler node ends that, once none
    of them is left (`scheduler.clearing`).
    """

    draining: tuple[int, ...] = ()
    """Former numbers of shards by which jobs may still be placed, the latest first."""
    drained_by_ms: int = field(default=0, metadata={"lowest": 0})
    """When the last of those jobs is due."""
    paused: bool = False
    """Whether it promotes nothing and its workers begin nothing."""

    @property
    def all_shards(self) -> int:
        """How many shards hold jobs, or did until lately: so many are led and read."""
        return max((self.shards, *self.draining))

    @property
    def is_shaped(self) -> bool:
        """Whether promotion is held back by a rate or by what is unread."""
        return self.max_rate > 0 or self.max_ready > 0

    @property
    def shaping(self) -> Shaping | None:
        """How one shard is to hold back; None: not at all."""
        if not self.is_shaped:
            return None
        rate = self.max_rate / self.all_shards
        most_ready = max(1, self.max_ready // self.all_shards) if self.max_ready else 0
        if not rate:
            return Shaping(0, 0, most_ready)
        return Shaping(max(1, math.ceil(1_000_000 / rate)), max(1, int(rate * BURST_S)), most_ready)

    @property
    def terms(self) -> str:
        """What whoever writes to a shard must know of the topic, as one line; kept in the shard when it was changed.

        The number of shards, and in a topic with limits the most jobs that may wait in one shard, whether promotion is
        "free", "shaped" or "paused", and its limits. Producers and leaders name the terms they know, and a shard
        refuses those who know others; so a change is in force the moment the shards were told.
        """
        state = "paused" if self.paused else "shaped" if self.is_shaped else "free"
        if state == "free" and not self.max_pending:
            return str(self.shards)
        room = max(1, self.max_pending // self.shards) if self.max_pending else 0
        return f"{self.shards} {room} {state} {float(self.max_rate)!r} {self.max_ready}"

    def places(self, partition_key: str) -> list[int]:
        """The shard where a job with this partition key (or else id) belongs, then those where it may be."""
        found = [shard_of(partition_key, shards) for shards in (self.shards, *self.draining)]
        return list(dict.fromkeys(found))

    def may_be_misplaced_in(self, shard: int) -> bool:
        """Whether a former number may have placed jobs in this shard that the number in force does not place there."""
        return any(shard < former and former % self.shards for former in self.draining)

    def resharded(self, shards: int, last_due_ms: int) -> Topic:
        """The topic with another number of shards, `last_due_ms` being when the last waiting job is due."""
        if shards == self.shards:
            return self
        former = tuple(count for count in (self.shards, *self.draining) if count != shards)
        return replace(
            self,
            shards=shards,
            draining=tuple(dict.fromkeys(former)),
            drained_by_ms=max(self.drained_by_ms, last_due_ms),
        )

    def configured(self, changes: Mapping[str, Any]) -> Topic:
        """The topic with other settings. Raises: InvalidInput."""
        known = TopicChanges.__annotations__.keys()
        for name, value in changes.items():
            if name not in known:
                problem = "is changed with set_shards" if name == "shards" else "is no setting of a topic"
                raise InvalidInput(name, f"{problem}; these are: {', '.join(sorted(known))}")
            wanted = type(getattr(self, name))
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise InvalidInput(name, f"must be {wanted.__name__}, not {value!r}")
        try:
            return replace(self, **changes)
        except InvalidSetting as error:
            raise InvalidInput(error.setting, error.problem) from error


FORECAST_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, DAY_MS, 7 * DAY_MS)
"""The ends of the spans that a forecast tells, from now."""


@dataclass(frozen=True, slots=True)
class Span:
    """How many jobs are due in one span of time."""

    until_ms: int | None
    """Its end, from now; it begins where the one before ends. 0: what is due already. None: all that is later."""
    jobs: int


class TopicChanges(TypedDict, total=False):
    """What `configure` can change; each as in `TopicSettings`."""

    retention_ms: int
    dead_retention_ms: int
    dead_max: int
    keep_done_ms: int
    result_max_bytes: int
    max_rate: float
    max_pending: int
    max_ready: int
    misfire: Misfire
    grace_ms: int


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
    """How long the first waiting job has been due; 0 when none is. More than a second: no scheduler runs, or promotion
    is held back."""
    settings: Topic = Topic()

    @property
    def first_due(self) -> datetime | None:
        """`first_due_ms` as an aware datetime in UTC."""
        return None if self.first_due_ms is None else from_ms(self.first_due_ms)


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
