"""`Clearing`: ends the draining of topics whose number of shards was changed.

    set_shards    shards refuse who knows the former number; look-ups ask where that placed jobs, too   ("draining")
    … jobs run …
    clearing      nothing is left that the former number placed: from now on only the number in force counts

When that is so:

    every shard                names the topic's terms, so nobody who believes in a former number puts anything there
    one behind the new number  is empty: nothing waits, lives, is dead, or is kept since it was fired or finished
    any other                  has no job, alive or dead, that is not where the number in force places it

Such a state lasts, for new jobs are placed by the number in force. What has finished is kept for `keep_done_ms` and can
be looked up as long, so a topic is cleared that much later. The topic is changed only if it is stored as it was looked
at: of a change meanwhile and this one, the first wins.

The leader of a topic's first shard looks. As long as the job that was found last stands in the way, that is one call;
then all are gone through again, up to the next one, and that takes no more than a tenth of the time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wheelq.clock import Clock
from wheelq.errors import ServerError
from wheelq.protocol import codec, registry_codec
from wheelq.protocol.calls import draining as calls
from wheelq.protocol.calls import registry
from wheelq.protocol.calls.draining import Stored
from wheelq.protocol.entries import is_occurrence
from wheelq.protocol.keys import Keys, ShardKeys, id_and_group
from wheelq.topics import Topic, shard_of
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

RESTS = 10
"""So many times as long as it has looked through the jobs of a topic, it leaves that topic alone."""


@dataclass(slots=True)
class _Progress:
    """What is known of one topic. Times are monotonic seconds."""

    in_the_way: tuple[ShardKeys, str] | None = None
    """The job that was found last."""
    look_at: float = 0.0
    clean: tuple[int, ...] = ()
    """The numbers of shards, in force and former, of which at the last look nothing was in the way."""


class Clearing:
    """The topics that this node looks after."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        clock: Clock,
        look_ms: int,
        draining: Callable[[], Iterable[str]],
    ) -> None:
        """`draining` tells the topics with former numbers of shards that this node is to clear."""
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._look = look_ms / 1000
        self._draining = draining
        self._progress: dict[str, _Progress] = {}

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.step()
            await self._clock.sleep(self._look)

    async def step(self) -> None:
        """Look at each topic that is draining."""
        self._progress = {name: self._progress.get(name) or _Progress() for name in self._draining()}
        for name, progress in self._progress.items():
            try:
                await self._step(name, progress)
            except ServerError as error:
                logger.warning("%s: whether its former shards are empty is not known: %s", name, error)
            except Exception:  # the node has more to do, and the other topics are no worse for it
                logger.exception("%s: its former shards cannot be looked at", name)

    async def _step(self, name: str, progress: _Progress) -> None:
        began = self._clock.monotonic()
        if began < progress.look_at or await self._still_stands(progress):
            return
        stored = await self._transport.send(registry.stored_topic(self._keys, name))
        topic = Topic() if stored is None else registry_codec.decode_topic(stored)
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
            if number >= topic.shards:
                if await self._is_used(keys):
                    return False
            elif topic.may_be_misplaced_in(number):
                async for job in self._misplaced(keys, topic):
                    progress.in_the_way = keys, job.id
                    return False
        return True

    async def _is_used(self, keys: ShardKeys) -> bool:
        for question in (calls.holds_jobs(keys), calls.holds_entries(keys.ready), calls.holds_entries(keys.dead)):
            if await self._transport.send(question):
                return True
        return False

    async def _misplaced(self, keys: ShardKeys, topic: Topic) -> AsyncIterator[Stored]:
        """Jobs that are not where the number in force places them."""
        for read in (calls.live, calls.dead):  # who is buried meanwhile is among the dead
            after = "0"
            while after:
                page = await self._transport.send(read(keys, after))
                for job, record in zip(page.jobs, await self._records(keys, page.jobs), strict=True):
                    if not _is_in_place(topic, keys.shard, job.id, record):
                        yield job
                after = page.after

    async def _records(self, keys: ShardKeys, jobs: Sequence[Stored]) -> list[bytes]:
        """The record of each, empty where there is none any more."""
        asked = (calls.record(keys, job.entry_id) for job in jobs if job.entry_id is not None)
        found = [record async for record in self._transport.stream(asked)]
        found.reverse()
        return [job.value if job.entry_id is None else found.pop() for job in jobs]


def _is_in_place(topic: Topic, shard: int, member: str, record: bytes) -> bool:
    """Whether the number of shards in force places a job in this shard."""
    id, _ = id_and_group(member)
    if shard == 0 and is_occurrence(id):  # those of recurring jobs all live there
        return True
    with suppress(codec.UnreadableRecord):
        return shard_of(codec.decode(record).partition_key or id, topic.shards) == shard
    return shard_of(id, topic.shards) == shard
