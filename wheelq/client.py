"""`Client`: the blocking producer. `aio.AsyncClient` is its twin on asyncio: same methods, same outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from wheelq.clock import Clock, SystemClock
from wheelq.errors import OutcomeUnknown
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
from wheelq.protocol.batches import Order, accepted, new_job
from wheelq.protocol.calls import producer, registry
from wheelq.protocol.keys import Keys, ShardKeys, shard_of
from wheelq.settings import ClientSettings, Settings, TopicSettings, resolve_url
from wheelq.topics import KnownTopics, TopicInfo
from wheelq.transport import Address, Transport


class Client:
    """Schedules jobs, and looks after those that wait. Safe to share between threads.

        with Client.connect("redis://localhost:6379") as client:
            client.schedule("orders", {"id": 42}, delay=1800, key="order-42")

    Every method raises `Unavailable` or `Refused` when nothing was done, and `OutcomeUnknown` when the reply was lost:
    then repeat the call. `schedule` and `schedule_many` repeat by themselves first, with the same job ids.
    """

    def __init__(
        self,
        transport: Transport,
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

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """A client of the server at `url` (else WHEELQ_URL). Connects when first used. Raises: ConfigurationError."""
        settings = settings or Settings()
        transport = Transport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, Keys(settings.prefix), settings.client, settings.topic)

    def schedule(
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
    ) -> Receipt:
        """Run a job after `delay` (seconds or timedelta), or `at` an aware datetime; at once when that has passed.

        `key` is the job's id, unique in the topic while the job is alive; without it one is made. If a live job has
        the id: "keep" leaves it and answers `created=False`, "replace" gives a waiting one the new payload and time,
        "raise" raises DuplicateJob.

        Raises: InvalidInput (names the field, nothing was sent), DuplicateJob, and the server's errors.
        """
        check_on_duplicate(on_duplicate)
        spec = JobSpec(payload, delay, at, key, headers, partition_key)
        job = new_job(spec, self._settings, self._clock.wall_ms())
        shard = self._place(self._register(topic), topic, partition_key or job.id)
        call = producer.schedule(shard, (job,), on_duplicate)
        for repeats_left in range(self._settings.repeats, -1, -1):
            try:
                receipts = self._transport.send(call)
            except OutcomeUnknown as error:
                if not repeats_left:
                    raise OutcomeUnknown(str(error), (job.id,)) from error
            else:
                break
        return accepted(topic, receipts, on_duplicate)[0]

    def schedule_many(
        self, topic: str, jobs: Iterable[JobSpec], *, on_duplicate: OnDuplicate = "keep"
    ) -> list[Receipt]:
        """Schedule many jobs in one round trip per 500; one receipt each, in order.

        Jobs are checked and packed while the server works on the 500 before. Raises as `schedule` does; `InvalidJob`
        tells which job is bad and which were scheduled before it, `OutcomeUnknown.ids` which have no answer.
        """
        check_on_duplicate(on_duplicate)
        shards = self._register(topic).shards
        now_ms = self._clock.wall_ms()
        order = Order(self._keys, topic, shards, jobs, on_duplicate, self._settings, now_ms)
        for repeats_left in range(self._settings.repeats, -1, -1):
            try:
                for receipts in self._transport.stream(order.unanswered()):
                    order.settle(receipts)
            except OutcomeUnknown as error:
                if not repeats_left:
                    raise order.unknown(error) from error
            else:
                break
        return accepted(topic, order.receipts(), on_duplicate)

    def reschedule(
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
        shard = self._shard(topic, id, partition_key)
        return self._transport.send(producer.reschedule(shard, id, due)) if shard else RescheduleOutcome.NOT_FOUND

    def cancel(self, topic: str, id: str, *, partition_key: str | None = None) -> CancelOutcome:
        """Cancel a waiting job: CANCELLED, RUNNING (too late) or NOT_FOUND."""
        shard = self._shard(topic, id, partition_key)
        return self._transport.send(producer.cancel(shard, id)) if shard else CancelOutcome.NOT_FOUND

    def run_now(self, topic: str, id: str, *, partition_key: str | None = None) -> RunNowOutcome:
        """Let a waiting job run now: PROMOTED, RUNNING (it does already) or NOT_FOUND."""
        shard = self._shard(topic, id, partition_key)
        return self._transport.send(producer.run_now(shard, id)) if shard else RunNowOutcome.NOT_FOUND

    def get(self, topic: str, id: str, *, partition_key: str | None = None) -> JobInfo | None:
        """Where a live job stands; None when no live job has this id."""
        shard = self._shard(topic, id, partition_key)
        return self._transport.send(producer.get(shard, id)) if shard else None

    def topics(self) -> list[TopicInfo]:
        """Every topic and what it holds, by name."""
        settings = self._transport.send(registry.topics(self._keys)).settings
        shards = [self._keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].shards)]
        counts = list(self._transport.stream(registry.counts(shard) for shard in shards))
        return registry.add_up(shards, counts)

    def close(self) -> None:
        """Close the connections. The client can be used again afterwards."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _register(self, topic: str) -> TopicSettings:
        """The topic's settings; makes the topic known if it is new."""
        now = self._clock.monotonic()
        found = self._known.find(check_topic(topic), now)
        if found is None:
            call = registry.register_topic(self._keys, topic, self._topic_settings)
            found = self._known.remember(topic, self._transport.send(call), now)
        return found

    def _shard(self, topic: str, id: str, partition_key: str | None) -> ShardKeys | None:
        """The shard of a job; None when the topic was never used."""
        now = self._clock.monotonic()
        found = self._known.find(check_topic(topic), now)
        if found is None:
            found = self._transport.send(registry.topic(self._keys, topic))
            if found is None:
                return None
            self._known.remember(topic, found, now)
        return self._place(found, topic, partition_key or check_id(id, "id"))

    def _place(self, settings: TopicSettings, topic: str, partition_key: str) -> ShardKeys:
        return self._keys.shard(topic, shard_of(partition_key, settings.shards))
