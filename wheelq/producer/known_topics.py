"""`TopicLookup`: a client's cache of topics; finds the shards where a job may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wheelq.base.clock import Clock
from wheelq.errors import BeingRemoved, OutcomeUnknown, TopicNotFound, Unavailable
from wheelq.model.checks import check_id, check_topic
from wheelq.model.topic import FORECAST_MS, Span, Topic, TopicInfo, shard_of
from wheelq.producer.confirmation import Confirmation
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.protocol.call import Call
from wheelq.protocol.calls import registry, shard_counts, worker
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings

T = TypeVar("T")
Spans = list[Span]  # in the class below, `list` is an operation


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as read a moment ago, with the data that each new job of it needs."""

    name: str
    topic: Topic
    until: float
    """When it must be read again, in monotonic seconds."""
    terms: str
    """The topic's terms, cached because they take a while to build."""
    keys: Keys
    shards: dict[int, ShardKeys] = field(default_factory=dict)
    """The keys of shards used before."""

    def shard(self, partition_key: str) -> ShardKeys:
        """The shard of a job with this partition key (its id, if none was given)."""
        number = 0 if self.topic.shards == 1 else shard_of(partition_key, self.topic.shards)
        found = self.shards.get(number)
        if found is None:
            found = self.shards[number] = self.keys.shard(self.name, number)
        return found


class TopicLookup:
    """The topics of one server, cached for a client."""

    def __init__(self, keys: Keys, settings: TopicSettings, ttl_ms: int, clock: Clock) -> None:
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._ttl = ttl_ms / 1000
        self._known: dict[str, KnownTopic] = {}
        self._confirmed: dict[tuple[str, str], int] = {}  # topic and durability → number of shards

    @property
    def asks(self) -> str:
        """The prefix of the workers' channels."""
        return self._keys.asks

    def known(self, topic: str) -> KnownTopic | None:
        """Returns the cached topic, without asking the server; None if it is missing or too old."""
        found = self._known.get(topic)
        return found if found is not None and found.until > self._clock.monotonic() else None

    def register(
        self, topic: str, confirming: Confirmation[Any] | None = None, lost: Topic | None = None
    ) -> Operation[KnownTopic]:
        """Returns the topic; registers it if it is new, as it was when it was `lost`. Raises: BeingRemoved.

        With `confirming`, its registration is confirmed before a job relies on it; a confirmation is trusted as long as
        the cached topic.
        """
        found = self.known(check_topic(topic))
        if found is not None and (confirming is None or self._is_confirmed(topic, found.topic, confirming)):
            return found
        call = registry.register_topic(self._keys, topic, lost or self._settings)
        if confirming is not None:
            call = confirming.topic(call, self._keys.topics)
        try:
            settings = yield from ask(call)
        except OutcomeUnknown:
            try:
                settings = yield from ask(call)
            except OutcomeUnknown as error:
                message = f"topic {topic!r} could not be registered, and no job was sent: {error}"
                raise Unavailable(message) from error
        if settings.removing:
            raise BeingRemoved(f"topic {topic!r}")
        if confirming is not None and not confirming.falls_short():
            self._confirmed[topic, confirming.durability] = settings.shards
        return self._remember(topic, settings)

    def _is_confirmed(self, topic: str, found: Topic, confirming: Confirmation[Any]) -> bool:
        return self._confirmed.get((topic, confirming.durability)) == found.shards

    def read(self, topic: str) -> Operation[Topic | None]:
        """Reads the topic from the server; None if it was never used."""
        found = yield from ask(registry.topic(self._keys, check_topic(topic)))
        return None if found is None else self._remember(topic, found).topic

    def read_existing(self, topic: str) -> Operation[Topic]:
        """Reads the topic from the server. Raises: TopicNotFound."""
        found = yield from self.read(topic)
        if found is None:
            raise TopicNotFound(topic)
        return found

    def recent(self, topic: str, within_s: float) -> Topic | None:
        """Returns the topic if it was read within these seconds."""
        found = self._known.get(topic)
        return found.topic if found and found.until - self._ttl + within_s > self._clock.monotonic() else None

    def shards(self, topic: str) -> Operation[list[ShardKeys]]:
        """The keys of all shards that hold jobs of the topic. Raises: TopicNotFound."""
        found = yield from self.read_existing(topic)
        return [self._keys.shard(topic, n) for n in range(found.all_shards)]

    def shard(self, topic: str, number: int) -> ShardKeys:
        """The keys of one shard."""
        return self._keys.shard(topic, number)

    def find(
        self, topic: str, id: str, partition_key: str | None, call: Callable[[ShardKeys], Call[T]], not_found: T
    ) -> Operation[T]:
        """Asks the shards where the job may be; returns the first answer that is not `not_found`.

        The cached topic may be old, so it is read again before returning `not_found`.
        """
        key = check_id(id, "id")
        if partition_key is not None:
            key = check_id(partition_key, "partition_key")
        asked: set[int] = set()
        known = self.known(check_topic(topic))
        found = None if known is None else known.topic
        is_fresh = found is None
        while True:
            found = found or (yield from self.read(topic))
            places = found.places(key) if found else []
            if found and "@" in key:  # perhaps an occurrence of a recurring job, which lives in shard 0
                places.append(0)
            for shard in places:
                if shard not in asked:
                    asked.add(shard)
                    answer = yield from ask(call(self._keys.shard(topic, shard)))
                    if answer != not_found:
                        return answer
            if is_fresh:
                return not_found
            found, is_fresh = None, True

    def list(self) -> Operation[list[TopicInfo]]:
        """Returns every topic with its job counts, by name."""
        settings = (yield from ask(registry.topics(self._keys))).settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
        counts = yield from ask_all(shard_counts.counts(shard) for shard in shards)
        return shard_counts.add_up(settings, shards, counts)

    def info(self, topic: str) -> Operation[TopicInfo]:
        """Returns one topic with its job counts. Raises: TopicNotFound."""
        found = yield from self.read_existing(topic)
        shards = [self._keys.shard(topic, n) for n in range(found.all_shards)]
        counts = yield from ask_all(shard_counts.counts(shard) for shard in shards)
        return shard_counts.add_up({topic: found}, shards, counts)[0]

    def make_group(self, topic: str, group: str) -> Operation[None]:
        """Register the topic, and create a consumer group on all its shards, including those added meanwhile."""
        found = (yield from self.read(topic)) or (yield from self.register(topic)).topic
        made = 0
        while made < found.all_shards:
            shards = [self._keys.shard(topic, n) for n in range(made, found.all_shards)]
            yield from ask_all(worker.make_group(shard, group) for shard in shards)
            made = found.all_shards
            found = (yield from self.read(topic)) or found

    def forecast(self, topic: str) -> Operation[Spans]:
        """Counts the waiting jobs by due time. Raises: TopicNotFound."""
        shards = yield from self.shards(topic)
        counts = yield from ask_all(shard_counts.forecast(shard, FORECAST_MS) for shard in shards)
        return [Span(end, sum(jobs)) for end, *jobs in zip((0, *FORECAST_MS, None), *counts, strict=True)]

    def _remember(self, name: str, topic: Topic) -> KnownTopic:
        until = self._clock.monotonic() + self._ttl
        found = KnownTopic(name, topic, until, topic.terms, self._keys)
        if topic.removing:
            self.forget(name)
        else:
            self._known[name] = found
        return found

    def forget(self, name: str) -> None:
        """Drop a topic from the cache."""
        self._known.pop(name, None)
