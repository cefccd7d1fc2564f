"""`Look`: one look at Redis for all pages, tabs and streams of a process, at most every five seconds.

    pages, streams ──▶ now() ──▶ the last look, while it is fresh; else a new one, shared by all callers meanwhile

A look takes one call for 50 shards, in a cluster one for each. If there are more than `SHARDS` shards, each look counts
those whose counts are the oldest, so that the cost stays the same however many topics there are.
`Checkup` keeps the findings of `wheelq doctor` in the same way.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheelq.admin import AsyncInspector, NodeInfo, WorkerInfo
from wheelq.admin.diagnosis import Finding, Level
from wheelq.admin.figures import by_slot
from wheelq.base.clock import Clock
from wheelq.base.fresh import Fresh
from wheelq.model.topic import TopicInfo
from wheelq.protocol.calls import registry, shard_counts
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.shard_counts import GroupCounts, ShardCounts, measure
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.dashboard.past import FleetReading, Flow, flow
from wheelq.transport import AsyncTransport

FRESH_S = 5.0
"""For how many seconds a look is reused."""
CHECKUP_FRESH_S = 30.0
"""For how many seconds the findings of a checkup are reused."""
SHARDS = 200
"""The most shards that are counted in one look."""
READINGS = 13
"""How many looks are kept to compute rates: those of a minute."""
_WORST_FIRST = {Level.PROBLEM: 0, Level.WARNING: 1, Level.OK: 2}


class GroupSeen(NamedTuple):
    """How far one consumer group of a topic is, all shards together."""

    topic: str
    name: str
    lag: int
    pending: int
    oldest_ms: int | None
    has_more: bool
    """Whether `lag` is only a lower bound."""
    workers: int
    """Workers of the group that live and serve the topic, by their heartbeats."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look saw."""

    at_ms: int
    """The server's time."""
    topics: Sequence[TopicInfo]
    nodes: Sequence[NodeInfo]
    workers: Sequence[WorkerInfo]
    groups: Sequence[GroupSeen]
    unreadable: dict[str, str]
    """Topics whose settings cannot be read here, and why."""
    flow: Flow
    """How much happened lately."""
    age_s: float = 0.0
    """How old the oldest of the counts is; more than `FRESH_S` only with many shards."""

    def topic(self, name: str) -> TopicInfo | None:
        """The topic with this name."""
        return next((info for info in self.topics if info.name == name), None)


class Look:
    """Looks at Redis on request, and remembers what it saw."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._inspector = AsyncInspector(transport, keys, clock)
        self._looking = Fresh(self._look, FRESH_S, clock)
        self._counts: dict[ShardKeys, tuple[float, ShardCounts]] = {}
        self._readings: deque[FleetReading] = deque(maxlen=READINGS)
        self._first: set[str] = set()

    async def showing(self, topic: str | None) -> Seen:
        """As `now`, but a look that shows this topic, if there is one by now. Raises: ServerError."""
        seen = await self.now()
        if topic is None or seen.topic(topic) is not None:
            return seen
        if await self._transport.send(registry.topic(self._keys, topic)) is None:
            return seen
        self.forget(topic)
        return await self.now()

    async def now(self) -> Seen:
        """Returns a look at most `FRESH_S` old. Raises: ServerError."""
        return await self._looking.get()

    def forget(self, topic: str | None = None) -> None:
        """Look again the next time, because something was changed, perhaps in this topic."""
        self._looking.forget()
        if topic is not None:
            self._first.add(topic)

    def close(self) -> None:
        """Look no longer."""
        self._looking.close()

    async def _look(self) -> Seen:
        listed, nodes, workers = await asyncio.gather(
            self._transport.send(registry.topics(self._keys)), self._inspector.nodes(), self._inspector.workers()
        )
        settings = listed.settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
        await self._count(shards)
        now = self._clock.monotonic()
        at_ms = await self._transport.send(server_time_us()) // 1000
        counts = [self._counts[shard][1] for shard in shards if shard in self._counts]
        known = [shard for shard in shards if shard in self._counts]
        age_s = max((now - self._counts[shard][0] for shard in known), default=0.0)
        self._readings.append(FleetReading.of(at_ms, nodes, workers))
        topics = shard_counts.add_up(settings, known, counts)
        groups = _groups(zip(known, counts, strict=True), workers)
        return Seen(at_ms, topics, nodes, workers, groups, listed.unreadable, flow(tuple(self._readings)), age_s)

    async def _count(self, shards: Sequence[ShardKeys]) -> None:
        """Count those that were never counted or are the oldest, and all of topics that were changed."""
        wanted = set(shards)
        self._counts = {shard: found for shard, found in self._counts.items() if shard in wanted}
        first, self._first = self._first, set()
        chosen = sorted(shards, key=lambda shard: (shard.topic not in first, self._since(shard)))[:SHARDS]
        parts = by_slot(self._transport.slot)(chosen)
        found = await asyncio.gather(*(self._transport.send(measure(part)) for part in parts))
        now = self._clock.monotonic()
        for part, measured in zip(parts, found, strict=True):
            self._counts |= {shard: (now, one.counts) for shard, one in zip(part, measured, strict=True)}

    def _since(self, shard: ShardKeys) -> float:
        return self._counts[shard][0] if shard in self._counts else float("-inf")


def _groups(counted: Iterable[tuple[ShardKeys, ShardCounts]], workers: Sequence[WorkerInfo]) -> list[GroupSeen]:
    parts: dict[tuple[str, str], list[GroupCounts]] = {}
    for shard, counts in counted:
        for group in counts.groups:
            parts.setdefault((shard.topic, group.name), []).append(group)
    serving = Counter((topic, worker.group) for worker in workers for topic in worker.topics)
    return [
        GroupSeen(
            topic,
            name,
            sum(part.lag for part in found),
            sum(part.pending for part in found),
            min((part.oldest_ms for part in found if part.oldest_ms is not None), default=None),
            any(part.is_more for part in found),
            serving[topic, name],
        )
        for (topic, name), found in sorted(parts.items())
    ]


class Checkup:
    """The findings of `wheelq doctor`, read at most every half minute for all viewers."""

    def __init__(self, inspector: AsyncInspector, clock: Clock) -> None:
        self._examining = Fresh(inspector.doctor, CHECKUP_FRESH_S, clock)

    async def findings(self) -> Sequence[Finding]:
        """Returns findings at most `CHECKUP_FRESH_S` old, the worst first. Raises: ServerError."""
        return sorted(await self._examining.get(), key=lambda finding: _WORST_FIRST[finding.level])

    def close(self) -> None:
        """Ask no longer."""
        self._examining.close()
