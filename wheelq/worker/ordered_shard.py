"""One shard that runs in order: held, read, passed on. See `ordering` for the whole.

Its deliveries go to `ordered_deliveries`, which starts each in its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from wheelq.errors import ServerError
from wheelq.protocol.calls import order as calls
from wheelq.protocol.calls import worker as worker_calls
from wheelq.worker.course import Course
from wheelq.worker.ground import Ground
from wheelq.worker.held import Delivery, Line
from wheelq.worker.ordered_deliveries import OrderedDeliveries
from wheelq.worker.pool import Pool
from wheelq.worker.recovery import SAFETY_MS
from wheelq.worker.settling import LONGEST_PAUSE

logger = logging.getLogger("wheelq.worker")

FINISHED_AT_ONCE = 500
OVERDUE_PAUSE = 0.01
"""Seconds until another look whether what is overdue has been promoted."""
HAND_OVER_PATIENCE = 1.0
"""Seconds within which a shard that is passed on must come to rest; else it is kept."""
PASS_ON_BEATS = 3
"""One shard is passed on in so many `renew_ms`: the asker takes it in one, and tells its new number in the next."""


class OrderedShard:
    """One shard: held or not, and what is read of it while it is."""

    def __init__(self, line: Line, ground: Ground, course: Course, pool: Pool[Delivery]) -> None:
        self.line = line
        self._is_held = False
        self._ground = ground
        self._course = course
        self._transport = ground.transport.sibling()  # its reads wait
        self._changed = asyncio.Event()
        self._deliveries = OrderedDeliveries(line, ground, course, pool, self._may_begin, self._changed.set)
        self._trusted_until = 0.0
        self._renew_at = 0.0
        self._is_unsure = True
        self._is_busy = False
        self._last_id = "0-0"
        self._asker: str | None = None
        self._asked_at = 0.0
        self._bell: asyncio.Task[bool] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this worker holds it, as far as it knows."""
        return self._is_held

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        self._course.holds += is_held - self._is_held
        self._is_held = is_held

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold, read and start until stopped. Survives restarts of the server."""
        pause = 0.0
        while not self._course.stopping.is_set():
            try:
                await self.step()
                await self._wait()
                pause = 0.0
            except ServerError as error:
                # It may have been given deliveries that it has not seen: the next hold asks for all.
                self._is_unsure = True
                self._renew_at = 0.0
                pause = min(pause * 2 + 0.02, LONGEST_PAUSE)
                logger.warning("%s is not served until the server is back: %s", self.line.keys.ready, error)
                await self._pause(pause)
                if "NOGROUP" in str(error):
                    with contextlib.suppress(ServerError):
                        await self._ground.transport.send(worker_calls.make_group(self.line.keys, self._ground.group))

    async def step(self) -> None:
        """Take the shard or renew when it is time; if it is held, read what fits and start what may.

        Raises: ServerError.
        """
        ground = self._ground
        if not self.is_held or ground.clock.monotonic() >= self._renew_at:
            await self._hold()
        if self.is_held and self._asker is not None:
            await self._pass_on(self._asker)
        elif self.is_held and not self._is_at_rest and (room := self._course.read_ahead - len(self._deliveries)) > 0:
            await self._read(room)
        self.advance()

    async def _wait(self) -> None:
        """Until it is time to renew, something is to be read, or there is room for it."""
        ground = self._ground
        left = max(0.001, self._renew_at - ground.clock.monotonic())
        if not self.is_held:
            await self._pause(left)
        elif self._is_busy or self._asker is not None or self._deliveries.overdue_ms is not None:
            await self._pause(min(left, OVERDUE_PAUSE))
        elif self.line.topic.paused or len(self._deliveries) >= self._course.read_ahead:
            await self._pause(left)
        elif not self._course.stopping.is_set():
            call = calls.bell(self.line.keys, self._last_id, max(1, int(left * 1000)))
            self._bell = asyncio.create_task(self._transport.send(call))
            await asyncio.wait([self._bell])
            if not self._bell.cancelled():
                self._bell.result()

    async def _pause(self, seconds: float) -> None:
        """Sleep until something has ended, at most so long."""
        self._changed.clear()
        clock = self._ground.clock
        cancel = clock.call_at(clock.monotonic() + seconds, self._changed.set)
        if not self._course.stopping.is_set():
            await self._changed.wait()
        cancel()

    def stop(self) -> None:
        """Start nothing more; a wait in the server is cut off: it reads nothing away."""
        self._deliveries.stop()
        self._changed.set()
        if self._bell is not None:
            self._bell.cancel()

    # --- hold, read, let go ----------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Take the shard or renew that it is held, unless another worker holds it."""
        ground, settings = self._ground, self._ground.settings
        asked_at, asked_ms = ground.clock.monotonic(), int(ground.server.now_ms())
        finished = self._deliveries.finished[:FINISHED_AT_ONCE]
        tell_own = self._is_unsure or not self.is_held
        call = calls.hold(
            self.line.keys,
            ground.group,
            ground.consumer,
            settings.abandoned_ms,
            self._course.holds,
            tell_own=tell_own,
            finished=finished,
        )
        hold = await ground.transport.send(call)
        if not hold.is_held:
            if self.is_held:
                await self._lose()
            self._renew_at = asked_at + min(hold.wait_ms, settings.renew_ms) / 1000
            return
        ground.server.observe(asked_at, hold.server_us)
        del self._deliveries.finished[: len(finished)]
        self.is_held = True
        self._trusted_until = asked_at + (settings.abandoned_ms - SAFETY_MS) / 1000
        self._renew_at = asked_at + (settings.renew_ms / 1000 if not hold.is_busy else OVERDUE_PAUSE * 5)
        self._is_busy = hold.is_busy
        await self._take_over(hold.entry_ids, asked_ms)
        self._is_unsure = False
        is_uneven = hold.asker is not None and self._course.holds - hold.asker_holds >= 2
        if self._asker is None and is_uneven and asked_at >= self._course.next_pass_at:
            self._asker, self._asked_at = hold.asker, asked_at
            self._course.next_pass_at = asked_at + PASS_ON_BEATS * settings.renew_ms / 1000

    async def _take_over(self, entry_ids: Sequence[str], asked_ms: int) -> None:
        ground = self._ground
        for first in range(0, len(entry_ids), 500):
            deliveries = await ground.recovery.adopt(self.line, entry_ids[first : first + 500], asked_ms)
            if deliveries:
                ids = [delivery.entry.entry_id for delivery in deliveries]
                before = await ground.transport.send(calls.put_off_before(self.line.keys, ground.group, ids))
                for delivery, put_off in zip(deliveries, before, strict=True):
                    self._deliveries.add(delivery, put_off)

    async def _read(self, room: int) -> None:
        ground = self._ground
        safe_until_ms = int(ground.server.now_ms()) + ground.settings.abandoned_ms - SAFETY_MS
        found = await ground.transport.send(calls.read_held(self.line.keys, ground.group, ground.consumer, room))
        if found is None:
            await self._lose()
            return
        self._last_id = found.last_id
        self._deliveries.wait_for(found.overdue_ms)
        for entry in found.entries:
            delivery = Delivery(self.line, entry, safe_until_ms)
            ground.held.add(delivery)
            self._deliveries.add(delivery, None)

    async def _lose(self) -> None:
        """Another worker holds the shard: give it what has not started; what runs it waits for."""
        self.is_held = False
        self._asker = None
        self._renew_at = 0.0
        self._is_unsure = True
        await self._hand_back(self._deliveries.give_up())

    async def _pass_on(self, asker: str) -> None:
        """Let the shard go to the worker that asks for it, once nothing of it is running."""
        ground = self._ground
        if self._deliveries.is_running:
            if ground.clock.monotonic() - self._asked_at > HAND_OVER_PATIENCE:
                self._asker = None
            return
        await self._lose()
        self._renew_at = ground.clock.monotonic() + ground.settings.renew_ms / 1000
        call = calls.let_go(self.line.keys, ground.group, ground.consumer, asker, ground.settings.abandoned_ms)
        await ground.transport.send(call)
        logger.info("%s is passed on to %s", self.line.keys.ready, asker)

    async def _hand_back(self, deliveries: Sequence[Delivery]) -> None:
        ground = self._ground
        for delivery in deliveries:
            ground.held.drop(delivery)
        await ground.settler.hand_back(self.line, [delivery.entry.entry_id for delivery in deliveries])

    async def close(self) -> None:
        """Let the shard go, after what was held of it was handed back."""
        ground = self._ground
        if self.is_held:
            with contextlib.suppress(ServerError):
                await ground.transport.send(calls.let_go(self.line.keys, ground.group, ground.consumer, None, 0))
        await self._transport.close()

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing may begin, although it is held."""
        is_leaving = self._course.stopping.is_set() or self._asker is not None
        return is_leaving or self._is_busy or self.line.topic.paused

    def _may_begin(self) -> bool:
        return self.is_held and not self._is_at_rest and self._ground.clock.monotonic() < self._trusted_until

    def look_again(self) -> None:
        """The topic may have been paused or resumed."""
        self._changed.set()
        self.advance()

    def advance(self) -> None:
        """Start what may start."""
        self._deliveries.advance()

    def next_ms(self) -> int | None:
        """When the first job that failed runs again."""
        return self._deliveries.next_ms()
