"""Stores the progress of handlers.

One call writes the progress of all jobs of a shard, at most every `BEAT` seconds, and only the latest report of each
job; earlier ones are never sent. Progress may be lost with the worker, and is not sent again: the next report replaces
it. Handlers in threads may report too.
"""

from __future__ import annotations

import asyncio
import logging

from wheelq import reminders
from wheelq.errors import ServerError
from wheelq.protocol.calls import state
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.parts import WorkerParts

logger = logging.getLogger("wheelq.worker")

BEAT = 0.2
BATCH = 500


class ProgressWriter:
    """Collects and writes the progress that one worker's handlers report."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._latest: dict[Delivery, bytes] = {}
        self._any = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def progress(self, delivery: Delivery, fraction: float, text: str) -> None:
        """Take a report of a handler. May be called from any thread."""
        now_ms = int(self._parts.server.now_ms())
        delivery.has_progress = True
        self._latest[delivery] = state.pack_note(fraction, text[: state.TEXT_CHARS], now_ms, int(delivery.started_ms))
        if self._loop is not None and not self._any.is_set():
            self._loop.call_soon_threadsafe(self._any.set)

    async def run(self) -> None:
        """Write until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._any.wait()
            await self.step()
            await self._parts.clock.sleep(BEAT)

    async def step(self) -> None:
        """Write the reports since the last call."""
        parts = self._parts
        self._any.clear()
        latest, self._latest = self._latest, {}
        by_shard: dict[ServedShard, list[tuple[str, str, bytes]]] = {}
        for delivery, note in latest.items():
            by_shard.setdefault(delivery.shard, []).append((delivery.entry.entry_id, delivery.entry.id, note))
        for shard, notes in by_shard.items():
            for first in range(0, len(notes), BATCH):
                call = state.note(shard.keys, parts.group, parts.name, notes[first : first + BATCH])
                try:
                    await parts.transport.send(call)
                except ServerError as error:
                    reminders.warn(logger, f"progress of jobs of {shard.keys.topic} is not written", error)
