"""Topics over time: `TopicHistory` is what happened in each recent minute, `DueCounts` how many jobs are due when.

Both ask each shard, by `ask_all`: many calls, written to Redis in a few batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from wheelq.base.clock import Clock
from wheelq.model.topic import TopicInfo, TopicMinute
from wheelq.protocol.call import Call, answers, together
from wheelq.protocol.calls import counts, shard_counts
from wheelq.protocol.calls.counts import HOUR_MS, MINUTE_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.dashboard.charts import TimeWindow
from wheelq.transport import AsyncTransport

T = TypeVar("T")

AT_ONCE = 20
"""The most calls in one batch, which delays all other clients of the server."""
RECORDED_MS = 5_000
"""A minute is recorded at its leader's next renewal, at the latest this long after its end."""
CALLS = 250
"""The most hours of shards that one request reads."""
HOURS = 24
NEW_HOURS = 2
"""Hours that may still change: a minute may be recorded late."""
SHARDS = 1_000
"""The most shards that are asked for one page."""
WINDOWS = 50
"""The most windows that are remembered."""
SHORTEST_S, LONGEST_S = 4.0, 60.0


async def ask_all(transport: AsyncTransport, calls: Sequence[Call[T]]) -> list[T]:
    """Returns the answers in the order of the calls; each call must name its key. Raises: ServerError."""
    by_slot: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        assert call.key is not None, call.name
        by_slot.setdefault(transport.slot(call.key), []).append(place)
    batches = [some[n : n + AT_ONCE] for some in by_slot.values() for n in range(0, len(some), AT_ONCE)]
    answers = await asyncio.gather(*(transport.send(_batch([calls[n] for n in batch])) for batch in batches))
    found: dict[int, T] = {}
    for batch, some in zip(batches, answers, strict=True):
        found |= zip(batch, some, strict=True)
    return [found[place] for place in range(len(calls))]


def _batch(calls: Sequence[Call[T]]) -> Call[list[T]]:
    return together(calls, partial(answers, calls))


@dataclass(frozen=True, slots=True)
class PastSeries:
    """How many things happened in each of some equal spans of time, the earliest first."""

    scheduled: list[int]
    promoted: list[int]
    done: list[int]
    failed: list[int]
    """Runs that failed, whether they were repeated or not."""


class TopicHistory:
    """Reads the history of topics, as the leaders recorded it in Redis, and remembers the hours that are over.

    An hour that is over does not change, so it is read once. The last two hours are read again when a minute is over
    and recorded. One request reads at most `CALLS` hours of shards, the latest first; the next requests read the
    others, so that a page with many topics costs no more than one with few.
    """

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._read: dict[tuple[ShardKeys, int], tuple[float, list[TopicMinute]]] = {}

    async def minutes(self, topics: Sequence[TopicInfo], now_ms: int) -> dict[int, TopicMinute]:
        """Returns the minutes of the last day that are recorded by now, these topics together, by their beginnings.

        Raises: ServerError.
        """
        at_ms = now_ms - RECORDED_MS
        now, this_hour = self._clock.monotonic(), at_ms // HOUR_MS
        self._read = {key: kept for key, kept in self._read.items() if key[1] >= this_hour - HOURS}
        shards = [self._keys.shard(info.name, n) for info in topics for n in range(info.settings.all_shards)]
        wanted = [(shard, this_hour - back) for back in range(HOURS + 1) for shard in shards]
        missing = [key for key in wanted if self._read.get(key, (0.0, []))[0] <= now][:CALLS]
        found = await ask_all(self._transport, [counts.minutes(*key) for key in missing])
        for key, part in zip(missing, found, strict=True):
            until = now + (MINUTE_MS - at_ms % MINUTE_MS) / 1000 if key[1] > this_hour - NEW_HOURS else float("inf")
            self._read[key] = until, part
        added: dict[int, TopicMinute] = {}
        for key in wanted:
            if key in self._read:
                counts.add_to(added, self._read[key][1])
        return added


def series(minutes: dict[int, TopicMinute], now_ms: int, span_ms: int, spans: int) -> PastSeries:
    """Returns these minutes in so many equal spans that end with the last whole minute that is recorded. Pure."""
    end_ms = (now_ms - RECORDED_MS) // MINUTE_MS * MINUTE_MS
    found = PastSeries(*([0] * spans for _ in range(4)))
    for at_ms, minute in minutes.items():
        place = spans - 1 - (end_ms - MINUTE_MS - at_ms) // span_ms
        if 0 <= place < spans:
            found.scheduled[place] += minute.scheduled
            found.promoted[place] += minute.promoted
            found.done[place] += minute.done
            found.failed[place] += minute.retried + minute.buried
    return found


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


class DueCounts:
    """Counts the jobs that are due, and caches the counts for a short time.

    The sorted sets are counted by ranges, never read. Each shard answers one call with all bars of the window, in
    O(bars · log jobs). A topic whose first job is due after the window is not asked. All viewers share the counts of a
    window; the longer the window, the longer they are reused.
    """

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
        while len(self._kept) > WINDOWS:
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
        for (name, _), jobs in zip(asked, answers, strict=True):
            sums[name] = [before + more for before, more in zip(sums[name], jobs, strict=True)]
        lanes = [TopicLane(name, jobs[0], tuple(jobs[2:-1]), jobs[-1]) for name, jobs in sums.items()]
        asked_for, none = set(near), (0,) * window.bars
        lanes += [
            TopicLane(info.name, 0, none, info.waiting + info.retrying) for info in topics if info not in asked_for
        ]
        lanes.sort(key=lambda lane: (-lane.jobs, lane.topic))
        return Outlook(window, now_ms, lanes, len(near) - len(chosen))

    def forget(self) -> None:
        """Count again the next time, because something was changed."""
        self._kept.clear()
