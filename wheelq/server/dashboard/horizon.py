"""`Horizon`: how many jobs are due when, topic by topic. The sorted sets are counted by ranges, never read.

Each shard answers one call with all bars of the window, in O(bars · log jobs). A topic whose first job is due after the
window is not asked. All viewers share the counts of a window; the longer the window, the longer they
are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.model.topic import TopicInfo
from wheelq.protocol.calls import shard_counts
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.server.dashboard.asking import ask_all
from wheelq.server.dashboard.charts import TimeWindow
from wheelq.transport import AsyncTransport

SHARDS = 1_000
"""The most shards that are asked for one page."""
KEPT = 50
"""The most windows that are remembered."""
SHORTEST_S, LONGEST_S = 4.0, 60.0


@dataclass(frozen=True, slots=True)
class TopicLane:
    """How many jobs of one topic are due in each bar of a window."""

    topic: str
    overdue: int
    """Due already."""
    bars: tuple[int, ...]
    later: int

    @property
    def jobs(self) -> int:
        """How many are due within the window."""
        return sum(self.bars)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The jobs that are due in a window."""

    window: TimeWindow
    now_ms: int
    lanes: Sequence[TopicLane]
    """One for each topic asked for, the fullest first."""
    left_out: int
    """Topics that were not asked, because there are too many shards."""

    @property
    def bars(self) -> list[int]:
        """How many jobs are due in each bar, all topics together."""
        return [sum(counts) for counts in zip(*(lane.bars for lane in self.lanes), strict=True)] or [
            0
        ] * self.window.bars


class Horizon:
    """Counts the jobs that are due, and caches the counts for a short time."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._kept: dict[tuple[object, ...], tuple[float, Outlook]] = {}

    async def span(self, name: str, topics: Sequence[TopicInfo]) -> Outlook:
        """Returns what is due from now on, in the span with this name. Raises: ServerError."""
        key = (name, tuple(info.name for info in topics))
        return await self._remembered(key, lambda now_ms: TimeWindow.of_span(name, now_ms), topics)

    async def between(self, from_ms: int, to_ms: int, topics: Sequence[TopicInfo]) -> Outlook:
        """Returns what is due between two moments. Raises: ServerError."""
        key = (from_ms, to_ms, tuple(info.name for info in topics))
        return await self._remembered(key, lambda now_ms: TimeWindow.between(from_ms, to_ms), topics)

    async def _remembered(
        self, key: tuple[object, ...], make: Callable[[int], TimeWindow], topics: Sequence[TopicInfo]
    ) -> Outlook:
        until, found = self._kept.pop(key, (0.0, None))
        now = self._clock.monotonic()
        if found is None or now >= until:
            now_ms = await self._transport.send(server_time_us()) // 1000
            found = await self._ask(make(now_ms), now_ms, topics)
            until = now + min(LONGEST_S, max(SHORTEST_S, found.window.bar_ms / 6_000))
        self._kept[key] = until, found  # moved to the end: the first is the one that was unused for longest
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    async def _ask(self, window: TimeWindow, now_ms: int, topics: Sequence[TopicInfo]) -> Outlook:
        near = [info for info in topics if info.first_due_ms is not None and info.first_due_ms < window.to_ms]
        chosen, left = [], SHARDS
        for info in sorted(near, key=lambda info: -info.waiting - info.retrying):
            left -= info.settings.all_shards
            if left >= 0:
                chosen.append(info)
        start = max(0, window.from_ms - now_ms)
        ends = [start, *(max(start, window.bar(n)[1] - now_ms) for n in range(window.bars))]
        asked = [
            (info.name, shard_counts.forecast(self._keys.shard(info.name, n), ends))
            for info in chosen
            for n in range(info.settings.all_shards)
        ]
        answers = await ask_all(self._transport, [call for _, call in asked])
        sums: dict[str, list[int]] = {info.name: [0] * (window.bars + 3) for info in chosen}
        for (name, _), counts in zip(asked, answers, strict=True):
            sums[name] = [before + more for before, more in zip(sums[name], counts, strict=True)]
        lanes = [TopicLane(name, counts[0], tuple(counts[2:-1]), counts[-1]) for name, counts in sums.items()]
        asked_for, none = set(near), (0,) * window.bars
        lanes += [
            TopicLane(info.name, 0, none, info.waiting + info.retrying) for info in topics if info not in asked_for
        ]
        lanes.sort(key=lambda lane: (-lane.jobs, lane.topic))
        return Outlook(window, now_ms, lanes, len(near) - len(chosen))

    def forget(self) -> None:
        """Count again the next time, because something was changed."""
        self._kept.clear()
