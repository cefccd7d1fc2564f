"""`Groups`: lists the consumer groups of topics, and removes groups and topics.

    either            check the user's rights: what is begun without them could not be ended
    remove a group    tell its workers ─▶ begin in every shard ─▶ end shard by shard: see `protocol.calls.removal`
    remove a topic    fence producers out ─▶ delete ─▶ wait until all caches have expired ─▶ delete, unlist

Both can be repeated, even at the same time, and continue where an interrupted call stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wheelq.base.clock import Clock
from wheelq.base.plural import counted
from wheelq.errors import InUse
from wheelq.model.checks import check_flag, check_id
from wheelq.model.topic import REMOVING, Group
from wheelq.producer.confirmation import Confirmation
from wheelq.producer.operation import Operation, ask, ask_all, wait
from wheelq.producer.topics import Topics
from wheelq.protocol import registry_codec
from wheelq.protocol.calls import bundles, heartbeats, registry, removal, shard_counts
from wheelq.protocol.calls.bundles import Totals
from wheelq.protocol.calls.heartbeats import BELIEVED_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.shard_counts import ShardCounts
from wheelq.protocol.keys import Keys, ShardKeys

HAS_HEARTBEAT = re.compile(r".+-[0-9]+-[0-9a-f]{6}")
"""Matches the consumer names of wheelq's workers. Only their heartbeats tell whether they are alive."""
MARGIN_S = 1.0
"""How many seconds longer than the producers' caches last a removal waits, for calls in flight."""
HEARD_WITHIN_S = 6.0
"""Seconds within which every live worker sends something new; workers before heartbeats report every 5 s."""
SHOWN = 5

Reports = Mapping[str, Mapping[str, Any]]


class Groups:
    """The groups of one server's topics."""

    def __init__(self, topics: Topics, keys: Keys, ttl_ms: int, clock: Clock) -> None:
        """`ttl_ms`: how long producers cache a topic."""
        self._topics = topics
        self._keys = keys
        self._trusted = ttl_ms / 1000
        self._clock = clock

    def list(self, topic: str) -> Operation[list[Group]]:
        """Returns every group of a topic, by name. Raises: TopicNotFound."""
        shards = yield from self._topics.shards(topic)
        counts = yield from ask_all(shard_counts.counts(shard) for shard in shards)
        reports = yield from self._living()
        groups = []
        for name in sorted({group.name for part in counts for group in part.groups}):
            consumers = yield from self._consumers(shards, name)
            groups.append(_add_up(name, counts, (*_serving(reports, topic, name), *consumers)))
        return groups

    def remove(
        self, topic: str, group: str, force: bool, confirming: Confirmation[Any] | None = None
    ) -> Operation[bool]:
        """Remove a group. Returns whether there was anything to remove. Raises: TopicNotFound, InUse, InvalidInput."""
        check_id(group, "group")
        check_flag(force, "force")
        shards = yield from self._topics.shards(topic)
        yield from ask(removal.may_remove(shards[0]))
        if not force:
            living = yield from self._surely_living(lambda one: _serves(one, topic, group))
            workers = living | {*(yield from self._consumers(shards, group))}
            if workers:
                raise _in_use(f"group {group!r} of topic {topic!r}", workers)
        names = yield from ask_all(shard_counts.groups(shard) for shard in shards)
        if any(group in found for found in names):
            now_ms = (yield from ask(server_time_us())) // 1000
            yield from self._topics.change(topic, lambda before: before.without_group(group, now_ms), confirming)
        was_there, done = False, 0
        while done < len(found := (yield from self._all_shards(topic))):  # more, if shards are added meanwhile
            for shard in found[done:]:
                begun = yield from ask(removal.remove_group(shard, group))
                was_there |= begun is not None and begun.was_here
            for shard in found[done:]:
                retention_ms = (yield from self._topics.read_existing(topic)).retention_ms
                was_there |= yield from removal.group_removed(shard, group, retention_ms, begins=removal.GO_ON)
            done = len(found)
        return was_there

    def remove_topic(self, topic: str, force: bool, confirming: Confirmation[Any] | None = None) -> Operation[None]:
        """Remove a topic and everything in it. Raises: TopicNotFound, InUse, InvalidInput."""
        check_flag(force, "force")
        found = yield from self._topics.read_existing(topic)
        yield from ask(removal.may_remove(self._topics.shard(topic, 0)))
        yield from ask(registry.drop_callback_topic(self._keys, ""))  # it needs a right of its own
        if not force:
            yield from self._check_workers(topic)
            yield from self._check_jobs(topic)
        fenced = yield from self._topics.change(
            topic, lambda before: replace(before, removing=True, paused=True), confirming
        )
        fenced_at = self._clock.monotonic()
        if not force:
            try:
                yield from self._check_jobs(topic)  # again, now that no new job can come
            except InUse:
                if not found.removing:
                    yield from self._topics.change(
                        topic,
                        lambda before: replace(before, removing=False, paused=found.paused),
                        confirming,
                        revives=True,
                    )
                raise
        shards = yield from self._all_shards(topic)
        # Also the shards that the topic gave up.
        yield from ask_all(registry.fence(shard, REMOVING, fenced.version) for shard in shards)
        yield from self._drop(shards, is_last=False)
        left = fenced_at + self._trusted + MARGIN_S - self._clock.monotonic()
        yield from wait(max(0.0, left))
        yield from self._drop(shards, is_last=True)
        yield from ask(registry.drop_callback_topic(self._keys, topic))
        yield from self._unlist(topic)
        self._topics.forget(topic)

    def _unlist(self, topic: str) -> Operation[None]:
        """Remove the topic from the list, unless others have removed it and created it again meanwhile."""
        while (stored := (yield from ask(registry.stored_topic(self._keys, topic)))) is not None:
            found = registry_codec.decode_topic(stored, topic)
            if not found.removing or (yield from ask(registry.drop_topic(self._keys, topic, stored))):
                return

    def _leave_bundles(self, shard: ShardKeys) -> Operation[None]:
        """Reports that no member of any bundle is left in a shard, which is about to be deleted. Raises: Refused."""
        cursor, is_all = "0", False
        while not is_all:
            cursor, found = yield from ask(bundles.all_totals(shard, cursor))
            is_all = cursor == "0"
            for bundle, one in found.items():
                version = yield from ask(server_time_us(shard.counts))
                last = Totals(one.members, one.done, 0, one.members - one.done, max(version, one.version + 1))
                keeper = bundles.keeping(self._keys, bundle)
                tallied = yield from ask(bundles.tally(keeper, bundle, [bundles.report(shard, last)]))
                if tallied.is_full:
                    raise bundles.no_room(
                        keeper, bundle, "remove the topic again when its schedulers have carried some"
                    )

    def _drop(self, shards: Sequence[ShardKeys], *, is_last: bool) -> Operation[None]:
        for shard in shards:
            yield from self._leave_bundles(shard)
            names = {*(yield from ask(shard_counts.groups(shard))), *(yield from ask(removal.groups_known(shard)))}
            now_ms = (yield from ask(server_time_us(shard.counts))) // 1000
            yield from ask(removal.drop_shard(shard, sorted(names), now_ms, is_last=is_last))

    def _check_workers(self, topic: str) -> Operation[None]:
        workers = yield from self._surely_living(lambda one: topic in one.get("topics", ()))
        shards = yield from self._topics.shards(topic)
        for group in {name for names in (yield from ask_all(map(shard_counts.groups, shards))) for name in names}:
            workers |= {*(yield from self._consumers(shards, group))}
        if workers:
            raise _in_use(f"topic {topic!r}", workers)

    def _check_jobs(self, topic: str) -> Operation[None]:
        what, shards = f"topic {topic!r}", (yield from self._topics.shards(topic))
        info = yield from self._topics.info(topic)
        if jobs := info.waiting + info.ready + info.running + info.retrying:
            raise InUse(what, f"{counted(jobs, 'job is', 'jobs are')} not finished")
        if recurring := (yield from ask(removal.recurring_jobs(shards[0]))):
            raise InUse(what, f"{counted(recurring, 'recurring job')} would occur again")

    def _all_shards(self, topic: str) -> Operation[Sequence[ShardKeys]]:
        """Returns the shards of the topic, and those that it gave up."""
        shards = list((yield from self._topics.shards(topic)))
        while (yield from ask(removal.is_shard(behind := self._topics.shard(topic, len(shards))))):
            shards.append(behind)
        return shards

    def _living(self) -> Operation[Reports]:
        """Returns the last reports of the live workers."""
        reports = yield from ask(heartbeats.alive(self._keys.workers))
        server_ms = (yield from ask(server_time_us())) // 1000
        return heartbeats.living(reports, server_ms)

    def _surely_living(self, concerns: Callable[[Mapping[str, Any]], bool]) -> Operation[set[str]]:
        """Returns the live workers concerned; also right just after a step of the server's clock."""
        found = yield from ask(heartbeats.alive(self._keys.workers))
        before = {name: one for name, one in found.items() if concerns(one)}
        server_ms = (yield from ask(server_time_us())) // 1000
        living = set(heartbeats.living(before, server_ms))
        if living or not before:
            return living
        # Either they died, or the clock was stepped since their last report: a live worker will send a new one.
        beats = yield from ask(heartbeats.beats(self._keys))
        yield from wait(HEARD_WITHIN_S)
        after, new_beats = (
            (yield from ask(heartbeats.alive(self._keys.workers))),
            (yield from ask(heartbeats.beats(self._keys))),
        )
        return {
            name
            for name, one in before.items()
            if name in after and (after[name] != one or new_beats.get(name) != beats.get(name))
        }

    def _consumers(self, shards: Sequence[ShardKeys], group: str) -> Operation[Sequence[str]]:
        """Returns recently active consumers without a heartbeat: in other languages, or over HTTP."""
        found = yield from ask_all(removal.consumers(shard, group, BELIEVED_MS) for shard in shards)
        return sorted({name for names in found for name in names if not HAS_HEARTBEAT.fullmatch(name)})


def _serves(one: Mapping[str, Any], topic: str, group: str) -> bool:
    return one.get("group") == group and topic in one.get("topics", ())


def _serving(reports: Reports, topic: str, group: str) -> list[str]:
    return sorted(name for name, one in reports.items() if _serves(one, topic, group))


def _in_use(what: str, workers: set[str]) -> InUse:
    names = sorted(workers)
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return InUse(what, f"{counted(len(names), 'worker is alive', 'workers are alive')}, {shown}", names)


def _add_up(name: str, counts: Sequence[ShardCounts], workers: tuple[str, ...]) -> Group:
    parts = [group for part in counts for group in part.groups if group.name == name]
    return Group(
        name,
        sum(part.lag for part in parts),
        sum(part.pending for part in parts),
        min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        workers,
        any(part.is_more for part in parts),
    )
