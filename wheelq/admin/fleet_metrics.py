"""`FleetMetrics`: the metrics of the whole fleet, read from Redis when scraped, at most once in four seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wheelq.admin.exposition import expose
from wheelq.admin.fleet import Fleet, by_slot, fleet
from wheelq.base.clock import Clock
from wheelq.errors import ServerError
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings
from wheelq.transport import AsyncTransport

FRESH_S = 4.0
"""How many seconds the same figures are returned after Redis was asked. Nothing is read between scrapes."""
DEADLINE_S = 5.0
"""How long Redis may take to answer."""
_ASKS_ALWAYS = BreakerSettings(failures=1_000_000_000)


class FleetMetrics:
    """Asks Redis at most once in `FRESH_S`, however often it is scraped."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock, version: str) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._version = version
        self._driver = AsyncDriver(transport, _ASKS_ALWAYS, clock)
        self._asked_at = float("-inf")
        self._found: Fleet | None = None
        self._asking = asyncio.Lock()

    async def text(self, may_read: Callable[[str], bool] = lambda topic: True) -> str:
        """Returns the metrics of topics that may be read, in the text format of Prometheus. Never raises."""
        async with self._asking:
            now = self._clock.monotonic()
            if now - self._asked_at >= FRESH_S:
                self._found = await self._ask()
                self._asked_at = now
        return expose(self._found, self._version, may_read)

    async def _ask(self) -> Fleet | None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                known = self._found.read if self._found else None
                return await self._driver.run(fleet(self._keys, by_slot(self._transport.slot), known))
        except (ServerError, TimeoutError):
            return None
