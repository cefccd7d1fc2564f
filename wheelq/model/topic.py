"""Topics as callers see them: settings and terms, groups, counts now and minute by minute; a client's cache of them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, TypedDict

from wheelq.errors import InvalidInput, InvalidSetting
from wheelq.model.job import from_ms
from wheelq.settings import DAY_MS, Misfire, OnMismatch, TopicSettings

SHARDS_LIMIT = 10_000
"""More shards are nearly always a mistake: each needs a leader, a lease and regular reads."""

LONGEST_INTERVAL_US = 366 * 86_400 * 1_000_000
"""The longest pause of a rate: even the lowest rate promotes a job a year."""
MOST_AT_ONCE = 1_000_000
"""The most jobs that any rate promotes at once."""
REMOVING = "0 removing"
"""The terms of a topic that is being removed: it has no shards, so no producer's terms match them."""
HALF_DONE_S = 0.3
"""A change of terms that takes longer may have been left half done, so a leader continues in spite of it."""
BURST_S = 0.1
"""How many seconds of a topic's rate may be promoted at once, so that a late leader can catch up."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """The limits on promotion in one shard; 0 is no limit."""

    interval_us: int
    """Microseconds between two jobs."""
    burst: int
    """The most jobs at once, after a while without promotions."""
    most_ready: int
    """The most unread jobs: with this many, none is promoted."""
    key_concurrency: int = 0
    key_rate: float = 0.0
    """The limits of each partition key."""


@dataclass(frozen=True, slots=True)
class Topic(TopicSettings):
    """A topic as stored in Redis: its settings, and the former numbers of shards that still hold jobs.

        client.configure("orders", max_rate=100, keep_done_ms=86_400_000)
        settings = client.topic("orders").settings
        print(settings.max_rate, settings.paused)

    After a change of `shards`, jobs that were placed by a former number stay where they are until they have run. New
    jobs are never placed by it (the shards refuse them), and look-ups ask there too. A scheduler node drops the former
    number when none of its jobs is left (`scheduler.draining`).
    """

    draining: tuple[int, ...] = ()
    """Former numbers of shards that may still hold jobs, the latest first."""
    drained_by_ms: int = 0
    """When the last job of the former numbers is due."""
    paused: bool = False
    """Whether the topic is paused: no job is promoted or started."""
    removed_groups: tuple[tuple[str, int], ...] = ()
    """Groups removed lately, and when (server ms): workers still running for one do not create it again."""
    removing: bool = False
    """Whether the topic is being removed: it takes no jobs, and no worker or scheduler serves it."""
    version: int = field(default=0, compare=False)
    """How often its terms were changed. A shard refuses terms of an older version than its own."""

    @property
    def all_shards(self) -> int:
        """How many shards must be led and read: those in use, and former ones that may still hold jobs."""
        return max((self.shards, *self.draining))

    @property
    def numbers(self) -> set[int]:
        """The number of shards in force, and the former ones by which jobs may still be placed."""
        return {self.shards, *self.draining}

    @property
    def is_shaped(self) -> bool:
        """Whether `max_rate`, `max_ready` or a limit per key limits promotion."""
        return self.max_rate > 0 or self.max_ready > 0 or self.has_key_limits

    @property
    def has_key_limits(self) -> bool:
        """Whether `key_concurrency` or `key_rate` limits the jobs of each partition key."""
        return self.key_concurrency > 0 or self.key_rate > 0

    @property
    def terms(self) -> str:
        """The facts about the topic that every write to a shard depends on, as one line; each shard keeps a copy.

        The terms are the number of shards and, in a topic with limits, the most jobs that may wait in one shard,
        whether promotion is "free", "shaped" or "paused", its limits, and those per key if there are any. Producers and
        leaders send the terms they know, and a shard refuses calls with other terms; so a change is in force as soon as
        the shards have it.
        """
        if self.removing:
            return REMOVING
        state = "paused" if self.paused else "shaped" if self.is_shaped else "free"
        if state == "free" and not self.max_pending:
            return str(self.shards)
        room = max(1, self.max_pending // self.shards) if self.max_pending else 0
        per_key = f" {self.key_concurrency} {float(self.key_rate)!r}" if self.has_key_limits else ""
        return f"{self.shards} {room} {state} {float(self.max_rate)!r} {self.max_ready}{per_key}"

    @property
    def known_terms(self) -> str:
        """The terms and their version, as producers send them.

        Without the version, a shard would take jobs from a producer that has missed two changes of the number of
        shards, of which the second took back the first: it does not know where else a job with the id may wait.
        """
        return f"{self.terms} @{self.version}"

    def places(self, partition_key: str) -> list[int]:
        """The shard where a job with this partition key (or id) belongs, then the shards where it may still be."""
        found = [shard_of(partition_key, shards) for shards in (self.shards, *self.draining)]
        return list(dict.fromkeys(found))

    def is_behind(self, version: int) -> bool:
        """Whether this topic is older than a shard's terms, which come from a change that is not published yet.

        Otherwise the shard is behind: it missed a change, or the change was taken for half done.
        """
        return version > self.version

    def may_be_misplaced_in(self, shard: int) -> bool:
        """Whether a former number of shards may have placed jobs in this shard that now belong elsewhere."""
        return any(shard < former and former % self.shards for former in self.draining)

    def resharded(self, shards: int, last_due_ms: int) -> Topic:
        """Returns the topic with another number of shards; the last waiting job is due at `last_due_ms`."""
        if shards == self.shards:
            return self
        former = tuple(count for count in (self.shards, *self.draining) if count != shards)
        return replace(
            self,
            shards=shards,
            draining=tuple(dict.fromkeys(former)),
            drained_by_ms=max(self.drained_by_ms, last_due_ms),
        )

    def with_former(self, other: Topic) -> Topic:
        """Returns the topic, with the numbers of shards of `other` among its former ones."""
        former = dict.fromkeys((*self.draining, other.shards, *other.draining))
        return replace(self, draining=tuple(number for number in former if number != self.shards))

    def without_group(self, group: str, now_ms: int) -> Topic:
        """Returns the topic after the removal of this group."""
        recent = ((name, at) for name, at in self.removed_groups if name != group and at > now_ms - DAY_MS)
        return replace(self, removed_groups=(*recent, (group, now_ms)))

    def with_group(self, group: str) -> Topic:
        """Returns the topic, with this group allowed again after its removal."""
        return replace(self, removed_groups=tuple(one for one in self.removed_groups if one[0] != group))

    def has_removed(self, group: str) -> bool:
        """Whether the group was removed lately, and no worker has started for it since."""
        return any(name == group for name, _ in self.removed_groups)

    def configured(self, changes: Mapping[str, Any]) -> Topic:
        """Returns the topic with changed settings. Raises: InvalidInput."""
        known = TopicChanges.__annotations__.keys()
        for name, value in changes.items():
            if name not in known:
                problem = "is changed with set_shards" if name == "shards" else "is not a setting of a topic"
                raise InvalidInput(name, f"{problem}; these are: {', '.join(sorted(known))}")
            wanted = type(getattr(_DEFAULTS, name))
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise InvalidInput(name, f"must be {wanted.__name__}, not {value!r}")
        try:
            return replace(self, **changes)
        except InvalidSetting as error:
            raise InvalidInput(error.setting, error.problem) from error


_DEFAULTS = Topic()

FORECAST_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, DAY_MS, 7 * DAY_MS)
"""The ends of a forecast's spans, from now."""


@dataclass(frozen=True, slots=True)
class Span:
    """How many jobs are due in one span of time."""

    until_ms: int | None
    """Its end, from now; it begins where the previous span ends. 0: jobs already due. None: all later jobs."""
    jobs: int


class TopicChanges(TypedDict, total=False):
    """The settings that `configure` can change; `TopicSettings` describes each."""

    max_rate: float
    max_pending: int
    max_ready: int
    key_concurrency: int
    key_rate: float
    misfire: Misfire
    grace_ms: int
    on_mismatch: OnMismatch
    mismatch_ms: int
    retention_ms: int
    keep_done_ms: int
    result_max_bytes: int
    dead_retention_ms: int
    dead_max: int
    on_dead: str


@dataclass(frozen=True, slots=True)
class Group:
    """The progress of one consumer group in a topic, all shards together."""

    name: str
    lag: int
    """Entries not yet delivered to the group: first attempts, and its own and other groups' retries."""
    pending: int
    """Jobs delivered to a worker and not acknowledged."""
    oldest_ms: int | None
    """When the oldest undelivered or unacknowledged entry was promoted, in ms since the epoch; None without any."""
    workers: tuple[str, ...]
    """Live workers, by their heartbeats, and consumers without heartbeats that were active in the last 15 seconds."""
    has_more: bool = False
    """Whether `lag` is only a lower bound: the server did not report it, and counting stopped there."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The counts of one topic now, all shards together.

    Each live job is counted once, in the state that `client.get` returns for it, however many groups there are.
    """

    name: str
    shards: int
    """The number of its shards."""
    waiting: int
    """Jobs that wait for their due time."""
    ready: int
    """Jobs that were promoted, and that some group has not delivered to a worker."""
    running: int
    """Jobs that were delivered to a worker and are not acknowledged."""
    retrying: int
    """Jobs that failed and wait for their next attempt."""
    dead: int
    """Dead letters, to be replayed or purged: one for each group that gave a job up, whether or not others have it."""
    first_due_ms: int | None
    """When the first waiting job is due, apart from those held back for their keys; None when nothing else waits."""
    overdue_ms: int
    """How long this job has been due; 0 if it is not. More than a second means that no scheduler runs or
    that promotion is limited."""
    settings: Topic = Topic()
    """Its settings as stored."""
    held_back: int = 0
    """Waiting jobs that are due, and are held back because their partition keys are at their limits."""
    keys_at_limit: int = 0
    """The number of these keys; at most 100 are counted in each shard."""
    longest_held_ms: int = 0
    """How long the first of these jobs has been due."""

    @property
    def first_due(self) -> datetime | None:
        """`first_due_ms` as an aware datetime in UTC."""
        return None if self.first_due_ms is None else from_ms(self.first_due_ms)


KEPT_HOURS = 72
"""For how many hours minutes are kept."""


@dataclass(frozen=True, slots=True)
class TopicMinute:
    """What happened in a topic in one minute, all shards and groups together."""

    FIGURES: ClassVar[int] = 6
    """How many counters of a minute are stored."""

    at_ms: int
    """When the minute began, in ms since the epoch."""
    scheduled: int = 0
    """Jobs that were made."""
    promoted: int = 0
    """Jobs that became ready, retries among them."""
    done: int = 0
    """Runs that succeeded; a job has one in each group."""
    retried: int = 0
    """Runs that failed and are repeated later."""
    buried: int = 0
    """Runs that failed for good: their jobs are dead."""
    late: int = 0
    """Jobs that were promoted a second (1,024 ms) or more after their due time."""

    @property
    def at(self) -> datetime:
        """`at_ms` as an aware datetime in UTC."""
        return from_ms(self.at_ms)

    def __add__(self, other: TopicMinute) -> TopicMinute:
        return TopicMinute(
            self.at_ms,
            self.scheduled + other.scheduled,
            self.promoted + other.promoted,
            self.done + other.done,
            self.retried + other.retried,
            self.buried + other.buried,
            self.late + other.late,
        )


def check_hours(hours: int) -> int:
    """Returns the number of hours to look back, if it is valid. Raises: InvalidInput."""
    if type(hours) is not int or not 1 <= hours <= KEPT_HOURS:
        raise InvalidInput("hours", f"must be a whole number from 1 to {KEPT_HOURS}, not {hours!r}")
    return hours


def shaping_of(topic: Topic, shard: int) -> Shaping | None:
    """Returns the limits on promotion in one shard; None if there are none.

    The shards of a number share a limit evenly. While former numbers may still hold jobs, each number has the same
    part of it, so that neither a few old jobs nor a backlog of them leaves the others a small fraction. Limits per key
    are not shared: all jobs of a key are in one shard.
    """
    if not topic.is_shaped:
        return None
    numbers = topic.numbers
    share = sum(1 / number for number in numbers if shard < number) / len(numbers)
    rate = topic.max_rate * share
    most_ready = max(1, int(topic.max_ready * share + 1e-9)) if topic.max_ready else 0
    per_key = topic.key_concurrency, float(topic.key_rate)
    if not rate:
        return Shaping(0, 0, most_ready, *per_key)
    interval_us = math.ceil(min(1_000_000 / rate, LONGEST_INTERVAL_US))
    return Shaping(max(1, interval_us), max(1, int(min(rate * BURST_S, MOST_AT_ONCE))), most_ready, *per_key)


def shard_of(partition_key: str, shards: int) -> int:
    """Returns the shard of a job: a hash of its partition key (or its id), the same on every machine."""
    return 0 if shards == 1 else zlib.crc32(partition_key.encode()) % shards


def shards_in(terms: str) -> int:
    """Returns the number of shards that these terms name; 0 for "" and for a topic that is being removed."""
    return int(terms.partition(" ")[0] or 0)
