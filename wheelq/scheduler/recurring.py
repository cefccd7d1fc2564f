"""`Occurrences`: makes the occurrences of a topic's recurring jobs, each once, shortly before it is due.

    near    asks which recurring jobs have an occurrence within `recurring_ahead_ms`. Called when the first of them
            comes near, when one was put or changed (a notice), and when hints may have been lost
    plan    decides which occurrences to make, including missed ones (pure: `model.recurring`)
    make    schedules them and records that in one step, unless another node has

From then on an occurrence is an ordinary job, as punctual as any other. It is made when the previous occurrence is due,
so that at most one waits, and a change of the definition withdraws only that one. If one still waits after an outage,
it is withdrawn, and the last one that was missed runs in its place. In a topic that is paused or has limits it stays,
because it may have waited for its topic, and not for a scheduler.

No lease is needed, because the script compares the state that the node saw. The shard's leader makes the occurrences;
its standby looks a little later and finds no work unless the leader has stopped. A topic without recurring jobs is
checked every ten minutes, in case a notice was lost. Between looks there is only a timer: most topics have no recurring
jobs, and a task would cost each of them 3 KB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from wheelq.errors import WheelqError
from wheelq.model.checks import shifted
from wheelq.model.recurring import is_too_late, plan
from wheelq.protocol.call import Call
from wheelq.protocol.calls import recurring as calls
from wheelq.protocol.calls.recurring import Coming
from wheelq.protocol.keys import ShardKeys
from wheelq.protocol.recurring_codec import occurrence_id
from wheelq.reminders import Loop
from wheelq.scheduler.parts import NodeParts

logger = logging.getLogger("wheelq.scheduler")

STANDBY_MS = 1_000
"""How many milliseconds later than the leader a standby looks."""
RARELY = 600.0
"""Seconds between looks at a topic without recurring jobs."""
POSTPONED_MS = 60_000
"""For how many milliseconds to skip a recurring job that cannot be used here (unknown time zone, cronsim missing)."""


class Occurrences:
    """The recurring jobs of one topic, on one node."""

    def __init__(
        self,
        parts: NodeParts,
        keys: ShardKeys,
        is_first: Callable[[], bool] = lambda: True,
        holds_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """`keys` are of the topic's shard 0; `is_first()` tells whether this node makes occurrences or stands by, and
        `holds_back()` whether jobs may wait although they are due."""
        self.keys = keys
        self._transport = parts.transport
        self._gathering = parts.gathering
        self._settings = parts.settings
        self._clock = parts.clock
        self._server = parts.clock_of(keys)
        self._is_first, self._holds_back = is_first, holds_back
        self._looking: asyncio.Task[None] | None = None
        self._wake: asyncio.Event | None = None  # while it looks
        self._cancel_timer: Callable[[], None] = _nothing

    def notice(self) -> None:
        """Look again, because a recurring job may have been added or changed."""
        if self._wake is None:
            self.start()
        else:
            self._wake.set()

    def take_time(self, asked_at: float, server_us: int) -> None:
        """Take the server's time; if its clock was stepped, look at all recurring jobs again."""
        if self._server.is_set and self._server.observe(asked_at, server_us):
            self.notice()

    def start(self) -> None:
        """Look now, and again whenever an occurrence comes near, until stopped."""
        self._cancel_timer()
        self._wake = asyncio.Event()
        self._looking = asyncio.create_task(self._look(self._wake), name=f"wheelq recurring {self.keys.topic}")

    async def stop(self) -> None:
        """Stop at once. Nothing is left half done, because each call is complete in itself."""
        if (looking := self._looking) is not None:
            looking.cancel()
            await asyncio.wait((looking,))  # `await looking` would hide that the caller is cancelled
        self._cancel_timer()

    async def _look(self, wake: asyncio.Event) -> None:
        """Make the near occurrences, however often that fails, and set the timer for the next look."""
        what, rests = f"recurring jobs of {self.keys.topic}", list[float]()
        unexpected = f"{what}: unexpected error, trying again"  # it must go on
        loop = Loop(self._clock, logger, f"{what} wait", 0.05, 5.0, unexpected=unexpected)

        async def step() -> None:
            rests.append(await self.step())

        while wake.is_set() or not rests:
            wake.clear()
            rests.clear()
            pause_s = await loop.attempt(step)
            if not rests:
                await self._clock.wait(wake, pause_s)
        self._looking = self._wake = None
        self._cancel_timer = self._clock.call_at(self._clock.monotonic() + rests[0], self.start)

    async def step(self) -> float:
        """Make the near occurrences; returns the seconds until the next look. Raises: ServerError."""
        while True:
            is_first = self._is_first()
            ahead_ms = self._settings.recurring_ahead_ms - (0 if is_first else STANDBY_MS)
            near = await self._near(ahead_ms)
            now_ms = near.server_us // 1000
            for name in near.unreadable:
                shown = name.decode(errors="backslashreplace")
                logger.error("%s/%s cannot be read, and is not made here", self.keys.topic, shown)
                await self._transport.send(calls.put_off(self.keys, name, self._later(now_ms)))
            for coming in near.coming:
                await self._make(coming, now_ms)
            if not near.coming and not near.unreadable:
                break
        if near.look_ms is None:
            return RARELY
        rest = self._server.monotonic_at(near.look_ms - ahead_ms) - self._clock.monotonic()
        return min(max(rest, 0.0), self._settings.idle_ms / 1000)

    async def _near(self, ahead_ms: int) -> calls.Near:
        asked_at, near = await self._gathering.ask(calls.near(self.keys, ahead_ms))
        self._server.observe(asked_at, near.server_us)
        return near

    async def _make(self, coming: Coming, now_ms: int) -> None:
        try:
            call, missed = self._making(coming, now_ms)
        except WheelqError as error:
            logger.error("%s/%s cannot be made here: %s", self.keys.topic, coming.name, error)
            await self._postpone(coming, now_ms)
        except Exception:  # another program may have written anything; make the others
            logger.exception("%s/%s cannot be made here", self.keys.topic, coming.name)
            await self._postpone(coming, now_ms)
        else:
            was_made = await self._transport.send(call)
            if was_made and missed is not None:
                logger.warning("%s/%s missed occurrences; made up for %d", self.keys.topic, coming.name, missed)

    def _making(self, coming: Coming, now_ms: int) -> tuple[Call[bool], int | None]:
        """Returns the call to make, and how many occurrences make up for missed ones; None: it missed none."""
        name, state, rule, priority = coming
        if state.next_ms is None:  # paused, or at its end
            return calls.make(self.keys, name, state, state, None, (), None), None
        made, following, is_late = plan(rule, name, state.next_ms, now_ms)
        dues_ms = [rule.due_ms(name, occurrence) for occurrence in made]
        ids = [occurrence_id(name, occurrence) for occurrence in made]
        jobs = [(id, shifted(str(due_ms), id, priority, None, 0)) for id, due_ms in zip(ids, dues_ms, strict=True)]
        look_ms = None if following is None else rule.due_ms(name, following)
        if look_ms is not None and dues_ms:
            look_ms = max(look_ms, dues_ms[-1] + self._settings.recurring_ahead_ms)  # when the previous one is due
        superseded, last_ms = None, state.last_ms
        if is_late and last_ms is not None and not self._holds_back():
            is_moot = rule.missed != "all" if made else is_too_late(rule, name, last_ms, now_ms)
            superseded = occurrence_id(name, last_ms) if is_moot else None
        after = state.made(made[-1] if made else None, following)
        call = calls.make(self.keys, name, state, after, look_ms, jobs, superseded)
        return call, len(made) if is_late else None

    async def _postpone(self, coming: Coming, now_ms: int) -> None:
        """Look at it later, so that it does not delay the others."""
        look_ms = self._later(now_ms)
        name, state = coming.name, coming.state
        await self._transport.send(calls.make(self.keys, name, state, state, look_ms, (), None))

    def _later(self, now_ms: int) -> int:
        return now_ms + self._settings.recurring_ahead_ms + POSTPONED_MS


def _nothing() -> None:
    """There is no timer to cancel."""
