"""`Following`: the shards of a worker's topics, learned again and again, and its group made on each."""

from __future__ import annotations

from collections.abc import Callable

from wheelq.clock import Clock, ServerClock
from wheelq.protocol.calls import registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.worker import GroupStart
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport
from wheelq.worker.handlers import Handlers
from wheelq.worker.held import Line


class Following:
    """What there is to read, for one group."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        group: str,
        handlers: Handlers,
        bind: Callable[[], None],
        clock: Clock,
        server: ServerClock,
        start: GroupStart,
    ) -> None:
        """`bind()` is called before topics that have just got their handler are followed."""
        self.lines: list[Line] = []
        self._transport = transport
        self._keys = keys
        self._group = group
        self._handlers = handlers
        self._bind = bind
        self._clock = clock
        self._server = server
        self._start: GroupStart = start

    async def find(self) -> None:
        """Learn the shards of all topics, and make the group on those that are new. Raises: ServerError."""
        asked_at = self._clock.monotonic()
        self._server.observe(asked_at, await self._transport.send(registry.server_time_us()))
        await self._handlers.find_more()
        self._bind()
        known = {line.keys.ready: line for line in self.lines}
        for topic in self._handlers.topics:
            settings = await self._transport.send(registry.topic(self._keys, topic))
            if settings is None:
                continue
            start = self._start
            for shard in range(settings.all_shards):
                keys = self._keys.shard(topic, shard)
                if keys.ready in known:
                    known[keys.ready].topic = settings
                else:
                    is_new = await self._transport.send(calls.make_group(keys, self._group, start))
                    start = start if is_new else "beginning"  # the group is not new, only a shard is
                    self.lines = [*self.lines, Line(keys, settings)]
        self._start = "beginning"  # what comes into being from now on, topics and shards, is to be read from there

    def served(self) -> list[Line]:
        """The shards of which deliveries may begin."""
        return [line for line in self.lines if not line.topic.paused]

    def concerns(self, topic: str) -> bool:
        """Whether a change of this topic is of interest."""
        return self._handlers.may_get_more or topic in self._handlers

    @property
    def knows_all(self) -> bool:
        """Whether every topic with a handler exists."""
        return len({line.keys.topic for line in self.lines}) == len(self._handlers.topics)
