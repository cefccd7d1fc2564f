"""`Draining`: ends the draining of topics whose number of shards was changed.

    set_shards    shards refuse the former number; look-ups ask the shards that it chose, too   ("draining")
    … jobs run …
    draining ends no job is left that the former number placed: from now on only the number in force counts

No such job is left when all of this is true:

    every shard                requires the topic's terms, so no client with a former number can write there
    a shard beyond the number  is empty: it has no waiting, live or dead job, keeps no entry or finished job, no
                               follower is outgoing, and it counts for no bundle
    any other shard            has no job, live or dead, that the number in force places elsewhere

Draining does not wait for the answers to parcels of outboxes, because they outlive it: a repeated call goes to its
shard even if the topic has given that up, and finds the answer there until it expires, within a day.

It stays true, because new jobs are placed by the number in force. Finished jobs are kept and can be looked up for
`keep_done_ms`, so draining ends that much later. The topic is changed only if nobody has changed it since it was read.

The leader of a topic's first shard checks. While the last misplaced job found is still there, a check is one call.
Otherwise the shards are searched again, which takes at most a tenth of the time.

`EndedGroups` cleans up after consumer groups that were not completely removed:

    XGROUP DESTROY from outside        notifies nobody: retries, dead jobs and taken ids of the group would stay
    a removal whose client has died    is continued from where it stopped, in every shard

It also finds members of bundles whose end was not counted, and bundles that a producer closed without taking all
reports: see `check_members.lua`.

Each shard stores the names of its groups (`groups`), so a look is one short call. A group that is missing at two looks
in a row is removed: in between, a live worker would have created its group again, and a removal would have ended. The
leader of a topic's first shard looks at all its shards once in ten minutes, spread over that time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from wheelq import reminders
from wheelq.errors import ServerError, TopicUnreadable
from wheelq.following.carrier import Carrier
from wheelq.model.bundle import BundleState
from wheelq.model.job import SECOND
from wheelq.model.topic import Topic, shard_of
from wheelq.protocol import codec, registry_codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bundles, registry, removal
from wheelq.protocol.calls import draining as calls
from wheelq.protocol.calls.draining import Stored
from wheelq.protocol.keys import ShardKeys, id_and_group
from wheelq.protocol.recurring_codec import is_occurrence
from wheelq.scheduler.parts import NodeParts

logger = logging.getLogger("wheelq.scheduler")

RESTS = 10
"""A topic is left alone for this many times the duration of its last search."""


@dataclass(slots=True)
class _Progress:
    """The progress in one topic. Times are monotonic seconds."""

    in_the_way: tuple[ShardKeys, str] | None = None
    """The last misplaced job found."""
    look_at: float = 0.0
    clean: tuple[int, ...] = ()
    """The numbers of shards, in force and former, for which the last check found nothing."""


class Draining:
    """The draining topics whose first shard this node leads."""

    def __init__(self, parts: NodeParts, draining: Callable[[], Iterable[str]]) -> None:
        """`draining()` returns the topics with former numbers of shards that this node must check."""
        self._transport = parts.transport
        self._keys = parts.keys
        self._clock = parts.clock
        self._look = parts.settings.heartbeat_ms / 1000
        self._draining = draining
        self._progress: dict[str, _Progress] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.step()
            await self._clock.sleep(self._look)

    async def step(self) -> None:
        """Check each topic that is draining."""
        self._progress = {name: self._progress.get(name) or _Progress() for name in self._draining()}
        for name, progress in self._progress.items():
            try:
                await self._step(name, progress)
            except ServerError as error:
                reminders.warn(logger, f"{name}: cannot check whether its former shards are empty", error)
            except TopicUnreadable:
                pass  # the node has logged it
            except Exception:  # the node goes on with other work, and with the other topics
                logger.exception("%s: cannot check its former shards", name)

    async def _step(self, name: str, progress: _Progress) -> None:
        began = self._clock.monotonic()
        if began < progress.look_at or await self._still_stands(progress):
            return
        stored = await self._transport.send(registry.stored_topic(self._keys, name))
        topic = Topic() if stored is None else registry_codec.decode_topic(stored, name)
        if stored is None or not topic.draining:
            return
        numbers, before = (topic.shards, *topic.draining), progress.clean
        progress.clean = numbers if await self._is_clean(name, topic, progress) else ()
        took = self._clock.monotonic() - began
        progress.look_at = began + RESTS * took
        if not progress.clean:
            return
        if topic.keep_done_ms and before != numbers:
            progress.look_at = max(progress.look_at, began + took + topic.keep_done_ms / 1000)
            return
        after = replace(topic, draining=(), drained_by_ms=0)
        if await self._transport.send(registry.put_topic(self._keys, name, stored, after)):
            logger.info("%s: nothing is left of its former number of shards", name)

    async def _still_stands(self, progress: _Progress) -> bool:
        if progress.in_the_way is None:
            return False
        keys, member = progress.in_the_way
        return await self._transport.send(calls.is_alive(keys, member))

    async def _is_clean(self, name: str, topic: Topic, progress: _Progress) -> bool:
        progress.in_the_way = None
        for number in range(topic.all_shards):
            keys = self._keys.shard(name, number)
            if await self._transport.send(calls.terms_in_force(keys)) != topic.terms:
                return False
            # A dead job that is replayed meanwhile is found neither among the live nor among the dead jobs.
            before = await self._transport.send(calls.last_replay(keys))
            if await self._is_in_use(keys, topic, progress):
                return False
            if await self._transport.send(calls.last_replay(keys)) != before:
                return False
        return True

    async def _is_in_use(self, keys: ShardKeys, topic: Topic, progress: _Progress) -> bool:
        """Whether the shard holds jobs that the number in force does not place there."""
        if keys.shard >= topic.shards:
            return await self._is_used(keys)
        if topic.may_be_misplaced_in(keys.shard):
            async for job in self._misplaced(keys, topic):
                progress.in_the_way = keys, job.id
                return True
        return False

    async def _is_used(self, keys: ShardKeys) -> bool:
        streams = (keys.ready, keys.dead, keys.outgoing)
        for question in (calls.holds_jobs(keys), *map(calls.holds_entries, streams), calls.holds_bundles(keys)):
            if await self._transport.send(question):
                return True
        return False

    async def _misplaced(self, keys: ShardKeys, topic: Topic) -> AsyncIterator[Stored]:
        """Yields jobs that the number in force places elsewhere."""
        for read in (calls.live, calls.dead):  # a job that is buried meanwhile is among the dead
            after = "0"
            while after:
                page = await self._transport.send(read(keys, after))
                occurrences = await self._occurrences(keys, page.jobs)
                for job, record in zip(page.jobs, await self._records(keys, page.jobs), strict=True):
                    id = id_and_group(job.id)[0]
                    if id not in occurrences and not _is_in_place(topic, keys.shard, id, record):
                        yield job
                after = page.after

    async def _occurrences(self, keys: ShardKeys, jobs: Sequence[Stored]) -> set[str]:
        """Returns the ids of those that are occurrences of recurring jobs: all of these live in shard 0."""
        members = (id_and_group(job.id)[0] for job in jobs if keys.shard == 0)
        ids = list(filter(is_occurrence, members))
        asked = (calls.recurs(keys, id.rpartition("@")[0]) for id in ids)
        recurs = [is_known async for is_known in self._transport.stream(asked)]
        return {id for id, is_known in zip(ids, recurs, strict=True) if is_known}

    async def _records(self, keys: ShardKeys, jobs: Sequence[Stored]) -> list[bytes]:
        """Returns the record of each job; empty if it is gone."""
        asked = (calls.record(keys, job.entry_id) for job in jobs if job.entry_id is not None)
        found = [record async for record in self._transport.stream(asked)]
        found.reverse()
        return [job.value if job.entry_id is None else found.pop() for job in jobs]


def _is_in_place(topic: Topic, shard: int, id: str, record: bytes) -> bool:
    """Whether the number of shards in force places a job in this shard."""
    key = id
    with suppress(codec.UnreadableRecord):
        partition_key = codec.decode(record).partition_key
        key = partition_key or (id.removesuffix(SECOND) if codec.is_debounced(record) else id)
    return shard_of(key, topic.shards) == shard


ROUND_S = 600.0
PAUSE_S = 0.005
"""The pause between two calls that clean up, each of which keeps the server busy for about a millisecond."""


class EndedGroups:
    """Cleans up in the topics whose first shard this node leads."""

    def __init__(self, parts: NodeParts, topics: Callable[[], Mapping[str, Topic]], carrier: Carrier) -> None:
        """`topics()` returns the topics whose first shard this node leads."""
        self._transport = parts.transport
        self._keys = parts.keys
        self._clock = parts.clock
        self._topics = topics
        self._carrier = carrier
        self._leaving: dict[str, set[str]] = {}  # ready stream → groups that were missing at the last look

    async def run(self) -> None:
        """Look at every shard, round after round, until cancelled."""
        while True:
            topics = self._topics()
            for name, topic in topics.items():
                await self.look(name, topic)
                await self._clock.sleep(ROUND_S / len(topics))
            if not topics:
                await self._clock.sleep(ROUND_S)

    async def look(self, name: str, topic: Topic) -> None:
        """Look at every shard of a topic; clean up after groups that were missing at the last look too."""
        for n in range(0 if topic.removing else topic.all_shards):
            try:
                await self._look(self._keys.shard(name, n), topic)
            except ServerError as error:
                reminders.warn(logger, f"{name}:{n}: cannot check for leftovers of groups", error)

    async def _look(self, keys: ShardKeys, topic: Topic) -> None:
        found = await self._transport.send(removal.watch_groups(keys))
        leaving = set(found)
        before = self._leaving.pop(keys.ready, set())
        for group in sorted(leaving & before):
            await self._spread(keys, group)
            await self._carry_out(removal.group_removed(keys, group, topic.retention_ms, begins=removal.IF_GONE))
            logger.info("%s:%d: cleaned up after group %r", keys.topic, keys.shard, group)
        if left := leaving - before:
            self._leaving[keys.ready] = left
        cursor, is_all = "0", False
        while not is_all:
            page = await self._transport.send(bundles.check_members(keys, cursor))
            for bundle in page.over:
                await self._report(keys, bundle)
            await self._clock.sleep(PAUSE_S)
            cursor, is_all = page.cursor, page.cursor == "0"

    async def _spread(self, keys: ShardKeys, group: str) -> None:
        """While a group is being removed from this shard, remove it from the others, unless a worker wants it again."""
        for other in map(partial(self._keys.shard, keys.topic), count()):
            topic = await self._transport.send(registry.topic(self._keys, keys.topic))
            if topic is None or not topic.has_removed(group):
                return
            if other.shard >= topic.all_shards and not await self._transport.send(removal.is_shard(other)):
                return
            if other != keys and await self._transport.send(removal.is_begun(keys, group)):
                await self._carry_out(removal.group_removed(other, group, topic.retention_ms))

    async def _report(self, keys: ShardKeys, bundle: str) -> None:
        """Report what a shard has counted of a bundle that takes no more members, and forget it.

        The producer that closed the bundle has died before that, or a failover has undone it.
        """
        send, keeper = self._transport.send, bundles.keeping(self._keys, bundle)
        home = await send(bundles.kept(keeper, bundle))
        if home is not None and home.state is BundleState.OPEN:  # some may join it here
            return
        if report := await send(bundles.shut(keys, bundle)):
            await self._carrier.report(keys, bundle, report)

    async def _carry_out(self, steps: removal.Steps) -> None:
        answer: Any = None
        with suppress(StopIteration):
            while True:
                call: Call[Any] = steps.send(answer)
                answer = await self._transport.send(call)
                await self._clock.sleep(PAUSE_S)
