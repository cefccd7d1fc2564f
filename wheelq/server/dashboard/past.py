"""`Past`: what happened in each of the last minutes, as the leaders recorded it in Redis.

An hour that is over does not change, so it is read once. The last two hours are read again after a minute. One request
reads at most `CALLS` hours of shards, the latest first; the next requests read the others, so that a page with many
topics costs no more than one with few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.model.topic import TopicInfo, TopicMinute
from wheelq.protocol.calls import counts
from wheelq.protocol.calls.counts import HOUR_MS, MINUTE_MS
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.dashboard.asking import ask_all
from wheelq.transport import AsyncTransport

FRESH_S = 60.0
CALLS = 250
"""The most hours of shards that one request reads."""
HOURS = 24
NEW_HOURS = 2
"""Hours that may still change: a minute may be recorded late."""


@dataclass(frozen=True, slots=True)
class PastSeries:
    """How many things happened in each of some equal spans of time, the earliest first."""

    span_ms: int
    scheduled: list[int]
    promoted: list[int]
    done: list[int]
    failed: list[int]
    """Runs that failed, whether they were repeated or not."""


class Past:
    """Reads the history of topics, and remembers the hours that are over."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._read: dict[tuple[ShardKeys, int], tuple[float, list[TopicMinute]]] = {}

    async def minutes(self, topics: Sequence[TopicInfo], now_ms: int) -> dict[int, TopicMinute]:
        """Returns the minutes of the last day, these topics together, by their beginnings. Raises: ServerError."""
        now, this_hour = self._clock.monotonic(), now_ms // HOUR_MS
        self._read = {key: kept for key, kept in self._read.items() if key[1] >= this_hour - HOURS}
        shards = [self._keys.shard(info.name, n) for info in topics for n in range(info.settings.all_shards)]
        wanted = [(shard, this_hour - back) for back in range(HOURS + 1) for shard in shards]
        missing = [key for key in wanted if self._read.get(key, (0.0, []))[0] <= now][:CALLS]
        found = await ask_all(self._transport, [counts.minutes(*key) for key in missing])
        for key, part in zip(missing, found, strict=True):
            until = now + FRESH_S if key[1] > this_hour - NEW_HOURS else float("inf")
            self._read[key] = until, part
        added: dict[int, TopicMinute] = {}
        for key in wanted:
            for minute in self._read[key][1] if key in self._read else ():
                before = added.get(minute.at_ms)
                added[minute.at_ms] = minute if before is None else before + minute
        return added


def series(minutes: dict[int, TopicMinute], now_ms: int, span_ms: int, spans: int) -> PastSeries:
    """Returns these minutes in so many equal spans that end with the last whole minute. Pure."""
    end_ms = now_ms // MINUTE_MS * MINUTE_MS
    found = PastSeries(span_ms, *([0] * spans for _ in range(4)))
    for at_ms, minute in minutes.items():
        place = spans - 1 - (end_ms - MINUTE_MS - at_ms) // span_ms
        if 0 <= place < spans:
            found.scheduled[place] += minute.scheduled
            found.promoted[place] += minute.promoted
            found.done[place] += minute.done
            found.failed[place] += minute.retried + minute.buried
    return found
