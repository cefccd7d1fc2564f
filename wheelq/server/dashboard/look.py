"""`Look`: one look at Redis for all pages, tabs and streams of a process, at most every five seconds.

    pages, streams ──▶ now() ──▶ the last look, while it is fresh; else a new one, shared by all callers meanwhile

A look takes one call for 50 shards, in a cluster one for each. If there are more than `SHARDS` shards, each look counts
those whose counts are the oldest, so that the cost stays the same however many topics there are.
"""

from __future__ import annotations

from collections import deque

from wheelq.admin.figures import (
    ASKS_ALWAYS,
    Fleet,
    Flow,
    Processes,
    by_slot,
    measured,
    processes,
    registered,
    shards_of,
)
from wheelq.base.clock import Clock
from wheelq.base.fresh import Fresh
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.operation import Operation
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.shard_counts import Measure
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.transport import AsyncTransport

FRESH_S = 5.0
"""For how many seconds a look is reused."""
SHARDS = 200
"""The most shards that are counted in one look."""
READINGS = 13
"""How many looks are kept to compute rates: those of a minute."""


class Look:
    """Looks at Redis on request, and remembers what it saw."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._driver = AsyncDriver(transport, ASKS_ALWAYS, clock)
        self._parts = by_slot(transport.slot)
        self._looking = Fresh(self._look, FRESH_S, clock)
        self._topics: RegisteredTopics | None = None
        self._measured: dict[ShardKeys, tuple[float, Measure]] = {}
        self._readings: deque[Processes] = deque(maxlen=READINGS)
        self._first: set[str] = set()

    async def now(self) -> Fleet:
        """Returns a look at most `FRESH_S` old. Raises: ServerError."""
        return await self._looking.get()

    async def showing(self, topic: str) -> Fleet:
        """As `now`, but a look that shows this topic, which exists. Raises: ServerError."""
        seen = await self.now()
        if seen.topic(topic) is not None:
            return seen
        self.forget(topic)
        return await self.now()

    def flow(self) -> Flow:
        """Returns what happened within the last minute."""
        return Flow.between(self._readings[0], self._readings[-1])

    def forget(self, topic: str | None = None) -> None:
        """Look again the next time, because something was changed, perhaps in this topic."""
        self._looking.forget()
        if topic is not None:
            self._first.add(topic)

    def close(self) -> None:
        """Look no longer."""
        self._looking.close()

    async def _look(self) -> Fleet:
        found = await self._driver.run(self._read())
        self._readings.append(found.processes)
        return found

    def _read(self) -> Operation[Fleet]:
        self._topics = yield from registered(self._keys, self._topics)
        shards = shards_of(self._keys, self._topics)
        first, self._first = self._first, set()
        chosen = sorted(shards, key=lambda shard: (shard.topic not in first, self._since(shard)))[:SHARDS]
        found = yield from measured(chosen, self._parts)
        now = self._clock.monotonic()
        remembered = self._measured | {shard: (now, one) for shard, one in found.items()}
        self._measured = {shard: remembered[shard] for shard in shards if shard in remembered}
        age_s = max((now - since for since, _ in self._measured.values()), default=0.0)
        measures = {shard: one for shard, (_, one) in self._measured.items()}
        return Fleet(self._topics, measures, (yield from processes(self._keys)), age_s)

    def _since(self, shard: ShardKeys) -> float:
        return self._measured[shard][0] if shard in self._measured else float("-inf")
