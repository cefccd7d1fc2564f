"""`AsyncClient`: schedules jobs and manages them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from wheelq.aio.dead import AsyncDeadLetters
from wheelq.aio.jobs import AsyncJobMethods
from wheelq.aio.recurring import AsyncRecurring
from wheelq.aio.topics import AsyncTopicMethods
from wheelq.base.clock import Clock, ServerClock, SystemClock
from wheelq.model.job import (
    JobSpec,
    OnDuplicate,
    Payload,
    Priority,
    Receipt,
    ScheduleOptions,
)
from wheelq.model.task import Task, TaskJob
from wheelq.producer.bulk import Bulk
from wheelq.producer.dead import Dead
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.fallback import Fallback
from wheelq.producer.groups import Groups
from wheelq.producer.jobs import Jobs
from wheelq.producer.listing import Browse, Listing
from wheelq.producer.outbox.courier import AsyncCourier
from wheelq.producer.outbox.kept import Parcel
from wheelq.producer.outbox.store import Outbox, OutboxInfo
from wheelq.producer.recurring import Recurrences
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics
from wheelq.protocol.keys import Keys
from wheelq.settings import (
    BreakerSettings,
    ClientSettings,
    Durability,
    OutboxSettings,
    Settings,
    TopicSettings,
    settings_in_force,
)
from wheelq.transport import AsyncTransport, server_address

R = TypeVar("R")
T = TypeVar("T")


class AsyncClient(AsyncJobMethods, AsyncTopicMethods):
    """Schedules jobs and manages them. Each event loop in which it is used has connections of its own.

        async with AsyncClient.connect("redis://localhost:6379") as client:
            await client.schedule("orders", {"id": 42}, delay=1800, key="order-42")

    Every method raises `Unavailable` or `Refused` if nothing was done, and `OutcomeUnknown` if the reply was lost: then
    repeat the call. While the server is away, calls fail at once (`CircuitOpen`, an `Unavailable`). `schedule` and
    `schedule_many` first repeat a call themselves, with the same job ids. A job that ran and was forgotten before its
    call was repeated runs again: runs are at-least-once.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys | None = None,
        settings: ClientSettings | None = None,
        topic_settings: TopicSettings | None = None,
        clock: Clock | None = None,
        breaker: BreakerSettings | None = None,
        outbox: OutboxSettings | None = None,
    ) -> None:
        self._keys = keys or Keys()
        self._settings = settings or ClientSettings()
        self._clock = clock or SystemClock()
        self._topics = Topics(self._keys, topic_settings or TopicSettings(), self._settings.topics_ttl_ms, self._clock)
        self._groups = Groups(self._topics, self._keys, self._settings.topics_ttl_ms, self._clock)
        self._browse = Browse(self._topics)
        self._listing = Listing(self._topics)
        self._bulk = Bulk(self._topics, self._settings.max_delay_ms, self._clock)
        self._jobs = Jobs(self._topics, self._settings.max_delay_ms, self._clock)
        self._driver = AsyncDriver(transport, breaker or BreakerSettings(), self._clock)
        has_outbox = outbox is not None and bool(outbox.path)
        server_clock = ServerClock(self._clock, self._clock.uptime) if has_outbox else None
        self._scheduling = Scheduling(self._topics, self._keys, self._settings, self._clock, server_clock)
        self.recurring = AsyncRecurring(self._driver, Recurrences(self._topics, self._keys, self._settings))
        """Manages recurring jobs."""
        self.dead = AsyncDeadLetters(self._driver, Dead(self._topics))
        """Manages dead jobs: list, show, replay, purge."""
        self._outbox: AsyncCourier | None = None
        self._fallback: Fallback | None = None
        if outbox is not None and outbox.path:
            kept = Outbox(outbox, self._clock, server_clock)
            self._outbox = AsyncCourier(kept, self._deliver, outbox.retry_ms)
            self._fallback = Fallback(self._scheduling, self._outbox, self._clock)
            self._outbox.resume()

    @classmethod
    def connect(
        cls, url: str | None = None, settings: Settings | None = None, *, outbox: str | PathLike[str] | None = None
    ) -> Self:
        """Returns a client for `url` (else WHEELQ_URL); it connects on first use. Raises: ConfigurationError.

        `outbox` (else the settings') is a file on a local disk that keeps jobs while the server is away.
        """
        given, settings = settings, settings or settings_in_force()
        kept = settings.outbox if outbox is None else replace(settings.outbox, path=fspath(outbox))
        transport = AsyncTransport(server_address(url, given))
        return cls(
            transport,
            Keys(settings.prefix),
            settings.client,
            settings.topic,
            breaker=settings.breaker,
            outbox=kept,
        )

    @overload
    async def schedule(self, topic: TaskJob[R], **options: Unpack[ScheduleOptions]) -> Receipt[R]: ...

    @overload
    async def schedule(self, topic: str, payload: Payload = None, **options: Unpack[ScheduleOptions]) -> Receipt: ...

    async def schedule(
        self,
        topic: str | TaskJob[Any],
        payload: Payload = None,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        priority: Priority = "normal",
        spread: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> Receipt:
        """Schedule a job after `delay` (seconds or timedelta) or `at` an aware datetime; a past time means at once.

        The job is a topic and a payload, or a task's `close_order.job(42)`.

        `key` is the job's id, unique in the topic while the job is alive; by default one is made. If a live job has the
        id, "keep" leaves it and returns `created=False`, "replace" gives a waiting job the new payload and time, and
        "raise" raises DuplicateJob.

        `priority`, `spread` and `expires`: see `JobSpec`.

        `durability` (None: the settings') says when the call returns: "server", once the server has answered;
        "replicated", once replicas have the job and its topic; "fsynced", once a disk has them.

        With an outbox, a job that cannot reach the server is kept there, and its receipt says `in_outbox`; its delay
        counts from this call.

        Raises: InvalidInput (names the field, nothing was sent), DuplicateJob, TopicFull, NotReplicated (scheduled, but
        not confirmed in time), OutboxFull, and the server's errors.
        """
        task = None
        if isinstance(topic, TaskJob):
            task, topic, payload = topic.task, topic.without(payload), topic
        spec = JobSpec(payload, delay, at, key, headers, partition_key, priority, spread, expires)
        scheduling = self._fallback or self._scheduling
        receipt = await self._driver.run(scheduling.one(topic, spec, on_duplicate, durability))
        return receipt if task is None else receipt._replace(read_result=task.read_result)

    @overload
    async def schedule_many(
        self,
        topic: Task[..., R, ..., Any],
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> list[Receipt[R]]: ...

    @overload
    async def schedule_many(
        self,
        topic: str,
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> list[Receipt]: ...

    async def schedule_many(
        self,
        topic: str | Task[..., Any, ..., Any],
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> list[Receipt]:
        """Schedule many jobs in batches; returns one receipt for each, in order.

        Jobs of a task: `schedule_many(close_order, [JobSpec(close_order.job(42), delay=1800)])`.

        The first two batches have 250 jobs, the others 500. Each is checked and packed while the server works on the
        one before it, so jobs before a bad one may be scheduled. Raises as `schedule` does; `InvalidJob` tells which
        job is bad and which were scheduled before it, `PartlyScheduled` which jobs have no reply.
        """
        name = topic.topic if isinstance(topic, Task) else topic
        scheduling = self._fallback or self._scheduling
        receipts = await self._driver.run(scheduling.many(name, jobs, on_duplicate, durability))
        if isinstance(topic, Task):
            return [receipt._replace(read_result=topic.read_result) for receipt in receipts]
        return receipts

    async def deliver_outbox(self) -> int:
        """Deliver the jobs in the outbox now; returns how many were delivered, 0 without an outbox.

        Delivery runs in the background anyway. Call this before a process exits, or to wait for delivery. Jobs that the
        server refuses stay in the outbox. Raises: the server's errors, if it is away.
        """
        return 0 if self._outbox is None else await self._outbox.deliver_all()

    async def outbox_info(self) -> OutboxInfo | None:
        """Returns how many jobs the outbox holds, and since when; None without an outbox."""
        return None if self._outbox is None else await self._outbox.info()

    async def close(self) -> None:
        """Close the connections. The client can be used again after that, and must then be closed again."""
        if self._outbox is not None:
            await self._outbox.close()
        await self._driver.close()

    async def __aenter__(self) -> Self:
        if self._outbox is not None:
            self._outbox.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _deliver(self, parcel: Parcel) -> list[Receipt]:
        return await self._driver.run(self._scheduling.parcel(parcel))
