"""`ServedShards`: reads the shards of a worker's topics again and again, and creates its group on each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from wheelq.errors import BeingRemoved, TopicUnreadable
from wheelq.model.topic import Topic
from wheelq.protocol import registry_codec
from wheelq.protocol.calls import draining, registry, shard_counts
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.worker import GroupStart
from wheelq.worker.delivery.held import ServedShard
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.handlers.handler import Handlers

logger = logging.getLogger("wheelq.worker")

LOOKS, LOOK_PAUSE = 20, 0.1
"""The number of looks, and the seconds between them, while another worker may be creating the group on all shards."""
AT_ONCE = 500
"""How many topics one call reads."""
READ_AGAIN = 60.0
"""Seconds after which topics are read without a visible change, because a failover may have lost a change of the
version."""


class ServedShards:
    """The shards that one worker serves."""

    def __init__(
        self,
        parts: WorkerParts,
        handlers: Handlers,
        bind: Callable[[], None],
        start: GroupStart,
    ) -> None:
        """`bind()` is called before topics with a new handler are served."""
        self.shards: list[ServedShard] = []
        self._parts = parts
        self._transport = parts.transport
        self._keys = parts.keys
        self._group = parts.group
        self._handlers = handlers
        self._bind = bind
        self._clock = parts.clock
        self._server = parts.server
        self._start: GroupStart = start
        self._starts: dict[str, GroupStart] = {}  # of topics that existed before the end of the first round
        self._unreadable: dict[str, str] = {}
        self._served_once: set[str] = set()
        self._version: int | None = None
        self._topics: dict[str, Topic] = {}
        self._asked: list[str] = []
        self._read_again_at = 0.0
        self._is_settled = False

    async def find(self) -> None:
        """Read the shards of all topics, and create the group on new ones. Raises: ServerError."""
        if not self._server.is_set:  # later the heartbeat brings the time
            await self._server.asking(self._transport.send(server_time_us()))
        await self._handlers.find_more()
        self._bind()
        if not await self._read_topics():
            return
        is_settled = True
        known = {shard.keys.ready: shard for shard in self.shards}
        for topic in self._handlers.topics:
            settings = self._topics.get(topic)
            if self._is_over(topic, settings):
                self._leave(topic, settings)
            elif settings is not None:
                try:
                    await self._find_shards(topic, await self._returned(topic, settings), known)
                except BeingRemoved:  # it is looked at again soon
                    is_settled = False
        self._start = "beginning"  # new topics and shards are read from the beginning
        self._is_settled = await self._leave_given_up() and is_settled

    async def _find_shards(self, topic: str, settings: Topic, known: Mapping[str, ServedShard]) -> None:
        start = await self._start_of(topic, settings)
        for number in range(settings.all_shards):
            keys = self._keys.shard(topic, number)
            if keys.ready in known:
                known[keys.ready].topic = settings
            else:
                await self._transport.send(calls.make_group(keys, self._group, start))
                self.shards.append(ServedShard(keys, settings))
                self._served_once.add(topic)

    async def _leave_given_up(self) -> bool:
        """Stop serving the empty shards that their topics have given up. Returns whether all of them were empty.

        The others may still be needed: a failover may have lost a number of shards, which a scheduler then restores.
        """
        given_up = [
            shard
            for shard in self.shards
            if (settings := self._topics.get(shard.keys.topic)) and shard.keys.shard >= settings.all_shards
        ]
        empty = [
            shard for shard in given_up if not await self._transport.send(draining.holds_entries(shard.keys.ready))
        ]
        self._drop(empty)
        return len(empty) == len(given_up)

    async def regroup(self, shards: Iterable[ServedShard]) -> None:
        """Create the group again on shards that lack it, unless it was removed. Raises: ServerError."""
        for shard in shards:
            topic = shard.keys.topic
            settings = await self._read(topic)
            if self._is_over(topic, settings):
                self._leave(topic, settings)
            elif not shard.is_gone:
                await self._transport.send(calls.make_group(shard.keys, self._group))

    def _is_over(self, topic: str, settings: Topic | None) -> bool:
        """Whether the topic does not exist, or this worker has served it and its group was removed since."""
        if settings is None:
            return topic not in self._unreadable
        return settings.removing or (topic in self._served_once and settings.has_removed(self._group))

    def _leave(self, topic: str, settings: Topic | None) -> None:
        gone = [shard for shard in self.shards if shard.keys.topic == topic]
        self._drop(gone)
        if gone and settings is not None and not settings.removing:
            logger.warning(
                "group %r of topic %r was removed: this worker no longer serves it; a worker that is started now does",
                self._group,
                topic,
            )
        elif gone:
            logger.warning("topic %r was removed: this worker no longer serves it, unless it is created again", topic)

    def _drop(self, gone: Iterable[ServedShard]) -> None:
        """Serve these shards no more."""
        for shard in gone:
            shard.is_gone = True
            self._parts.settler.leave(shard)
            self._parts.held.leave(shard)
        self.shards = [shard for shard in self.shards if not shard.is_gone]

    async def _returned(self, topic: str, settings: Topic) -> Topic:
        """Remove the group from the topic's removed groups, because this worker started later; returns the topic."""
        while settings.has_removed(self._group):
            stored = await self._transport.send(registry.stored_topic(self._keys, topic))
            if stored is None:
                break
            settings = registry_codec.decode_topic(stored, topic).with_group(self._group)
            if await self._transport.send(registry.put_topic(self._keys, topic, stored, settings)):
                break
        return settings

    async def _start_of(self, topic: str, settings: Topic) -> GroupStart:
        """Returns where the group starts on shards that lack it: "now" only if the group is new to the whole topic.

        If only some shards have it, another worker may be creating it on the others at this moment. If not, those
        shards are new or have lost the group, and are read from the beginning.
        """
        if self._start == "now" and topic not in self._starts:
            every = [self._keys.shard(topic, n) for n in range(settings.all_shards)]
            for _ in range(LOOKS):
                has = [self._group in await self._transport.send(shard_counts.groups(keys)) for keys in every]
                if all(has) or not any(has):
                    break
                await self._clock.sleep(LOOK_PAUSE)
            self._starts[topic] = "beginning" if any(has) else "now"
        return self._starts.get(topic, "beginning") if self._start == "now" else "beginning"

    async def _read(self, topic: str) -> Topic | None:
        """Returns the topic; None if it does not exist, or is unreadable: then it is served as it was."""
        some = await self._transport.send(registry.topics_named(self._keys, [topic]))
        self._unreadable.pop(topic, None)
        self._unreadable.update(some.unreadable)
        return some.settings.get(topic)

    async def _read_topics(self) -> bool:
        """Read the topics with a handler, if any topic has changed. Returns whether there is something to do."""
        names = self._handlers.topics
        version = await self._transport.send(registry.topics_version(self._keys))
        now = self._clock.monotonic()
        is_known = version == self._version and self._asked == names and now < self._read_again_at
        if is_known and self._is_settled:
            return False
        found: dict[str, Topic] = {}
        unreadable: dict[str, str] = {}
        for first in range(0, len(names), AT_ONCE):
            some = await self._transport.send(registry.topics_named(self._keys, names[first : first + AT_ONCE]))
            found |= some.settings
            unreadable |= some.unreadable
        for topic, problem in unreadable.items() - self._unreadable.items():
            logger.error("%s", TopicUnreadable(topic, problem))
        self._topics, self._unreadable, self._is_settled = found, unreadable, False  # until all is done
        self._version, self._asked, self._read_again_at = version, names, now + READ_AGAIN
        return True

    def served(self) -> list[ServedShard]:
        """The shards whose deliveries may start."""
        return [shard for shard in self.shards if not shard.topic.paused]

    def concerns(self, topic: str) -> bool:
        """Whether a change of this topic concerns this worker."""
        return self._handlers.may_get_more or topic in self._handlers

    @property
    def knows_all(self) -> bool:
        """Whether every topic with a handler exists."""
        return len({shard.keys.topic for shard in self.shards}) == len(self._handlers.topics)
