"""Waiting for a server that cannot be used yet: the one way of all that runs until it is told to stop.

    attempt ─▶ went well               go on
            ─▶ an error that passes    warn, pause, attempt again
            ─▶ any other error         raise it: waiting would not mend a wrong password, or a right that is missing
    told to stop                       end, also in the middle of an attempt

A server that answers but is busy (it loads its data, say) is always waited for; one that does not answer, or is no
primary, only by those who are patient: a program may prefer to hear at once that there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from wheelq.clock import Clock
from wheelq.errors import AWAY, ServerBusy

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts; doubling from the first to the longest."""
WARN_EVERY_S = 10.0


async def until_usable(
    attempt: Callable[[], Awaitable[object]],
    stopping: asyncio.Event,
    clock: Clock,
    logger: logging.Logger,
    *,
    patiently: bool,
) -> bool:
    """Repeat `attempt` until it went well; False when `stopping` was set before. Raises: what waiting does not mend."""
    awaited = AWAY if patiently else (ServerBusy,)
    pause, began, warn_at = FIRST_PAUSE, clock.monotonic(), 0.0
    while not stopping.is_set():
        try:
            went_well = await _before(stopping, attempt())
        except awaited as error:
            if clock.monotonic() >= warn_at:
                logger.warning("the server cannot be used yet, and is waited for: %s", error)
                warn_at = clock.monotonic() + WARN_EVERY_S
            await _before(stopping, clock.sleep(pause))
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            if went_well and warn_at:
                logger.info("the server can be used, after %.1f s", clock.monotonic() - began)
            return went_well
    return False


async def _before(stopping: asyncio.Event, doing: Awaitable[object]) -> bool:
    """Whether it has ended before `stopping` was set, when it is cancelled. Raises what it raises."""
    stop, work = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(doing)
    try:
        await asyncio.wait((stop, work), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return work.done()
    finally:
        for task in (stop, work):
            task.cancel()
        await asyncio.gather(stop, work, return_exceptions=True)
