"""Hears what concerns a worker while it works: that one of its topics has changed, that it is to cancel a job.

A change is also found out by asking, every few seconds, so nothing rests on hearing of it; the wish to cancel a job
that runs may be lost, and then it runs on. Where the server does not let this user listen, that is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from wheelq.clock import Clock
from wheelq.errors import Refused, ServerError
from wheelq.transport import AsyncTransport
from wheelq.worker.settling import LONGEST_PAUSE

logger = logging.getLogger("wheelq.worker")


class Notices:
    """One connection that listens."""

    def __init__(
        self,
        transport: AsyncTransport,
        changes: str,
        asks: str,
        concerns: Callable[[str], bool],
        changed: Callable[[], None],
        cancel: Callable[[str, str], None],
        clock: Clock,
    ) -> None:
        """`changes` and `asks` are the channels; `changed()` is called when a topic that `concerns` this worker has
        changed, or may have, and `cancel(stream, entry id)` when somebody asks for that."""
        self._transport = transport
        self._changes = changes
        self._asks = asks
        self._concerns = concerns
        self._changed = changed
        self._cancel = cancel
        self._clock = clock
        self.is_listening = False
        """Whether a change would be heard just now."""

    async def run(self) -> None:
        """Listen until cancelled."""
        pause = 0.0
        subscription = self._transport.subscription()
        try:
            while True:
                try:
                    await subscription.open([self._changes, self._asks])
                    pause = 0.0
                    async for channel, data in subscription.messages():
                        self._hear(channel, data)
                except Refused as error:
                    logger.warning("changes of topics are only noticed by asking: %s", error)
                    return
                except ServerError:  # whoever asks for the topics says so
                    self.is_listening = False
                    pause = min(pause * 2 + 0.05, LONGEST_PAUSE)
                    await self._clock.sleep(pause)
        finally:
            await subscription.close()

    def _hear(self, channel: str, data: bytes | None) -> None:
        said = "" if data is None else data.decode(errors="replace")
        if channel == self._asks:
            ready, _, entry_id = said.rpartition(" ")
            self._cancel(ready, entry_id)
        else:
            self.is_listening = True
            if data is None or self._concerns(said):
                self._changed()
