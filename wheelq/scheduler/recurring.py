"""`Maker`: makes the occurrences of a topic's recurring jobs, each once, shortly before it is due.

    near    which recurring jobs have an occurrence within `recurring_ahead_ms`; asked when the first of them comes
            near, when one was put or changed (a notice), and after hints may have been lost
    plan    what to make, also of what was missed while nobody was there (pure: `recurrence.plan`)
    make    schedule it and note it, in one step, if nobody else has

An occurrence is an ordinary job from then on, and no later than any other. It is made when the one before is due and no
sooner, so that at most one waits and a change of the definition has only that one to take back.

No lease is needed: the script that makes compares what was seen. The shard's leader makes; its standby looks a little
later, and finds nothing to do unless the leader has stopped. A topic without recurring jobs is looked at every ten
minutes, in case a notice was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from wheelq.arguments import shifted
from wheelq.clock import Clock, ServerClock
from wheelq.errors import ServerError, WheelqError
from wheelq.protocol.calls import recurring as calls
from wheelq.protocol.calls.recurring import Coming
from wheelq.protocol.entries import occurrence_id
from wheelq.protocol.keys import ShardKeys
from wheelq.recurrence import plan
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

STANDBY_MS = 1_000
"""How much later than the leader a standby looks."""
RARELY = 600.0
"""Seconds between looks where nothing recurs."""
POSTPONED_MS = 60_000
"""How long a recurring job rests that cannot be understood here (its time zone is unknown, cronsim is missing)."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between attempts while the server cannot be used."""


class Maker:
    """The recurring jobs of one topic, on one node."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        """`keys` are of the topic's shard 0; `is_first` tells whether it is for this node to make, not to stand by."""
        self.keys = keys
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._is_first = is_first
        self._pause = FIRST_PAUSE
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def notice(self) -> None:
        """Something was put or changed, or may have been."""
        self._wake.set()

    def start(self) -> None:
        """Run until stopped."""
        name = f"wheelq recurring {self.keys.topic}"
        self._task = self._task or asyncio.create_task(self.run(), name=name)

    async def stop(self) -> None:
        """Stop at once, wherever it is: each of its calls is whole in itself."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        """Make whatever comes near."""
        while True:
            self._wake.clear()
            rest = await self._try()
            cancel = self._clock.call_at(self._clock.monotonic() + rest, self._wake.set)
            await self._wake.wait()
            cancel()

    async def step(self) -> float:
        """Make what is near; returns the seconds until there may be something again. Raises: ServerError."""
        while True:
            is_first = self._is_first()
            ahead_ms = self._settings.recurring_ahead_ms - (0 if is_first else STANDBY_MS)
            near = await self._near(ahead_ms)
            for coming in near.coming:
                await self._make(coming, near.server_us // 1000)
            if not near.coming:
                break
        if near.look_ms is None:
            return RARELY
        rest = self._server.monotonic_at(near.look_ms - ahead_ms) - self._clock.monotonic()
        return min(max(rest, 0.0), self._settings.idle_ms / 1000)

    async def _try(self) -> float:
        try:
            rest = await self.step()
        except ServerError as error:
            logger.warning("recurring jobs of %s wait %.2f s: %s", self.keys.topic, self._pause, error)
        except Exception:  # the others on this node go on, and so will this one
            logger.exception("recurring jobs of %s stumble", self.keys.topic)
            self._pause = LONGEST_PAUSE
        else:
            self._pause = FIRST_PAUSE
            return rest
        rest, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return rest

    async def _near(self, ahead_ms: int) -> calls.Near:
        asked_at = self._clock.monotonic()
        near = await self._transport.send(calls.near(self.keys, ahead_ms))
        self._server.observe(asked_at, near.server_us)
        return near

    async def _make(self, coming: Coming, now_ms: int) -> None:
        name, state, rule, priority = coming
        assert state.next_ms is not None, "what has no next occurrence is not looked at"
        try:
            made, following, is_late = plan(rule, name, state.next_ms, now_ms)
        except WheelqError as error:
            logger.error("%s/%s cannot be made here: %s", self.keys.topic, name, error)
            await self._postpone(coming, now_ms)
            return
        if is_late:
            logger.warning("%s/%s missed occurrences; making up for %d", self.keys.topic, name, len(made))
        dues_ms = [rule.due_ms(name, occurrence) for occurrence in made]
        ids = [occurrence_id(name, occurrence) for occurrence in made]
        jobs = [(id, shifted(str(due_ms), id, priority, None, 0)) for id, due_ms in zip(ids, dues_ms, strict=True)]
        look_ms = None if following is None else rule.due_ms(name, following)
        if look_ms is not None and dues_ms:
            look_ms = max(look_ms, dues_ms[-1] + self._settings.recurring_ahead_ms)  # when the one before is due
        superseded = None
        if is_late and rule.missed != "all" and state.last_ms is not None:
            superseded = occurrence_id(name, state.last_ms)
        after = state.made(made[-1] if made else None, following)
        await self._transport.send(calls.make(self.keys, name, state, after, look_ms, jobs, superseded))

    async def _postpone(self, coming: Coming, now_ms: int) -> None:
        """Look at it later, so that it does not stand before all others."""
        look_ms = now_ms + self._settings.recurring_ahead_ms + POSTPONED_MS
        name, state = coming.name, coming.state
        await self._transport.send(calls.make(self.keys, name, state, state, look_ms, (), None))
