"""Names the handlers that block the event loop: async ones, and plain ones with `inline=True`.

While a handler computes, or waits without `await`, nothing else in its worker runs: no other handler, no ack, no
heartbeat. So the pool times each step of a delivery, from one `await` to the next:

    handler resize of images held the event loop for 5.0 s: ...

This costs one reading of the clock for each step, and no thread or timer.
"""

from __future__ import annotations

import logging

from wheelq.base.clock import Clock
from wheelq.worker.handlers import Handlers
from wheelq.worker.held import Delivery

logger = logging.getLogger("wheelq.worker")

AGAIN_S = 60.0
"""The least number of seconds between two warnings about the same handler."""
OF_ASYNC = "Make it a plain function, which runs in a thread, or move the long part to asyncio.to_thread"
OF_INLINE = "Leave out inline=True, so that it runs in a thread"


class HoldWarning:
    """Logs which handler held the event loop."""

    def __init__(self, handlers: Handlers, clock: Clock) -> None:
        self._handlers = handlers
        self._clock = clock
        self._quiet_until: dict[str, float] = {}  # by topic

    def held(self, delivery: Delivery, seconds: float) -> None:
        """Name the handler of a delivery, one of whose steps took so long."""
        topic, now = delivery.shard.keys.topic, self._clock.monotonic()
        handler = self._handlers[topic]
        if handler.has_thread or now < self._quiet_until.get(topic, now):
            return
        self._quiet_until[topic] = now + AGAIN_S
        logger.warning(
            "handler %s of %s held the event loop for %.1f s: nothing else of this worker ran meanwhile. %s",
            getattr(handler.function, "__qualname__", repr(handler.function)),
            topic,
            seconds,
            OF_INLINE if handler.inline else OF_ASYNC,
        )
