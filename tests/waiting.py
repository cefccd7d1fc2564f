"""Waiting for what others do in their own time, and no event tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE = 20.0
"""Seconds after which a test gives up waiting; what it waits for takes far less."""


def eventually(fact: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether `fact` becomes true; for what other processes do."""
    deadline = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def until(fact: Callable[[], bool | Awaitable[bool]], within: float = PATIENCE) -> None:
    """Let others go on in this event loop until `fact` is true. Raises: TimeoutError."""
    async with asyncio.timeout(within):
        while True:
            found = fact()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)
