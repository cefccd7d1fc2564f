"""Listens for changes of a worker's topics, for new workers of its group, for requests to cancel a job, and for `News`.

Changes and workers are also found by asking every few seconds, so a lost hint only delays them. A request to cancel a
running job may be lost; then the job runs on. A worker whose Redis user may not subscribe works without hints.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from wheelq.errors import ServerError
from wheelq.protocol.calls.heartbeats import newcomer
from wheelq.reminders import Loop
from wheelq.worker.delivery.parts import WorkerParts

logger = logging.getLogger("wheelq.worker")


class HintListener:
    """One connection that listens."""

    def __init__(
        self,
        parts: WorkerParts,
        concerns: Callable[[str], bool],
        changed: Callable[[], None],
        joined: Callable[[], None],
        cancel: Callable[[str, str], None],
    ) -> None:
        """Calls `changed()` when a topic that `concerns` this worker has changed, or may have.

        Calls `joined()` when a worker of the same group has started, or may have.
        Calls `cancel(stream, entry id)` when a client asks to cancel a job.
        """
        self._parts = parts
        self._asks = parts.keys.asks + parts.name
        self._came = parts.keys.came
        self._concerns = concerns
        self._changed = changed
        self._newcomer = newcomer(parts.group)
        self._joined = joined
        self._cancel = cancel
        self.is_listening = False
        """Whether changes are heard at present."""

    async def run(self) -> None:
        """Listen until cancelled."""
        subscription = self._parts.transport.subscription()
        loop = Loop(self._parts.clock, logger, "this worker asks for changes of its topics", 0.05)

        async def listen() -> None:
            more: asyncio.Task[None] | None = None
            try:
                await subscription.open([self._parts.keys.changes, self._asks])
                more = asyncio.create_task(hear_news())
                async for channel, data in subscription.messages():
                    loop.backoff.failures = 0  # not earlier: a server refuses this user only now
                    self._hear(channel, data)
            finally:
                self.is_listening = False
                self._parts.news.end()
                if more is not None:
                    more.cancel()

        async def hear_news() -> None:
            await self._parts.news.is_wanted.wait()
            with contextlib.suppress(ServerError):  # the connection is broken: it is opened again
                await subscription.listen(self._came)

        try:
            await loop.run(listen)
        finally:
            await subscription.close()

    def _hear(self, channel: str, data: bytes | None) -> None:
        text = "" if data is None else data.decode(errors="replace")
        if channel == self._came:
            if data is None:
                self._parts.news.begin()
            else:
                self._parts.news.tell(text.split("\n"))
        elif channel == self._asks:
            if data is not None:  # None: the server listens now
                ready, _, entry_id = text.rpartition(" ")
                self._cancel(ready, entry_id)
        elif text == self._newcomer:
            self._joined()
        else:
            self.is_listening = True
            if data is None:
                self._joined()
            if data is None or self._concerns(text):
                self._changed()
