"""`Scheduler`: one node. Finds topics, listens for hints, and serves every shard that is assigned to it.

These tasks run beside the shards:

    promoter       promotes what is due in the shards that this node leads (`promoter`)
    lookout        looks for jobs that their leaders do not know of (`promoter`)
    hints          listens on one connection to changes and to the `near` channels of this node's shards
    changes        reads topics when their version number has changed, and nodes and assignment on every heartbeat;
                   after a notice, at once
    draining       drops former numbers of shards when none of their jobs is left (`draining`)
    ended groups   cleans up after groups that another program destroyed (`draining`)
    measurements   sends how late jobs were promoted
    outgoing       carries followers that the process which settled their jobs has left (`outgoing`)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Any, Self

from wheelq import reminders
from wheelq.base.clock import Clock, until_stopped
from wheelq.base.metrics import Lateness
from wheelq.base.timers import PreciseClock
from wheelq.base.version import __version__
from wheelq.errors import ServerError
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol.calls import counts
from wheelq.protocol.calls.outgoing import OUTGOING
from wheelq.protocol.calls.recurring import NOTICE
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.reminders import Loop
from wheelq.scheduler.draining import Draining, EndedGroups
from wheelq.scheduler.membership import Membership
from wheelq.scheduler.outgoing import OutgoingFollowers
from wheelq.scheduler.parts import NodeParts, ShardParts
from wheelq.scheduler.recurring import Occurrences
from wheelq.scheduler.shard import Role, Shard
from wheelq.scheduler.topics import TopicList
from wheelq.settings import SchedulerSettings, Settings, settings_in_force
from wheelq.transport import AsyncTransport, Subscription, server_address
from wheelq.transport.startup import StartupPolicy, check_server, until_usable

logger = logging.getLogger("wheelq.scheduler")

RETRY_S = 1.0
"""Seconds until the next look for changes after one that failed."""
PORTIONS = 5
"""How many portions of measurements are sent one after another."""
BEGUN_AT_ONCE, BEGIN_PAUSE_S = 50, 0.01
"""How many shards a node begins to serve at a time, and how long it rests then. A shard takes more memory until it has
asked the server for the first time."""


class Scheduler:
    """One scheduler node: `await Scheduler.connect(url).run()`. Start as many as you like: they share the shards."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys | None = None,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        """`carrier` takes followers of jobs to their topics."""
        self.node = f"{socket.gethostname().replace(':', '-')}-{os.getpid()}-{secrets.token_hex(3)}"
        """The name of this node in Redis: host, process and a random part."""
        self._transport = transport
        self._keys = keys = keys or Keys()
        self._settings = settings = settings or SchedulerSettings()
        self._precise = PreciseClock()
        self._clock = clock = clock or self._precise
        self._parts = parts = NodeParts(transport, keys, clock, settings, self.node)
        self._server = parts.server
        self._members = Membership(parts, self._state)
        self._draining = Draining(parts, self._draining_here)
        self._shards: dict[str, Shard] = {}  # by near channel
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._occurrences: dict[str, Occurrences] = {}  # by near channel of shard 0
        self._hints = HintSubscription(parts, lambda: [keys.changes, *self._shards], self._enter, self._hear)
        self._topics = TopicList(parts)
        self._carrier = carrier or Carrier(transport, keys, clock=clock)
        self._ended_groups = EndedGroups(parts, self._first_led_here, self._carrier)
        self._outgoing = OutgoingFollowers(parts, self._carrier, lambda: self._shards)
        parts.found_outgoing = self._outgoing.found
        self._is_noticed = False
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._was_run = False
        self._beat_at = 0.0
        self._looks = False
        self._reports: set[asyncio.Task[None]] = set()
        self._jumps = 0  # of the server's clock, as last told
        self._served: tuple[int, int] | None = None  # the versions of topics and assignment that it serves

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """A node on the server at `url` (else WHEELQ_URL). Connects when run. Raises: ConfigurationError."""
        given, settings = settings, settings or settings_in_force()
        transport, keys = AsyncTransport(server_address(url, given)), Keys(settings.prefix)
        carrier = Carrier(transport, keys, settings.client, settings.topic)
        return cls(transport, keys, settings.scheduler, carrier=carrier)

    @property
    def promoted(self) -> int:
        """Jobs promoted by this node so far."""
        return self.lateness.jobs

    @property
    def lateness(self) -> Lateness:
        """How late this node has promoted its jobs so far: from due time to promotion, by the server's clock."""
        return self._parts.promotions.lateness

    def stop(self) -> None:
        """Make `run` end: shards finish their current work and give their leases back, so standbys lead at once."""
        self._stopping.set()

    async def run(self, *, patiently: bool = False) -> None:
        """Serve shards until stopped. Survives restarts of the server.

        While it starts, it waits out refusals of the server, and with `patiently` also a server that is away.
        Raises, only while it starts: AuthenticationFailed, TlsFailed, WrongDatabase and ServerTooOld, which waiting
        does not cure; Unavailable, OutcomeUnknown and NotPrimary, unless `patiently`. RuntimeError, if it ran before.
        """
        if self._was_run:
            raise RuntimeError("this scheduler has been run before: make another one")
        self._was_run = True
        policy = StartupPolicy.OUTAGES if patiently else StartupPolicy.REFUSALS
        with reminders.kept(self._clock), contextlib.closing(self._precise):
            try:
                if await until_usable(self._start, self._stopping, self._clock, logger, policy):
                    await self._work()
            finally:
                await self._hints.close()
                await self._carrier.close()
                await self._transport.close()

    async def _start(self) -> None:
        await check_server(self._transport)
        await self._enter()

    async def _enter(self) -> None:
        """Open the subscription and write the first heartbeat. Raises: ServerError; may be repeated."""
        await self._server.asking(self._transport.send(server_time_us()))
        await self._hints.open()
        await self._members.join()

    async def _work(self) -> None:
        background = [
            promoting := asyncio.create_task(self._parts.promoter.run(), name="wheelq promoter"),
            looking := asyncio.create_task(self._parts.lookout.run(), name="wheelq lookout"),
            asyncio.create_task(self._hints.run(), name="wheelq subscription"),
            asyncio.create_task(self._draining.run(), name="wheelq former shards"),
            asyncio.create_task(self._ended_groups.run(), name="wheelq ended groups"),
            asyncio.create_task(self._outgoing.run(), name="wheelq outgoing followers"),
            asyncio.create_task(self._measure(), name="wheelq measurements"),
            asyncio.create_task(self._watch(), name="wheelq changes"),
        ]
        try:
            await until_stopped(self._stopping, background)
            watching = background.pop()  # end it first: it starts and ends shards
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for shard in self._shards.values():
                shard.stop(node_goes=True)
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._parts.promoter.stop()
            self._parts.lookout.stop()
            await asyncio.wait([promoting, looking])
            with contextlib.suppress(ServerError):
                await self._send_observations()
                await self._members.leave()
        finally:  # also if this is cancelled: no task outlives `run`
            rest = [*background, *self._tasks.values(), *self._reports]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for occurrences in self._occurrences.values():
                await occurrences.stop()

    def _hear(self, channel: str, data: bytes | None) -> None:
        shard = self._shards.get(channel)
        if channel in self._occurrences and data in (None, NOTICE):
            self._occurrences[channel].notice()
        if shard is None:
            self._is_noticed = True
            self._woken.set()
        elif data is None:
            shard.heard()
            self._outgoing.found(shard.keys)  # a paused or busy shard makes none of the calls that tell
        elif data.endswith(OUTGOING):
            self._outgoing.found(shard.keys)
        elif data != NOTICE:
            shard.hint(data)

    async def _watch(self) -> None:
        what = "changes are not watched"
        await Loop(self._clock, logger, what, RETRY_S, RETRY_S).run(self._look, self._woken)

    async def _look(self) -> float:
        now, beat_at = self._clock.monotonic(), self._beat_at
        is_unsure = not beat_at  # the first look, or the one before has failed
        self._beat_at = 0.0  # at once, unless all goes well
        changed = await self._topics.read()
        if beats := now >= beat_at:
            await self._tell_time(self._clock.monotonic(), await self._members.beat())
            # A node alone looks at every second beat whether that is still so: others announce themselves.
            self._looks = is_unsure or not (self._looks and self._members.is_alone)
            changed |= self._looks
        again_s = inf
        if changed or self._is_noticed:
            self._is_noticed = False
            again_s = await self._members.refresh(self._topics.shards(), self._topics.never_read, self._topics.version)
            self._is_noticed |= again_s < inf
            await self._play_parts()
        if beats:  # last, because over a slow network it may take seconds
            await self._topics.lost.restore()
        now = self._clock.monotonic()
        self._beat_at = now + self._settings.heartbeat_ms / 1000 if beats else beat_at
        return min(self._settings.topics_ms / 1000, max(0.0, self._beat_at - now), again_s)

    async def _tell_time(self, asked_at: float, server_us: int) -> None:
        """Tell each shard if its server's clock was stepped: a resting shard would not notice that by itself.

        The heartbeat, sent at `asked_at`, has told the time of one server.
        """
        if self._transport.server_of(self._keys.nodes) is None:  # all shards share its clock
            if self._server.jumps != self._jumps:
                self._jumps = self._server.jumps
                for shard in self._shards.values():
                    shard.wake()
                for occurrences in self._occurrences.values():
                    occurrences.notice()
            return
        by_server: dict[object, list[str]] = {}
        for channel, shard in self._shards.items():
            by_server.setdefault(self._transport.server_of(shard.keys.ready), []).append(channel)
        for server, channels in by_server.items():
            sample = (asked_at, server_us)
            if server != self._transport.server_of(self._keys.nodes):
                sent_at = self._clock.monotonic()
                key = self._shards[channels[0]].keys.ready
                sample = (sent_at, await self._transport.send(server_time_us(key)))
            for part in (*map(self._shards.get, channels), *map(self._occurrences.get, channels)):
                if part is not None:
                    part.take_time(*sample)

    async def _measure(self) -> None:
        while True:
            await self._clock.sleep(self._settings.heartbeat_ms / 1000)
            with contextlib.suppress(ServerError):  # it is sent later
                await self._send_observations()

    async def _send_observations(self) -> None:
        """Send how late jobs were promoted to the histograms, if any were. Raises: ServerError."""
        observations = self._parts.promotions.observations
        for _ in range(PORTIONS):
            if (found := observations.to_send()) is None:
                return
            number, increments = found
            await self._transport.send(counts.observe(self._keys, self.node, number, increments))
            observations.sent(number)

    async def _play_parts(self) -> None:
        """Start, change and end this node's roles in shards, as the assignment says."""
        wanted = (self._topics.version, self._members.version)
        if wanted != self._served or not self._know_what_was_read():
            self._served = None
            await self._serve()
            self._served = wanted
        self._return_what_was_stood_in_for()

    def _know_what_was_read(self) -> bool:
        """Whether all shards have the settings that were read last. One that has met a change itself may have others,
        which a failover may have undone.
        """
        settings = self._topics.settings
        return all(shard.topic is settings.get(shard.keys.topic) for shard in self._shards.values())

    async def _serve(self) -> None:
        wanted = {
            self._keys.shard(*name): Role.LEADER if post.leader == self.node else Role.STANDBY
            for name, post in self._members.posts.items()
            if self.node in post
        }
        for channel in self._shards.keys() - {keys.near for keys in wanted}:
            await self._end(channel)
        begun = 0
        for keys, role in wanted.items():
            if (topic := self._topics.settings.get(keys.topic)) is None:  # only another node has read it so far
                continue
            if keys.near in self._shards:
                self._shards[keys.near].configure(topic)
                self._shards[keys.near].assume(role)
            else:
                await self._begin(keys, topic, role)
                begun += 1
                if begun % BEGUN_AT_ONCE == 0:
                    await self._clock.sleep(BEGIN_PAUSE_S)

    def _first_led_here(self) -> dict[str, Topic]:
        """The topics of which this node leads the first shard."""
        posts = self._members.posts
        return {
            name: topic
            for name, topic in self._topics.settings.items()
            if (name, 0) in posts and posts[name, 0].leader == self.node
        }

    def _draining_here(self) -> list[str]:
        """The topics with former numbers of shards of which this node leads the first shard."""
        return [name for name, topic in self._first_led_here().items() if topic.draining]

    def _return_what_was_stood_in_for(self) -> None:
        """Hand shards back that this standby leads, once their leader has sent a new heartbeat."""
        for shard in self._shards.values():
            if shard.role is Role.STANDBY and shard.is_leading:
                post = self._members.posts[(shard.keys.topic, shard.keys.shard)]
                if self._members.seen_at.get(post.leader, 0.0) > shard.led_since:
                    shard.hand_over()

    async def _begin(self, keys: ShardKeys, topic: Topic, role: Role) -> None:
        shard = self._shards[keys.near] = Shard(ShardParts(self._parts, keys, topic), role, self._report_gone)
        self._tasks[keys.near] = asyncio.create_task(shard.run(), name=f"wheelq {keys.topic}:{keys.shard}")
        if keys.shard == 0:
            occurrences = Occurrences(self._parts, keys, shard.is_responsible, shard.holds_back)
            self._occurrences[keys.near] = occurrences
            occurrences.start()
        await self._hints.listen(keys.near)

    async def _end(self, channel: str) -> None:
        shard = self._shards.pop(channel)
        shard.stop()
        if occurrences := self._occurrences.pop(channel, None):
            await occurrences.stop()
        await self._tasks.pop(channel)
        await self._hints.ignore(channel)

    def _report_gone(self, node: str) -> None:
        async def report() -> None:
            with contextlib.suppress(ServerError):  # on failure, its missing heartbeats show that it is gone
                await self._members.report_gone(node)

        self._reports.add(task := asyncio.create_task(report()))  # the event loop itself keeps only a weak reference
        task.add_done_callback(self._reports.discard)

    def _state(self) -> dict[str, Any]:
        """Returns the report of this node, which `wheelq stats` shows."""
        lateness = self.lateness
        return {
            "connection": self._parts.connection,
            "shards": len(self._shards),
            "leading": sum(shard.is_leading for shard in self._shards.values()),
            "promoted": lateness.jobs,
            "late_ms": lateness.total_ms,
            "lateness": lateness.counts,
            "version": __version__,
            "clock_skew_ms": round(self._server.skew_ms),
        }


class HintSubscription:
    """Listens to its shards and to changes on one connection, and opens it again when it breaks.

    If this connection ends, the node counts as gone. Every lease names the connection's id, so it is opened before any
    lease is taken. Hints may be lost while it is closed, so after it is reopened every shard starts afresh.
    """

    def __init__(
        self,
        parts: NodeParts,
        channels: Callable[[], Iterable[str]],
        enter: Callable[[], Awaitable[None]],
        hear: Callable[[str, bytes | None], None],
    ) -> None:
        """`channels()` are the channels; `enter()` opens the connection again, and sends a heartbeat.

        `hear(channel, message)` takes each message, or None when messages of the channel may have been missed.
        """
        self._parts = parts
        self._channels = channels
        self._enter = enter
        self._hear = hear
        self._open: Subscription | None = None

    async def open(self) -> None:
        """Open or reopen the connection. Raises: ServerError; the call may then be repeated."""
        former, self._open = self._open, None  # channels of shards that start now are added below
        if former is not None:
            await former.close()
        subscription = self._parts.transport.subscription()
        channels = list(self._channels())
        await subscription.open(channels)
        self._open = subscription
        self._parts.connection = subscription.name
        if missed := set(self._channels()) - set(channels):
            await subscription.listen(*missed)

    async def run(self) -> None:
        """Listen until cancelled."""
        loop = Loop(self._parts.clock, logger, "hints are not heard")

        async def listen() -> None:
            try:
                if self._open is None:
                    await self._enter()
                assert self._open is not None
                async for channel, data in self._open.messages():
                    loop.backoff.failures = 0  # not earlier: a server that refuses this user does so only now
                    self._hear(channel, data)
            except ServerError:
                self._open = None
                raise

        await loop.run(listen)

    async def listen(self, channel: str) -> None:
        """Listen to one more channel; if the connection is closed, the next connection will listen to it."""
        if self._open is not None:
            await self._open.listen(channel)

    async def ignore(self, channel: str) -> None:
        if self._open is not None:
            await self._open.ignore(channel)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()
