"""`Topics`: changes topics step by step, while producers, schedulers and workers use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wheelq.errors import BeingRemoved, InvalidInput, TopicNotFound
from wheelq.model.checks import check_topic
from wheelq.model.topic import HALF_DONE_S, SHARDS_LIMIT, Topic, TopicInfo
from wheelq.producer.confirmation import Confirmation
from wheelq.producer.known_topics import KnownTopic, TopicLookup
from wheelq.producer.operation import Operation, ask, ask_all, wait
from wheelq.protocol import registry_codec
from wheelq.protocol.calls import registry, removal, shard_counts, worker
from wheelq.protocol.keys import ShardKeys


class Topics(TopicLookup):
    """The topics of one server, which can be changed."""

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
        yield from self.register(topic)
        return (yield from self.change(topic, lambda before: before.configured(changes), confirming))

    def pause(self, topic: str, paused: bool, confirming: Confirmation[Any] | None = None) -> Operation[Topic]:
        """Pause or resume a topic. Returns it. Raises: TopicNotFound."""
        return (yield from self.change(topic, lambda before: replace(before, paused=paused), confirming))

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
        for _ in range(20):
            found = yield from self.read(topic)
            if found is not None and (found.terms == terms or shard >= found.all_shards):
                return (yield from self.register(topic, confirming))
            yield from wait(0.01)
        place = self._keys.shard(topic, shard)
        version = yield from ask(registry.fenced_version(place))
        if found is not None and not found.is_behind(terms, version):
            yield from ask(registry.fence(place, found.terms, found.version))
        elif shards := int(terms.partition(" ")[0]):
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
        version = 0
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
                if fenced.version > after.version:  # there was a change that was never published
                    version = fenced.version + 1
                    continue
                if after.numbers != before.numbers or after.shards != before.shards:
                    after = replace(after, drained_by_ms=max(after.drained_by_ms, fenced.last_due_ms))
            call = registry.put_topic(self._keys, topic, stored, after)
            if (yield from ask(call if confirming is None else confirming.topic(call, self._keys.topics))):
                if after.all_shards > before.all_shards:  # groups that were created meanwhile
                    made |= yield from self._make_groups(topic, before.all_shards, after.all_shards)
                if self._clock.monotonic() - began > HALF_DONE_S:  # a leader may have continued with the former terms
                    again = (registry.fence(shard, after.terms, after.version, take_lease=True) for shard in shards)
                    yield from ask_all(again)
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
        last_due_ms, version = map(max, zip(*answers, strict=True))
        return registry.Fenced(last_due_ms, version)

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
