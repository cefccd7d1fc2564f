"""`Scheduler`: one node. Finds topics, listens for hints, and runs a leader for every shard.

Four things go on beside the leaders:

    subscription   one connection that listens to the `near` channels of all shards and to changes of topics. Its end
                   means that this node is gone (its number is in every lease), so it is there before any lease.
                   When it was opened anew, hints may have been lost, and every leader starts afresh.
    topics         asked for when their version number has changed; a notice brings that forward
    heartbeat      what `wheelq stats` shows of this node
    connection     the one all leaders share; the transport opens it again after it broke
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from typing import Self

from wheelq.clock import Clock, ServerClock, SystemClock
from wheelq.errors import ServerError
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.leader import LONGEST_PAUSE, ShardLeader
from wheelq.settings import SchedulerSettings, Settings, resolve_url
from wheelq.transport import Address, AsyncTransport, Subscription

logger = logging.getLogger("wheelq.scheduler")


class Scheduler:
    """One scheduler node: `await Scheduler.connect(url).run()`. Start as many as you like; a shard has one leader."""

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
        self._leaders: dict[str, ShardLeader] = {}  # by near channel
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._subscription: Subscription | None = None
        self._connection = ""
        self._topics_version = -1
        self._topics_noticed = asyncio.Event()
        self._stopping = asyncio.Event()

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """A node on the server at `url` (else WHEELQ_URL). Connects when run. Raises: ConfigurationError."""
        settings = settings or Settings()
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, Keys(settings.prefix), settings.scheduler)

    @property
    def promoted(self) -> int:
        """Jobs promoted by this node so far."""
        return sum(leader.promoted for leader in self._leaders.values())

    def stop(self) -> None:
        """Let `run` end: leaders finish what they do and give their leases back."""
        self._stopping.set()

    async def run(self) -> None:
        """Lead until stopped. Survives restarts of the server.

        Raises: Unavailable or Refused when the server cannot be used at the very start.
        """
        await self._subscribe()
        listening = asyncio.create_task(self._listen(), name="wheelq subscription")
        watching = asyncio.create_task(self._watch_topics(), name="wheelq topics")
        beating = asyncio.create_task(self._beat(), name="wheelq heartbeat")
        await self._stopping.wait()
        for leader in self._leaders.values():
            leader.stop()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for task in (listening, watching, beating):
            task.cancel()
        await asyncio.gather(listening, watching, beating, return_exceptions=True)
        with contextlib.suppress(ServerError):
            await self._transport.send(registry.gone(self._keys.nodes, self.node))
        if self._subscription is not None:
            await self._subscription.close()
        await self._transport.close()

    # --- hints -----------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        asked_at = self._clock.monotonic()
        self._server.observe(asked_at, await self._transport.send(registry.server_time_us()))
        run_id = (await self._transport.send(registry.info("server")))["run_id"]
        subscription = self._transport.subscription()
        await subscription.open([self._keys.topics_changed, *self._leaders])
        self._subscription = subscription
        self._connection = f"{run_id}:{subscription.connection_id}"

    async def _listen(self) -> None:
        pause = 0.0
        while True:
            try:
                if self._subscription is None:
                    await self._clock.sleep(pause)
                    await self._subscribe()
                    self._topics_noticed.set()
                    pause = 0.0
                assert self._subscription is not None
                async for channel, data in self._subscription.messages():
                    self._hear(channel, data)
            except ServerError as error:
                logger.warning("hints are not heard until the server is back: %s", error)
                self._subscription = None
                pause = min(pause * 2 + 0.02, LONGEST_PAUSE)

    def _hear(self, channel: str, data: bytes | None) -> None:
        leader = self._leaders.get(channel)
        if leader is None:
            self._topics_noticed.set()
        elif data is None:
            leader.heard()
        else:
            leader.ring(data)

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _watch_topics(self) -> None:
        while True:
            try:
                version = await self._transport.send(registry.topics_version(self._keys))
                if version != self._topics_version:
                    await self._load_topics()
            except ServerError as error:
                logger.warning("topics are not watched until the server is back: %s", error)
            cancel = self._clock.call_at(
                self._clock.monotonic() + self._settings.topics_ms / 1000, self._topics_noticed.set
            )
            await self._topics_noticed.wait()
            cancel()
            self._topics_noticed.clear()

    async def _load_topics(self) -> None:
        topics = await self._transport.send(registry.topics(self._keys))
        for name, settings in topics.settings.items():
            for shard in range(settings.shards):
                await self._lead(self._keys.shard(name, shard))
        self._topics_version = topics.version

    async def _lead(self, shard: ShardKeys) -> None:
        if shard.near in self._leaders:
            return
        leader = ShardLeader(
            shard,
            self._transport,
            self.node,
            lambda: self._connection,
            self._settings,
            self._clock,
            self._server,
        )
        self._leaders[shard.near] = leader
        self._tasks[shard.near] = asyncio.create_task(leader.run(), name=f"wheelq {shard.topic}:{shard.shard}")
        if self._subscription is not None:  # else the next subscription includes it
            await self._subscription.listen(shard.near)

    # --- heartbeat -------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        started_ms = self._clock.wall_ms()
        while True:
            if self._server.is_set:
                what = {
                    "seen_ms": int(self._server.now_ms()),
                    "started_ms": started_ms,
                    "shards": len(self._leaders),
                    "leading": sum(leader.is_leading for leader in self._leaders.values()),
                    "promoted": self.promoted,
                    "clock_skew_ms": round(self._server.skew_ms),
                }
                with contextlib.suppress(ServerError):
                    await self._transport.send(registry.beat(self._keys.nodes, self.node, what))
            await self._clock.sleep(self._settings.heartbeat_ms / 1000)
