"""`AsyncClient`: the producer on asyncio. `client.Client` is its blocking twin: same methods, same outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar

from wheelq.clock import Clock, SystemClock
from wheelq.errors import InvalidInput, OutcomeUnknown, Refused, ServerError, TopicNotFound, Unavailable
from wheelq.job import (
    CancelOutcome,
    JobInfo,
    JobSpec,
    OnDuplicate,
    Payload,
    Receipt,
    RescheduleOutcome,
    RunNowOutcome,
    check_id,
    check_on_duplicate,
    check_topic,
    due_argument,
)
from wheelq.protocol import codec
from wheelq.protocol.batches import Order, Preparation, accepted
from wheelq.protocol.calls import producer, registry
from wheelq.protocol.calls.producer import Placed
from wheelq.protocol.durability import Confirmation, confirmation
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import ClientSettings, Durability, Settings, TopicSettings, resolve_url
from wheelq.topics import SHARDS_LIMIT, KnownTopics, Topic, TopicInfo
from wheelq.transport import Address, AsyncTransport, Siblings

T = TypeVar("T")


class AsyncClient:
    """Schedules jobs, and looks after those that wait. One event loop per client.

        async with AsyncClient.connect("redis://localhost:6379") as client:
            await client.schedule("orders", {"id": 42}, delay=1800, key="order-42")

    Every method raises `Unavailable` or `Refused` when nothing was done, and `OutcomeUnknown` when the reply was lost:
    then repeat the call. `schedule` and `schedule_many` repeat by themselves first, with the same job ids. A job that
    ran and was forgotten before its call was repeated runs once more: runs are at-least-once.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys | None = None,
        settings: ClientSettings | None = None,
        topic_settings: TopicSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._transport = transport
        self._keys = keys or Keys()
        self._settings = settings or ClientSettings()
        self._topic_settings = topic_settings or TopicSettings()
        self._clock = clock or SystemClock()
        self._known = KnownTopics(self._settings.topics_ttl_ms)
        self._can_confirm: set[Durability] = set()
        self._siblings = Siblings(transport)  # a call that waits would hold up all others on the shared connection

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """A client of the server at `url` (else WHEELQ_URL). Connects when first used. Raises: ConfigurationError."""
        settings = settings or Settings()
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, Keys(settings.prefix), settings.client, settings.topic)

    async def schedule(
        self,
        topic: str,
        payload: Payload = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> Receipt:
        """Run a job after `delay` (seconds or timedelta), or `at` an aware datetime; at once when that has passed.

        `key` is the job's id, unique in the topic while the job is alive; without it one is made. If a live job has
        the id: "keep" leaves it and answers `created=False`, "replace" gives a waiting one the new payload and time,
        "raise" raises DuplicateJob.

        `durability` (None: the settings') says what to wait for: "server", its answer; "replicated", that replicas
        have the job; "fsynced", that a disk has it.

        Raises: InvalidInput (names the field, nothing was sent), DuplicateJob, NotReplicated (scheduled, but not
        confirmed in time), and the server's errors.
        """
        check_on_duplicate(on_duplicate)
        spec = JobSpec(payload, delay, at, key, headers, partition_key)
        job = Preparation(self._settings, self._clock.wall_ms()).job(spec)
        waiting = await self._confirmation(durability)
        found = await self._register(topic)
        was_sent = False
        if waiting is None and not found.draining:  # the short way, for nearly always
            shard = self._keys.shard(topic, found.places(partition_key or job[0])[0])
            try:
                answer = await self._transport.send(producer.schedule(shard, (job,), on_duplicate, found.shards))
            except OutcomeUnknown as error:
                if not self._settings.repeats:
                    raise OutcomeUnknown(str(error), (job[0],)) from error
                was_sent = True
            else:
                if answer.shards_in_force is None:
                    return accepted(topic, answer.receipts, on_duplicate)[0]
        order = Order(self._keys, topic, found, (), on_duplicate, self._settings, self._clock.wall_ms())
        order.put(job, spec, was_sent=was_sent)
        return (await self._carry_out(order, topic, on_duplicate, waiting))[0]

    async def schedule_many(
        self,
        topic: str,
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> list[Receipt]:
        """Schedule many jobs in one round trip per 500; one receipt each, in order.

        Jobs are checked and packed while the server works on the 500 before. Raises as `schedule` does; `InvalidJob`
        tells which job is bad and which were scheduled before it, `PartlyScheduled` which have no answer.
        """
        check_on_duplicate(on_duplicate)
        waiting = await self._confirmation(durability)
        found = await self._register(topic)
        order = Order(self._keys, topic, found, jobs, on_duplicate, self._settings, self._clock.wall_ms())
        return await self._carry_out(order, topic, on_duplicate, waiting)

    async def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        partition_key: str | None = None,
    ) -> RescheduleOutcome:
        """Give a waiting job a new due time: RESCHEDULED, RUNNING (too late) or NOT_FOUND."""
        due = due_argument(delay, at, self._clock.wall_ms(), self._settings.max_delay_ms)

        async def ask(shard: ShardKeys) -> RescheduleOutcome:
            return await self._transport.send(producer.reschedule(shard, id, due))

        return await self._find(topic, id, partition_key, ask, RescheduleOutcome.NOT_FOUND)

    async def cancel(self, topic: str, id: str, *, partition_key: str | None = None) -> CancelOutcome:
        """Cancel a waiting job: CANCELLED, RUNNING (too late) or NOT_FOUND."""

        async def ask(shard: ShardKeys) -> CancelOutcome:
            return await self._transport.send(producer.cancel(shard, id))

        return await self._find(topic, id, partition_key, ask, CancelOutcome.NOT_FOUND)

    async def run_now(self, topic: str, id: str, *, partition_key: str | None = None) -> RunNowOutcome:
        """Let a waiting job run now: PROMOTED, RUNNING (it does already) or NOT_FOUND."""

        async def ask(shard: ShardKeys) -> RunNowOutcome:
            return await self._transport.send(producer.run_now(shard, id))

        return await self._find(topic, id, partition_key, ask, RunNowOutcome.NOT_FOUND)

    async def get(self, topic: str, id: str, *, partition_key: str | None = None) -> JobInfo | None:
        """Where a live job stands; None when no live job has this id."""

        async def ask(shard: ShardKeys) -> JobInfo | None:
            return await self._transport.send(producer.get(shard, id))

        return await self._find(topic, id, partition_key, ask, None)

    async def set_shards(self, topic: str, shards: int) -> TopicInfo:
        """Change a topic's number of shards, up or down, while jobs wait and run; how the topic now stands.

        Jobs that wait stay where they are until they have run, and are found there; new ones are placed by the new
        number. Raises: TopicNotFound, InvalidInput.
        """
        if not 1 <= shards <= SHARDS_LIMIT:
            raise InvalidInput("shards", f"must be 1 to {SHARDS_LIMIT:,}, not {shards!r}")
        await self._change_shards(topic, shards)
        return next(info for info in await self.topics() if info.name == topic)

    async def topics(self) -> list[TopicInfo]:
        """Every topic and what it holds, by name."""
        settings = (await self._transport.send(registry.topics(self._keys))).settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
        counts = [count async for count in self._transport.stream(registry.counts(shard) for shard in shards)]
        return registry.add_up(settings, shards, counts)

    async def close(self) -> None:
        """Close the connections. The client can be used again afterwards."""
        await self._siblings.close()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _carry_out(
        self, order: Order, topic: str, on_duplicate: OnDuplicate, waiting: Confirmation[Placed] | None
    ) -> list[Receipt]:
        repeats = self._settings.repeats - order.was_sent  # a lost reply is forgiven that often
        while not order.is_complete:
            try:
                await self._send_all(order, waiting)
                if order.shards_in_force is not None:
                    order.replace(await self._catch_up(topic, order.shards_in_force))
            except OutcomeUnknown as error:
                if not repeats:
                    raise order.failed(error) from error
                repeats -= 1
            except ServerError as error:
                raise order.failed(error) from error
        if waiting is not None:
            waiting.check(order.receipts())
        return accepted(topic, order.receipts(), on_duplicate)

    async def _send_all(self, order: Order, waiting: Confirmation[Placed] | None) -> None:
        if waiting is None:
            async for answer in self._transport.stream(order.unanswered()):
                order.settle(answer)
            return
        async with self._siblings.one() as transport:
            async for answers in transport.stream(waiting.behind(order.unanswered())):
                for answer in answers:
                    order.settle(answer)

    async def _confirmation(self, durability: Durability | None) -> Confirmation[Placed] | None:
        """What is to be confirmed; the server is asked first whether it can. Raises: InvalidInput, Refused."""
        found = confirmation(durability, self._settings)
        if found is not None and found.durability not in self._can_confirm:
            try:
                await self._transport.send(found.ask())
            except Refused as error:
                raise found.impossible(error) from error
            self._can_confirm.add(found.durability)
        return found

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _register(self, topic: str) -> Topic:
        """The topic; made known if it is new."""
        now = self._clock.monotonic()
        found = self._known.find(check_topic(topic), now)
        if found is None:
            call = registry.register_topic(self._keys, topic, self._topic_settings)
            try:
                settings = await self._transport.send(call)
            except OutcomeUnknown:
                try:
                    settings = await self._transport.send(call)
                except OutcomeUnknown as error:
                    raise Unavailable(
                        f"topic {topic!r} could not be registered, and no job was sent: {error}"
                    ) from error
            found = self._known.remember(topic, settings, now)
        return found

    async def _read_topic(self, topic: str) -> Topic | None:
        """The topic as it stands now; None when it was never used."""
        now = self._clock.monotonic()
        found = await self._transport.send(registry.topic(self._keys, check_topic(topic)))
        return None if found is None else self._known.remember(topic, found, now)

    async def _find(
        self, topic: str, id: str, partition_key: str | None, ask: Callable[[ShardKeys], Awaitable[T]], not_found: T
    ) -> T:
        """The first answer that is not `not_found`, from the shards where the job may be.

        What is known of the topic may be old: before saying that there is no such job, it is read again.
        """
        key = check_id(id, "id")
        if partition_key is not None:
            key = check_id(partition_key, "partition_key")
        asked: set[int] = set()
        found = self._known.find(check_topic(topic), self._clock.monotonic())
        is_fresh = found is None
        while True:
            found = found or await self._read_topic(topic)
            for shard in found.places(key) if found else ():
                if shard not in asked:
                    asked.add(shard)
                    answer = await ask(self._keys.shard(topic, shard))
                    if answer != not_found:
                        return answer
            if is_fresh:
                return not_found
            found, is_fresh = None, True

    async def _catch_up(self, topic: str, shards: int) -> Topic:
        """The topic, once it has the number of shards that its shards ask for.

        They ask for it a moment before it is published. Should whoever changes it have died in between, finish it.
        """
        for _ in range(20):
            found = await self._read_topic(topic)
            if found is not None and found.shards == shards:
                return found
            await self._clock.sleep(0.01)
        return await self._change_shards(topic, shards)

    async def _change_shards(self, topic: str, shards: int) -> Topic:
        """First let every shard refuse jobs placed by another number, then publish the new one."""
        while True:
            stored = await self._transport.send(registry.stored_topic(self._keys, check_topic(topic)))
            if stored is None:
                raise TopicNotFound(topic)
            before = codec.decode_topic(stored)
            numbers = range(max(before.all_shards, shards))
            fences = [registry.fence(self._keys.shard(topic, shard), shards) for shard in numbers]
            last_due_ms = max([due_ms async for due_ms in self._transport.stream(fences)])
            after = before.resharded(shards, last_due_ms)
            if await self._transport.send(registry.put_topic(self._keys, topic, stored, after)):
                return self._known.remember(topic, after, self._clock.monotonic())
