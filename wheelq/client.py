"""`Client`: the blocking producer. `aio.AsyncClient` is its twin on asyncio: same methods, same outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from os import PathLike, fspath
from types import TracebackType
from typing import Self, TypeVar, Unpack

from wheelq.arguments import check_id, check_on_duplicate, check_topic
from wheelq.carriers import Carrier
from wheelq.clock import Clock, SystemClock
from wheelq.dead_letters import DeadLetters
from wheelq.errors import Unavailable
from wheelq.job import (
    CancelOutcome,
    JobSpec,
    OnDuplicate,
    Payload,
    Priority,
    Receipt,
    RescheduleOutcome,
    RunNowOutcome,
    WaitingPage,
)
from wheelq.operations import Browse, Dead, Fallback, Jobs, Operation, Recurrences, Replayed, Topics, replay, wait_for
from wheelq.outbox import Courier, Outbox, OutboxInfo
from wheelq.protocol.batches import Order, Preparation
from wheelq.protocol.keys import Keys
from wheelq.recurring import Recurring
from wheelq.settings import (
    BreakerSettings,
    ClientSettings,
    Durability,
    OutboxSettings,
    Settings,
    TopicSettings,
    resolve_url,
)
from wheelq.state import JobInfo
from wheelq.topics import Span, Topic, TopicChanges, TopicInfo
from wheelq.transport import Address, Transport

T = TypeVar("T")


class Client:
    """Schedules jobs, and looks after those that wait. Safe to share between threads.

        with Client.connect("redis://localhost:6379") as client:
            client.schedule("orders", {"id": 42}, delay=1800, key="order-42")

    Every method raises `Unavailable` or `Refused` when nothing was done, and `OutcomeUnknown` when the reply was lost:
    then repeat the call. While a server is away calls fail at once (`CircuitOpen`, an `Unavailable`). `schedule` and
    `schedule_many` repeat by themselves first, with the same job ids. A job that ran and was forgotten before its call
    was repeated runs once more: runs are at-least-once.
    """

    def __init__(
        self,
        transport: Transport,
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
        self._browse = Browse(self._topics)
        self._jobs = Jobs(self._topics, self._settings.max_delay_ms, self._clock)
        self._carrier = Carrier(
            transport, self._keys, self._topics, self._settings, breaker or BreakerSettings(), self._clock
        )
        self.recurring = Recurring(self._carrier, Recurrences(self._topics, self._keys, self._settings))
        """Jobs that occur again and again."""
        self.dead = DeadLetters(Dead(self._topics), self._carrier.run)
        """The jobs that were given up: list, show, replay, purge."""
        self._outbox: Courier | None = None
        self._fallback: Fallback | None = None
        if outbox is not None and outbox.path:
            self._outbox = Courier(Outbox(outbox, self._clock), self._carrier.deliver, outbox.retry_ms)
            self._fallback = Fallback(self._carrier, self._outbox, self._clock)
            self._outbox.resume()

    @classmethod
    def connect(
        cls, url: str | None = None, settings: Settings | None = None, *, outbox: str | PathLike[str] | None = None
    ) -> Self:
        """A client of the server at `url` (else WHEELQ_URL). Connects when first used. Raises: ConfigurationError.

        `outbox` (else the settings'): a file on a local disk where jobs are kept while the server is away.
        """
        settings = settings or Settings()
        kept = settings.outbox if outbox is None else replace(settings.outbox, path=fspath(outbox))
        transport = Transport(Address(resolve_url(url, settings), settings.connection))
        return cls(
            transport,
            Keys(settings.prefix),
            settings.client,
            settings.topic,
            breaker=settings.breaker,
            outbox=kept,
        )

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
        priority: Priority = "normal",
        spread: float | timedelta | None = None,
        expires: float | timedelta | datetime | None = None,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> Receipt:
        """Run a job after `delay` (seconds or timedelta), or `at` an aware datetime; at once when that has passed.

        `key` is the job's id, unique in the topic while the job is alive; without it one is made. If a live job has
        the id: "keep" leaves it and answers `created=False`, "replace" gives a waiting one the new payload and time,
        "raise" raises DuplicateJob.

        `priority`, `spread` and `expires`: see `JobSpec`.

        `durability` (None: the settings') says what to wait for: "server", its answer; "replicated", that replicas
        have the job, and its topic; "fsynced", that a disk has them.

        With an outbox, a job that cannot reach the server is kept there, and its receipt says so (`in_outbox`); its
        delay counts from this call.

        Raises: InvalidInput (names the field, nothing was sent), DuplicateJob, TopicFull, NotReplicated (scheduled, but
        not confirmed in time), OutboxFull, and the server's errors.
        """
        check_on_duplicate(on_duplicate)
        check_topic(topic)
        asked_ms = self._clock.wall_ms()
        spec = JobSpec(payload, delay, at, key, headers, partition_key, priority, spread, expires)
        job = Preparation(self._settings, asked_ms).job(spec)
        if self._fallback is None:
            return self._carrier.schedule(topic, spec, job, on_duplicate, durability)
        scheduling = self._fallback.one(topic, spec, job, on_duplicate, durability, asked_ms)
        return self._carrier.run(scheduling)

    def schedule_many(
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
        check_topic(topic)
        asked_ms = self._clock.wall_ms()
        order = Order(self._keys, topic, jobs, on_duplicate, self._settings, asked_ms)
        if self._fallback is None:
            return self._carrier.schedule_many(topic, order, on_duplicate, durability)
        scheduling = self._fallback.many(topic, jobs, order, on_duplicate, durability, asked_ms)
        return self._carrier.run(scheduling)

    def keep_aside(self, topic: str, jobs: Iterable[JobSpec], *, on_duplicate: OnDuplicate = "keep") -> list[Receipt]:
        """Put jobs into the outbox without asking the server: for who knows already that it does not answer.

        They are delivered as any that are kept. One receipt each, in order. Raises: InvalidJob (none is kept),
        OutboxFull, and Unavailable, without an outbox.
        """
        check_on_duplicate(on_duplicate)
        check_topic(topic)
        if self._fallback is None:
            raise Unavailable("the server does not answer, and there is no outbox: nothing was done")
        asked_ms = self._clock.wall_ms()
        order = Order(self._keys, topic, jobs, on_duplicate, self._settings, asked_ms)
        return self._carrier.run(self._fallback.aside(topic, order, on_duplicate, asked_ms))

    def reschedule(
        self,
        topic: str,
        id: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        partition_key: str | None = None,
        if_due_ms: int | None = None,
    ) -> RescheduleOutcome:
        """Give a waiting job a new due time: RESCHEDULED, RUNNING (too late) or NOT_FOUND.

        With `if_due_ms` only if it is due then (as a receipt or `get` said); else the answer is CHANGED.
        """
        return self._about(topic, id, self._jobs.reschedule(topic, id, delay, at, partition_key, if_due_ms))

    def cancel(self, topic: str, id: str, *, partition_key: str | None = None, running: bool = False) -> CancelOutcome:
        """Cancel a waiting job: CANCELLED, RUNNING (too late) or NOT_FOUND.

        With `running`, a job that a worker runs now is cancelled there: CANCELLING says that the worker was asked. An
        `async` handler gets CancelledError where it waits; the job is not retried, and is kept among the dead with the
        reason "cancelled". One that ends first is done. Plain handlers, which run in threads, and batches go on.
        """
        return self._about(topic, id, self._jobs.cancel(topic, id, partition_key, running))

    def run_now(self, topic: str, id: str, *, partition_key: str | None = None) -> RunNowOutcome:
        """Let a waiting job run now: PROMOTED, RUNNING (it does already) or NOT_FOUND."""
        return self._about(topic, id, self._jobs.run_now(topic, id, partition_key))

    def get(self, topic: str, id: str, *, partition_key: str | None = None) -> JobInfo | None:
        """Where a job stands, in each group too; None when nothing is known of it.

        Finished jobs are known for the topic's `keep_done_ms`, dead ones as long as they are kept.
        """
        return self._about(topic, id, self._jobs.get(topic, id, partition_key))

    def wait(
        self,
        topic: str,
        id: str,
        *,
        timeout: float | None = None,
        group: str | None = None,
        partition_key: str | None = None,
    ) -> Payload:
        """What the job's handler returned, once it is done; needs a topic with `keep_done_ms`.

        With several groups: what `group` returned; without one all are waited for, and it is the result of the last.
        After `timeout` seconds (None: never) NotFinished is raised, and the job goes on.

        Raises: JobFailed (given up in a group that was waited for), JobNotFound (also when it is cancelled),
        NotFinished, TopicNotFound, InvalidInput, and the server's errors.
        """
        waiting = wait_for(self._topics, self._clock, topic, id, timeout, group, partition_key)
        return self._about(topic, id, waiting)

    def replay(
        self,
        topic: str,
        *,
        group: str,
        since: datetime,
        until: datetime | None = None,
        rate: float | None = None,
        name: str | None = None,
    ) -> Replayed:
        """Run again, in one group, what the topic fired between two times and its `retention_ms` still keeps.

        Each job runs once more as a first attempt that is due now, and for this group only; those the group has not
        finished yet are left out. `until` None: until now. `rate` is the most jobs a second. Each is replayed once,
        also when the call is repeated with the same `name` within a day: then it goes on where it was.

        Raises: InvalidInput, TopicNotFound, OutcomeUnknown (tells the name to go on with), and the server's errors.
        """
        return self._carrier.run(replay(self._topics, topic, group, since, until, rate, name))

    def waiting(
        self,
        topic: str,
        *,
        due_from: datetime | None = None,
        due_to: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> WaitingPage:
        """Up to `limit` (500 at most) jobs that wait, in order of due time: from `due_from` to before `due_to`.

        For the next page give the same again, and the page's `cursor`: no job that waits all the time is told twice
        or left out. Raises: TopicNotFound, InvalidInput.
        """
        return self._carrier.run(self._browse.waiting(topic, due_from, due_to, limit, cursor))

    def set_shards(self, topic: str, shards: int) -> TopicInfo:
        """Change a topic's number of shards, up or down, while jobs wait and run; how the topic now stands.

        Jobs that wait stay where they are until they have run, and are found there; new ones are placed by the new
        number. Once none of the old ones is left, waiting, running, dead or kept, a scheduler ends that, and a
        `max_rate` is shared out to the new number alone. This and the changes below are confirmed as the settings'
        `durability` wants it. Raises: TopicNotFound, InvalidInput, NotReplicated (changed, but not confirmed in time).
        """
        return self._carrier.change(lambda waiting: self._topics.set_shards(topic, shards, waiting))

    def configure(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change settings of a topic, live; how it then stands. A topic that is new is made with them.

        They have the names and units of `[topic]` in the settings file. What they say of new jobs and of promotion is
        in force when this returns; workers learn of the rest within moments. Raises: InvalidInput, NotReplicated.
        """
        return self._carrier.change(lambda waiting: self._topics.configure(topic, settings, waiting))

    def pause(self, topic: str) -> Topic:
        """Let a topic promote nothing from now on; how it then stands.

        Jobs can be scheduled, and wait. Workers finish what they have begun, and begin nothing more within moments.
        Raises: TopicNotFound, NotReplicated.
        """
        return self._carrier.change(lambda waiting: self._topics.pause(topic, True, waiting))

    def resume(self, topic: str) -> Topic:
        """Let a paused topic go on; how it then stands. What fell due meanwhile is promoted at once, earliest first.

        Raises: TopicNotFound, NotReplicated.
        """
        return self._carrier.change(lambda waiting: self._topics.pause(topic, False, waiting))

    def forecast(self, topic: str) -> list[Span]:
        """How many of a topic's waiting jobs are due already, within a second, ten, a minute … a week, and later.

        Each span begins where the one before ends. Cheap however many wait. Raises: TopicNotFound.
        """
        return self._carrier.run(self._topics.forecast(topic))

    def topics(self) -> list[TopicInfo]:
        """Every topic and what it holds, by name."""
        return self._carrier.run(self._topics.list())

    def make_group(self, topic: str, group: str) -> None:
        """Let a group of workers have every job of the topic that is due from now on, though none runs yet.

        A worker makes its group itself when it starts; until then the jobs that all other groups have done are gone.
        """
        self._carrier.run(self._topics.make_group(topic, check_id(group, "group")))

    def deliver_outbox(self) -> int:
        """Deliver now what the outbox keeps; how many jobs got through. Without an outbox there are none.

        It happens by itself; this is for a process that ends, and for whoever wants to know. What the server refuses
        stays. Raises: the server's errors, when it is away.
        """
        return 0 if self._outbox is None else self._outbox.deliver_all()

    def outbox_info(self) -> OutboxInfo | None:
        """How much waits in the outbox, and since when; None without one."""
        return None if self._outbox is None else self._outbox.info()

    def close(self) -> None:
        """Close the connections. The client can be used again afterwards; then close it once more."""
        if self._outbox is not None:
            self._outbox.close()
        self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _about(self, topic: str, id: str, operation: Operation[T]) -> T:
        if self._fallback is not None:
            operation = self._fallback.about(topic, id, operation)
        return self._carrier.run(operation)
