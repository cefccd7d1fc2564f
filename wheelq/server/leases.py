"""Pull for consumers without a library: lease ready jobs, settle them by a handle, or let the lease end.

    lease ─▶ jobs, each with a handle ─▶ ack            done
                                      ─▶ extend         the job takes longer
                                      ─▶ progress       how far it is
                                      ─▶ release        other consumers may have it, now or after a pause
                                      ─▶ fail           another attempt after a pause, or burial: see `Failure`
                                      ─▶ nothing        the lease ends: the next request to lease gets it

A job that is too late, by its own `expires` or its topic's grace, is not leased but dropped or buried, as by workers.

A group is a separate consumer group beside those of the library's workers (`http.NAME` in Redis). The handle names
shard, entry and number of the lease, so a late answer cannot affect a job leased to another consumer. The handle is not
a secret: a caller that may consume a topic may lease all of it. Leases end by a separate clock: see `LeaseClock`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

from wheelq.base.clock import Clock
from wheelq.base.plural import counted
from wheelq.errors import GroupNotFound, InvalidInput, OutcomeUnknown, ServerBusy, ServerError
from wheelq.following.carrier import Carrier
from wheelq.following.notes import Notes
from wheelq.model.dead import Reason
from wheelq.model.job import JobSpec, OnDuplicate, Payload
from wheelq.model.retry import Retry
from wheelq.model.topic import Topic
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.calls import worker
from wheelq.protocol.calls.bundles import bundle_of
from wheelq.protocol.calls.leases import LeaseId, LeasesAcked
from wheelq.protocol.calls.outgoing import MOST_IN_A_CALL, Follower
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.state import TEXT_CHARS, pack_note
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.server.client import ServerClient
from wheelq.server.lease_clock import LeaseClock
from wheelq.server.long_poll import LongPolls
from wheelq.settings import ServerSettings, TopicSettings
from wheelq.telemetry import is_traced
from wheelq.transport import AsyncTransport
from wheelq.transport.slots import Node
from wheelq.worker.outcome import Buried, Dropped, too_late

logger = logging.getLogger("wheelq.server")

TOPICS_S = 1.0
"""How long a topic's settings are cached."""
AGAIN_S = 1.0
"""How often a waiting request looks again without a wake-up, for ended leases and failed reads."""
PREFIX = "http."
HANDLE_PATTERN = r"([0-9]{1,4})\.([0-9]{1,19}-[0-9]{1,19})\.([0-9]{1,9})\.((?:[0-9a-f]{2}){1,400})(\.b)?"
"""A handle names a lease for consumers: SHARD.ENTRY.NUMBER.MEMBER, with the member in hex; .b: a bundle counts it."""
ERROR_CHARS = 500
"""The most characters of an error's beginning that are kept."""
CARRY_S = 1.0
"""Seconds that a server which stops still carries followers; afterwards the nodes that serve their shards do."""
Then = tuple[str, JobSpec, OnDuplicate]
"""A job that follows an acknowledged one."""
T = TypeVar("T")
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
        self,
        client: ServerClient,
        transport: AsyncTransport,
        keys: Keys,
        clock: Clock,
        settings: ServerSettings,
        carrier: Carrier,
    ) -> None:
        self._client = client
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._lease_clock = LeaseClock(transport, keys, clock)
        self._settings = settings
        self._carrier = carrier
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
        if not is_traced():
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
        if found or not wait_s or self.waiting >= self._settings.max_waiting or self._polls.are_silent:
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

    async def ack(
        self, topic: str, group: str, handles: Sequence[str], result: bytes = b"", then: Sequence[Then] = ()
    ) -> list[bool]:
        """Acknowledge jobs, each followed by the jobs in `then`. Returns for each whether its lease was still valid.

        Raises as `lease` does; also InvalidInput, and ServerBusy if there is no room for followers (then some of the
        jobs may be acknowledged).
        """
        if len(handles) * len(then) > MOST_IN_A_CALL:
            raise InvalidInput(
                "then", f"one request may make {MOST_IN_A_CALL} followers, and each of its jobs has its own"
            )
        settings = await self.topic(topic)
        is_full = False

        def call(keys: ShardKeys, leases: Sequence[LeaseId]) -> Call[LeasesAcked]:
            followers = [self._followers(keys, PREFIX + group, lease, then) for lease in leases] if then else ()
            return calls.ack(keys, PREFIX + group, settings, leases, result=result, followers=followers)

        def take(keys: ShardKeys, acked: LeasesAcked) -> list[bool]:
            nonlocal is_full
            is_full |= acked.is_full
            self._carrier.carry(keys, acked.outgoing)
            return acked.done

        for handle in handles if then else ():  # all of them are right before one is settled
            shard, lease = parse_handle(handle)
            self._followers(self._keys.shard(topic, shard), PREFIX + group, lease, then)
        done = await self._answer(topic, handles, call, take)
        if is_full:
            raise ServerBusy(f"topic {topic} has no room for more followers now; repeat the request")
        return done

    def _followers(self, keys: ShardKeys, group: str, lease: LeaseId, then: Sequence[Then]) -> list[Follower]:
        """Returns what follows one job. Raises: InvalidInput."""
        notes = Notes(keys, lease.entry_id, group, self._carrier.settings, self._clock.wall_ms())
        for topic, spec, on_duplicate in then:
            notes.add(topic, spec, on_duplicate)
        return self._carrier.placed(notes.followers)

    async def pack(self, topic: str, result: Payload) -> tuple[bytes, str | None]:
        """Returns a result for `ack`; if it cannot be kept, nothing and why: the job has run all the same."""
        settings = await self.topic(topic)
        if result is None:
            return b"", None
        if not settings.keep_done_ms:
            return b"", f"topic {topic} forgets finished jobs at once: set its keep_done_ms"
        try:
            return codec.encode_result(result, settings.result_max_bytes), None
        except InvalidInput as error:
            return b"", error.problem

    async def progress(self, topic: str, group: str, handles: Sequence[str], fraction: float, text: str) -> list[bool]:
        """Report how far jobs are, 0 to 1. Returns for each whether its lease was still valid."""
        now_us = await self._transport.send(server_time_us(self._keys.shard(topic, 0).ready))
        note = pack_note(fraction, text[:TEXT_CHARS], now_us // 1000, None)
        return await self._answer(topic, handles, lambda keys, leases: calls.note(keys, PREFIX + group, leases, note))

    async def extend(self, topic: str, group: str, handles: Sequence[str], lease_ms: int) -> list[bool]:
        """Let the leases end `lease_ms` from now. Returns for each whether its lease was still valid."""
        ends_ms = await self._lease_clock.in_ms(lease_ms, "lease")
        return await self._answer(
            topic, handles, lambda keys, leases: calls.extend(keys, PREFIX + group, ends_ms, leases)
        )

    async def release(self, topic: str, group: str, handles: Sequence[str], pause_ms: int) -> list[bool]:
        """Give leases back, free for others after a pause. Returns for each whether its lease was still valid."""
        clock = self._lease_clock  # it may know the time only roughly: "now" is when the next lease looks
        from_ms = await (clock.in_ms(pause_ms, "pause") if pause_ms else clock.now_ms())
        return await self._answer(
            topic, handles, lambda keys, leases: calls.release(keys, PREFIX + group, from_ms, leases)
        )

    async def fail(self, topic: str, group: str, handles: Sequence[str], failure: Failure) -> list[bool]:
        """Retry the jobs later, or bury them. Returns for each whether its lease was still valid."""
        settings = await self.topic(topic)

        async def fail_one(shard: int, lease: LeaseId) -> bool:
            keys = self._keys.shard(topic, shard)
            entry = await self._transport.send(calls.entry_of(keys, lease))
            if entry is None:
                return False
            try:
                return await self._transport.send(failure.settle(keys, PREFIX + group, entry, settings))
            except GroupNotFound:  # it has leased nothing
                return False

        each = [fail_one(*named) for named in map(parse_handle, handles)]
        found = await asyncio.gather(*each, return_exceptions=True)
        failures = [one for one in found if isinstance(one, BaseException)]
        if failures and isinstance(failures[0], ServerError) and len(failures) < len(found):
            raise _in_part(failures[0]) from failures[0]
        if failures:
            raise failures[0]
        return cast(list[bool], found)

    async def hand_back(self, topic: str, group: str, found: Sequence[Delivered]) -> None:
        """Give back jobs that were leased but not answered, as if they had never been leased. Raises: ServerError."""
        if not found:
            return
        from_ms = await self._lease_clock.now_ms()
        await self._answer(
            topic,
            [item.handle for item in found],
            lambda keys, leases: calls.release(keys, PREFIX + group, from_ms, leases, counts=False),
        )
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
        await self._polls.close()
        await self._carrier.idle(CARRY_S)
        await self._carrier.close()

    async def _lease_later(
        self, topic: str, group: str, count: int, lease_ms: int, wait_s: float, leaving: asyncio.Future[None]
    ) -> list[Delivered]:
        ends = self._clock.monotonic() + wait_s
        async with self._polls.listening(await self._shards(topic)) as poll:
            while not leaving.done():
                notice = poll.next_notice()
                try:
                    found = await self._lease_now(topic, group, count, lease_ms, makes=False)
                except GroupNotFound:  # it was removed meanwhile, and must stay so until it is asked for again
                    return []
                left = ends - self._clock.monotonic()
                if found or left <= 0 or self._polls.are_silent:
                    return found
                await asyncio.wait([notice, leaving], timeout=min(left, AGAIN_S), return_when=asyncio.FIRST_COMPLETED)
        return []

    async def _lease_now(
        self, topic: str, group: str, count: int, lease_ms: int, *, makes: bool = True
    ) -> list[Delivered]:
        """Leases from one shard after another, starting with a different one each time.

        `makes`: whether the group is created where it is missing; else this raises GroupNotFound.
        """
        shards = await self._shards(topic)
        if (await self.topic(topic)).paused:
            if makes:  # a group gets every job from its first lease on
                await asyncio.gather(*[self._transport.send(worker.make_group(one, PREFIX + group)) for one in shards])
            return []
        first = self._first[topic] = (self._first[topic] + 1) % len(shards)
        found: list[Delivered] = []
        failures: dict[Node | None, ServerError] = {}  # by server
        for keys in (*shards[first:], *shards[:first]):
            server = self._transport.server_of(keys.ready)
            if len(found) == count or server in failures:
                continue
            try:
                found += await self._lease_of(keys, PREFIX + group, count - len(found), lease_ms, makes=makes)
            except ServerError as error:  # what other servers have given must reach the consumer
                failures[server] = error
        if failures and not found:
            raise next(iter(failures.values()))
        return found

    async def _lease_of(
        self, keys: ShardKeys, group: str, count: int, lease_ms: int, *, makes: bool
    ) -> list[Delivered]:
        place = (keys.ready, group)
        while True:
            asked_at = self._clock.monotonic()
            looks = asked_at >= self._next_look.get(place, 0.0)
            now_ms, ends_ms = await self._lease_clock.now_ms(), await self._lease_clock.in_ms(lease_ms, "lease")
            call = calls.lease(keys, group, now_ms, ends_ms, count, looks=looks)
            try:
                leased = await self._transport.send(call)
            except GroupNotFound:
                if not makes:
                    raise
                await self._transport.send(worker.make_group(keys, group))
                continue
            if looks and not any(entry.deliveries > 1 for entry in leased.entries):  # otherwise more may have ended
                self._next_look[place] = asked_at + AGAIN_S
            found = list[Delivered]()
            for n, entry in enumerate(leased.entries):
                try:
                    item = await self._look_at(keys, group, entry, leased.now_ms)
                except GroupNotFound:  # it was removed meanwhile, with all that was leased
                    return []
                except ServerError:
                    with suppress(ServerError):  # nobody hears of the rest
                        rest = [_lease_of_entry(one) for one in leased.entries[n:]]
                        await self._transport.send(calls.release(keys, group, now_ms, rest, counts=False))
                    if found:
                        return found
                    raise
                if item is not None:
                    found.append(item)
            if found or not leased.entries:  # otherwise all were settled, and more may follow
                return found

    async def _look_at(self, keys: ShardKeys, group: str, entry: Entry, now_ms: int) -> Delivered | None:
        """Returns the delivery if it can be leased out; otherwise settles it."""
        settings = await self.topic(keys.topic)
        lease = _lease_of_entry(entry)
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
                logger.info("job %s of %s is dropped without running: %s", entry.id, keys.topic, settled.why)
                await self._transport.send(calls.ack(keys, group, settings, [lease], dropped=1))
                return None
            first_due_ms = record.first_due_ms or entry.due_ms
            burial = Burial(settled.reason, settled.error, "", record.attempt, first_due_ms)
        logger.warning("job %s of %s is buried: %s", entry.id, keys.topic, burial.error)
        await self._transport.send(worker.bury(keys, group, calls.CONSUMER, entry, burial, settings))
        return None

    def _settled(self, entry: Entry, record: codec.Record, now_ms: int, settings: Topic) -> Dropped | Buried | None:
        """Returns the outcome of a job that cannot be leased, by the rules of a worker; None: it is leased."""
        if entry.deliveries > self._settings.max_deliveries:
            times = counted(entry.deliveries - 1, "time")
            return Buried(Reason.DELIVERIES, f"leased {times}, and neither acknowledged nor failed")
        return too_late(now_ms, entry.due_ms, record, settings, is_redelivered=entry.deliveries > 1)

    async def _answer(
        self,
        topic: str,
        handles: Sequence[str],
        call: Callable[[ShardKeys, Sequence[LeaseId]], Call[T]],
        take: Callable[[ShardKeys, T], list[bool]] = lambda keys, answers: cast(list[bool], answers),
    ) -> list[bool]:
        """Answers for leases, shard by shard; `take` returns for each whether it was valid from the shard's answer."""
        await self.topic(topic)
        by_shard: defaultdict[int, list[tuple[int, LeaseId]]] = defaultdict(list)
        for place, handle in enumerate(handles):
            shard, lease = parse_handle(handle)
            by_shard[shard].append((place, lease))
        done = [False] * len(handles)
        for answered, (shard, items) in enumerate(by_shard.items()):
            keys = self._keys.shard(topic, shard)
            try:
                answers = take(keys, await self._transport.send(call(keys, [lease for _, lease in items])))
            except GroupNotFound:  # it has leased nothing
                answers = [False] * len(items)
            except ServerError as error:
                if answered:
                    raise _in_part(error) from error
                raise
            for (place, _), answer in zip(items, answers, strict=True):
                done[place] = answer
        return done

    async def topic(self, topic: str) -> Topic:
        """Returns a topic as it was at most `TOPICS_S` ago."""
        return await self._client.settings_of(topic, TOPICS_S)

    async def _shards(self, topic: str) -> list[ShardKeys]:
        return [self._keys.shard(topic, shard) for shard in range((await self.topic(topic)).all_shards)]


def _in_part(error: ServerError) -> OutcomeUnknown:
    return OutcomeUnknown(f"some of the leases were settled, and for others the server could not be asked: {error}")


def _lease_of_entry(entry: Entry) -> LeaseId:
    return LeaseId(entry.entry_id, entry.member.encode(), entry.deliveries, bundle_of(entry.record) is not None)


def make_handle(shard: int, lease: LeaseId) -> str:
    return f"{shard}.{lease.entry_id}.{lease.number}.{lease.member.hex()}{'.b' if lease.in_bundle else ''}"


def parse_handle(handle: str) -> tuple[int, LeaseId]:
    """The shard and the lease. Raises: InvalidInput."""
    found = re.fullmatch(HANDLE_PATTERN, handle)
    if found is None:
        raise InvalidInput("handles", f"{handle[:60]!r} is not the handle of a lease")
    shard, entry_id, number, member, in_bundle = found.groups()
    return int(shard), LeaseId(entry_id, bytes.fromhex(member), int(number), in_bundle is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """A consumer's report of failed jobs, which settles them: another attempt after a pause, or burial.

    A failure counts as an attempt, like one of a library's handler; `release` counts only as a delivery.
    """

    error: str
    pause_ms: int | None = None
    """The time until the next attempt; None: a pause that grows with the attempts, as in `Retry`."""
    bury: bool = False
    """Whether to give the jobs up at once."""
    max_attempts: int | None = None
    """After this many attempts a job is given up; None: after those with which it was scheduled, else 5."""

    def settle(self, keys: ShardKeys, group: str, entry: Entry, settings: TopicSettings) -> Call[bool]:
        """Returns the call that settles one leased entry; its answer is False if the lease was no longer valid."""
        said = " ".join(self.error.split())[:ERROR_CHARS]
        before = codec.decode(entry.record)
        pause_ms = self._pause_ms(before.attempt, before.max_attempts)
        if pause_ms is not None:
            record = codec.again(entry.record, entry.due_ms, said, counts=True)
            return worker.retry(keys, group, calls.CONSUMER, entry, pause_ms, record, entry.deliveries)
        first_due_ms = before.first_due_ms or entry.due_ms
        reason = Reason.GIVEN_UP if self.bury else Reason.FAILED
        burial = Burial(reason, said, "", before.attempt, first_due_ms)
        return worker.bury(keys, group, calls.CONSUMER, entry, burial, settings, entry.deliveries)

    def _pause_ms(self, attempt: int, attempts: int | None) -> int | None:
        """Returns the pause before the next attempt; None: the job is given up."""
        if self.bury:
            return None
        retry = Retry() if self.max_attempts is None else Retry(max_attempts=self.max_attempts)
        pause_ms = retry.for_job(attempts).pause_ms(attempt, random.random())
        return pause_ms if pause_ms is None or self.pause_ms is None else self.pause_ms
