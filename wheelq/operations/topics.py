"""`Topics`: what a client knows of topics, where a job may be, and how one is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from wheelq.arguments import check_id, check_topic
from wheelq.clock import Clock
from wheelq.errors import InvalidInput, OutcomeUnknown, TopicNotFound, Unavailable
from wheelq.operations.operation import Operation, ask, ask_all, wait
from wheelq.protocol import registry_codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import registry, worker
from wheelq.protocol.durability import Confirmation
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings
from wheelq.topics import FORECAST_MS, SHARDS_LIMIT, KnownTopics, Span, Topic, TopicInfo

T = TypeVar("T")
Spans = list[Span]  # in the class below, `list` is an operation


class Topics:
    """The topics of one server, as a client meets them."""

    def __init__(self, keys: Keys, settings: TopicSettings, ttl_ms: int, clock: Clock) -> None:
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._known = KnownTopics(ttl_ms)
        self._confirmed: dict[tuple[str, str], int] = {}  # topic and durability → number of shards

    @property
    def asks(self) -> str:
        """What the channels of workers begin with."""
        return self._keys.asks

    def known(self, topic: str) -> Topic | None:
        """What is known of a topic, without asking; None when that is nothing, or too old. Raises: InvalidInput."""
        return self._known.find(check_topic(topic), self._clock.monotonic())

    def register(self, topic: str, waiting: Confirmation[Any] | None = None) -> Operation[Topic]:
        """The topic; made known if it is new. With `waiting`, how it stands is confirmed before a job relies on it.

        What was confirmed is trusted as long as what is known of a topic.
        """
        found = self.known(topic)
        if found is not None and (waiting is None or self._is_confirmed(topic, found, waiting)):
            return found
        call = registry.register_topic(self._keys, topic, self._settings)
        if waiting is not None:
            call = waiting.topic(call, self._keys.topics)
        try:
            settings = yield from ask(call)
        except OutcomeUnknown:
            try:
                settings = yield from ask(call)
            except OutcomeUnknown as error:
                message = f"topic {topic!r} could not be registered, and no job was sent: {error}"
                raise Unavailable(message) from error
        if waiting is not None and not waiting.falls_short():
            self._confirmed[topic, waiting.durability] = settings.shards
        return self._remember(topic, settings)

    def _is_confirmed(self, topic: str, found: Topic, waiting: Confirmation[Any]) -> bool:
        return self._confirmed.get((topic, waiting.durability)) == found.shards

    def read(self, topic: str) -> Operation[Topic | None]:
        """The topic as it stands now; None when it was never used."""
        found = yield from ask(registry.topic(self._keys, check_topic(topic)))
        return None if found is None else self._remember(topic, found)

    def read_existing(self, topic: str) -> Operation[Topic]:
        """The topic as it stands now. Raises: TopicNotFound."""
        found = yield from self.read(topic)
        if found is None:
            raise TopicNotFound(topic)
        return found

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
        """The first answer that is not `not_found`, from the shards where the job may be.

        What is known of the topic may be old: before saying that there is no such job, it is read again.
        """
        key = check_id(id, "id")
        if partition_key is not None:
            key = check_id(partition_key, "partition_key")
        asked: set[int] = set()
        found = self.known(topic)
        is_fresh = found is None
        while True:
            found = found or (yield from self.read(topic))
            places = found.places(key) if found else []
            if found and "@" in key:  # perhaps an occurrence of a recurring job: those live in shard 0
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
        """Every topic and what it holds, by name."""
        settings = (yield from ask(registry.topics(self._keys))).settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
        counts = yield from ask_all(registry.counts(shard) for shard in shards)
        return registry.add_up(settings, shards, counts)

    def make_group(self, topic: str, group: str) -> Operation[None]:
        """Make the topic known, and a consumer group on all of its shards."""
        found = (yield from self.read(topic)) or (yield from self.register(topic))
        shards = (self._keys.shard(topic, n) for n in range(found.all_shards))
        yield from ask_all(worker.make_group(shard, group) for shard in shards)

    def set_shards(self, topic: str, shards: int, waiting: Confirmation[Any] | None = None) -> Operation[TopicInfo]:
        """Change a topic's number of shards; how it then stands. Raises: TopicNotFound, InvalidInput.

        Of this and other changes each step is confirmed, with `waiting`.
        """
        if not 1 <= shards <= SHARDS_LIMIT:
            raise InvalidInput("shards", f"must be 1 to {SHARDS_LIMIT:,}, not {shards!r}")
        yield from self._change(topic, lambda before: before.resharded(shards, before.drained_by_ms), waiting)
        infos = yield from self.list()
        return next(info for info in infos if info.name == topic)

    def configure(
        self, topic: str, changes: Mapping[str, Any], waiting: Confirmation[Any] | None = None
    ) -> Operation[Topic]:
        """Change a topic's settings, of a new one those it is made with; how it then stands. Raises: InvalidInput."""
        Topic().configured(changes)  # before a topic is made for nothing
        yield from self.register(topic)
        return (yield from self._change(topic, lambda before: before.configured(changes), waiting))

    def pause(self, topic: str, paused: bool, waiting: Confirmation[Any] | None = None) -> Operation[Topic]:
        """Hold a topic, or let it go on; how it then stands. Raises: TopicNotFound."""
        return (yield from self._change(topic, lambda before: replace(before, paused=paused), waiting))

    def forecast(self, topic: str) -> Operation[Spans]:
        """How many jobs are due when. Raises: TopicNotFound."""
        shards = yield from self.shards(topic)
        counts = yield from ask_all(registry.forecast(shard, FORECAST_MS) for shard in shards)
        return [Span(end, sum(jobs)) for end, *jobs in zip((0, *FORECAST_MS, None), *counts, strict=True)]

    def catch_up(
        self, topic: str, terms: str, shard: int, waiting: Confirmation[Any] | None = None
    ) -> Operation[Topic]:
        """The topic, once it has the terms that this shard of it asks for.

        A shard behind all of them was given up. It asks for the terms of then, and counts for nothing.

        They ask for them a moment before they are published. Should whoever changes them have died in between, the
        number of shards is changed as that one wanted, for jobs may have been placed by it; the rest is taken back.
        """
        for _ in range(20):
            found = yield from self.read(topic)
            if found is not None and (found.terms == terms or shard >= found.all_shards):
                return (yield from self.register(topic, waiting))
            yield from wait(0.01)
        shards = int(terms.partition(" ")[0])
        return (yield from self._change(topic, lambda before: before.resharded(shards, before.drained_by_ms), waiting))

    def _change(
        self, topic: str, change: Callable[[Topic], Topic], waiting: Confirmation[Any] | None
    ) -> Operation[Topic]:
        """First let every shard refuse those who know other terms, then publish what the topic has become."""
        while True:
            stored = yield from ask(registry.stored_topic(self._keys, check_topic(topic)))
            if stored is None:
                raise TopicNotFound(topic)
            before = registry_codec.decode_topic(stored)
            after = change(before)
            if after.shards > before.shards:
                yield from self._make_groups(topic, before.all_shards, after.shards)
            if after.terms != before.terms or after == before:  # the latter mends what somebody left half done
                shards = [self._keys.shard(topic, n) for n in range(max(before.all_shards, after.all_shards))]
                last_due_ms = yield from self._fence(shards, after.terms, waiting)
                if after.shards != before.shards:
                    after = replace(after, drained_by_ms=max(after.drained_by_ms, last_due_ms))
            call = registry.put_topic(self._keys, topic, stored, after)
            if (yield from ask(call if waiting is None else waiting.topic(call, self._keys.topics))):
                return self._remember(topic, after)

    def _fence(self, shards: Sequence[ShardKeys], terms: str, waiting: Confirmation[Any] | None) -> Operation[int]:
        """Let these shards be written to only by those who know the terms; when their last waiting job is due."""
        calls = [registry.fence(shard, terms) for shard in shards]
        if waiting is None:
            return max((yield from ask_all(calls)))
        last_due_ms = 0
        for shard, call in zip(shards, calls, strict=True):  # one by one: each holds its connection up
            last_due_ms = max(last_due_ms, (yield from ask(waiting.fence(call, shard.delayed))))
        return last_due_ms

    def _make_groups(self, topic: str, before: int, after: int) -> Operation[None]:
        """Make every group of a topic on the shards it gets, before any job goes there.

        A group whose workers are away would find what others finish meanwhile removed, and never get it.
        """
        found = yield from ask_all(registry.groups(self._keys.shard(topic, n)) for n in range(before))
        names = sorted({name for names in found for name in names})
        shards = [self._keys.shard(topic, n) for n in range(after)]
        yield from ask_all(worker.make_group(shard, name) for shard in shards for name in names)

    def _remember(self, topic: str, found: Topic) -> Topic:
        return self._known.remember(topic, found, self._clock.monotonic())
