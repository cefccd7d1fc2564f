# Generated from wheelq/aio/client.py by .ci/unasync.py: edit that file.
"""`Client`: schedules jobs and manages them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from os import PathLike, fspath
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from wheelq.base.clock import Clock, ServerClock, SystemClock
from wheelq.client.dead import DeadLetters
from wheelq.client.recurring import Recurring
from wheelq.model.bundle import Bundle, Continuation, ManyOptions, Receipts
from wheelq.model.checks import check_id
from wheelq.model.job import (
    BulkProgress,
    CancelOutcome,
    JobSpec,
    OnDuplicate,
    Payload,
    Priority,
    Receipt,
    RescheduleOutcome,
    RunNowOutcome,
    ScheduleOptions,
    WaitingPage,
    WaitOptions,
)
from wheelq.model.state import JobInfo, JobPage, JobState
from wheelq.model.task import Task, TaskJob
from wheelq.model.topic import Group, Span, Topic, TopicChanges, TopicInfo, TopicMinute
from wheelq.producer.bulk import Bulk, Report
from wheelq.producer.bundles import Bundles
from wheelq.producer.confirmation import Confirmation, Confirmer
from wheelq.producer.dead import Dead
from wheelq.producer.driver import Driver
from wheelq.producer.fallback import Fallback
from wheelq.producer.groups import Groups
from wheelq.producer.history import Rerun, history, rerun
from wheelq.producer.jobs import Jobs, meant, wait_for
from wheelq.producer.listing import Listing
from wheelq.producer.operation import Operation
from wheelq.producer.outbox.courier import Courier
from wheelq.producer.outbox.store import Outbox, OutboxInfo
from wheelq.producer.recurring import Recurrences
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.topics import Topics
from wheelq.protocol.calls.producer import Tagging
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
from wheelq.transport import Transport, server_address

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Client:
    """Schedules jobs and manages them. Safe to share between threads.

        with Client.connect("redis://localhost:6379") as client:
            client.schedule("orders", {"id": 42}, delay=1800, key="order-42")

    Every method raises `Unavailable` or `Refused` if nothing was done, and `OutcomeUnknown` if the reply was lost: then
    repeat the call. While the server is away, calls fail at once (`CircuitOpen`, an `Unavailable`). `schedule` and
    `schedule_many` first repeat a call themselves, with the same job ids. A job that ran and was forgotten before its
    call was repeated runs again: runs are at-least-once.
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
        self._groups = Groups(self._topics, self._keys, self._settings.topics_ttl_ms, self._clock)
        self._listing = Listing(self._topics)
        self._bulk = Bulk(self._topics, self._settings.max_delay_ms, self._clock)
        self._jobs = Jobs(self._topics, self._settings.max_delay_ms, self._clock)
        self._driver = Driver(transport, breaker or BreakerSettings(), self._clock)
        has_outbox = outbox is not None and bool(outbox.path)
        server_clock = ServerClock(self._clock, self._clock.uptime) if has_outbox else None
        tagging = Tagging.of(self._settings, transport.reply_timeout_ms)
        self._recurrences = Recurrences(self._topics, self._keys, self._settings, tagging)
        self._confirmer = Confirmer(self._settings)
        self.recurring = Recurring(self._driver, self._recurrences, self._confirmer)
        """Manages recurring jobs."""
        self.dead = DeadLetters(self._driver, Dead(self._topics), self._confirmer)
        """Manages dead jobs: list, show, replay, purge."""
        self._outbox: Courier | None = None
        terms = (self._topics, self._keys, self._settings, self._clock, tagging, server_clock)
        self._scheduling = Scheduling(*terms)
        if outbox is not None and outbox.path:
            kept = Outbox(outbox, self._clock, server_clock)
            self._outbox = Courier(kept, self._scheduling, self._driver.run, outbox.retry_ms)
            self._scheduling = Fallback(*terms, self._outbox)
            self._outbox.resume()
        self._bundles = Bundles(self._topics, self._keys, self._settings, self._clock, self._scheduling)

    @classmethod
    def connect(
        cls, url: str | None = None, settings: Settings | None = None, *, outbox: str | PathLike[str] | None = None
    ) -> Self:
        """Returns a client for `url` (else WHEELQ_URL); it connects on first use. Raises: ConfigurationError.

        `outbox` (else the settings') is a file on a local disk that keeps jobs while the server is away.
        """
        given, settings = settings, settings or settings_in_force()
        kept = settings.outbox if outbox is None else replace(settings.outbox, path=fspath(outbox))
        transport = Transport(server_address(url, given))
        return cls(
            transport,
            Keys(settings.prefix),
            settings.client,
            settings.topic,
            breaker=settings.breaker,
            outbox=kept,
        )

    @overload
    def schedule(self, topic: TaskJob[R], **options: Unpack[ScheduleOptions]) -> Receipt[R]: ...

    @overload
    def schedule(self, topic: str, payload: Payload = None, **options: Unpack[ScheduleOptions]) -> Receipt: ...

    def schedule(
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
        attempts: int | None = None,
        timeout: float | timedelta | None = None,
        on_dead: str | None = None,
        max_wait: float | timedelta | None = None,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
    ) -> Receipt:
        """Schedule a job after `delay` (seconds or timedelta) or `at` an aware datetime.

        The job is a topic and a payload, or a task's `close_order.job(42)`. With a past time it is ready at once, and
        late: its lateness, the topic's `misfire` and `expires` count from that time.

        `key` is the job's id, unique in the topic while the job is alive; by default one is made. If a live job has the
        id, "keep" leaves it and returns `created=False`, "replace" gives a waiting job the new payload and time, and
        "raise" raises DuplicateJob.

        `priority`, `spread`, `expires`, `attempts`, `timeout`, `on_dead` and `max_wait`: see `JobSpec`.

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
        places = (key, headers, partition_key, priority, spread, expires, attempts, timeout, on_dead, max_wait)
        spec = JobSpec(payload, delay, at, *places)
        receipt = self._driver.run(self._scheduling.one(topic, spec, on_duplicate, durability))
        return receipt if task is None else receipt._replace(read_result=task.read_result)

    @overload
    def schedule_many(
        self, topic: Task[P, R, ..., Any], jobs: Iterable[JobSpec[TaskJob[R, P]]], **options: Unpack[ManyOptions]
    ) -> Receipts[R]: ...

    @overload
    def schedule_many(self, topic: str, jobs: Iterable[JobSpec], **options: Unpack[ManyOptions]) -> Receipts[Any]: ...

    def schedule_many(
        self,
        topic: str | Task[..., Any, ..., Any],
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
        durability: Durability | None = None,
        then: Continuation | None = None,
        bundle: str | None = None,
        close: bool = True,
    ) -> Receipts[Any]:
        """Schedule many jobs in batches; returns one receipt for each, in order.

        Jobs of a task: `schedule_many(close_order, [JobSpec(close_order.job(42), delay=1800)])`.

        With `then`, the jobs are the members of a bundle: that one job follows when all of them have ended. The list
        of receipts has its id as `bundle`. With `close=False` it takes more members, by calls with `bundle=`, until
        `close_bundle`. Members are not kept in an outbox.

        The first two batches have 250 jobs, the others 500. Each is checked and packed while the server works on the
        one before it, so jobs before a bad one may be scheduled. Raises as `schedule` does; `InvalidJob` tells which
        job is bad and which were scheduled before it, `PartlyScheduled` which jobs have no reply. `BundleClosed` and
        `BundleNotFound` tell that nothing was done. Any error has the id of a new bundle, which is still open then.
        """
        name = topic.topic if isinstance(topic, Task) else topic
        if then is None and bundle is None:
            found = self._driver.run(self._scheduling.many(name, jobs, on_duplicate, durability))
            receipts = Receipts(found)
        else:
            terms = (then, bundle, close, on_duplicate, durability)
            receipts = self._driver.run(self._bundles.schedule(name, jobs, *terms))
        if isinstance(topic, Task):
            receipts[:] = [receipt._replace(read_result=topic.read_result) for receipt in receipts]
        return receipts

    def close_bundle(self, bundle: str) -> None:
        """Close a bundle that was made with `close=False`: it takes no more members, and ends with those that it has.

        May be repeated, also after it has ended. Until this call has returned, nothing follows the bundle.
        Raises: BundleNotFound.
        """
        self._driver.run(self._bundles.close(bundle))

    def bundle(self, bundle: str) -> Bundle | None:
        """Returns how many members of a bundle are done, dead, cancelled and left; None if it is not known.

        An ended bundle is known for the `keep_done_ms` of its follower's topic.
        """
        return self._driver.run(self._bundles.get(bundle))

    def cancel_bundle(self, bundle: str) -> int:
        """Cancel a bundle: nothing follows it. Cancels its waiting members, and returns how many; running ones go on.

        May be repeated. Raises: BundleNotFound.
        """
        return self._driver.run(self._bundles.cancel(bundle))

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
        """Give a waiting job a new due time; returns RESCHEDULED, RUNNING (too late) or NOT_FOUND.

        With `if_due_ms`, only if this is its due time (from a receipt or `get`); otherwise returns CHANGED.
        """
        operation = self._jobs.reschedule(topic, id, delay, at, partition_key, if_due_ms)
        return self._about(topic, id, operation, "reschedule")

    def cancel(self, topic: str, id: str, *, partition_key: str | None = None, running: bool = False) -> CancelOutcome:
        """Cancel a waiting job; returns CANCELLED, RUNNING (too late) or NOT_FOUND.

        The key of a job with `max_wait` cancels its second job too; the outcome is that of the first while it is alive.

        With `running`, a job that is running is cancelled too: CANCELLING means that its worker was asked. An `async`
        handler gets CancelledError at its next await; the job is not retried, and is buried with the reason
        "cancelled". A job that ends first is done. Plain handlers, which run in threads, and batches keep running. A
        job that waits in its worker is buried when its turn comes; one that waits for an ordered retry, at once.
        """
        return self._about(topic, id, self._jobs.cancel(topic, id, partition_key, running), "cancel")

    def run_now(self, topic: str, id: str, *, partition_key: str | None = None) -> RunNowOutcome:
        """Run a waiting job now; returns PROMOTED, PAUSED (its topic is), RUNNING (too late) or NOT_FOUND."""
        return self._about(topic, id, self._jobs.run_now(topic, id, partition_key), "run_now")

    def get(
        self, topic: str | Receipt[Any], id: str | None = None, *, partition_key: str | None = None
    ) -> JobInfo | None:
        """Returns the state of a job, overall and in each group; None if no such job is known.

        The job is a receipt, or a topic and an id, which means the latest job of that id. Finished jobs are known for
        the topic's `keep_done_ms`, dead jobs as long as they are kept.
        """
        job = meant(topic, id)
        return self._about(job.topic, job.id, self._jobs.get(job, partition_key))

    @overload
    def wait(self, topic: Receipt[R], **options: Unpack[WaitOptions]) -> R: ...

    @overload
    def wait(self, topic: str, id: str, **options: Unpack[WaitOptions]) -> Payload: ...

    def wait(
        self,
        topic: str | Receipt[Any],
        id: str | None = None,
        *,
        timeout: float | None = None,
        group: str | None = None,
        partition_key: str | None = None,
    ) -> Payload:
        """Wait until a job is done and return its handler's result; needs a topic with `keep_done_ms`.

        The job is a receipt, or a topic and an id. With a receipt, an earlier or later job of the same id does not
        count; and with that of a task's job, the result has the type that the task's function returns.

        With several groups, it is the result of `group`; without `group`, the call waits for all groups and returns the
        last result that is not None. After `timeout` seconds (None: never) it raises NotFinished; the job runs on.

        Raises: JobFailed (given up in an awaited group), JobNotFound (also if the job is cancelled),
        NotFinished, TopicNotFound, ResultMismatch (it is of another type), InvalidInput, and the server's
        errors.
        """
        job = meant(topic, id)
        waiting = wait_for(self._topics, job, timeout, group, partition_key)
        result = self._about(job.topic, job.id, waiting)
        return result if job.read_result is None else job.read_result(result)

    def rerun(
        self,
        topic: str,
        *,
        group: str,
        since: datetime,
        until: datetime | None = None,
        rate: float | None = None,
        name: str | None = None,
    ) -> Rerun:
        """Run again, in one group, the jobs promoted between two times that the topic's `retention_ms` still keeps.

        Each job runs once more, for this group only, as a first attempt that is due now; jobs that the group has not
        finished yet are left out. A job that was scheduled with a date as `expires`, which has passed, counts as run
        again although the worker then drops or buries it: scripts cannot read the date. `until` None means now. `rate`
        is the most jobs per second. A call repeated with the same `name` within a day continues where it was, so each
        job runs again only once.

        Raises: InvalidInput, TopicNotFound, OutcomeUnknown (tells the name to continue with), and the server's errors.
        """
        operation = rerun(self._topics, topic, group, since, until, rate, name)
        return self._driver.run(self._confirmer.changing(operation))

    def waiting(
        self,
        topic: str,
        *,
        due_from: datetime | None = None,
        due_to: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> WaitingPage:
        """Returns up to `limit` (at most 500) waiting jobs, by due time: from `due_from` to before `due_to`.

        For the next page pass the same arguments and the page's `cursor`. A job that waits all the time is listed
        exactly once. Raises: TopicNotFound, InvalidInput.
        """
        return self._driver.run(self._listing.waiting(topic, due_from, due_to, limit, cursor))

    def count_due(self, topic: str, *, since: datetime | None = None, until: datetime | None = None) -> int:
        """Returns how many jobs wait from `since` to before `until`, also for a retry. Cheap for any number of jobs.

        Raises: TopicNotFound, InvalidInput.
        """
        return self._driver.run(self._bulk.count(topic, since, until))

    def cancel_due(
        self,
        topic: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        name: str | None = None,
        rounds: int | None = None,
        progress: Report | None = None,
    ) -> BulkProgress:
        """Cancel the waiting jobs that are due from `since` to before `until`; returns how many were cancelled.

        Each round cancels up to 500 jobs in every shard, and calls `progress` with how far it is. A job that is
        promoted meanwhile is not cancelled, and not counted. With `rounds` the call ends after that many; repeat it
        with the same arguments and the `name` it returned, also within a day of an error, and it continues: each job
        counts once. Jobs that wait for a retry stay.

        Raises: TopicNotFound, InvalidInput, OutcomeUnknown (tells the name).
        """
        operation = self._bulk.cancel(topic, since, until, name, rounds, progress)
        return self._driver.run(self._confirmer.changing(operation))

    def reschedule_due(
        self,
        topic: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        name: str | None = None,
        rounds: int | None = None,
        progress: Report | None = None,
    ) -> BulkProgress:
        """Move the waiting jobs that are due from `since` to before `until`; returns how many were moved.

        Each job moves `by` seconds (a timedelta, or negative for earlier, but not before now), or all of them to
        `delay` after the first call or `at` an aware datetime. All else is as in `cancel_due`. Without `name` a
        repeated call moves again what it finds in the range.
        """
        operation = self._bulk.move(topic, since, until, by, delay, at, name, rounds, progress)
        return self._driver.run(self._confirmer.changing(operation))

    def jobs(
        self,
        topic: str,
        *,
        state: JobState | str,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        prefix: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """Returns up to `limit` (at most 500) jobs in one state; a call looks at a bounded number of jobs per shard.

        Waiting and retrying jobs come in order of due time; ready and running ones in order of promotion, with each
        group that has them; done (kept) and dead ones the latest first. `since` and `until` (exclusive) limit this
        time. `error` selects retrying and dead jobs whose last error contains it, `prefix` those whose id begins with
        it: such a call looks at up to 5,000 jobs in each shard. For the next page pass the same arguments and the
        page's `cursor`, also if a page is empty: the last page has none.
        Raises: TopicNotFound, InvalidInput.
        """
        return self._driver.run(self._listing.page(topic, state, since, until, error, prefix, limit, cursor))

    def set_shards(self, topic: str, shards: int) -> TopicInfo:
        """Change a topic's number of shards, up or down, while jobs wait and run; returns the topic's state.

        Waiting jobs stay in their shards until they have run, and can be looked up there; new jobs use the new number.
        When no old job is left (waiting, running, dead or kept), a scheduler drops the old number. Until then, the old
        and the new shards have half of `max_rate` and `max_ready` each. This and the changes below are confirmed as the
        settings' `durability` requires. Order by key does not hold between old and new jobs of a key that moves to
        another shard.
        Raises: TopicNotFound, InvalidInput, NotReplicated (changed, but not confirmed in time).
        """
        return self._change(lambda confirming: self._topics.set_shards(topic, shards, confirming))

    def configure(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change settings of a live topic, or create a new topic with them; returns the topic.

        They have the names and units of `[topic]` in the settings file. Settings for new jobs and for promotion are in
        force when the call returns; workers apply the others within moments. Raises: InvalidInput, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.configure(topic, settings, confirming))

    def pause(self, topic: str) -> Topic:
        """Pause a topic: nothing is promoted until `resume`; returns the topic.

        Jobs can still be scheduled, and wait. Workers finish running jobs, and within moments start no others.
        Raises: TopicNotFound, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.pause(topic, True, confirming))

    def resume(self, topic: str) -> Topic:
        """Resume a paused topic; returns it. Jobs that fell due meanwhile are promoted at once, earliest first.

        A topic whose removal was interrupted takes jobs again, too; what was deleted by then stays deleted.

        Raises: TopicNotFound, NotReplicated.
        """
        return self._change(lambda confirming: self._topics.pause(topic, False, confirming))

    def forecast(self, topic: str) -> list[Span]:
        """Returns how many waiting jobs are due already, within a second, ten, a minute … a week, and later.

        Each span begins where the previous one ends. Cheap for any number of jobs. Raises: TopicNotFound.
        """
        return self._driver.run(self._topics.forecast(topic))

    def history(self, topic: str, hours: int = 24) -> list[TopicMinute]:
        """Returns what happened in each minute of the last `hours` (1 to 72): scheduled, promoted, done, and so on.

        Minutes in which nothing happened are left out. The running minute is not there yet, and a minute of a topic
        with little to do may appear 80 seconds late. While no scheduler runs, nothing is written down.
        Raises: InvalidInput, TopicNotFound.
        """
        return self._driver.run(history(self._topics, topic, hours))

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic with its settings and job counts. Raises: TopicNotFound."""
        return self._driver.run(self._topics.info(name))

    def topics(self) -> list[TopicInfo]:
        """Returns every topic with its job counts, by name."""
        return self._driver.run(self._topics.list())

    def make_group(self, topic: str, group: str) -> None:
        """Create a group before any of its workers runs: it gets the jobs that the topic keeps, and all later ones.

        A worker creates its group when it starts; jobs that all other groups have finished before that are gone.
        """
        self._driver.run(self._topics.make_group(topic, check_id(group, "group")))

    def groups(self, topic: str) -> list[Group]:
        """Returns the groups of a topic, by name: how far behind each is, and its workers. Raises: TopicNotFound."""
        return self._driver.run(self._groups.list(topic))

    def remove_group(self, topic: str, group: str, *, force: bool = False) -> bool:
        """Remove a group with its unread, running, retrying and dead jobs in the topic.

        Returns when nothing of the group is left in any shard; False if there was nothing. The jobs of other groups
        stay, and ids that were taken only because of this group are free. The call may be repeated. Workers of the
        group that still run (`force`) log this and do not create it again; a worker started later does.

        Raises: InUse (the group has live workers, which it names), TopicNotFound, InvalidInput.
        """
        return self._change(lambda confirming: self._groups.remove(topic, group, force, confirming))

    def remove_topic(self, topic: str, *, force: bool = False) -> None:
        """Remove a topic with everything in it: groups, dead jobs, recurring and finished jobs, settings.

        Returns when nothing of it is left, which takes as long as producers cache a topic (`topics_ttl_ms`, 10 s).
        Until then their calls are refused (`BeingRemoved`); a job scheduled later creates the topic again. The call may
        be repeated, and must be if it was interrupted. Raises: InUse (unless `force`: live workers, or jobs that wait,
        run or recur), TopicNotFound.
        """
        self._change(lambda confirming: self._groups.remove_topic(topic, force, confirming))

    def deliver_outbox(self) -> int:
        """Deliver the jobs in the outbox now; returns how many were delivered, 0 without an outbox.

        Delivery runs in the background anyway. Call this before a process exits, or to wait for delivery. Jobs that the
        server refuses stay in the outbox. Raises: the server's errors, if it is away.
        """
        return 0 if self._outbox is None else self._outbox.deliver_all()

    def outbox_info(self) -> OutboxInfo | None:
        """Returns how many jobs the outbox holds, and since when; None without an outbox."""
        return None if self._outbox is None else self._outbox.info()

    def close(self) -> None:
        """Close the connections. The client can be used again after that, and must then be closed again."""
        if self._outbox is not None:
            self._outbox.close()
        self._driver.close()

    def __enter__(self) -> Self:
        if self._outbox is not None:
            self._outbox.resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _about(self, topic: str, id: str, operation: Operation[T], name: str | None = None) -> T:
        """Runs an operation on one job; `name` is that of its span if it changes the job."""
        if name is None:
            return self._driver.run(self._scheduling.about(topic, id, operation))
        confirmed = self._confirmer.changing(operation)
        return self._driver.run(self._scheduling.about(topic, id, confirmed), (name, topic, id))

    def _change(self, make: Callable[[Confirmation[Any] | None], Operation[T]]) -> T:
        return self._driver.run(self._scheduling.change(make))
