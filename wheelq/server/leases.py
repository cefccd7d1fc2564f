"""Pull for consumers without a library: lease jobs that are ready, answer for them by a handle, or let the lease end.

    lease ─▶ jobs, each with a handle ─▶ ack            done
                                      ─▶ extend         it takes longer
                                      ─▶ release        somebody else may have it, now or after a pause
                                      ─▶ nothing        the lease ends: the next who leases gets it

What is too late, by its own `expires` or its topic's grace, is not leased: it is dropped or buried, as workers do.
A group is a consumer group of its own beside the library's workers (`http.NAME` in Redis). The handle names shard,
entry and number of the lease, so an answer that comes too late cannot concern what was leased to another. It is no
secret: whoever may consume a topic may lease all of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wheelq.clock import Clock
from wheelq.dead import Reason
from wheelq.errors import InvalidInput, Refused, TopicNotFound
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.calls import registry, worker
from wheelq.protocol.calls.leases import Lease
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.bells import Bells
from wheelq.topics import KnownTopics, Topic
from wheelq.transport import AsyncTransport
from wheelq.words import counted
from wheelq.worker.outcome import Buried
from wheelq.worker.punctuality import Dropped, too_late

logger = logging.getLogger("wheelq.server")

TOPICS_MS = 1_000
"""How long a topic's settings are believed."""
AGAIN_S = 1.0
"""How often a waiting lease looks again without being rung: for leases that end, and bells that were lost."""
PREFIX = "http."
HANDLE_PATTERN = r"([0-9]{1,4})\.([0-9]{1,19}-[0-9]{1,19})\.([0-9]{1,9})\.((?:[0-9a-f]{2}){1,400})"


@dataclass(frozen=True, slots=True)
class Delivered:
    """One leased job."""

    handle: str
    entry: Entry
    record: codec.Record


class Leases:
    """Leases of all topics and groups."""

    def __init__(
        self, transport: AsyncTransport, keys: Keys, clock: Clock, max_deliveries: int, max_waiting: int
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._max_deliveries = max_deliveries
        self._max_waiting = max_waiting
        self._topics = KnownTopics(TOPICS_MS)
        self._cursors: dict[tuple[str, str], str] = {}
        self._first: defaultdict[str, int] = defaultdict(int)
        self._bells = Bells(transport)
        self.waiting = 0

    async def lease(self, topic: str, group: str, count: int, lease_ms: int, wait_s: float) -> list[Delivered]:
        """Lease up to `count` jobs; waits up to `wait_s` for the first. Raises: TopicNotFound, ServerError."""
        found = await self._lease_now(topic, group, count, lease_ms)
        if found or not wait_s or self.waiting >= self._max_waiting or self._bells.are_silent:
            return found
        ends = self._clock.monotonic() + wait_s
        self.waiting += 1
        try:
            async with self._bells.listening(await self._shards(topic)) as bell:
                while True:
                    rung = bell.next_ring()
                    found = await self._lease_now(topic, group, count, lease_ms)
                    left = ends - self._clock.monotonic()
                    if found or left <= 0 or self._bells.are_silent:
                        return found
                    await _until(rung, min(left, AGAIN_S))
        finally:
            self.waiting -= 1

    async def ack(self, topic: str, group: str, handles: Sequence[str]) -> list[bool]:
        """Done with these; for each whether it was still leased under its handle. Raises as `lease` does."""
        settings = await self._topic(topic)

        def call(keys: ShardKeys, leases: Sequence[Lease]) -> Call[list[bool]]:
            return calls.ack(keys, PREFIX + group, settings, leases)

        return await self._answer(topic, handles, call)

    async def extend(self, topic: str, group: str, handles: Sequence[str], lease_ms: int) -> list[bool]:
        """Let the leases end so long from now (0: at once); for each whether it was still leased under its handle."""

        def call(keys: ShardKeys, leases: Sequence[Lease]) -> Call[list[bool]]:
            return calls.extend(keys, PREFIX + group, lease_ms, leases)

        return await self._answer(topic, handles, call)

    async def take(self, topic: str, group: str, id: str, shard: int) -> bool:
        """Take a promoted job off the line by its id; False when it is not there, or another group needs it."""
        return await self._transport.send(calls.take(self._keys.shard(topic, shard), PREFIX + group, id))

    def wake_all(self) -> None:
        """Nothing waits any longer: the server stops."""
        self._bells.silence()

    async def close(self) -> None:
        """Close the connections."""
        await self._bells.close()

    async def _lease_now(self, topic: str, group: str, count: int, lease_ms: int) -> list[Delivered]:
        """From one shard after the other, beginning with another one each time."""
        if (await self._topic(topic)).paused:
            return []
        shards = await self._shards(topic)
        first = self._first[topic] = (self._first[topic] + 1) % len(shards)
        found: list[Delivered] = []
        for keys in (*shards[first:], *shards[:first]):
            if len(found) < count:
                found += await self._lease_of(keys, PREFIX + group, count - len(found), lease_ms)
        return found

    async def _lease_of(self, keys: ShardKeys, group: str, count: int, lease_ms: int) -> list[Delivered]:
        place = (keys.ready, group)
        while True:
            call = calls.lease(keys, group, lease_ms, count, self._cursors.get(place, calls.START))
            try:
                leased = await self._transport.send(call)
            except Refused as error:
                if "NOGROUP" not in str(error):
                    raise
                await self._transport.send(worker.make_group(keys, group))
                continue
            self._cursors[place] = leased.cursor
            found = [
                item for entry in leased.entries if (item := await self._look_at(keys, group, entry, leased.now_ms))
            ]
            if found or not leased.entries:  # else none of them is for anybody, and more may follow
                return found

    async def _look_at(self, keys: ShardKeys, group: str, entry: Entry, now_ms: int) -> Delivered | None:
        """The delivery, if it is one to be handed out; else it is settled."""
        settings = await self._topic(keys.topic)
        lease = Lease(entry.entry_id, entry.member.encode(), entry.deliveries)
        if entry.group is not None and entry.group != group:  # another group's retry
            await self._transport.send(calls.ack(keys, group, settings, [lease]))
            return None
        try:
            record = codec.decode(entry.record)
        except codec.UnreadableRecord as error:
            burial = Burial(Reason.UNREADABLE, str(error), "", entry.attempt, entry.due_ms)
        else:
            settled = self._settled(entry, record, now_ms, settings)
            if settled is None:
                return Delivered(_handle(keys.shard, lease), entry, record)
            if isinstance(settled, Dropped):
                logger.info("job %s of %s is dropped unrun: %s", entry.id, keys.topic, settled.why)
                await self._transport.send(calls.ack(keys, group, settings, [lease]))
                return None
            first_due_ms = record.first_due_ms or entry.due_ms
            burial = Burial(settled.reason, settled.error, "", entry.attempt, first_due_ms)
        logger.warning("job %s of %s is buried: %s", entry.id, keys.topic, burial.error)
        await self._transport.send(worker.bury(keys, group, calls.CONSUMER, entry, burial, settings))
        return None

    def _settled(self, entry: Entry, record: codec.Record, now_ms: int, settings: Topic) -> Dropped | Buried | None:
        """What becomes of a job instead of a lease; None: it is leased. As a worker decides it, too."""
        if entry.deliveries > self._max_deliveries:
            return Buried(Reason.DELIVERIES, f"leased {counted(entry.deliveries - 1, 'time')} without an answer")
        return too_late(now_ms, entry.due_ms, record.expires_ms(entry.due_ms), settings)

    async def _answer(
        self, topic: str, handles: Sequence[str], call: Callable[[ShardKeys, Sequence[Lease]], Call[list[bool]]]
    ) -> list[bool]:
        await self._topic(topic)
        by_shard: defaultdict[int, list[tuple[int, Lease]]] = defaultdict(list)
        for place, handle in enumerate(handles):
            shard, lease = _parse_handle(handle)
            by_shard[shard].append((place, lease))
        done = [False] * len(handles)
        for shard, items in by_shard.items():
            try:
                answers = await self._transport.send(
                    call(self._keys.shard(topic, shard), [lease for _, lease in items])
                )
            except Refused as error:
                if "NOGROUP" not in str(error):  # a group that is not there has leased nothing
                    raise
                answers = [False] * len(items)
            for (place, _), answer in zip(items, answers, strict=True):
                done[place] = answer
        return done

    async def _topic(self, topic: str) -> Topic:
        now = self._clock.monotonic()
        known = self._topics.find(topic, now)
        if known is not None:
            return known
        found = await self._transport.send(registry.topic(self._keys, topic))
        if found is None:
            raise TopicNotFound(topic)
        return self._topics.remember(topic, found, now)

    async def _shards(self, topic: str) -> list[ShardKeys]:
        return [self._keys.shard(topic, shard) for shard in range((await self._topic(topic)).all_shards)]


def _handle(shard: int, lease: Lease) -> str:
    return f"{shard}.{lease.entry_id}.{lease.number}.{lease.member.hex()}"


def _parse_handle(handle: str) -> tuple[int, Lease]:
    found = re.fullmatch(HANDLE_PATTERN, handle)
    if found is None:
        raise InvalidInput("handles", f"{handle[:60]!r} is no handle of a lease")
    shard, entry_id, number, member = found.groups()
    return int(shard), Lease(entry_id, bytes.fromhex(member), int(number))


async def _until(rung: asyncio.Future[Any], seconds: float) -> None:
    await asyncio.wait([rung], timeout=seconds)
