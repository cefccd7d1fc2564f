"""What handlers say besides the outcome: how far they are, and what they return.

Progress is written for all jobs of a shard in one call, at most every `BEAT` seconds, and only the latest word of
each; what is said between two beats is never sent. It may be lost with the worker, and is never repeated: the next
word is worth more. Handlers in threads may say it too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from wheelq.clock import Clock, ServerClock
from wheelq.errors import InvalidInput, ServerError
from wheelq.protocol import codec
from wheelq.protocol.calls import state
from wheelq.transport import AsyncTransport
from wheelq.worker.held import Delivery, Line

logger = logging.getLogger("wheelq.worker")

BEAT = 0.2
BATCH = 500
TEXT_CHARS = 500
"""Most of a progress text that is kept."""


class Notes:
    """Collects the words of one worker's handlers and writes them down."""

    def __init__(
        self, transport: AsyncTransport, group: str, consumer: str, clock: Clock, server_clock: ServerClock
    ) -> None:
        self._transport = transport
        self._group = group
        self._consumer = consumer
        self._clock = clock
        self._server = server_clock
        self._latest: dict[Delivery, bytes] = {}
        self._any = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def progress(self, delivery: Delivery, fraction: float, text: str) -> None:
        """A handler is so far. May be called from any thread."""
        now_ms = int(self._server.now_ms())
        delivery.has_notes = True
        self._latest[delivery] = state.pack_note(fraction, text[:TEXT_CHARS], now_ms, int(delivery.started_ms))
        if self._loop is not None and not self._any.is_set():
            self._loop.call_soon_threadsafe(self._any.set)

    async def run(self) -> None:
        """Write until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._any.wait()
            await self.step()
            await self._clock.sleep(BEAT)

    async def step(self) -> None:
        """Write what has been said since the last time."""
        self._any.clear()
        latest, self._latest = self._latest, {}
        by_line: dict[Line, list[tuple[str, str, bytes]]] = {}
        for delivery, note in latest.items():
            by_line.setdefault(delivery.line, []).append((delivery.entry.entry_id, delivery.entry.id, note))
        for line, notes in by_line.items():
            for first in range(0, len(notes), BATCH):
                call = state.note(line.keys, self._group, self._consumer, notes[first : first + BATCH])
                try:
                    await self._transport.send(call)
                except ServerError as error:
                    logger.warning("progress of jobs of %s is not written: %s", line.keys.topic, error)


def packed_result(delivery: Delivery, result: Any) -> bytes:
    """What is kept of a handler's result: nothing, with a warning, if it is too large or no payload."""
    if result is None:
        return b""
    try:
        return codec.encode_result(result, delivery.line.topic.result_max_bytes)
    except InvalidInput as error:
        entry, topic = delivery.entry, delivery.line.keys.topic
        logger.warning("the result of job %s of %s is not kept: %s", entry.id, topic, error.problem)
        return b""
