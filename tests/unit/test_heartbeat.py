"""A worker's heartbeat by a clock of our own: when it is sent again after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

from wheelq.base.clock import ManualClock
from wheelq.errors import Unavailable
from wheelq.worker.upkeep.heartbeat import Heartbeat


async def test_a_heartbeat_that_failed_is_sent_again_at_once_and_then_at_growing_pauses() -> None:
    """A worker that was frozen finds its connection gone, and until the others hear of it, they take what it reads."""
    clock, at = ManualClock(monotonic=0.0), list[float]()

    class Failing(Heartbeat):
        async def beat(self) -> None:
            at.append(clock.monotonic())
            raise Unavailable("its connection is gone")

    parts: Any = SimpleNamespace(clock=clock)
    unused: Any = None
    beating = asyncio.create_task(Failing(parts, unused, unused, unused, lambda: True, dict).run())
    for _ in range(200):
        await asyncio.sleep(0)
        clock.advance(0.01)
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    pauses = [round(later - earlier, 2) for earlier, later in itertools.pairwise(at)]
    assert pauses[0] <= 0.1
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 0.6
