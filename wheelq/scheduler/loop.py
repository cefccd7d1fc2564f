"""`Scheduler`: one node. Finds topics, listens for hints, and plays its part in every shard that is assigned to it.

Four things go on beside the shards:

    subscription   one connection that listens to the `near` channels of this node's shards and to changes. Its end
                   means that this node is gone (its number is in every lease), so it is there before any lease.
                   When it was opened anew, hints may have been lost, and every shard starts afresh.
    changes        topics are read when their version number has changed, nodes and assignment on every heartbeat;
                   a notice brings either forward
    clearing       former numbers of shards are looked after (`clearing`)
    connection     the one all shards share; the transport opens it again after it broke
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from typing import Any, Self

from wheelq.clock import Clock, ServerClock, SystemClock, until_stopped
from wheelq.errors import ServerError
from wheelq.metrics import Lateness
from wheelq.patience import until_usable
from wheelq.protocol.calls import registry
from wheelq.protocol.calls.recurring import NOTICE
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.clearing import Clearing
from wheelq.scheduler.membership import Membership
from wheelq.scheduler.recurring import Maker
from wheelq.scheduler.shard import LONGEST_PAUSE, Role, Shard
from wheelq.settings import SchedulerSettings, Settings, resolve_url
from wheelq.topics import Topic
from wheelq.transport import Address, AsyncTransport, Subscription

logger = logging.getLogger("wheelq.scheduler")


class Scheduler:
    """One scheduler node: `await Scheduler.connect(url).run()`. Start as many as you like: they share the shards."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys | None = None,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.node = f"{socket.gethostname().replace(':', '-')}-{os.getpid()}-{secrets.token_hex(3)}"
        self._transport = transport
        self._keys = keys or Keys()
        self._settings = settings or SchedulerSettings()
        self._clock = clock or SystemClock()
        self._server = ServerClock(self._clock)
        self._members = Membership(transport, self._keys, self.node, self._settings, self._clock, self._server)
        self._clearing = Clearing(transport, self._keys, self._clock, self._settings.heartbeat_ms, self._draining_here)
        self._shards: dict[str, Shard] = {}  # by near channel
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._makers: dict[str, Maker] = {}  # by near channel of shard 0
        self._subscription: Subscription | None = None
        self._connection = ""
        self._topics_version = -1
        self._topics: dict[str, Topic] = {}
        self._is_noticed = False
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()
        self._lateness_before = Lateness()  # in shards that are no longer here

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """A node on the server at `url` (else WHEELQ_URL). Connects when run. Raises: ConfigurationError."""
        settings = settings or Settings()
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, Keys(settings.prefix), settings.scheduler)

    @property
    def promoted(self) -> int:
        """Jobs promoted by this node so far."""
        return self.lateness.jobs

    @property
    def lateness(self) -> Lateness:
        """How late this node has promoted its jobs so far: from due time to promotion, by the server's clock."""
        return sum((shard.lateness for shard in self._shards.values()), start=self._lateness_before)

    def stop(self) -> None:
        """Let `run` end: shards finish what they do and give their leases back, so that standbys lead at once."""
        self._stopping.set()

    async def run(self, *, patiently: bool = False) -> None:
        """Play this node's part until stopped. Survives restarts of the server.

        At the very start a server that is busy, or loads its data, is waited for; `patiently` also one that is away.
        Raises: Unavailable (unless patient) or Refused when the server cannot be used at the very start.
        """
        try:
            if await until_usable(self._enter, self._stopping, self._clock, logger, patiently=patiently):
                await self._work()
        finally:
            if self._subscription is not None:
                await self._subscription.close()
            await self._transport.close()

    async def _enter(self) -> None:
        """Be one of the nodes. Raises: ServerError, and may be repeated."""
        await self._subscribe()
        await self._members.join(self._state())

    async def _work(self) -> None:
        background = [
            asyncio.create_task(self._listen(), name="wheelq subscription"),
            asyncio.create_task(self._clearing.run(), name="wheelq former shards"),
            asyncio.create_task(self._watch(), name="wheelq changes"),
        ]
        try:
            await until_stopped(self._stopping, background)
            watching = background.pop()  # shards come and go with it
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for shard in self._shards.values():
                shard.stop(node_goes=True)
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            with contextlib.suppress(ServerError):
                await self._members.leave()
        finally:  # also when this is cancelled: nothing goes on behind the caller's back
            rest = [*background, *self._tasks.values(), *self._reports]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for maker in self._makers.values():
                await maker.stop()

    # --- hints -----------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        asked_at = self._clock.monotonic()
        self._server.observe(asked_at, await self._transport.send(registry.server_time_us()))
        if self._subscription is not None:
            await self._subscription.close()
        subscription = self._transport.subscription()
        await subscription.open([self._keys.changes, *self._shards])
        self._subscription = subscription
        self._connection = subscription.name

    async def _listen(self) -> None:
        pause = 0.0
        while True:
            try:
                if self._subscription is None:
                    await self._clock.sleep(pause)
                    await self._enter()
                    pause = 0.0
                assert self._subscription is not None
                async for channel, data in self._subscription.messages():
                    self._hear(channel, data)
            except ServerError as error:
                logger.warning("hints are not heard until the server is back: %s", error)
                self._subscription = None
                pause = min(pause * 2 + 0.02, LONGEST_PAUSE)

    def _hear(self, channel: str, data: bytes | None) -> None:
        shard = self._shards.get(channel)
        if channel in self._makers and data in (None, NOTICE):
            self._makers[channel].notice()
        if shard is None:
            self._is_noticed = True
            self._woken.set()
        elif data is None:
            shard.heard()
        elif data != NOTICE:
            shard.ring(data)

    # --- changes ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        beat_at = 0.0
        while True:
            now = self._clock.monotonic()
            try:
                changed = await self._read_topics()
                if now >= beat_at:
                    await self._members.beat(self._state())
                    beat_at = now + self._settings.heartbeat_ms / 1000
                    changed = True
                if changed or self._is_noticed:
                    self._is_noticed = False
                    await self._members.refresh(
                        (name, n) for name, topic in self._topics.items() for n in range(topic.all_shards)
                    )
                    await self._play_parts()
            except ServerError as error:
                logger.warning("changes are not watched until the server is back: %s", error)
                beat_at = 0.0
            pause = self._settings.topics_ms / 1000
            cancel = self._clock.call_at(self._clock.monotonic() + pause, self._woken.set)
            await self._woken.wait()
            self._woken.clear()
            cancel()

    async def _read_topics(self) -> bool:
        """Whether any has changed, or is new."""
        if await self._transport.send(registry.topics_version(self._keys)) == self._topics_version:
            return False
        topics = await self._transport.send(registry.topics(self._keys))
        self._topics_version = topics.version
        self._topics = topics.settings
        return True

    async def _play_parts(self) -> None:
        """Begin, change and end this node's part in shards, as the assignment says."""
        wanted = {
            self._keys.shard(*name): Role.LEADER if post.leader == self.node else Role.STANDBY
            for name, post in self._members.posts.items()
            if self.node in post
        }
        for channel in self._shards.keys() - {keys.near for keys in wanted}:
            await self._end(channel)
        for keys, role in wanted.items():
            topic = self._topics.get(keys.topic)
            if topic is None:  # another node knows it already: this one is about to
                continue
            if keys.near in self._shards:
                self._shards[keys.near].configure(topic)
                self._shards[keys.near].assume(role)
            else:
                await self._begin(keys, topic, role)
        self._return_what_was_stood_in_for()

    def _draining_here(self) -> list[str]:
        """The topics with former numbers of shards of which this node leads the first shard."""
        draining = [name for name, topic in self._topics.items() if topic.draining]
        posts = self._members.posts
        return [name for name in draining if (name, 0) in posts and posts[name, 0].leader == self.node]

    def _return_what_was_stood_in_for(self) -> None:
        """A standby that leads hands over when the leader has said that it lives since."""
        for shard in self._shards.values():
            if shard.role is Role.STANDBY and shard.is_leading:
                post = self._members.posts[(shard.keys.topic, shard.keys.shard)]
                if self._members.seen_ms.get(post.leader, 0) > shard.led_since_ms:
                    shard.hand_over()

    async def _begin(self, keys: ShardKeys, topic: Topic, role: Role) -> None:
        shard = Shard(
            keys,
            self._transport,
            self.node,
            lambda: self._connection,
            self._settings,
            self._clock,
            self._server.like(),  # in a cluster it may be another node's
            topic,
            role,
            self._report_gone,
        )
        self._shards[keys.near] = shard
        self._tasks[keys.near] = asyncio.create_task(shard.run(), name=f"wheelq {keys.topic}:{keys.shard}")
        if keys.shard == 0:
            maker = Maker(keys, self._transport, self._settings, self._clock, self._server.like(), shard.is_responsible)
            self._makers[keys.near] = maker
            maker.start()
        if self._subscription is not None:  # else the next subscription includes it
            await self._subscription.listen(keys.near)

    async def _end(self, channel: str) -> None:
        shard = self._shards.pop(channel)
        shard.stop()
        if maker := self._makers.pop(channel, None):
            await maker.stop()
        await self._tasks.pop(channel)
        self._lateness_before += shard.lateness
        if self._subscription is not None:
            await self._subscription.ignore(channel)

    def _report_gone(self, node: str) -> None:
        async def report() -> None:
            with contextlib.suppress(ServerError):  # else its missing heartbeats tell
                await self._members.report_gone(node)

        task = asyncio.create_task(report())
        self._reports.add(task)  # the event loop itself keeps no hold of it
        task.add_done_callback(self._reports.discard)

    def _state(self) -> dict[str, Any]:
        """What `wheelq stats` shows of this node."""
        lateness = self.lateness
        return {
            "connection": self._connection,
            "shards": len(self._shards),
            "leading": sum(shard.is_leading for shard in self._shards.values()),
            "promoted": lateness.jobs,
            "late_ms": lateness.total_ms,
            "lateness": lateness.counts,
            "clock_skew_ms": round(self._server.skew_ms),
        }
