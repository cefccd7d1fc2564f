"""`Checkup`: the findings of `wheelq doctor`, read at most every half minute for all viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wheelq.admin import AsyncInspector
from wheelq.admin.diagnosis import Finding, Level
from wheelq.base.clock import Clock

FRESH_S = 30.0
_WORST_FIRST = {Level.PROBLEM: 0, Level.WARNING: 1, Level.OK: 2}


class Checkup:
    """The findings of the last examination."""

    def __init__(self, inspector: AsyncInspector, clock: Clock) -> None:
        self._inspector = inspector
        self._clock = clock
        self._looking: asyncio.Task[list[Finding]] | None = None
        self._began = float("-inf")

    async def findings(self) -> Sequence[Finding]:
        """Returns findings at most `FRESH_S` old, the worst first. Raises: ServerError."""
        now = self._clock.monotonic()
        looking = self._looking
        has_failed = looking is not None and looking.done() and (looking.cancelled() or looking.exception() is not None)
        if looking is None or has_failed or (looking.done() and now - self._began >= FRESH_S):
            self._began = now
            looking = self._looking = asyncio.create_task(self._inspector.doctor())
        found = await asyncio.shield(looking)
        return sorted(found, key=lambda finding: _WORST_FIRST[finding.level])

    def forget(self) -> None:
        """Examine again the next time, because something was changed."""
        self._began = float("-inf")

    def close(self) -> None:
        """Ask no longer."""
        if self._looking is not None:
            self._looking.cancel()
