"""`Topics`: finds topics for a client, and changes them step by step, while producers, schedulers and workers use them.

A client caches the topics that it uses. It reads a topic again when the cached one is too old, or when its shards
refuse a call because the topic has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from weakref import WeakSet

from wheelq.base.clock import Clock
from wheelq.errors import BeingRemoved, InvalidInput, OutcomeUnknown, TopicNotFound, Unavailable
from wheelq.model.checks import check_id, check_topic
from wheelq.model.job import SECOND
from wheelq.model.topic import FORECAST_MS, HALF_DONE_S, SHARDS_LIMIT, Span, Topic, TopicInfo, shard_of, shards_in
from wheelq.producer.confirmation import Confirmation
from wheelq.producer.operation import Operation, ask, ask_all, wait
from wheelq.protocol import registry_codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import draining, registry, removal, shard_counts, worker
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings

T = TypeVar("T")
_everywhere: WeakSet[Topics] = WeakSet()
"""The topics of every client in this process: see `forget_all`."""
Spans = list[Span]  # in the class below, `list` is an operation


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as read a moment ago, with the data that each new job of it needs."""

    name: str
    topic: Topic
    until: float
    """When it must be read again, in monotonic seconds."""
    known_terms: str
    """Those of the topic, cached because they take a while to build."""
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


class Topics:
    """The topics of one server, cached for a client."""

    def __init__(self, keys: Keys, settings: TopicSettings, ttl_ms: int, clock: Clock) -> None:
        self._keys = keys
        self._settings = settings
        self._clock = clock
        self._ttl = ttl_ms / 1000
        self._known: dict[str, KnownTopic] = {}
        self._confirmed: dict[tuple[str, str], int] = {}  # topic and durability → number of shards
        _everywhere.add(self)

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
        self,
        topic: str,
        id: str,
        partition_key: str | None,
        call: Callable[[ShardKeys], Call[T]],
        not_found: T,
        *,
        changes: bool = True,
        ended_ms: Callable[[T], int | None] = lambda answer: None,
        is_keyed: Callable[[T], bool] = lambda answer: False,
    ) -> Operation[T]:
        """Asks the shards where the job may be; returns the first answer that is not `not_found`.

        The cached topic may be old, so it is read again before returning `not_found`. Without a partition key, the
        other shards are asked last, all at once: the job may have been scheduled with one. `changes`: whether the call
        changes the job, and so must only be made where it is.

        `ended_ms(answer)` returns when the job of an answer ended, or None if this answer is the right one. A job that
        has ended may be kept in a shard although a later one with its id is in another, after a change of their number.
        So the search goes on after it, and ends with the job that ended last if there is no other. It goes on in all
        shards if the job has a partition key, as `is_keyed(answer)` says: a later one probably has one too.
        """
        key = check_id(id, "id")
        if partition_key is not None:
            key = check_id(partition_key, "partition_key")
        asked: set[int] = set()
        ended: list[tuple[int, T]] = []
        known = self.known(check_topic(topic))
        found = None if known is None else known.topic
        is_fresh = found is None

        def ends_search(answer: T) -> bool:
            """Whether to return this answer; records one about a job that has ended."""
            at_ms = None if answer == not_found else ended_ms(answer)
            if at_ms is not None:
                ended.append((at_ms, answer))
            return answer != not_found and at_ms is None

        while True:
            found = found or (yield from self.read(topic))
            for shard in _places(found, key) if found else ():
                if shard not in asked:
                    asked.add(shard)
                    if ends_search(answer := (yield from ask(call(self._keys.shard(topic, shard))))):
                        return answer
            if is_fresh:
                break
            found, is_fresh = None, True
        may_be_elsewhere = partition_key is None and (not ended or any(is_keyed(answer) for _, answer in ended))
        others = range(found.all_shards) if found and may_be_elsewhere else ()
        shards = [self._keys.shard(topic, shard) for shard in others if shard not in asked]
        if changes:
            shards = yield from self._with_job(shards, id)
        for answer in (yield from ask_all(call(shard) for shard in shards)):
            if ends_search(answer):
                return answer
        return max(ended, key=itemgetter(0))[1] if ended else not_found

    def _with_job(self, shards: list[ShardKeys], id: str) -> Operation[list[ShardKeys]]:
        """Returns the first shard with a live job of this id, or with the second one of this debounced key."""
        asked = [draining.is_alive(shard, one) for shard in shards for one in (id, id + SECOND)]
        is_there = yield from ask_all(asked)
        return [shard for n, shard in enumerate(shards) if any(is_there[2 * n : 2 * n + 2])][:1]

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
        found = KnownTopic(name, topic, until, topic.known_terms, self._keys)
        if topic.removing:
            self.forget(name)
        else:
            self._known[name] = found
        return found

    def forget(self, name: str) -> None:
        """Drop a topic from the cache."""
        self._known.pop(name, None)

    def set_shards(self, topic: str, shards: int, confirming: Confirmation[Any] | None = None) -> Operation[TopicInfo]:
        """Change a topic's number of shards. Returns the topic's state. Raises: TopicNotFound, InvalidInput.

        With `confirming`, each step of this and of other changes waits for its confirmation.
        """
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= SHARDS_LIMIT:
            raise InvalidInput("shards", f"must be 1 to {SHARDS_LIMIT:,}, not {shards!r}")
        yield from self.change(topic, lambda before: before.resharded(shards, before.drained_by_ms), confirming)
        return (yield from self.info(topic))

    def configure(
        self, topic: str, changes: Mapping[str, Any], confirming: Confirmation[Any] | None = None
    ) -> Operation[Topic]:
        """Change a topic's settings, or create it with them. Returns the topic. Raises: InvalidInput."""
        Topic().configured(changes)  # before a topic is created in vain
        change = partial(self.change, topic, lambda before: before.configured(changes), confirming)
        yield from self.register(topic)
        try:
            return (yield from change())
        except TopicNotFound:  # the server has lost it since it was read
            self.forget(topic)
            yield from self.register(topic)
            return (yield from change())

    def pause(self, topic: str, paused: bool, confirming: Confirmation[Any] | None = None) -> Operation[Topic]:
        """Pause or resume a topic. Returns it. Raises: TopicNotFound.

        To resume a topic whose removal was not completed takes it back, with what is left of it.
        """

        def pause(before: Topic) -> Topic:
            return replace(before, paused=paused, removing=before.removing and paused)

        return (yield from self.change(topic, pause, confirming, revives=not paused))

    def restore(
        self, topic: str, placed_by: Topic, confirming: Confirmation[Any] | None = None
    ) -> Operation[KnownTopic]:
        """Registers a topic again if the server has lost it, as it was when jobs were placed. Returns it.

        If another client has registered it with fewer shards meanwhile, the former number is listed again, so that jobs
        placed by it are found.
        """
        self.forget(topic)
        found = yield from self.register(topic, confirming, lost=placed_by)
        if placed_by.shards <= found.topic.all_shards:
            return found
        yield from self.change(topic, lambda now: now.with_former(placed_by), confirming)
        return (yield from self.register(topic, confirming))

    def catch_up(
        self, topic: str, terms: str, shard: int, confirming: Confirmation[Any] | None = None
    ) -> Operation[KnownTopic]:
        """Returns the topic, once it has the terms that this shard requires.

        A shard beyond the topic's number was given up. It requires its last terms, which no longer count.

        A shard requires new terms a moment before they are published. If the process that changes them dies in
        between, the new number of shards is published, because jobs may have been placed by it; other changes are
        undone. A shard that is behind, because a failover lost its terms, gets them again.
        """
        place = self._keys.shard(topic, shard)
        for _ in range(20):
            found = yield from self.read(topic)
            version = yield from ask(registry.fenced_version(place))
            is_the_same = found is not None and found.terms == terms and not found.is_behind(version)
            if is_the_same or (found is not None and shard >= found.all_shards):
                return (yield from self.register(topic, confirming))
            yield from wait(0.01)
        if found is not None and not found.is_behind(version):
            yield from ask(registry.fence(place, found.terms, found.version))
        elif shards := shards_in(terms):
            yield from self.change(topic, lambda before: before.resharded(shards, before.drained_by_ms), confirming)
        else:  # the removal of the topic has come no further than this
            yield from self.change(topic, lambda before: before, confirming)
        return (yield from self.register(topic, confirming))

    def change(
        self,
        topic: str,
        change: Callable[[Topic], Topic],
        confirming: Confirmation[Any] | None,
        *,
        revives: bool = False,
    ) -> Operation[Topic]:
        """Makes every shard refuse other terms, then publishes the changed topic.

        A topic that is being removed stays so, unless this `revives` it. Raises: TopicNotFound, BeingRemoved.
        """
        made: set[str] = set()
        version, were_here = 0, False
        while True:
            began = self._clock.monotonic()
            stored = yield from ask(registry.stored_topic(self._keys, check_topic(topic)))
            if stored is None:
                raise TopicNotFound(topic)
            before = registry_codec.decode_topic(stored, topic)
            after = change(before)
            if before.removing and not (after.removing or revives) and after != before:
                raise BeingRemoved(f"topic {topic!r}")
            if after.all_shards > before.all_shards:
                made |= yield from self._make_groups(topic, before.all_shards, after.all_shards)
            shards: list[ShardKeys] = []
            if after.terms != before.terms or after == before:  # the latter completes a half-done change
                after = replace(after, version=max(before.version + 1, version))
                shards = [self._keys.shard(topic, n) for n in range(max(before.all_shards, after.all_shards))]
                fenced = yield from self._fence(shards, after, confirming)
                were_here |= fenced.were_here
                if fenced.version > after.version:  # there was a change that was never published
                    version = fenced.version + 1
                    continue
                if after.numbers != before.numbers or after.shards != before.shards:
                    after = replace(after, drained_by_ms=max(after.drained_by_ms, fenced.last_due_ms))
            call = registry.put_topic(self._keys, topic, stored, after)
            if (yield from ask(call if confirming is None else confirming.topic(call, self._keys.topics))):
                if after.all_shards > before.all_shards:  # groups that were created meanwhile
                    made |= yield from self._make_groups(topic, before.all_shards, after.all_shards)
                if were_here or self._clock.monotonic() - began > HALF_DONE_S:  # a leader may go on by former settings
                    yield from ask_all(registry.fence(shard, after.terms, after.version) for shard in shards)
                if made:
                    yield from self._unmake_groups(topic, before.all_shards, after.all_shards, made)
                return self._remember(topic, after).topic

    def _fence(
        self, shards: Sequence[ShardKeys], topic: Topic, confirming: Confirmation[Any] | None
    ) -> Operation[registry.Fenced]:
        """Makes these shards refuse writes with other terms. Returns the latest of their answers."""
        calls = [registry.fence(shard, topic.terms, topic.version) for shard in shards]
        if confirming is None:
            answers = yield from ask_all(calls)
        else:
            answers = []
            for shard, call in zip(shards, calls, strict=True):  # one by one, because each blocks its connection
                answers.append((yield from ask(confirming.fence(call, shard.delayed))))
        return registry.Fenced(*map(max, zip(*answers, strict=True)))

    def _make_groups(self, topic: str, before: int, after: int) -> Operation[set[str]]:
        """Creates every group of a topic on its new shards, before any job goes there.

        Returns their names. Without this, a group whose workers are away would never get jobs that other groups finish
        in the meantime.
        """
        names = yield from self._group_names(topic, before)
        shards = [self._keys.shard(topic, n) for n in range(after)]
        yield from ask_all(worker.make_group_if_kept(shard, name) for shard in shards for name in sorted(names))
        return names

    def _unmake_groups(self, topic: str, before: int, after: int, made: set[str]) -> Operation[None]:
        """Removes groups from a topic's new shards if they were removed from the others meanwhile."""
        gone = made - (yield from self._group_names(topic, before))
        for shard in (self._keys.shard(topic, n) for n in range(before, after)):
            for name in sorted(gone):
                yield from removal.group_removed(shard, name, 0)

    def _group_names(self, topic: str, shards: int) -> Operation[set[str]]:
        found = yield from ask_all(shard_counts.groups(self._keys.shard(topic, n)) for n in range(shards))
        return {name for names in found for name in names}


def _places(topic: Topic, key: str) -> list[int]:
    """The shards where a job with this key may be; an occurrence of a recurring job, with an "@", is in shard 0."""
    return [*topic.places(key), *([0] if "@" in key else [])]


def forget_all() -> None:
    """Drop what the clients of this process know of topics: a test begins with an empty wheelq."""
    for topics in list(_everywhere):
        topics._known.clear()
        topics._confirmed.clear()
