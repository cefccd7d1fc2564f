"""How many jobs a shard holds in each state, how far its groups are, and what metrics read from many shards at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from wheelq.model.topic import Topic, TopicInfo
from wheelq.protocol import scores
from wheelq.protocol.call import Call, command, scripted
from wheelq.protocol.calls.counts import read_counted
from wheelq.protocol.keys import ShardKeys


class GroupCounts(NamedTuple):
    """The progress of one consumer group in a shard."""

    name: str
    lag: int
    """Entries not yet delivered to the group."""
    is_more: bool
    """Whether `lag` is only a lower bound: the server did not report it, and counting stopped there."""
    pending: int
    """Deliveries that are not acknowledged."""
    oldest_ms: int | None
    """When the oldest of these entries was promoted."""


class ShardCounts(NamedTuple):
    """How many jobs one shard holds in each state, and the progress of its groups."""

    waiting: int
    ready: int
    running: int
    retrying: int
    dead: int
    first_due_ms: int | None
    server_us: int
    groups: tuple[GroupCounts, ...] = ()
    held_back: int = 0
    keys_at_limit: int = 0
    held_since_ms: int | None = None
    """When the first of the jobs that are held back was due."""


def first_due(keys: ShardKeys) -> Call[int | None]:
    """When the first waiting job of a shard that is not held back for its key is due; None without any."""

    def read(reply: list[bytes]) -> int | None:
        return scores.due_ms(reply[1]) if reply and not scores.is_held_back(reply[1]) else None

    return command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", read=read, key=keys.delayed)


def groups(keys: ShardKeys) -> Call[list[str]]:
    """The names of a shard's consumer groups, except those being removed."""
    wanted = (keys.ready, keys.groups)
    return scripted("groups", wanted, (), lambda reply: [name.decode() for name in reply if _is_text(name)])


def counts(keys: ShardKeys) -> Call[ShardCounts]:
    """Count the jobs of a shard, and read the progress of its groups."""

    return scripted("counts", (keys.delayed, keys.ready, keys.dead, keys.jobs, keys.retries), (), read_counts)


def read_counts(reply: list[Any]) -> ShardCounts:  # the script's answer for one shard
    waiting, ready, running, retrying, dead, first, server_us, (held, keys, since), *groups = reply
    due_ms = scores.due_ms(first) if first else None
    since_ms = scores.due_ms(since) if since else None
    counts = waiting, ready, running, retrying, dead
    return ShardCounts(*counts, due_ms, int(server_us), _groups(groups), held, keys, since_ms)


def _is_text(name: bytes) -> bool:
    """Whether a group name is text; another program may have named a group with any bytes."""
    return name.decode(errors="ignore").encode() == name


def _groups(reply: Sequence[Any]) -> tuple[GroupCounts, ...]:
    return tuple(
        GroupCounts(name.decode(), lag, is_more == 1, pending, int(oldest.partition(b"-")[0]) if oldest else None)
        for name, lag, is_more, pending, oldest in reply
        if _is_text(name)
    )


def forecast(keys: ShardKeys, ends_ms: Sequence[int]) -> Call[list[int]]:
    """Count a shard's waiting jobs by due time: overdue, in each span up to `ends_ms` from now, and later."""
    return scripted("forecast", (keys.delayed,), ends_ms, list)


def add_up(topics: Mapping[str, Topic], shards: Sequence[ShardKeys], counts: Sequence[ShardCounts]) -> list[TopicInfo]:
    """Returns the counts of each topic from those of its shards; `shards` names them, sorted by topic."""
    found = []
    for topic, pairs in groupby(zip(shards, counts, strict=True), key=lambda pair: pair[0].topic):
        parts = [count for _, count in pairs]
        first_due_ms = min((part.first_due_ms for part in parts if part.first_due_ms is not None), default=None)
        now_ms = parts[0].server_us // 1000
        held_since_ms = min((part.held_since_ms for part in parts if part.held_since_ms is not None), default=now_ms)
        found.append(
            TopicInfo(
                topic,
                topics[topic].shards,
                sum(part.waiting for part in parts),
                sum(part.ready for part in parts),
                sum(part.running for part in parts),
                sum(part.retrying for part in parts),
                sum(part.dead for part in parts),
                first_due_ms,
                0 if first_due_ms is None else max(0, now_ms - first_due_ms),
                topics[topic],
                sum(part.held_back for part in parts),
                sum(part.keys_at_limit for part in parts),
                max(0, now_ms - held_since_ms),
            )
        )
    return found


AT_ONCE = 50
"""The most shards in one call, which takes about two milliseconds. In a cluster it is one: each shard has its own
slot."""
WITHIN_MS = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "1d": 86_400_000}


class Measure(NamedTuple):
    """One shard."""

    counts: ShardCounts
    due: Sequence[int]
    """How many jobs are due within each of `WITHIN_MS`, including overdue ones."""
    has_leader: bool
    counted: Mapping[tuple[str, str], int]
    """Total jobs of the shard, by outcome and group."""
    recurring: int
    """How many recurring jobs have a next occurrence."""
    outgoing: int = 0
    """How many followers are on their way to other shards."""
    claims: int = 0
    """How often the first of these was claimed, because its target had not taken it."""


def measure(shards: Sequence[ShardKeys]) -> Call[list[Measure]]:
    """Measure up to 50 shards, in order. In a cluster all of them must lie in one slot."""
    keys = [
        name
        for one in shards
        for name in (
            *(one.delayed, one.ready, one.dead, one.jobs, one.retries),
            *(one.lease, one.counts, one.occurrences, one.outgoing),
        )
    ]

    def read(reply: list[Any]) -> list[Measure]:
        return [
            Measure(read_counts(counts), due, leaders > 0, read_counted(counted), *others)
            for counts, due, leaders, counted, *others in reply
        ]

    return scripted("measure", keys, tuple(WITHIN_MS.values()), read)
