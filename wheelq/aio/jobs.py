"""`AsyncJobMethods`: the part of `AsyncClient` that is about jobs which are scheduled already."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from wheelq.base.clock import Clock
from wheelq.model.job import (
    BulkProgress,
    CancelOutcome,
    Payload,
    Receipt,
    RescheduleOutcome,
    RunNowOutcome,
    WaitingPage,
)
from wheelq.model.state import JobInfo, JobPage, JobState
from wheelq.producer.bulk import Bulk, Report
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.fallback import Fallback
from wheelq.producer.history import Rerun, rerun
from wheelq.producer.jobs import Jobs
from wheelq.producer.listing import Listing
from wheelq.producer.operation import Operation
from wheelq.producer.results import awaited, wait_for
from wheelq.producer.topics import Topics
from wheelq.producer.waiting import Browse

R = TypeVar("R")
T = TypeVar("T")


class AsyncJobMethods:
    """Finds jobs, changes them, waits for them and runs them again."""

    _clock: Clock
    _driver: AsyncDriver
    _topics: Topics
    _jobs: Jobs
    _browse: Browse
    _bulk: Bulk
    _listing: Listing
    _fallback: Fallback | None

    async def reschedule(
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
        return await self._about(topic, id, self._jobs.reschedule(topic, id, delay, at, partition_key, if_due_ms))

    async def cancel(
        self, topic: str, id: str, *, partition_key: str | None = None, running: bool = False
    ) -> CancelOutcome:
        """Cancel a waiting job; returns CANCELLED, RUNNING (too late) or NOT_FOUND.

        With `running`, a job that is running is cancelled too: CANCELLING means that its worker was asked. An `async`
        handler gets CancelledError at its next await; the job is not retried, and is buried with the reason
        "cancelled". A job that ends first is done. Plain handlers, which run in threads, and batches keep running.
        """
        return await self._about(topic, id, self._jobs.cancel(topic, id, partition_key, running))

    async def run_now(self, topic: str, id: str, *, partition_key: str | None = None) -> RunNowOutcome:
        """Run a waiting job now; returns PROMOTED, PAUSED (its topic is), RUNNING (too late) or NOT_FOUND."""
        return await self._about(topic, id, self._jobs.run_now(topic, id, partition_key))

    async def get(self, topic: str, id: str, *, partition_key: str | None = None) -> JobInfo | None:
        """Returns the state of a job, overall and in each group; None if no such job is known.

        Finished jobs are known for the topic's `keep_done_ms`, dead jobs as long as they are kept.
        """
        return await self._about(topic, id, self._jobs.get(topic, id, partition_key))

    @overload
    async def wait(
        self,
        topic: Receipt[R],
        *,
        timeout: float | None = None,
        group: str | None = None,
        partition_key: str | None = None,
    ) -> R: ...

    @overload
    async def wait(
        self,
        topic: str,
        id: str,
        *,
        timeout: float | None = None,
        group: str | None = None,
        partition_key: str | None = None,
    ) -> Payload: ...

    async def wait(
        self,
        topic: str | Receipt[Any],
        id: str | None = None,
        *,
        timeout: float | None = None,
        group: str | None = None,
        partition_key: str | None = None,
    ) -> Payload:
        """Wait until a job is done and return its handler's result; needs a topic with `keep_done_ms`.

        The job is a receipt, or a topic and an id. With the receipt of a task's job, the result has the type that the
        task's function returns.

        With several groups, it is the result of `group`; without `group`, the call waits for all groups and returns the
        last result. After `timeout` seconds (None: never) it raises NotFinished, and the job keeps running.

        Raises: JobFailed (given up in an awaited group), JobNotFound (also if the job is cancelled),
        NotFinished, TopicNotFound, PayloadMismatch (the result is of another type), InvalidInput, and the server's
        errors.
        """
        name, id, read_result = awaited(topic, id)
        result = wait_for(self._topics, self._clock, name, id, timeout, group, partition_key)
        return read_result(await self._about(name, id, result))

    async def rerun(
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
        finished yet are left out. `until` None means now. `rate` is the most jobs per second. A call repeated with the
        same `name` within a day continues where it was, so each job runs again only once.

        Raises: InvalidInput, TopicNotFound, OutcomeUnknown (tells the name to continue with), and the server's errors.
        """
        return await self._driver.run(rerun(self._topics, topic, group, since, until, rate, name))

    async def waiting(
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
        return await self._driver.run(self._browse.waiting(topic, due_from, due_to, limit, cursor))

    async def count_due(self, topic: str, *, since: datetime | None = None, until: datetime | None = None) -> int:
        """Returns how many jobs wait from `since` to before `until`, also for a retry. Cheap for any number of jobs.

        Raises: TopicNotFound, InvalidInput.
        """
        return await self._driver.run(self._bulk.count(topic, since, until))

    async def cancel_due(
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
        promoted meanwhile is not cancelled, and not counted. With `rounds` the call ends after so many; repeat it with
        the same arguments and the `name` it returned, also within a day of an error, and it continues: each job counts
        once. Jobs that wait for a retry stay. Raises: TopicNotFound, InvalidInput, OutcomeUnknown (tells the name).
        """
        return await self._driver.run(self._bulk.cancel(topic, since, until, name, rounds, progress))

    async def reschedule_due(
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
        return await self._driver.run(self._bulk.move(topic, since, until, by, delay, at, name, rounds, progress))

    async def jobs(
        self,
        topic: str,
        *,
        state: JobState | str,
        since: datetime | None = None,
        until: datetime | None = None,
        error: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """Returns up to `limit` (at most 500) jobs in one state; a call looks at a bounded number of jobs per shard.

        Waiting and retrying jobs come in order of due time; ready and running ones in order of promotion, with each
        group that has them; done (kept) and dead ones the latest first. `since` and `until` (exclusive) limit this
        time. `error` selects retrying and dead jobs whose last error contains it. For the next page pass the same
        arguments and the page's `cursor`, also if a page is empty: the last page has none.
        Raises: TopicNotFound, InvalidInput.
        """
        return await self._driver.run(self._listing.page(topic, state, since, until, error, limit, cursor))

    async def _about(self, topic: str, id: str, operation: Operation[T]) -> T:
        if self._fallback is not None:
            operation = self._fallback.about(topic, id, operation)
        return await self._driver.run(operation)
