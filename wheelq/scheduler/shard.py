"""`Shard`: a node's part in one shard, as its leader or its standby.

    role      the lease is …    `step()` does
    leader    held              what a leader does (`leader`)
              not held          takes it (`candidate`) once there is something to do: a shard at rest costs nothing
    standby   not held          looks after the leader (`lookout`), and takes the lease if it has gone quiet or goes
              held              leads in the leader's place, until that one is seen to live again
    either, of a paused topic   nothing

Only a lease makes a leader; the role says who should have it. See `lease` for what may be believed of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from wheelq.clock import Clock, ServerClock
from wheelq.errors import NotLeader, Refused, ServerError
from wheelq.metrics import Lateness
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.candidate import Candidate, Denied, Granted, Outdated, Unpublished
from wheelq.scheduler.leader import Leader
from wheelq.scheduler.lease import Lease
from wheelq.scheduler.lookout import Lookout
from wheelq.scheduler.standby import Standby
from wheelq.settings import SchedulerSettings
from wheelq.topics import Topic
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""Seconds between attempts while the server cannot be used; doubling from the first to the longest."""


class Role(Enum):
    """What a node is to a shard."""

    LEADER = "leader"
    """It should hold the lease."""
    STANDBY = "standby"
    """It looks after the leader."""


class Shard:
    """One shard, on one node."""

    def __init__(
        self,
        keys: ShardKeys,
        transport: AsyncTransport,
        node: str,
        connection: Callable[[], str],
        settings: SchedulerSettings,
        clock: Clock,
        server_clock: ServerClock,
        topic: Topic,
        role: Role = Role.LEADER,
        report_gone: Callable[[str], None] = lambda node: None,
    ) -> None:
        """`connection` tells "run id:client id" of the connection whose end means that this node is gone.

        `report_gone` is told of a node from which the lease was taken because its connection is closed.
        """
        self.keys = keys
        self.role = role
        self.led_since_ms = 0.0
        """When the lease was last acquired, by the server's clock."""
        self._transport = transport
        self._topic = topic
        self._settings = settings
        self._clock = clock
        self._server = server_clock
        self._lease = Lease(settings)
        self._leader = Leader(keys, transport, self._lease, settings, clock, server_clock, topic)
        self._leader.shaping = topic.shaping
        self._standby = Standby(settings)
        self._lookout = Lookout(keys, transport, self._standby, settings, clock, server_clock, topic)
        self._candidate = Candidate(
            keys, transport, node, connection, settings, clock, server_clock, topic, report_gone
        )
        self._take_at = 0.0  # monotonic; later than now while another node holds the lease
        self._pause = FIRST_PAUSE
        self._wake = asyncio.Event()
        self._may_take = False  # as a standby, because the leader goes
        self._is_stopping = False
        self._is_going = False
        self._is_handing_over = False

    # --- what others tell the shard --------------------------------------------------------------------------------

    def ring(self, message: bytes) -> None:
        """A message came on the shard's `near` channel."""
        jobs = calls.read_near(message)
        if self._topic.paused:
            return
        if not jobs:  # the holder gave the lease back
            self._take_at = 0.0
            self._standby.look_at = 0.0
            self._may_take = message == calls.GOING.encode()
        elif self.role is Role.STANDBY and not self.is_leading:
            self._standby.ring(jobs)
        elif self._clock.monotonic() >= self._take_at:
            self._leader.ring(jobs)
        self._wake.set()

    def heard(self) -> None:
        """From now on hints are heard; those before may have been missed, and the node's connection is a new one."""
        self._lease.lost()
        self._start_afresh()
        self._wake.set()

    def look_again(self) -> None:
        """Something may have changed unheard: whatever is due comes first, then everything near is loaded again."""
        self._start_afresh()
        self._wake.set()

    def assume(self, role: Role) -> None:
        """The assignment says so. A leader that becomes standby hands over."""
        if role is not self.role:
            self._is_handing_over = role is Role.STANDBY and self.is_leading
            self.role = role
            self._start_afresh()
            self._wake.set()

    def configure(self, topic: Topic) -> None:
        """The topic's settings have been read. If they changed, come back with the new terms."""
        if topic != self._topic:
            self._topic = self._leader.topic = self._lookout.topic = self._candidate.topic = topic
            self._leader.shaping = topic.shaping
            self._lease.lost()
            self._start_afresh()
            self._wake.set()

    def hand_over(self) -> None:
        """Give the lease back, so that the leader, which lives again, can take it."""
        self._is_handing_over = True
        self._wake.set()

    def stop(self, *, node_goes: bool = False) -> None:
        """Let `run` end and give the lease back; if the whole node goes, the standby is told to take it."""
        self._is_stopping = True
        self._is_going = node_goes
        self._wake.set()

    @property
    def is_leading(self) -> bool:
        """Whether the lease is held, as far as this node can tell."""
        return self._lease.is_held(self._clock.monotonic())

    def is_responsible(self) -> bool:
        """Whether the shard is this node's to lead, or is led by it in the leader's place."""
        return self.role is Role.LEADER or self.is_leading

    @property
    def lateness(self) -> Lateness:
        """How late the jobs were that were promoted here so far."""
        return self._leader.lateness + self._lookout.lateness

    @property
    def promoted(self) -> int:
        """Jobs promoted here so far."""
        return self.lateness.jobs

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Play the role until stopped."""
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
                call = calls.release(self.keys, self._lease.token, is_going=self._is_going)
                await self._transport.send(call)
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
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            level = logging.ERROR if isinstance(error, Refused) else logging.WARNING
            logger.log(level, "%s:%d waits %.2f s: %s", self.keys.topic, self.keys.shard, self._pause, error)
            rest = self._pause
        except Exception:  # a shard that nobody leads any more would be worse than one that stumbles
            logger.exception("%s:%d starts afresh after an unexpected error", self.keys.topic, self.keys.shard)
            self._start_afresh()
            rest = LONGEST_PAUSE
        else:
            self._pause = FIRST_PAUSE
        return rest

    async def _act(self) -> float:
        now = self._clock.monotonic()
        if self._topic.paused:
            return self._settings.idle_ms / 1000
        if self._lease.is_held(now):
            if self._is_handing_over:
                await self._give_back()
                return 0.0
            act_at = await self._leader.act()
        elif self.role is Role.STANDBY and self._may_take:
            self._may_take = False
            await self._take()
            return 0.0
        elif self.role is Role.STANDBY:
            act_at = self._server.monotonic_at(self._standby.look_at)
            if act_at <= now:
                if await self._lookout.look():
                    await self._take()
                return 0.0
        else:
            act_at = max(self._take_at, self._leader.busy_at())
            if act_at <= now:
                await self._take()
                return 0.0
        return max(0.0, act_at - self._clock.monotonic())

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        """Take the lease; if another node has it, or it is not to be had yet, set when to try again."""
        match await self._candidate.ask():
            case Granted(token, asked_at, server_us):
                self._lease.granted(token, asked_at)
                self.led_since_ms = server_us / 1000
                self._is_handing_over = False
                self._leader.granted()
            case Denied(again_at):
                self._take_at = again_at
                self._leader.start_afresh()  # while another node leads, nothing is kept up to date here
            case Unpublished(again_at):
                self._take_at = again_at
            case Outdated(topic):
                self.configure(topic)

    async def _give_back(self) -> None:
        await self._transport.send(calls.release(self.keys, self._lease.token))
        self._lease.lost()
        self._is_handing_over = False
        self._standby.look_at = self._server.now_ms() + self._settings.hedge_ms
        self._take_at = self._clock.monotonic() + self._settings.hedge_ms / 1000
        self._leader.start_afresh()

    def _start_afresh(self) -> None:
        self._leader.start_afresh()
        self._standby.look_at = 0.0
        self._take_at = 0.0
