"""`FleetSnapshot`: one look at Redis for all pages and tabs, at most every five seconds; `TabStream` tells tabs of it.

    pages, streams ──▶ now() ──▶ the last look, while it is fresh; else a new one, shared by all callers meanwhile

A look takes one call for 50 shards, in a cluster one for each. It counts every shard that was not counted in the last
minute, so that no total leaves one out or is that old; of the others, at most `SHARDS`, whose counts are the oldest, so
that the cost grows slowly with the number of topics. `Fleet.age_s` says how old the counts are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

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
from wheelq.errors import WheelqError
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.operation import Operation
from wheelq.protocol.calls.counts import MINUTE_MS
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.shard_counts import Measure
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.transport import AsyncTransport

FRESH_S = 5.0
"""For how many seconds a look is reused."""
SHARDS = 200
"""The most shards that are counted again in one look."""
STALE_S = 60.0
"""After how many seconds a shard is counted again in any case."""
READINGS = 13
"""How many looks are kept to compute rates: those of a minute, if there are no more than tabs ask for."""
STREAMS = 500
"""The most streams of one process: each keeps a connection."""
KEEP_ALIVE_S = 15.0
"""A stream without news says so this often: proxies close connections that are silent."""

Tab = asyncio.Queue[bytes | None]
Check = Callable[[], Awaitable[object]]


class FleetSnapshot:
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
        """Returns what happened between the first and the last look of the last minute."""
        last = self._readings[-1]
        first = next(one for one in self._readings if last.at_ms - one.at_ms <= MINUTE_MS)
        return Flow.between(first, last)

    def forget(self, topic: str | None = None) -> None:
        """Look again the next time, because something was changed, perhaps in this topic."""
        self._looking.forget()
        if topic is not None:
            self._first.add(topic)

    def close(self) -> None:
        self._looking.close()

    async def _look(self) -> Fleet:
        found = await self._driver.run(self._read())
        self._readings.append(found.processes)
        return found

    def _read(self) -> Operation[Fleet]:
        self._topics = yield from registered(self._keys, self._topics)
        shards = shards_of(self._keys, self._topics)
        first, self._first = self._first, set()
        stale = self._clock.monotonic() - STALE_S
        since = {shard: self._measured[shard][0] if shard in self._measured else stale for shard in shards}
        new = [shard for shard in shards if since[shard] <= stale]
        known = [shard for shard in shards if since[shard] > stale]
        known.sort(key=lambda shard: (shard.topic not in first, since[shard]))
        chosen = new + known[: max(0, SHARDS - len(new))]
        found = yield from measured(chosen, self._parts)
        now = self._clock.monotonic()
        remembered = self._measured | {shard: (now, one) for shard, one in found.items()}
        self._measured = {shard: remembered[shard] for shard in shards if shard in remembered}
        age_s = max((now - since for since, _ in self._measured.values()), default=0.0)
        measures = {shard: one for shard, (_, one) in self._measured.items()}
        return Fleet(self._topics, measures, (yield from processes(self._keys)), age_s)


class TabStream:
    """Tells every open tab of one server process that there is something new to see.

    While there are tabs, one task of the process looks at Redis for all of them, every `FRESH_S` seconds. A tab gets
    the moment of each look as a server-sent event, and asks for the parts of its page again. A tab that is hidden
    closes its stream. What a page shows depends on its viewer, so it is not in the events.
    """

    def __init__(self, snapshot: FleetSnapshot, clock: Clock) -> None:
        self._snapshot = snapshot
        self._clock = clock
        self._tabs: dict[Tab, str] = {}
        """By their queues, the viewers; the oldest first."""
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def open(self) -> int:
        return len(self._tabs)

    def listen(self, viewer: str, check: Check) -> AsyncIterator[bytes]:
        """Yields events for one tab until it goes or the server stops. Raises: Problem, if there are too many.

        If there are, the viewer with the most tabs gives up the oldest to viewers with fewer. `check` is called before
        each event; the stream ends when it raises `Problem`.
        """
        if self._is_closed or (len(self._tabs) >= STREAMS and not self._makes_room_for(viewer)):
            raise Problem(problems.OVERLOADED, f"{len(self._tabs):,} tabs listen already.")
        return self._events(viewer, check)

    def _makes_room_for(self, viewer: str) -> bool:
        count = Counter(self._tabs.values())
        [(greediest, most)] = count.most_common(1)
        if count[viewer] + 1 >= most:
            return False
        oldest = next(tab for tab, one in self._tabs.items() if one == greediest)
        oldest.put_nowait(None)
        del self._tabs[oldest]
        return True

    def close(self) -> None:
        """Let every tab go: the server stops."""
        self._is_closed = True
        for tab in self._tabs:
            tab.put_nowait(None)
        if self._looking is not None:
            self._looking.cancel()

    async def _events(self, viewer: str, check: Check) -> AsyncIterator[bytes]:
        tab: Tab = asyncio.Queue()
        self._tabs[tab] = viewer
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._run(), name="wheelq dashboard")
        try:
            yield format_sse_event(event="hello", data_str="{}", retry=int(FRESH_S * 1000))
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        event = await tab.get()
                except TimeoutError:
                    event = KEEPALIVE_COMMENT
                if event is None or not await _passes(check):
                    return
                yield event
        finally:
            self._tabs.pop(tab, None)

    async def _run(self) -> None:
        while self._tabs and not self._is_closed:
            await self._clock.sleep(FRESH_S)
            if self._tabs:
                event = await self._event()
                for tab in self._tabs:
                    if tab.empty():  # one that does not read gets only the latest
                        tab.put_nowait(event)

    async def _event(self) -> bytes:
        try:
            seen = await self._snapshot.now()
        except WheelqError:
            return format_sse_event(event="away", data_str="{}")
        return format_sse_event(event="look", data_str=f'{{"at_ms":{seen.at_ms}}}')


async def _passes(check: Check) -> bool:
    try:
        await check()
    except Problem:
        return False
    except WheelqError:  # it cannot be read now: the events hold no data, and the next one is checked again
        return True
    return True
