"""`ShardLeader`: leads one shard. `step()` does the one thing that is most urgent and says how long it can rest.

    not leading          take the lease (when something is to be done), then sweep what is overdue, then load
    ids are due          promote them, up to 500 in one call; more than that, or anything unsure: sweep
    sweep beat           promote by range whatever is due: makes every lost hint harmless
    window               move the horizon on, put what is read into the wheel
    lease                renew it, unless nothing is to be done before its end anyway

**A shard at rest costs nothing.** With nothing near, the lease is left to lapse and no call is made until half a
window before the next job or `idle_ms` have passed, or until a job scheduled before the horizon rings.

**What may go wrong costs lateness only.** Ids taken from the wheel are hints: when a promotion fails, nothing is kept
of them, and the next sweep finds the jobs in the sorted set. A call that was answered "not the leader" changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from wheelq.clock import Clock, ServerClock
from wheelq.errors import NotLeader, Refused, ServerError
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.lease import Lease, holder_connection
from wheelq.scheduler.window import Window
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport
from wheelq.wheel import Wheel

logger = logging.getLogger("wheelq.scheduler")

T = TypeVar("T")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""Seconds between attempts while the server cannot be used; doubling from the first to the longest."""


class ShardLeader:
    """Leads one shard, whenever it can get the lease and there is something to do."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        node: str,
        connection: Callable[[], str],
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
    ) -> None:
        """`connection` tells "run id:client id" of the connection whose end means that this node is gone."""
        self.keys = keys
        self._transport = transport
        self._node = node
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._lease = Lease(settings)
        self._window = Window(settings)
        self._wheel: Wheel | None = None  # from the first look at the server's clock
        self._sweep_at = 0.0
        self._take_at = 0.0  # monotonic; later than now while another node holds the lease
        self._pause = FIRST_PAUSE
        self._wake = asyncio.Event()
        self._is_stopping = False
        self.promoted = 0
        """Jobs promoted by this leader so far."""

    # --- what others tell the leader -------------------------------------------------------------------------------

    def ring(self, message: bytes) -> None:
        """A message came on the shard's `near` channel."""
        jobs = calls.read_near(message)
        if not jobs:
            self._take_at = 0.0  # the holder gave the lease back
        elif self._clock.monotonic() >= self._take_at:
            now_ms = self._server.now_ms()
            for member, due_ms in jobs:
                if self._window.takes(due_ms, now_ms):
                    self._the_wheel().insert(member, due_ms)
        self._wake.set()

    def heard(self) -> None:
        """From now on hints are heard; those before may have been missed, and the node's connection is a new one."""
        self._lease.lost()
        self._take_at = 0.0
        self._start_afresh()
        self._wake.set()

    def stop(self) -> None:
        """Let `run` end and give the lease back."""
        self._is_stopping = True
        self._wake.set()

    @property
    def is_leading(self) -> bool:
        """Whether the lease is held, as far as this node can tell."""
        return self._lease.is_held(self._clock.monotonic())

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead until stopped."""
        while not self._is_stopping:
            rest = await self.step()
            if rest > 0 and not self._wake.is_set():
                cancel = self._clock.call_at(self._clock.monotonic() + rest, self._wake.set)
                await self._wake.wait()
                cancel()
            elif rest <= 0:
                await asyncio.sleep(0)
            self._wake.clear()
        if self.is_leading:
            try:
                await self._transport.send(calls.release(self.keys, self._lease.token))
            except ServerError as error:
                logger.warning("lease of %s:%d not given back: %s", self.keys.topic, self.keys.shard, error)

    async def step(self) -> float:
        """Do what is most urgent; returns the seconds until there is something to do again (0: at once)."""
        try:
            rest = await self._act()
        except NotLeader:
            logger.warning("%s:%d is led by another node now", self.keys.topic, self.keys.shard)
            self._lease.lost()
            self._start_afresh()
            rest = 0.0
        except ServerError as error:
            rest = self._rest_after(error)
        else:
            self._pause = FIRST_PAUSE
        return rest

    async def _act(self) -> float:
        now = self._clock.monotonic()
        if not self._lease.is_held(now):
            act_at = max(self._take_at, self._busy_at() if self._server.is_set else now)
            if act_at > now:
                return act_at - now
            await self._take()
            return 0.0
        now_ms = self._server.at(now)
        expired = self._the_wheel().advance(int(now_ms))
        if now_ms >= self._sweep_at or len(expired) > self._settings.batch:
            await self._sweep(expired)
        elif expired:
            await self._promote(expired)
        # While a sweep is not finished everything that is due will be found by it, and there is no use in loading more.
        if self._window.open_at <= now_ms < self._sweep_at:
            await self._open()
        if now >= self._lease.renew_at and self._needs_lease(now):
            await self._renew()
        now = self._clock.monotonic()
        busy_at = self._busy_at()
        return max(0.0, (min(busy_at, self._lease.renew_at) if self._needs_lease(now) else busy_at) - now)

    def _needs_lease(self, now: float) -> bool:
        """Whether there will be something to do before a lease taken now ends; else it is left to lapse."""
        return self._busy_at() < now + self._settings.lease_ms / 1000

    def _busy_at(self) -> float:
        """The monotonic instant at which there is something to do for a leader."""
        near = self._the_wheel().next_tick()
        at_ms = min(self._window.open_at, self._sweep_at)
        return self._server.monotonic_at(at_ms if near is None else min(at_ms, near))

    def _rest_after(self, error: ServerError) -> float:
        """The server could not be used. What was taken from the wheel is found again by sweeping."""
        self._sweep_at = 0.0
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        level = logging.ERROR if isinstance(error, Refused) else logging.WARNING
        logger.log(level, "%s:%d waits %.2f s: %s", self.keys.topic, self.keys.shard, self._pause, error)
        return self._pause

    # --- what a leader does ----------------------------------------------------------------------------------------

    async def _take(self) -> None:
        """Take the lease; if another node has it, set when to try again."""
        asked_at = self._clock.monotonic()
        connection = self._connection()
        answer = await self._acquire(connection)
        if not answer.is_ours and await self._is_gone(answer.token, connection):
            asked_at = self._clock.monotonic()
            answer = await self._acquire(connection, replaceable=answer.token)
        if answer.is_ours:
            self._lease.granted(answer.token, asked_at)
            self._sweep_at = 0.0
            self._window.open_at = 0.0
        else:
            self._take_at = asked_at + max(answer.left_ms, 10) / 1000
            self._wheel = None  # while another node leads, nothing is kept up to date here
            self._start_afresh()

    async def _acquire(self, connection: str, replaceable: str = "") -> calls.Acquired:
        asked_at = self._clock.monotonic()
        call = calls.acquire(self.keys, self._node, connection, self._settings.lease_ms, replaceable)
        answer = await self._transport.send(call)
        self._server.observe(asked_at, answer.server_us)
        return answer

    async def _is_gone(self, token: str, connection: str) -> bool:
        """Whether the holder's connection is closed. Client ids are the server process's: another run tells nothing."""
        holder = holder_connection(token)
        if holder is None or holder[0] != connection.partition(":")[0]:
            return False
        try:
            return not await self._transport.send(registry.is_connected(holder[1]))
        except Refused:  # the server keeps CLIENT to itself
            return False

    async def _promote(self, expired: list[tuple[str, int]]) -> None:
        members = [member for member, _ in expired]
        answer = await self._lead(calls.promote(self.keys, self._lease.token, self._settings.lease_ms, members))
        self.promoted += answer.promoted
        self._sweep_by(answer.server_us / 1000)
        for member, due_ms in answer.waiting:  # moved, or this node's clock was a little ahead
            if self._window.covers(due_ms):
                self._the_wheel().insert(member, due_ms)

    async def _sweep(self, expired: list[tuple[str, int]]) -> None:
        """Promote up to a batch of what is due; among it `expired`, but for what the server's clock has not reached."""
        call = calls.sweep(self.keys, self._lease.token, self._settings.lease_ms, self._settings.batch)
        answer = await self._lead(call)
        self.promoted += answer.promoted
        now_ms = answer.server_us / 1000
        for member, due_ms in expired:
            if due_ms > now_ms:
                self._the_wheel().insert(member, due_ms)
        self._sweep_at = now_ms if answer.is_partial else float("inf")
        if self._the_wheel():
            self._sweep_by(now_ms)

    def _sweep_by(self, now_ms: float) -> None:
        """While anything is near, sweep on a slow beat."""
        self._sweep_at = min(self._sweep_at, now_ms + self._settings.sweep_ms)

    async def _open(self) -> None:
        settings = self._settings
        answer = await self._lead(
            calls.open_window(
                self.keys,
                self._lease.token,
                settings.lease_ms,
                self._window.loaded_to,
                settings.window_ms,
                settings.window_ids,
                settings.idle_ms,
            )
        )
        wheel = self._the_wheel()
        for member, due_ms in answer.jobs:
            wheel.insert(member, due_ms)
        self._window.opened(answer, len(wheel))
        if wheel:
            self._sweep_by(answer.server_us / 1000)

    async def _renew(self) -> None:
        answer = await self._lead(calls.renew(self.keys, self._lease.token, self._settings.lease_ms))
        expected = self._the_wheel().next_tick()
        first = answer.first_due_ms
        if first is not None and self._window.covers(first) and (expected is None or first < expected):
            logger.info("%s:%d missed a hint", self.keys.topic, self.keys.shard)
            self._start_afresh()

    async def _lead(self, call: Call[T]) -> T:
        """Send a leader's call. Each prolongs the lease, and carries the server's time."""
        asked_at = self._clock.monotonic()
        answer = await self._transport.send(call)
        self._lease.prolonged(asked_at)
        server_us: int = answer.server_us  # type: ignore[attr-defined]  # every leader's answer has it
        self._server.observe(asked_at, server_us)
        return answer

    def _start_afresh(self) -> None:
        """Nothing that is loaded can be relied on: sweep, and load everything near again."""
        self._window.forget()
        self._sweep_at = 0.0

    def _the_wheel(self) -> Wheel:
        if self._wheel is None:
            self._wheel = Wheel(int(self._server.now_ms()))
        return self._wheel
