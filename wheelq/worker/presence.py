"""`Presence`: what others know of a worker: that it lives and what it does, and in the end that it has left."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from wheelq.errors import ServerError
from wheelq.protocol.calls import registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.worker.ground import Ground
from wheelq.worker.handlers import Handlers
from wheelq.worker.held import Delivery, Line
from wheelq.worker.pool import Pool
from wheelq.worker.running import Running

logger = logging.getLogger("wheelq.worker")


class Presence:
    """A worker's heartbeat, and its farewell."""

    def __init__(self, ground: Ground, keys: Keys, handlers: Handlers, running: Running, pool: Pool[Delivery]) -> None:
        self._ground = ground
        self._keys = keys
        self._handlers = handlers
        self._running = running
        self._pool = pool

    async def beat(self) -> None:
        """Tell that it lives. Raises: ServerError."""
        ground, running = self._ground, self._running
        words = {
            "seen_ms": int(ground.server.now_ms()),
            "group": ground.group,
            "topics": self._handlers.topics,
            "running": ground.settings.concurrency - self._pool.free,
            "handled": running.handled,
            "failed": running.failed,
            "skipped": running.skipped,
            "lateness_p99_ms": running.lateness.percentile(0.99),
        }
        await ground.transport.send(registry.beat_worker(self._keys, ground.consumer, words))

    async def leave(self, lines: Iterable[Line]) -> None:
        """Send the last acks, hand back what did not finish, and take this consumer off the lists."""
        ground = self._ground
        farewells = [ground.settler.flush(), *(self._hand_back(line) for line in lines)]
        farewells.append(ground.transport.send(registry.gone(self._keys.workers, ground.consumer)))
        for farewell in farewells:
            try:
                await farewell
            except ServerError as error:
                logger.warning("left without a word, what it held will be found abandoned: %s", error)

    async def _hand_back(self, line: Line) -> None:
        ground = self._ground
        await ground.settler.hand_back(line, list(ground.held.of(line)))
        await ground.transport.send(calls.leave(line.keys, ground.group, ground.consumer))
