"""`TopicList`: the topics as a node last read them, and those that a failover lost in whole or in part (`LostTopics`).

A producer caches a topic for some seconds (`topics_ttl_ms`). If a failover loses the topic's registration or its last
number of shards meanwhile, the jobs that the producer schedules wait in shards that no scheduler node serves. So a node
watches the shards of each topic that has vanished, and those that a topic no longer has. If they hold jobs, the node
registers the topic as it was, or lists the lost number of shards as a former one, which `Draining` ends. A topic that
is removed on purpose is first marked as such, and leaves no jobs behind; nor does a former number of shards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wheelq.errors import TopicUnreadable
from wheelq.model.topic import Topic
from wheelq.protocol import registry_codec
from wheelq.protocol.calls import draining, registry, shard_counts, worker
from wheelq.protocol.keys import ShardKeys
from wheelq.scheduler.parts import NodeParts

logger = logging.getLogger("wheelq.scheduler")

WATCHED_S = 120.0
"""Seconds for which a lost topic or number of shards is watched: by then every producer has read the topic again."""


@dataclass(frozen=True, slots=True)
class _Lost:
    topic: Topic
    until: float
    """In monotonic seconds."""


class LostTopics:
    """The topics that one node knew and that are no longer registered, or not with all their shards."""

    def __init__(self, parts: NodeParts) -> None:
        self._transport = parts.transport
        self._keys = parts.keys
        self._clock = parts.clock
        self._lost: dict[str, _Lost] = {}

    def note(self, before: Mapping[str, Topic], after: Mapping[str, Topic]) -> None:
        """Compare the list with the one before; watch what has vanished."""
        until = self._clock.monotonic() + WATCHED_S
        vanished = {name: _Lost(topic, until) for name, topic in before.items() if not topic.removing}
        watched = {**vanished, **self._lost}
        self._lost = {name: lost for name, lost in watched.items() if _is_part_lost(after.get(name), lost.topic)}

    async def restore(self) -> None:
        """Register again the topics and numbers of shards that have vanished and hold jobs. Raises: ServerError."""
        now = self._clock.monotonic()
        self._lost = {name: lost for name, lost in self._lost.items() if now < lost.until}
        for name, lost in list(self._lost.items()):
            stored = await self._transport.send(registry.stored_topic(self._keys, name))
            if stored is None:
                await self._register(name, lost.topic)
            else:
                with suppress(TopicUnreadable):  # the node has logged it
                    await self._list_numbers(name, stored, lost.topic)

    async def _register(self, name: str, lost: Topic) -> None:
        if await self._holds_jobs(name, range(lost.all_shards)):
            logger.warning("the registration of topic %s was lost, and its shards hold jobs: registered again", name)
            await self._transport.send(registry.register_topic(self._keys, name, lost))
            self._lost.pop(name, None)

    async def _list_numbers(self, name: str, stored: bytes, lost: Topic) -> None:
        topic = registry_codec.decode_topic(stored, name)
        was_undone = topic.version < lost.version
        if was_undone or await self._holds_jobs(name, range(topic.all_shards, lost.all_shards)):
            logger.warning("topic %s lost a number of shards by which jobs may be placed: listed as former", name)
            await self._add_former(name, stored, topic, lost)

    async def _holds_jobs(self, name: str, numbers: Iterable[int]) -> bool:
        shards = (self._keys.shard(name, number) for number in numbers)
        return any([held async for held in self._transport.stream(map(draining.holds_jobs, shards))])

    async def _add_former(self, name: str, stored: bytes, topic: Topic, lost: Topic) -> None:
        """List the lost numbers of shards as former ones, after no client can place jobs by them any more."""
        after = replace(topic.with_former(lost), version=max(topic.version, lost.version) + 1)
        shards = [self._keys.shard(name, number) for number in range(after.all_shards)]
        fences = [registry.fence(shard, after.terms, after.version) for shard in shards]
        answers = [answer async for answer in self._transport.stream(fences)]
        if any(answer.version > after.version for answer in answers):
            return  # the topic is being changed: the next look shows how
        await self._make_groups(shards[: topic.all_shards], shards[topic.all_shards :])
        last_due_ms = max(answer.last_due_ms for answer in answers)
        after = replace(after, drained_by_ms=max(after.drained_by_ms, last_due_ms))
        await self._transport.send(registry.put_topic(self._keys, name, stored, after))

    async def _make_groups(self, shards: Sequence[ShardKeys], more: Sequence[ShardKeys]) -> None:
        """Create the groups of `shards` on `more` before a job is promoted there, so that absent workers miss none."""
        names = [groups async for groups in self._transport.stream(map(shard_counts.groups, shards))]
        for group in sorted(set[str]().union(*names)):
            for shard in more:
                await self._transport.send(worker.make_group_if_kept(shard, group))


def _is_part_lost(topic: Topic | None, known: Topic) -> bool:
    """Whether a topic that was known is not registered now, or not with all its numbers of shards."""
    return topic is None or not (topic.removing or topic.numbers.issuperset(known.numbers))


class TopicList:
    """The topics that one node serves."""

    def __init__(self, parts: NodeParts) -> None:
        self.settings: dict[str, Topic] = {}
        """By name, as last read."""
        self.unreadable: dict[str, str] = {}
        """The topics whose settings cannot be read here, each with the problem."""
        self.version = -1
        """Their version, as last read: it changes with any of them."""
        self.lost = LostTopics(parts)
        self._transport = parts.transport
        self._keys = parts.keys

    def shards(self) -> Iterator[tuple[str, int]]:
        """Every shard of every topic, by topic and number."""
        return ((name, number) for name, topic in self.settings.items() for number in range(topic.all_shards))

    @property
    def never_read(self) -> set[str]:
        """Returns the topics whose settings could never be read here."""
        return self.unreadable.keys() - self.settings.keys()

    async def read(self) -> bool:
        """Read the topics if their version has changed; returns whether it has. Raises: ServerError."""
        if await self._transport.send(registry.topics_version(self._keys)) == self.version:
            return False
        topics = await self._transport.send(registry.topics(self._keys))
        self.version = topics.version
        self.lost.note(self.settings, {**topics.settings, **dict.fromkeys(topics.unreadable, Topic())})
        # A topic that could be read before is served as it was: a shard with other terms refuses its leader.
        known = {name: self.settings[name] for name in topics.unreadable if name in self.settings}
        self.settings = {**known, **topics.settings}
        for name, problem in topics.unreadable.items():
            if self.unreadable.get(name) != problem:
                logger.error(
                    "topic %s is not served, or only as it was before: its settings cannot be read: %s", name, problem
                )
        self.unreadable = topics.unreadable
        return True
