"""Names the handlers that block the event loop: async ones, and plain ones with `inline=True`.

While a handler computes, or waits without `await`, nothing else in its worker runs: no other handler, no ack, no
heartbeat. So each step of a handler, from one `await` to the next, is timed:

    handler resize of images held the event loop for 5.0 s: ...

This costs two readings of the clock for each step, and no thread or timer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

from wheelq.base.clock import Clock

logger = logging.getLogger("wheelq.worker")

LONGEST_S = 0.5
AGAIN_S = 60.0
"""The least number of seconds between two warnings about the same handler."""


TO_A_THREAD = "Make it a plain function, which runs in a thread, or move the long part to asyncio.to_thread"


def watched(
    function: Callable[[Any], Any], topic: str, clock: Clock, advice: str = TO_A_THREAD
) -> Callable[[Any], Any]:
    """Returns the async handler, with a warning in the log when one of its steps takes longer than half a second."""
    name, now = getattr(function, "__qualname__", repr(function)), clock.monotonic
    quiet_until = float("-inf")

    def tell(seconds: float) -> None:
        nonlocal quiet_until
        if now() >= quiet_until:
            quiet_until = now() + AGAIN_S
            logger.warning(
                "handler %s of %s held the event loop for %.1f s: nothing else of this worker ran meanwhile. %s",
                name,
                topic,
                seconds,
                advice,
            )

    @coroutine
    def run(given: Any) -> Generator[Any, Any, Any]:
        steps = function(given).__await__()
        go_on, value = steps.send, None
        while True:
            began = now()
            try:
                waits_for = go_on(value)
            except StopIteration as end:
                return end.value
            finally:
                if (seconds := now() - began) > LONGEST_S:
                    tell(seconds)
            try:
                value = yield waits_for
                go_on = steps.send
            except BaseException as error:  # noqa: BLE001  # cancellation too belongs to the handler
                go_on, value = steps.throw, error

    return run
