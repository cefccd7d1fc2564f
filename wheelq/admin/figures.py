"""Collects the data of the fleet's metrics: topics, groups, workers, schedulers, recurring jobs, the server.

The cost grows with the number of shards and groups, never with that of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wheelq.base.metrics import Lateness, Series
from wheelq.errors import Refused
from wheelq.model.topic import Topic, TopicInfo
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.protocol.calls import counts, heartbeats, recurring, registry, shard_counts
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.server import info, server_time_us
from wheelq.protocol.calls.shard_counts import AT_ONCE, Measure
from wheelq.protocol.keys import Keys, ShardKeys

NEAR_MS = 500
"""A shard with a job that is due within this time needs a leader."""
LOST_MS = 600_000
"""How long a worker that ended without a word is counted as lost."""
_YEAR_MS = 366 * 86_400_000

Parts = Callable[[Sequence[ShardKeys]], Sequence[Sequence[ShardKeys]]]
"""Divides shards into parts that one call may name."""


@dataclass(frozen=True, slots=True)
class RecurringTimes:
    """When a recurring job was due last, and is due next, in ms since the epoch; None: never."""

    last_ms: int | None
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """Topics, groups, workers, schedulers, recurring jobs and the server, at one moment."""

    now_ms: int
    """The server's time."""
    read: RegisteredTopics
    """The topics as last read."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    shards: Mapping[str, Sequence[Measure]] = field(default_factory=dict)
    """By topic."""
    histograms: Mapping[Series, Sequence[int]] = field(default_factory=dict)
    workers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Live workers by topic and group."""
    lost_workers: int = 0
    """Workers that ended without a word in the last ten minutes."""
    schedulers: int = 0
    recurring: Mapping[tuple[str, str], RecurringTimes] = field(default_factory=dict)
    """By topic and name; the first hundred of each topic."""
    open_destinations: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    """`INFO` about the server and its memory."""

    def without_leader(self, topic: str) -> int:
        """How many shards of a topic have a job that is due within half a second, or overdue, and no leader."""
        if self.topics[topic].paused or self.topics[topic].removing:
            return 0
        return sum(not one.has_leader and is_near(one) for one in self.shards[topic])


def is_near(shard: Measure) -> bool:
    """Whether the shard's first waiting job is due within `NEAR_MS`, or overdue."""
    first = shard.counts.first_due_ms
    return first is not None and first <= shard.counts.server_us // 1000 + NEAR_MS


def by_slot(slot: Callable[[str], int]) -> Parts:
    """Divides shards into calls of `AT_ONCE`; in a cluster each names the shards of one slot, which `slot` tells."""

    def divide(shards: Sequence[ShardKeys]) -> Sequence[Sequence[ShardKeys]]:
        found: dict[int, list[ShardKeys]] = {}
        for shard in shards:
            found.setdefault(slot(shard.delayed), []).append(shard)
        return [some[n : n + AT_ONCE] for some in found.values() for n in range(0, len(some), AT_ONCE)]

    return divide


def one_by_one(shards: Sequence[ShardKeys]) -> Sequence[Sequence[ShardKeys]]:
    """Returns each shard as a part of its own, as a cluster needs it."""
    return [[shard] for shard in shards]


def fleet(keys: Keys, parts: Parts = one_by_one, known: RegisteredTopics | None = None) -> Operation[Fleet]:
    """Collects the data. Topics that are `known` are read again only after a change. Raises: ServerError."""
    if known is None or known.version != (yield from ask(registry.topics_version(keys))):
        known = yield from ask(registry.topics(keys))
    topics = dict(sorted(known.settings.items()))
    shards = [keys.shard(name, n) for name, topic in topics.items() for n in range(topic.all_shards)]
    by_topic: dict[str, list[Measure]] = {name: [] for name in topics}
    divided = parts(shards)
    answers = yield from ask_all(shard_counts.measure(part) for part in divided)
    for part, measured in zip(divided, answers, strict=True):
        for shard, one in zip(part, measured, strict=True):
            by_topic[shard.topic].append(one)
    now_ms = (yield from ask(server_time_us())) // 1000
    said = yield from ask(heartbeats.alive(keys.workers))
    living = heartbeats.living(said, now_ms)
    silent = [now_ms - what.get("seen_ms", 0) for name, what in said.items() if name not in living]
    nodes = heartbeats.living((yield from ask(heartbeats.alive(keys.nodes))), now_ms)
    return Fleet(
        now_ms,
        known,
        topics,
        by_topic,
        (yield from ask(counts.histograms(keys))),
        Counter((topic, what.get("group", "")) for what in living.values() for topic in what.get("topics", ())),
        sum(0 < ms <= LOST_MS for ms in silent),
        len(nodes),
        (yield from _recurring(keys, by_topic)),
        Counter(name for what in living.values() for name in what.get("open_destinations", ())),
        (yield from _info()),
    )


def _recurring(
    keys: Keys, shards: Mapping[str, Sequence[Measure]]
) -> Operation[Mapping[tuple[str, str], RecurringTimes]]:
    topics = [topic for topic, measured in shards.items() if any(one.recurring for one in measured)]
    found: dict[tuple[str, str], RecurringTimes] = {}
    try:
        answers = yield from ask_all(recurring.near(keys.shard(topic, 0), _YEAR_MS) for topic in topics)
    except Refused:  # a read-only user may lack a right
        return found
    for topic, near in zip(topics, answers, strict=True):
        for one in near.coming:
            last, following = one.state.last_ms, one.state.next_ms
            found[topic, one.name] = RecurringTimes(
                None if last is None else one.rule.due_ms(one.name, last),
                None if following is None else one.rule.due_ms(one.name, following),
            )
    return found


def _info() -> Operation[Mapping[str, str]]:
    found: dict[str, str] = {}
    try:
        for section in ("server", "memory"):  # one by one: Redis 6.2 takes a single section
            found |= yield from ask(info(section))
    except Refused:
        pass
    return found


NOT_TOLD = Lateness()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The last heartbeat of a live scheduler node."""

    name: str
    seen_ms: int
    """When the heartbeat was sent, by the server's clock."""
    shards: int
    leading: int
    """How many of its shards it leads; other nodes lead the rest."""
    promoted: int
    clock_skew_ms: int
    """Its machine's clock minus the server's; harmless."""
    lateness: Lateness = NOT_TOLD
    """How late it promoted jobs: from due time to promotion, by the server's clock. Jobs that are due when they are
    scheduled do not count: the schedule call promotes them."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The last heartbeat of a live worker."""

    name: str
    seen_ms: int
    """When the heartbeat was sent, by the server's clock."""
    group: str
    topics: tuple[str, ...]
    running: int
    handled: int
    failed: int
    lateness_p99_ms: int
    """99 % of its handlers started within this many milliseconds after the due time."""
    skipped: int
    """Jobs that were too late, and were dropped or buried."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Every topic, live scheduler and live worker."""

    server_ms: int
    """The server's time when they were read."""
    topics: list[TopicInfo]
    nodes: list[NodeInfo]
    workers: list[WorkerInfo]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Topics whose settings cannot be read here, and why: a newer release or another program wrote them."""


def stats(keys: Keys) -> Operation[Stats]:
    """Returns every topic, live scheduler and live worker, by name."""
    settings, unreadable = (yield from ask(registry.topics(keys)))[1:]
    shards = [keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
    counts = yield from ask_all(shard_counts.counts(shard) for shard in shards)
    server_ms = (yield from ask(server_time_us())) // 1000
    return Stats(
        server_ms,
        shard_counts.add_up(settings, shards, counts),
        [_node(name, said) for name, said in (yield from _alive(keys.nodes, server_ms))],
        [_worker(name, said) for name, said in (yield from _alive(keys.workers, server_ms))],
        unreadable,
    )


def nodes(keys: Keys) -> Operation[list[NodeInfo]]:
    """Returns every live scheduler, by name."""
    server_ms = (yield from ask(server_time_us())) // 1000
    return [_node(name, said) for name, said in (yield from _alive(keys.nodes, server_ms))]


def workers(keys: Keys) -> Operation[list[WorkerInfo]]:
    """Returns every live worker, by name."""
    server_ms = (yield from ask(server_time_us())) // 1000
    return [_worker(name, said) for name, said in (yield from _alive(keys.workers, server_ms))]


def _alive(hash_key: str, server_ms: int) -> Operation[list[tuple[str, Mapping[str, Any]]]]:
    said = yield from ask(heartbeats.alive(hash_key))
    return sorted(heartbeats.living(said, server_ms).items())


def _node(name: str, said: Mapping[str, Any]) -> NodeInfo:
    figures = ("seen_ms", "shards", "leading", "promoted", "clock_skew_ms")
    lateness = Lateness(said.get("late_ms", 0), tuple(said.get("lateness", ())))
    return NodeInfo(name, **{figure: said.get(figure, 0) for figure in figures}, lateness=lateness)


def _worker(name: str, said: Mapping[str, Any]) -> WorkerInfo:
    figures = (said.get(figure, 0) for figure in ("running", "handled", "failed", "lateness_p99_ms", "skipped"))
    return WorkerInfo(name, said.get("seen_ms", 0), said.get("group", "?"), tuple(said.get("topics", ())), *figures)
