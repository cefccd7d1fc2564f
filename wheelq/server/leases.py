"""Pull for consumers without a library: lease ready jobs, settle them by a handle, or let the lease end.

    lease ─▶ jobs, each with a handle ─▶ ack            done
                                      ─▶ extend         the job takes longer
                                      ─▶ release        other consumers may have it, now or after a pause
                                      ─▶ fail           another attempt after a pause, or burial: see `failing`
                                      ─▶ nothing        the lease ends: the next request to lease gets it

A job that is too late, by its own `expires` or its topic's grace, is not leased but dropped or buried, as by workers.

A group is a separate consumer group beside those of the library's workers (`http.NAME` in Redis). The handle names
shard, entry and number of the lease, so a late answer cannot affect a job leased to another consumer. The handle is not
a secret: a caller that may consume a topic may lease all of it. Leases end by a separate clock: see `lease_clock`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from wheelq.base.clock import Clock
from wheelq.base.plural import counted
from wheelq.errors import GroupNotFound, TopicNotFound
from wheelq.model.dead import Reason
from wheelq.model.topic import KnownTopics, Topic
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.calls import registry, worker
from wheelq.protocol.calls.leases import LeaseId
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.failing import Failure
from wheelq.server.handles import make_handle, parse_handle
from wheelq.server.lease_clock import LeaseClock
from wheelq.server.long_poll import LongPolls
from wheelq.telemetry import api
from wheelq.transport import AsyncTransport
from wheelq.worker.outcome import Buried, Dropped, too_late

logger = logging.getLogger("wheelq.server")

TOPICS_MS = 1_000
"""How long a topic's settings are cached."""
AGAIN_S = 1.0
"""How often a waiting request looks again without a wake-up, for ended leases and failed reads."""
PREFIX = "http."
Gone = Callable[[], Awaitable[None]]


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
        self._lease_clock = LeaseClock(transport, keys, clock)
        self._max_deliveries = max_deliveries
        self._max_waiting = max_waiting
        self._topics = KnownTopics(TOPICS_MS)
        self._next_look: dict[tuple[str, str], float] = {}
        self._first: defaultdict[str, int] = defaultdict(int)
        self._polls = LongPolls(transport)
        self.waiting = 0

    async def lease(
        self, topic: str, group: str, count: int, lease_ms: int, wait_s: float = 0, gone: Gone | None = None
    ) -> list[Delivered]:
        """Lease up to `count` jobs; waits up to `wait_s` for the first. Raises: TopicNotFound, ServerError.

        `gone` returns when the caller has left. Then nothing more is leased, and a job that was just leased for it is
        handed back, as if it had never been leased.
        """
        if api._TRACER_PROVIDER is None:
            return await self._lease(topic, group, count, lease_ms, wait_s, gone)
        from wheelq.telemetry import spans

        with spans.leasing(topic, PREFIX + group, self._transport.node) as span:
            found = await self._lease(topic, group, count, lease_ms, wait_s, gone)
            spans.link_jobs(span, [item.record.headers for item in found])
        return found

    async def _lease(
        self, topic: str, group: str, count: int, lease_ms: int, wait_s: float, gone: Gone | None
    ) -> list[Delivered]:
        found = await self._lease_now(topic, group, count, lease_ms)
        if found or not wait_s or self.waiting >= self._max_waiting or self._polls.are_silent:
            return found
        self.waiting += 1
        leaving = asyncio.ensure_future(gone()) if gone is not None else asyncio.get_running_loop().create_future()
        try:
            found = await self._lease_later(topic, group, count, lease_ms, wait_s, leaving)
            await asyncio.sleep(0)  # let `gone` run: the caller may have left meanwhile
            if found and leaving.done():
                await self.hand_back(topic, group, found)
                return []
            return found
        finally:
            leaving.cancel()
            self.waiting -= 1

    async def ack(self, topic: str, group: str, handles: Sequence[str]) -> list[bool]:
        """Acknowledge jobs. Returns for each whether its lease was still valid. Raises as `lease` does."""
        settings = await self._topic(topic)

        def call(keys: ShardKeys, leases: Sequence[LeaseId]) -> Call[list[bool]]:
            return calls.ack(keys, PREFIX + group, settings, leases)

        return await self._answer(topic, handles, call)

    async def extend(self, topic: str, group: str, handles: Sequence[str], lease_ms: int) -> list[bool]:
        """Let the leases end `lease_ms` from now. Returns for each whether its lease was still valid."""

        ends_ms = await self._lease_clock.in_ms(lease_ms, "lease")

        def call(keys: ShardKeys, leases: Sequence[LeaseId]) -> Call[list[bool]]:
            return calls.extend(keys, PREFIX + group, ends_ms, leases)

        return await self._answer(topic, handles, call)

    async def release(self, topic: str, group: str, handles: Sequence[str], pause_ms: int) -> list[bool]:
        """Give leases back, free for others after a pause. Returns for each whether its lease was still valid."""

        clock = self._lease_clock  # it may know the time only roughly: "now" is when the next lease looks
        from_ms = await (clock.in_ms(pause_ms, "pause") if pause_ms else clock.now_ms())

        def call(keys: ShardKeys, leases: Sequence[LeaseId]) -> Call[list[bool]]:
            return calls.release(keys, PREFIX + group, from_ms, leases)

        return await self._answer(topic, handles, call)

    async def fail(self, topic: str, group: str, handles: Sequence[str], failure: Failure) -> list[bool]:
        """Retry the jobs later, or bury them. Returns for each whether its lease was still valid."""
        settings = await self._topic(topic)

        async def fail_one(shard: int, lease: LeaseId) -> bool:
            keys = self._keys.shard(topic, shard)
            entry = await self._transport.send(calls.entry_of(keys, lease))
            if entry is None:
                return False
            try:
                return await self._transport.send(failure.settle(keys, PREFIX + group, entry, settings))
            except GroupNotFound:  # it has leased nothing
                return False

        return list(await asyncio.gather(*[fail_one(*named) for named in map(parse_handle, handles)]))

    async def hand_back(self, topic: str, group: str, found: Sequence[Delivered]) -> None:
        """Give back jobs that were leased but not answered, as if they had never been leased. Raises: ServerError."""
        if not found:
            return
        from_ms = await self._lease_clock.now_ms()

        def call(keys: ShardKeys, leases: Sequence[LeaseId]) -> Call[list[bool]]:
            return calls.release(keys, PREFIX + group, from_ms, leases, counts=False)

        await self._answer(topic, [item.handle for item in found], call)
        self._polls.notify(topic)

    async def take(self, topic: str, group: str, id: str, shard: int) -> bool:
        """Remove a promoted job from the queue by its id; False if it is not there, or another group needs it."""
        return await self._transport.send(calls.take(self._keys.shard(topic, shard), PREFIX + group, id))

    async def run(self) -> None:
        """Keep the clock of leases running until cancelled."""
        await self._lease_clock.run()

    def wake_all(self) -> None:
        """End all waiting, because the server stops."""
        self._polls.silence()

    async def close(self) -> None:
        """Close the connections."""
        await self._polls.close()

    async def _lease_later(
        self, topic: str, group: str, count: int, lease_ms: int, wait_s: float, leaving: asyncio.Future[None]
    ) -> list[Delivered]:
        ends = self._clock.monotonic() + wait_s
        async with self._polls.listening(await self._shards(topic)) as poll:
            while not leaving.done():
                notice = poll.next_notice()
                found = await self._lease_now(topic, group, count, lease_ms)
                left = ends - self._clock.monotonic()
                if found or left <= 0 or self._polls.are_silent:
                    return found
                await asyncio.wait([notice, leaving], timeout=min(left, AGAIN_S), return_when=asyncio.FIRST_COMPLETED)
        return []

    async def _lease_now(self, topic: str, group: str, count: int, lease_ms: int) -> list[Delivered]:
        """Leases from one shard after another, starting with a different one each time."""
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
            asked_at = self._clock.monotonic()
            looks = asked_at >= self._next_look.get(place, 0.0)
            now_ms, ends_ms = await self._lease_clock.now_ms(), await self._lease_clock.in_ms(lease_ms, "lease")
            call = calls.lease(keys, group, now_ms, ends_ms, count, looks=looks)
            try:
                leased = await self._transport.send(call)
            except GroupNotFound:
                await self._transport.send(worker.make_group(keys, group))
                continue
            if looks and not any(entry.deliveries > 1 for entry in leased.entries):  # otherwise more may have ended
                self._next_look[place] = asked_at + AGAIN_S
            found = [
                item for entry in leased.entries if (item := await self._look_at(keys, group, entry, leased.now_ms))
            ]
            if found or not leased.entries:  # otherwise all were settled, and more may follow
                return found

    async def _look_at(self, keys: ShardKeys, group: str, entry: Entry, now_ms: int) -> Delivered | None:
        """Returns the delivery if it can be leased out; otherwise settles it."""
        settings = await self._topic(keys.topic)
        lease = LeaseId(entry.entry_id, entry.member.encode(), entry.deliveries)
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
                return Delivered(make_handle(keys.shard, lease), entry, record)
            if isinstance(settled, Dropped):
                logger.info("job %s of %s is dropped unrun: %s", entry.id, keys.topic, settled.why)
                await self._transport.send(calls.ack(keys, group, settings, [lease], dropped=1))
                return None
            first_due_ms = record.first_due_ms or entry.due_ms
            burial = Burial(settled.reason, settled.error, "", entry.attempt, first_due_ms)
        logger.warning("job %s of %s is buried: %s", entry.id, keys.topic, burial.error)
        await self._transport.send(worker.bury(keys, group, calls.CONSUMER, entry, burial, settings))
        return None

    def _settled(self, entry: Entry, record: codec.Record, now_ms: int, settings: Topic) -> Dropped | Buried | None:
        """Returns the outcome of a job that cannot be leased, by the rules of a worker; None: it is leased."""
        if entry.deliveries > self._max_deliveries:
            return Buried(Reason.DELIVERIES, f"leased {counted(entry.deliveries - 1, 'time')} without an answer")
        return too_late(now_ms, entry.due_ms, record.expires_ms(entry.due_ms), settings)

    async def _answer(
        self, topic: str, handles: Sequence[str], call: Callable[[ShardKeys, Sequence[LeaseId]], Call[list[bool]]]
    ) -> list[bool]:
        await self._topic(topic)
        by_shard: defaultdict[int, list[tuple[int, LeaseId]]] = defaultdict(list)
        for place, handle in enumerate(handles):
            shard, lease = parse_handle(handle)
            by_shard[shard].append((place, lease))
        done = [False] * len(handles)
        for shard, items in by_shard.items():
            try:
                answers = await self._transport.send(
                    call(self._keys.shard(topic, shard), [lease for _, lease in items])
                )
            except GroupNotFound:  # it has leased nothing
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
