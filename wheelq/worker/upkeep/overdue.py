"""`OverdueWarning`: warns that due jobs wait because no scheduler runs.

    jobs of orders have been due for 12 s, and no scheduler runs: start one (wheelq scheduler), or this worker with
    --with-scheduler

If programs with another prefix listen on the same server, the warning names that prefix: perhaps one side has the wrong
one.

Ten seconds after the worker has begun, one call asks for the schedulers' heartbeats. Due times are read only if no
scheduler lives. While one does, the next call is made only when the janitor finds a job that is late: a fleet at rest
sends no command for this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from wheelq.errors import Refused, ServerError
from wheelq.protocol.calls import heartbeats, shard_counts
from wheelq.protocol.calls.server import listening
from wheelq.worker.delivery.held import ServedShard
from wheelq.worker.delivery.parts import WorkerParts

logger = logging.getLogger("wheelq.worker")

LOOK_S = 10.0
REMIND_S = 60.0
OVERDUE_MS = 2_000
"""A scheduler would have promoted a job that has been due for this long, even during a change of leaders."""
SHARDS = 50
"""The most shards to look at."""


class OverdueWarning:
    """Checks whether due jobs wait without a scheduler."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._remind_at = float("-inf")
        self._has_named_prefixes = False
        self._suspects = asyncio.Event()

    def suspect(self) -> None:
        """A job is late: look soon."""
        self._suspects.set()

    async def run(self, shards: Callable[[], Sequence[ServedShard]]) -> None:
        """Look until cancelled."""
        while True:
            await self._parts.clock.sleep(LOOK_S)
            try:
                if await self.step(shards()):
                    await self._suspects.wait()
            except ServerError as error:
                logger.debug("schedulers were not looked for: %s", error)
            self._suspects.clear()

    async def step(self, shards: Sequence[ServedShard]) -> bool:
        """Look once, and warn at most once a minute. Returns whether a scheduler lives. Raises: ServerError."""
        parts = self._parts
        nodes = await parts.transport.send(heartbeats.alive(parts.keys.nodes))
        if not parts.server.is_set:
            return False
        if heartbeats.living(nodes, int(parts.server.now_ms())):
            return True
        others = await self._other_prefixes()
        for shard in shards[:SHARDS]:
            if shard.topic.paused or shard.is_gone:
                continue
            due_ms = await parts.transport.send(shard_counts.first_due(shard.keys))
            late_ms = 0 if due_ms is None else parts.server.now_ms() - due_ms
            if late_ms > OVERDUE_MS:
                self._warn(shard.keys.topic, late_ms, others)
                return False
        if others and not self._has_named_prefixes:
            self._has_named_prefixes = True
            logger.warning("no scheduler runs: %s", self._hint(others))
        return False

    async def _other_prefixes(self) -> Sequence[str]:
        """Returns other prefixes whose schedulers and workers listen; none, if this user may not ask."""
        try:
            return await self._parts.transport.send(listening(self._parts.keys))
        except Refused:
            return ()

    def _hint(self, others: Sequence[str]) -> str:
        return (
            f"this worker has the prefix {self._parts.keys.prefix}, and programs with the prefix {', '.join(others)} "
            "use this server; if they belong together, give all of them the same (WHEELQ_PREFIX)"
        )

    def _warn(self, topic: str, late_ms: float, others: Sequence[str]) -> None:
        now = self._parts.clock.monotonic()
        if now < self._remind_at:
            return
        self._remind_at = now + REMIND_S
        logger.warning(
            "jobs of %s have been due for %.0f s, and no scheduler runs: start one (wheelq scheduler), or this worker "
            "with --with-scheduler%s",
            topic,
            late_ms / 1000,
            f"; {self._hint(others)}" if others else "",
        )
