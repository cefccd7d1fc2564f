"""`Shard`: a node's role in one shard, leader or standby.

    role      the lease is …    `step()` does
    leader    held              works as the leader (`leader`)
              not held          takes it (`candidate`) just before there is work: a shard at rest costs nothing
              held by another   watches that node as a standby does, until the lease may have ended
    standby   not held          watches the leader (`standby`), and takes the lease if it falls silent or stops
              held              leads in the leader's place, until the leader is alive again
    either    topic paused      nothing

Only a lease makes a leader; the role says which node should have it. `lease` tells how long it can be trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from wheelq.base.clock import ServerClock, Wake
from wheelq.errors import NotLeader, ServerError
from wheelq.model.topic import Topic
from wheelq.protocol.calls import leader as calls
from wheelq.reminders import Loop
from wheelq.scheduler.candidate import Candidate, Denied, Granted, Unpublished
from wheelq.scheduler.leader import Leader
from wheelq.scheduler.lease import OwnLease
from wheelq.scheduler.parts import ShardParts
from wheelq.scheduler.promoter import Answer, Taken
from wheelq.scheduler.standby import Standby, StandbyRules

logger = logging.getLogger("wheelq.scheduler")


class Role(Enum):
    """The role of a node in a shard."""

    LEADER = "leader"
    """It should hold the lease."""
    STANDBY = "standby"
    """It watches the leader."""


class Shard:
    """One shard, on one node."""

    def __init__(
        self, parts: ShardParts, role: Role = Role.LEADER, report_gone: Callable[[str], None] = lambda node: None
    ) -> None:
        """`report_gone` gets the name of a node whose lease was taken because its connection is closed."""
        self.keys = keys = parts.keys
        self.role = role
        self.led_since = 0.0
        """When the lease was last acquired, by the monotonic clock."""
        self._parts = parts
        self._transport = parts.node.transport
        self._settings = settings = parts.node.settings
        self._clock = clock = parts.node.clock
        self._server = parts.server
        self._lease = OwnLease(settings)
        self._leader = Leader(parts, self._lease, self)
        self._rules = StandbyRules(settings)
        self._standby = Standby(parts, self._rules)
        self._candidate = Candidate(parts, report_gone)
        self._take_at = 0.0  # monotonic; later than now while another node holds the lease
        self._given_back = 0  # how often the holder gave the lease back, as it said
        self._loop = Loop(
            clock,
            logger,
            f"{keys.topic}:{keys.shard} promotes nothing",
            unexpected=f"{keys.topic}:{keys.shard} starts afresh after an unexpected error",
        )
        self._wake = Wake()
        self._may_take = False  # as a standby, because the leader stops
        self._is_stopping = False
        self._is_going = False
        self._is_handing_over = False
        self._jumps = parts.server.jumps

    # --- notices to the shard --------------------------------------------------------------------------------------

    def hint(self, message: bytes) -> None:
        """Take a message of the shard's `near` channel."""
        jobs = calls.read_near(message)
        if self._parts.topic.paused:
            return
        if not jobs:  # the holder gave the lease back
            self._take_at = 0.0
            self._given_back += 1
            self._rules.look_by(0.0)
            self._may_take = message == calls.GOING.encode()
        elif self._is_watching(self._clock.monotonic()):
            if not self._rules.hint(jobs, self._server.now_ms()):
                return
        elif not self._leader.hint(jobs):
            return
        self._wake.set()

    def heard(self) -> None:
        """The node listens on a new connection: hints may have been lost, and its leases name the old connection."""
        self._lease.lost()
        self._start_afresh()
        self._wake.set()

    def wake(self) -> None:
        """Its leader has work now."""
        self._wake.set()

    def take_time(self, asked_at: float, server_us: int) -> None:
        """Take the time of this shard's server; if the server's clock was stepped, the shard starts afresh."""
        if self._server.observe(asked_at, server_us):
            self._wake.set()

    def look_again(self) -> None:
        """Changes may have been missed: promote all due jobs, then load everything near again."""
        self._start_afresh()
        self._wake.set()

    def assume(self, role: Role) -> None:
        """Take the assigned role. A leader that becomes the standby hands over."""
        if role is not self.role:
            self._is_handing_over = role is Role.STANDBY and self.is_leading
            self.role = role
            self._start_afresh()
            self._wake.set()

    def configure(self, topic: Topic) -> None:
        """Take the topic's settings as just read. If they changed, acquire the lease again under the new terms."""
        before, self._parts.topic = self._parts.topic, topic
        if topic != before:
            self._lease.lost()
            self._start_afresh()
            self._wake.set()

    def hand_over(self) -> None:
        """Give the lease back, so that the leader, which is alive again, can take it."""
        self._is_handing_over = True
        self._wake.set()

    def stop(self, *, node_goes: bool = False) -> None:
        """Make `run` end, and give the lease back; if the whole node stops, the standby is told to take it."""
        self._is_stopping = True
        self._is_going = node_goes
        self._wake.set()

    @property
    def topic(self) -> Topic:
        """Its topic, as last read here or for the whole node."""
        return self._parts.topic

    @property
    def is_leading(self) -> bool:
        """Whether this node holds the lease, as far as it knows."""
        return self._lease.is_held(self._clock.monotonic())

    def is_responsible(self) -> bool:
        """Whether this node should lead the shard, or leads it in the leader's place."""
        return self.role is Role.LEADER or self.is_leading

    def holds_back(self) -> bool:
        """Whether jobs may wait although they are due: the topic is paused, or has limits."""
        return self._parts.topic.paused or self._parts.topic.is_shaped

    @property
    def next_ms(self) -> int | None:
        """When this node, as the leader, expects to promote next; None if it expects nothing."""
        return self._leader.next_ms

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work in the role until stopped."""
        while not self._is_stopping:
            rest = await self.step()
            if rest > 0 and not self._wake.is_set():
                await self._clock.wait(self._wake, rest)
            elif rest <= 0:
                await asyncio.sleep(0)
            self._wake.clear()
        self._parts.node.promoter.forget(self)
        self._leader.start_afresh()  # there is nothing to look for any more
        if self.is_leading:
            try:
                call = calls.release(self.keys, self._lease.token, is_going=self._is_going)
                await self._transport.send(call)
            except ServerError as error:
                logger.warning("lease of %s:%d not given back: %s", self.keys.topic, self.keys.shard, error)

    async def step(self) -> float:
        """Do the most urgent work; returns the seconds until the next (0: at once)."""
        return await self._loop.attempt(self._act)

    async def _act(self) -> float:
        try:
            return await self._do_most_urgent()
        except NotLeader:
            self._is_led_by_another()
            return 0.0
        except ServerError:
            raise
        except Exception:  # the loop goes on, because the shard needs a leader
            self._start_afresh()
            raise

    async def _do_most_urgent(self) -> float:
        now = self._clock.monotonic()
        if self._server.jumps != self._jumps:
            self._jumps = self._server.jumps
            self._start_afresh()
        if self._parts.topic.paused:
            return self._settings.idle_ms / 1000
        if self._lease.is_held(now):
            act_at = await self._lead()
        elif self.role is Role.STANDBY and self._may_take:
            self._may_take = False
            await self._take()
            return 0.0
        elif self._is_watching(now):
            act_at = self._server.monotonic_at(self._rules.look_at)
            if act_at <= now:
                if await self._standby.look():
                    await self._take(self._standby.over)
                return 0.0
            if self.role is Role.LEADER:
                act_at = min(act_at, self._take_at)
        else:
            act_at = self._leader.lease_at()
            if act_at <= now:
                if not (self._leader.may_rest and await self._leader.rest()):
                    await self._take()
                return 0.0
        return max(0.0, act_at - self._clock.monotonic())

    async def _lead(self) -> float:
        """Work as the leader; returns the monotonic instant of the next work."""
        if self._is_handing_over:
            await self._give_back()
            return 0.0
        act_at = await self._leader.act()
        if self._lease.is_lost:  # meanwhile: looks for what was loaded since then would keep the lease from others
            self._leader.start_afresh()
            return 0.0
        return act_at

    def _is_watching(self, now: float) -> bool:
        """Whether it leaves the shard to another node, and steps in if that does nothing."""
        return not self._lease.is_held(now) and (self.role is Role.STANDBY or now < self._take_at)

    def _is_led_by_another(self) -> None:
        logger.warning("%s:%d is led by another node now", self.keys.topic, self.keys.shard)
        self._lease.lost()
        self._start_afresh()

    # --- for the node's promoter -----------------------------------------------------------------------------------

    @property
    def server(self) -> ServerClock:
        """The clock of the server that has the shard."""
        return self._server

    def take(self, now: float) -> Taken | None:
        """Take the ids that are due; None if there are none, or if the shard must act by itself, which it then does."""
        has_jumped = self._server.jumps != self._jumps
        is_leading = self._lease.is_held(now) and not (self._is_handing_over or self._is_stopping)
        if self._parts.topic.paused or has_jumped or not is_leading:
            self._wake.set()
            return None
        members = self._leader.take(now)
        if members is None:
            self._wake.set()
        if not members:
            return None
        return Taken(self, calls.ToPromote(self.keys, self._lease.token, members, self._leader.renews(now)))

    def answered(self, asked_at: float, taken: Taken, answer: Answer) -> None:
        """Take the answer to a promotion that was sent at `asked_at`."""
        if isinstance(answer, calls.Promoted):
            if not self._leader.promoted(asked_at, answer) and self._server.jumps == self._jumps:
                return
        elif isinstance(answer, NotLeader) and taken.due.token == self._lease.token:
            self._is_led_by_another()
        else:
            self._leader.doubt()
        self._wake.set()

    # --- the lease -------------------------------------------------------------------------------------------------

    async def _take(self, over: str = "") -> None:
        """Take the lease, even from the holder of the token `over`.

        If another node has it, or it cannot be taken yet, set the time of the next attempt.
        """
        topic, given_back = self._parts.topic, self._given_back
        match await self._candidate.ask(over):
            case Granted(token, asked_at):
                self._lease.granted(token, asked_at)
                self.led_since = asked_at
                self._is_handing_over = False
                self._leader.granted()
                if self._parts.topic != topic:  # the settings have changed meanwhile, and these are the former terms
                    self._lease.lost()
            case Denied(again_at):
                # The message that the lease was given back may overtake this answer.
                self._take_at = again_at if self._given_back == given_back else 0.0
                self._rules.look_by(0.0)
                self._leader.start_afresh()  # the loaded window is stale if another node has led
            case Unpublished(again_at):
                self._take_at = again_at
            case Topic() as topic:
                self.configure(topic)

    async def _give_back(self) -> None:
        await self._transport.send(calls.release(self.keys, self._lease.token))
        self._lease.lost()
        self._is_handing_over = False
        self._rules.look_at = self._server.now_ms() + self._settings.hedge_ms
        self._take_at = self._clock.monotonic() + self._settings.hedge_ms / 1000
        self._leader.start_afresh()

    def _start_afresh(self) -> None:
        self._leader.start_afresh()
        self._rules.look_at = 0.0
        self._take_at = 0.0
