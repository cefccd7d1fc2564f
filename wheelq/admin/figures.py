"""The figures of the fleet, read and derived in one place.

    fleet()  ──▶ Fleet: topics, groups, schedulers, workers    ──▶ wheelq stats, top, doctor · pages · /metrics
    Flow     ◀── what happened between two readings, and rates ──▶ wheelq top · pages

Schedulers and workers are known by their heartbeats, one every five seconds. A heartbeat is valid for 15 seconds by the
server's clock, so a killed process, whose entry stays behind, is not listed after that. The cost of a reading grows
with the number of shards and groups, never with that of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from wheelq.base.metrics import Lateness, Series
from wheelq.base.plural import counted
from wheelq.errors import Refused
from wheelq.model.topic import TopicInfo
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.protocol.call import Call
from wheelq.protocol.calls import heartbeats, recurring, registry, shard_counts
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.shard_counts import AT_ONCE, GroupCounts, Measure
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import BreakerSettings

ASKS_ALWAYS = BreakerSettings(failures=1_000_000_000)
"""For readers of figures: an operator wants the server's own answer each time."""
NEAR_MS = 500
"""A shard with a job that is due within this time needs a leader."""
LOST_MS = 600_000
"""How long a worker that ended without a word is counted as lost."""
COURIER_LATE_S = 60
COURIER_FORGOTTEN_MS = 7 * 86_400_000
"""How long a SQL outbox is listed after its last courier has ended without a word."""
NOT_TOLD = Lateness()
NO_VERSION = "-"
_YEAR_MS = 366 * 86_400_000

Parts = Callable[[Sequence[ShardKeys]], Sequence[Sequence[ShardKeys]]]
"""Divides shards into parts that one call may name."""
Measures = Mapping[ShardKeys, Measure]
"""The figures of shards, sorted by topic."""


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
    version: str = NO_VERSION
    """The version of wheelq that it runs; "-" if its heartbeats do not tell it."""


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
    version: str = NO_VERSION
    """The version of wheelq that it runs; "-" if its heartbeats do not tell it."""


@dataclass(frozen=True, slots=True)
class CourierInfo:
    """The last report of the courier that delivers from a SQL outbox."""

    place: str
    """The outbox: host, database and table."""
    seen_ms: int
    """When it was sent, by the server's clock."""
    courier: str
    waiting: int
    """Calls that wait in the table, counted up to 100,000."""
    oldest_s: float
    """How long the first of them has waited."""
    aside: int
    """Calls that were put aside."""
    delivered: int
    """Calls that this courier has delivered."""
    version: str
    lives: bool
    """Whether the report is recent."""

    def troubles(self) -> Iterator[tuple[bool, str, str]]:
        """Yields for `doctor` what is wrong: whether nobody delivers, what it is, and what to do."""
        where = f"in the SQL outbox {self.place}"
        if not self.lives:
            yield True, f"No courier delivers what is {where}", "Start one: wheelq courier --database URL."
        elif self.oldest_s > COURIER_LATE_S:
            why = "Look at the courier's log, and at full topics: wheelq outbox --database URL."
            yield False, f"The first call {where} has waited for {self.oldest_s:,.0f} s", why
        if self.aside:
            why = "wheelq outbox --database URL says why; with --retry they are sent again."
            yield False, f"{counted(self.aside, 'call was', 'calls were')} put aside {where}", why


P = TypeVar("P", NodeInfo, WorkerInfo)


class Processes(NamedTuple):
    """The schedulers and workers that live at one moment, by name."""

    at_ms: int
    """The server's time."""
    nodes: list[NodeInfo]
    workers: list[WorkerInfo]
    lost_workers: int = 0
    """Workers that ended without a word in the last ten minutes."""
    open_destinations: frozenset[str] = frozenset()
    """Receivers of callbacks that some worker does not call, because they failed too often."""
    couriers: tuple[CourierInfo, ...] = ()
    """What the courier of each SQL outbox has told last, also of those that are gone."""


class GroupFigures(NamedTuple):
    """How far one consumer group of a topic is, all shards together."""

    topic: str
    name: str
    lag: int
    """Entries not yet delivered to the group."""
    pending: int
    """Deliveries that are not acknowledged."""
    oldest_ms: int | None
    """When the oldest of these entries was promoted."""
    has_more: bool
    """Whether `lag` is only a lower bound."""
    workers: int
    """Workers of the group that live and serve the topic."""


class RecurringTimes(NamedTuple):
    """When a recurring job was due last, and is due next, in ms since the epoch; None: never."""

    last_ms: int | None
    next_ms: int | None


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


@dataclass(frozen=True)
class Fleet:
    """Topics, groups, schedulers and workers at one moment."""

    registered: RegisteredTopics
    measures: Measures
    processes: Processes
    age_s: float = 0.0
    """How old the oldest of the measures is, if not all shards were measured this time."""
    recurring: Mapping[tuple[str, str], RecurringTimes] = field(default_factory=dict)
    """By topic and name, the first hundred of each topic; only for `doctor` and metrics."""
    histograms: Mapping[Series, Sequence[int]] = field(default_factory=dict)
    """Only for metrics."""
    info: Mapping[str, str] = field(default_factory=dict)
    """`INFO` about the server and its memory, only for metrics."""

    @property
    def at_ms(self) -> int:
        """The server's time."""
        return self.processes.at_ms

    @cached_property
    def shards(self) -> Mapping[str, Sequence[Measure]]:
        """The measured shards of each topic."""
        found: dict[str, list[Measure]] = {}
        for shard, one in self.measures.items():
            found.setdefault(shard.topic, []).append(one)
        return found

    @cached_property
    def topics(self) -> list[TopicInfo]:
        """Every topic with its job counts, by name."""
        counts = [one.counts for one in self.measures.values()]
        return shard_counts.add_up(self.registered.settings, [*self.measures], counts)

    @cached_property
    def serving(self) -> Mapping[tuple[str, str], int]:
        """How many live workers serve each topic and group."""
        return Counter((topic, worker.group) for worker in self.processes.workers for topic in worker.topics)

    @cached_property
    def groups(self) -> list[GroupFigures]:
        """Every group of every topic, by topic and name."""
        parts: dict[tuple[str, str], list[GroupCounts]] = {}
        for shard, one in self.measures.items():
            for group in one.counts.groups:
                parts.setdefault((shard.topic, group.name), []).append(group)
        return [
            GroupFigures(
                topic,
                name,
                sum(part.lag for part in found),
                sum(part.pending for part in found),
                min((part.oldest_ms for part in found if part.oldest_ms is not None), default=None),
                any(part.is_more for part in found),
                self.serving.get((topic, name), 0),
            )
            for (topic, name), found in sorted(parts.items())
        ]

    def topic(self, name: str) -> TopicInfo | None:
        return next((info for info in self.topics if info.name == name), None)

    def without_leader(self, topic: str) -> int:
        """How many shards of a topic have a job that is due within half a second, or overdue, and no leader."""
        settings = self.registered.settings[topic]
        if settings.paused or settings.removing:
            return 0
        return sum(not one.has_leader and _is_near(one) for one in self.shards[topic])

    def stats(self) -> Stats:
        """Returns what `wheelq stats` shows."""
        at_ms, nodes, workers, *_ = self.processes
        return Stats(at_ms, self.topics, nodes, workers, self.registered.unreadable)


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened within some seconds, all processes together."""

    seconds: float
    """0: there is only one reading yet, and no rate is known."""
    promoted: int
    handled: int
    failed: int
    lateness: Lateness

    @classmethod
    def between(cls, before: Processes, after: Processes) -> Flow:
        if before is after:
            return cls(0.0, 0, 0, 0, Lateness())
        former = {node.name: node.lateness for node in before.nodes}
        lateness = sum((_later(former.get(node.name), node.lateness) for node in after.nodes), Lateness())
        return cls(
            max(0.001, (after.at_ms - before.at_ms) / 1000),
            sum(grown(before.nodes, after.nodes, "promoted").values()),
            sum(grown(before.workers, after.workers, "handled").values()),
            sum(grown(before.workers, after.workers, "failed").values()),
            lateness,
        )


def all_allowed(calls: Iterable[Call[dict[str, str]]]) -> Operation[dict[str, str] | None]:
    """Asks one by one; returns all answers in one, or None if the command is denied or does not exist."""
    found: dict[str, str] = {}
    try:
        for call in calls:
            found |= yield from ask(call)
    except Refused:
        return None
    return found


def number(values: Mapping[str, str], name: str) -> int:
    """Returns a number among what a server reports; 0 if it is missing or not a number."""
    text = values.get(name, "0")
    return int(text) if text.isdecimal() else 0


def grown(before: Sequence[P], after: Sequence[P], figure: str) -> dict[str, int]:
    """Returns how much a figure of each process has grown.

    A process counts from its start: one that is new, or was restarted under its name, has grown from zero.
    """
    former: dict[str, int] = {one.name: getattr(one, figure) for one in before}
    counts: dict[str, int] = {one.name: getattr(one, figure) for one in after}
    return {name: count - then if (then := former.get(name, 0)) <= count else count for name, count in counts.items()}


def rates(before: Sequence[P], after: Sequence[P], figure: str) -> dict[str, float | None]:
    """Returns by how much a figure of each process grows per second; None for one without two heartbeats."""
    former, more = {one.name: one.seen_ms for one in before}, grown(before, after, figure)
    passed_ms = {one.name: one.seen_ms - former.get(one.name, one.seen_ms) for one in after}
    return {name: more[name] * 1000 / ms if ms > 0 else None for name, ms in passed_ms.items()}


def by_slot(slot: Callable[[str], int]) -> Parts:
    """Divides shards into calls of `AT_ONCE`; in a cluster each names the shards of one slot, which `slot` tells."""

    def divide(shards: Sequence[ShardKeys]) -> Sequence[Sequence[ShardKeys]]:
        found: dict[int, list[ShardKeys]] = {}
        for shard in shards:
            found.setdefault(slot(shard.delayed), []).append(shard)
        return [some[n : n + AT_ONCE] for some in found.values() for n in range(0, len(some), AT_ONCE)]

    return divide


def fleet(keys: Keys, parts: Parts, known: RegisteredTopics | None = None) -> Operation[Fleet]:
    """Reads the fleet. Topics that are `known` are read again only after a change. Raises: ServerError."""
    topics = yield from registered(keys, known)
    measures = yield from measured(shards_of(keys, topics), parts)
    return Fleet(topics, measures, (yield from processes(keys)))


def registered(keys: Keys, known: RegisteredTopics | None) -> Operation[RegisteredTopics]:
    """Returns every topic, read again only if one has changed since it was `known`."""
    if known is not None and known.version == (yield from ask(registry.topics_version(keys))):
        return known
    return (yield from ask(registry.topics(keys)))


def shards_of(keys: Keys, topics: RegisteredTopics) -> list[ShardKeys]:
    """Returns every shard, sorted by topic."""
    return [keys.shard(name, n) for name, topic in sorted(topics.settings.items()) for n in range(topic.all_shards)]


def measured(shards: Sequence[ShardKeys], parts: Parts) -> Operation[Measures]:
    """Measures these shards; returns their figures in the same order."""
    divided = parts(shards)
    answers = yield from ask_all(shard_counts.measure(part) for part in divided)
    found: dict[ShardKeys, Measure] = {}
    for part, measures in zip(divided, answers, strict=True):
        found |= zip(part, measures, strict=True)
    return {shard: found[shard] for shard in shards}


def nodes(keys: Keys) -> Operation[list[NodeInfo]]:
    """Returns every live scheduler, by name."""
    return (yield from _nodes(keys, (yield from ask(server_time_us())) // 1000))


def processes(keys: Keys) -> Operation[Processes]:
    """Returns every live scheduler and worker, by name."""
    now_ms = (yield from ask(server_time_us())) // 1000
    told = yield from ask(heartbeats.alive(keys.workers))
    living = heartbeats.living(told, now_ms)
    silent_ms = [now_ms - what.get("seen_ms", 0) for name, what in told.items() if name not in living]
    return Processes(
        now_ms,
        (yield from _nodes(keys, now_ms)),
        [_worker(name, what) for name, what in sorted(living.items())],
        sum(0 < ms <= LOST_MS for ms in silent_ms),
        frozenset(name for what in living.values() for name in what.get("open_destinations", ())),
        tuple((yield from _couriers(keys, now_ms))),
    )


def _couriers(keys: Keys, now_ms: int) -> Operation[list[CourierInfo]]:
    told = yield from ask(heartbeats.alive(keys.couriers))
    living = heartbeats.living(told, now_ms)
    figures = ("seen_ms", "courier", "waiting", "oldest_s", "aside", "delivered")
    return [
        CourierInfo(
            place, **{name: what.get(name, 0) for name in figures}, version=_version(what), lives=place in living
        )
        for place, what in sorted(told.items())
        if now_ms - what.get("seen_ms", 0) < COURIER_FORGOTTEN_MS
    ]


def recurring_times(keys: Keys, seen: Fleet) -> Operation[Mapping[tuple[str, str], RecurringTimes]]:
    """Returns when the recurring jobs of each topic were due and will be, by topic and name."""
    topics = [topic for topic, shards in seen.shards.items() if any(one.recurring for one in shards)]
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


def _is_near(shard: Measure) -> bool:
    """Whether a waiting job of the shard is due within `NEAR_MS`, overdue, or held back for its key."""
    if shard.counts.held_back:
        return True
    first = shard.counts.first_due_ms
    return first is not None and first <= shard.counts.server_us // 1000 + NEAR_MS


def _later(before: Lateness | None, after: Lateness) -> Lateness:
    """Returns the lateness of the jobs since the former reading of a process."""
    if before is None or before.jobs > after.jobs:
        return after
    pairs = zip_longest(after.counts, before.counts, fillvalue=0)
    return Lateness(after.total_ms - before.total_ms, tuple(max(0, now - then) for now, then in pairs))


def _nodes(keys: Keys, now_ms: int) -> Operation[list[NodeInfo]]:
    living = heartbeats.living((yield from ask(heartbeats.alive(keys.nodes))), now_ms)
    return [_node(name, told) for name, told in sorted(living.items())]


def _node(name: str, told: Mapping[str, Any]) -> NodeInfo:
    figures = ("seen_ms", "shards", "leading", "promoted", "clock_skew_ms")
    lateness = Lateness(told.get("late_ms", 0), tuple(told.get("lateness", ())))
    return NodeInfo(
        name, **{figure: told.get(figure, 0) for figure in figures}, lateness=lateness, version=_version(told)
    )


def _worker(name: str, told: Mapping[str, Any]) -> WorkerInfo:
    names = ("seen_ms", "running", "handled", "failed", "lateness_p99_ms", "skipped")
    figures = {figure: told.get(figure, 0) for figure in names}
    group, topics = told.get("group", "?"), tuple(told.get("topics", ()))
    return WorkerInfo(name, group=group, topics=topics, **figures, version=_version(told))


def _version(told: Mapping[str, Any]) -> str:
    return str(told.get("version", NO_VERSION))
