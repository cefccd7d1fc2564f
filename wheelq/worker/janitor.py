"""`Janitor`: removes what dead workers and dead jobs leave behind, once a minute.

    consumers of this group that hold nothing and were not heard of for an hour      a worker killed leaves one a shard
    heartbeats of workers not heard of for a day
    dead jobs older than the topic's `dead_retention_ms`, or more than `dead_max`     also where none is buried any more

Everything is checked and done in one script call, so any number of workers may do it at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from wheelq.clock import Clock, ServerClock
from wheelq.errors import ServerError
from wheelq.protocol.calls import registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport
from wheelq.words import counted
from wheelq.worker.held import Line

logger = logging.getLogger("wheelq.worker")

TIDY_MS = 60_000
SILENT_MS = 3_600_000
"""A live consumer reads every few seconds. One that was only away is made again by its next read."""
FORGOTTEN_MS = 86_400_000


class Janitor:
    """Tidies the shards that a worker serves."""

    def __init__(
        self, transport: AsyncTransport, keys: Keys, group: str, clock: Clock, server_clock: ServerClock
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._group = group
        self._clock = clock
        self._server = server_clock

    async def run(self, lines: Callable[[], Sequence[Line]]) -> None:
        """Tidy until cancelled."""
        while True:
            await self._clock.sleep(TIDY_MS / 1000)
            await self.step(lines())

    async def step(self, lines: Sequence[Line]) -> None:
        """Tidy once."""
        for line in lines:
            try:
                await self._tidy(line)
            except ServerError as error:
                logger.debug("%s was not tidied: %s", line.keys.ready, error)
        try:
            await self._forget()
        except ServerError as error:
            logger.debug("heartbeats were not tidied: %s", error)

    async def _tidy(self, line: Line) -> None:
        while True:
            consumers, dead = await self._transport.send(calls.clear_out(line.keys, self._group, SILENT_MS, line.topic))
            if consumers:
                logger.info("removed %s without a worker from %s", counted(consumers, "consumer"), line.keys.ready)
            if not dead:
                return

    async def _forget(self) -> None:
        now_ms = self._server.now_ms()
        for name, what in (await self._transport.send(registry.alive(self._keys.workers))).items():
            if now_ms - what.get("seen_ms", 0) > FORGOTTEN_MS:
                await self._transport.send(registry.gone(self._keys.workers, name))
