"""`Leader`: what the holder of a shard's lease does. `act()` does what is due now and says when it wants to act again.

    ids are due      promote them, up to 500 in one call; more than that, or in a shaped topic: sweep
    sweep beat       promote by range whatever is due: makes every lost hint harmless
    window           move the horizon on, put what is read into the wheel
    kept too long    let the shard be tidied, where the topic keeps anything; together with the window
    lease            renew it, unless nothing is to be done before its end anyway

**What may go wrong costs lateness only.** Ids taken from the wheel are hints: when a promotion fails, nothing is kept
of them, and the next sweep finds the jobs in the sorted set. A call that was answered "not the leader" changed nothing.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from wheelq.clock import Clock, ServerClock
from wheelq.metrics import Lateness
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.lease import Lease
from wheelq.scheduler.window import Window
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.topics import Shaping
from wheelq.transport import AsyncTransport
from wheelq.wheel import Wheel

logger = logging.getLogger("wheelq.scheduler")

GATHER_MS = 5.0
"""Where a rate is limited, what it allows is gathered for so long before it is promoted in one call."""
TIDY_CALLS = 10
"""Calls to tidy a shard that may follow each other; each keeps the server busy for about a millisecond."""

Answer = TypeVar("Answer", bound=calls.LeaderAnswer)


class Leader:
    """Loads, promotes and sweeps one shard, as long as the lease holds."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        lease: Lease,
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
        topic: TopicSettings,
    ) -> None:
        self._keys = keys
        self._transport = transport
        self._lease = lease
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._window = Window(settings)
        self._wheel = Wheel(0)
        self._sweep_at = 0.0
        self._is_behind = False  # the last sweep did not get to the end of what is due
        self.shaping: Shaping | None = None
        """How promotion is held back; None: not at all."""
        self._tidy_at = 0.0
        self.topic = topic
        """What the topic keeps, and for how long."""
        self.lateness = Lateness()
        """How late the jobs were that were promoted so far."""

    def ring(self, jobs: list[tuple[str, int]]) -> None:
        """Jobs (member, due_ms) were scheduled before the horizon."""
        now_ms = self._server.now_ms()
        for member, due_ms in jobs:
            if self._window.takes(due_ms, now_ms):
                self._wheel.insert(member, due_ms)

    def start_afresh(self) -> None:
        """Nothing that is loaded can be relied on: sweep, and load everything near again."""
        self._wheel = Wheel(int(self._server.now_ms()))
        self._window.forget()
        self._sweep_at = 0.0

    def granted(self) -> None:
        """The lease was acquired: whatever fell due meanwhile comes first."""
        self._sweep_at = 0.0
        self._window.open_at = 0.0

    def busy_at(self) -> float:
        """The monotonic instant at which there is something to do; the lease aside."""
        if self._is_behind:  # a sweep finds everything that is due
            return self._server.monotonic_at(self._sweep_at)
        near = self._wheel.next_tick()
        at_ms = min(self._window.open_at, self._sweep_at)
        return self._server.monotonic_at(at_ms if near is None else min(at_ms, near))

    async def act(self) -> float:
        """Do what is due; returns the monotonic instant of the next. Raises: NotLeader, ServerError."""
        now = self._clock.monotonic()
        now_ms = self._server.at(now)
        expired = self._wheel.advance(int(now_ms))
        try:
            in_one_call = not self.shaping and len(expired) <= self._settings.batch
            if now_ms >= self._sweep_at or (expired and not in_one_call and not self._is_behind):
                await self._sweep(expired)
            elif expired and not self._is_behind:
                await self._promote(expired)
        except BaseException:
            self._sweep_at = 0.0  # what was taken from the wheel is found again by sweeping
            raise
        # While a sweep is behind, it will find everything that is due, and there is no use in loading more.
        if now_ms >= self._window.open_at and not self._is_behind:
            await self._open()
            if now_ms >= self._tidy_at and (self.topic.retention_ms or self.topic.keep_done_ms):
                await self._tidy()
        if now >= self._lease.renew_at and self._needs_lease():
            await self._renew()
        return min(self.busy_at(), self._lease.renew_at) if self._needs_lease() else self.busy_at()

    def _needs_lease(self) -> bool:
        """Whether there is something to do before a lease taken now would end; else it is left to lapse."""
        return self.busy_at() < self._clock.monotonic() + self._settings.lease_ms / 1000

    async def _promote(self, expired: list[tuple[str, int]]) -> None:
        members = [member for member, _ in expired]
        answer = await self._send(calls.promote(self._keys, self._lease.token, self._settings.lease_ms, members))
        self.lateness += answer.lateness
        self._sweep_by(answer.server_us / 1000)
        for member, due_ms in answer.waiting:  # moved, or this node's clock was a little ahead
            if self._window.covers(due_ms):
                self._wheel.insert(member, due_ms)

    async def _sweep(self, expired: list[tuple[str, int]]) -> None:
        """Promote up to a batch of what is due; among it `expired`, but for what the server's clock has not reached."""
        settings = self._settings
        call = calls.sweep(self._keys, self._lease.token, settings.lease_ms, settings.batch, self.shaping)
        answer = await self._send(call)
        self.lateness += answer.lateness
        now_ms = answer.server_us / 1000
        for member, due_ms in expired:
            if due_ms > now_ms:
                self._wheel.insert(member, due_ms)
        self._is_behind = answer.is_partial
        if answer.wait_ms:
            self._sweep_at = now_ms + max(answer.wait_ms, GATHER_MS)
            return
        self._sweep_at = now_ms if answer.is_partial and answer.promoted else float("inf")
        if self._wheel or answer.is_partial:  # partial and nothing promoted: the stream refuses, so not at once again
            self._sweep_by(now_ms)

    def _sweep_by(self, now_ms: float) -> None:
        """While anything is near, sweep on a slow beat."""
        self._sweep_at = min(self._sweep_at, now_ms + self._settings.sweep_ms)

    async def _open(self) -> None:
        settings = self._settings
        answer = await self._send(
            calls.open_window(
                self._keys,
                self._lease.token,
                settings.lease_ms,
                self._window.loaded_to,
                settings.window_ms,
                settings.window_ids,
                settings.idle_ms,
            )
        )
        for member, due_ms in answer.jobs:
            self._wheel.insert(member, due_ms)
        self._window.opened(answer, len(self._wheel))
        if self._wheel:
            self._sweep_by(answer.server_us / 1000)

    async def _tidy(self) -> None:
        """Remove what has been kept for long enough; what is too much for now is left to the next time."""
        kept = self.topic.retention_ms, self.topic.keep_done_ms
        for _ in range(TIDY_CALLS):
            answer = await self._send(calls.tidy(self._keys, self._lease.token, self._settings.lease_ms, *kept))
            self._tidy_at = answer.server_us / 1000 + self._settings.idle_ms
            if not answer.is_partial:
                break

    async def _renew(self) -> None:
        answer = await self._send(calls.renew(self._keys, self._lease.token, self._settings.lease_ms))
        expected = self._wheel.next_tick()
        first = answer.first_due_ms
        is_missed = first is not None and self._window.covers(first) and (expected is None or first < expected)
        if is_missed and not self._is_behind:
            logger.info("%s:%d missed a hint", self._keys.topic, self._keys.shard)
            self.start_afresh()

    async def _send(self, call: Call[Answer]) -> Answer:
        """Send a leader's call. Each prolongs the lease, and carries the server's time."""
        asked_at = self._clock.monotonic()
        answer = await self._transport.send(call)
        self._lease.prolonged(asked_at)
        self._server.observe(asked_at, answer.server_us)
        return answer
