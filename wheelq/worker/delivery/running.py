"""`Running`: one delivery, from its entry to its outcome.

    begin ──▶ handler ──▶ succeed | fail          settled without running when it is too late; cancelled on request

`outcome` turns a handler's error into the outcome of its job; `settling` reports it to Redis. Lines per job and
spans are made only if they are asked for.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from wheelq import logs
from wheelq.base.metrics import Durations
from wheelq.errors import InvalidInput, PayloadMismatch, ResultMismatch
from wheelq.model.dead import Reason
from wheelq.model.job import Job, JobSpec, OnDuplicate
from wheelq.model.task import TaskJob
from wheelq.protocol import codec
from wheelq.telemetry import api
from wheelq.worker.delivery.held import Delivery
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.progress import ProgressWriter
from wheelq.worker.delivery.run_log import HoldWarning, RunLog
from wheelq.worker.handlers.handler import Handlers, Run
from wheelq.worker.outcome import (
    DONE,
    SUPERSEDED,
    Again,
    Buried,
    Dropped,
    NotRun,
    Outcome,
    Superseded,
    as_failure,
    of_failure,
    of_mismatch,
    readable,
    too_late,
    unreadable,
)

if TYPE_CHECKING:
    from wheelq.worker.delivery.tracing import RunSpans

logger = logging.getLogger("wheelq.worker")


class Running:
    """Runs the deliveries of one worker, and counts them."""

    def __init__(self, parts: WorkerParts, handlers: Handlers, progress: ProgressWriter) -> None:
        self.runs: dict[str, Run] = {}
        """By topic: the function that runs its jobs, including hooks."""
        self.durations = Durations(parts.group)
        self.handled = 0
        self.failed = 0
        self.skipped = 0
        self._group = parts.group
        self._handlers = handlers
        self._held = parts.held
        self.ending = parts.ending
        self._settler = parts.settler
        self._progress = progress
        self._server = parts.server
        self._parts = parts
        self.held_loop = HoldWarning(handlers, parts.clock).held
        self._log = RunLog(parts.server, parts.settings.log_jobs)
        self._has_lines = False
        self._spans: RunSpans | None = None

    def look(self) -> None:
        """Find out what watches the next runs: whether the log has a line per job, and a tracer provider is set."""
        self._has_lines = self._log.has_lines()
        if api._TRACER_PROVIDER is None:
            self._spans = None
        elif self._spans is None:
            from wheelq.worker.delivery.tracing import RunSpans  # imports OpenTelemetry

            self._spans = RunSpans(self._parts)

    def began(self, deliveries: Sequence[Delivery], jobs: Sequence[Job]) -> None:
        """Begin the span of one run of these jobs in this context, if spans are made."""
        if self._spans is not None:
            self._spans.began(deliveries, jobs)

    def handed_back(self, deliveries: Sequence[Delivery]) -> None:
        """Record in their spans that the worker stops before these have ended."""
        if self._spans is not None:
            for delivery in deliveries:
                self._spans.handed_back(delivery)

    def begin(self, delivery: Delivery) -> Job | NotRun:
        """Returns the job for the handler; if there is nothing to run, the outcome for `settle_not_run`."""
        entry, topic = delivery.entry, delivery.shard.keys.topic
        if delivery not in self._held:
            return SUPERSEDED
        if entry.group is not None and entry.group != self._group:
            return DONE  # a retry that concerns another group
        if delivery.is_cancelled:
            return Buried(Reason.CANCELLED, "cancelled before this run started")
        try:
            record = codec.decode(entry.record)
        except codec.UnreadableRecord as error:
            return Buried(Reason.UNREADABLE, str(error))
        due_ms, now_ms = entry.due_ms, self._server.now_ms()
        if late := too_late(now_ms, due_ms, record, delivery.shard.topic, is_redelivered=delivery.is_redelivered):
            return late
        started_ms = max(now_ms, due_ms)  # an estimate, but the job was due by the server's clock
        delivery.started_ms = started_ms
        delivery.run, delivery.notes = abs(delivery.run) + 1, None
        self.durations.started(topic, started_ms - due_ms)
        return Job(
            entry.id,
            topic,
            record.payload,
            due_ms,
            record.attempt,
            entry.entry_id,
            started_ms,
            record.headers,
            delivery.is_redelivered,
            record.last_error,
            record.first_due_ms or due_ms,
            record.replays,
            record.scheduled_ms,
            record.max_attempts,
            record.timeout,
            record.partition_key,
            partial(self._progress.progress, delivery),
            partial(self._note, delivery, delivery.run),
        )

    def _note(
        self, delivery: Delivery, run: int, topic: str | TaskJob[Any], spec: JobSpec, on_duplicate: OnDuplicate
    ) -> str:
        """Note a follower of a run; returns its id. Raises: InvalidInput."""
        if delivery.run != run:
            raise InvalidInput("then", f"this run of job {delivery.entry.id} has ended: nothing can follow it any more")
        if delivery.notes is None:
            from wheelq.following.notes import Notes  # imports the producer

            keys, entry_id = delivery.shard.keys, delivery.entry.entry_id
            delivery.notes = Notes(keys, entry_id, self._group, self._parts.client, self._parts.clock.wall_ms())
        return delivery.notes.add(topic, spec, on_duplicate)

    async def settle_not_run(self, delivery: Delivery, outcome: NotRun) -> None:
        """Settle a delivery that has nothing to run."""
        if isinstance(outcome, Superseded):
            return
        job_id, topic = delivery.entry.id, delivery.shard.keys.topic
        if isinstance(outcome, Buried):
            if outcome.reason is Reason.CANCELLED:
                logger.info("job %s of %s is buried without running: %s", job_id, topic, outcome.error)
            elif outcome.reason is not Reason.UNREADABLE:
                self.skipped += 1
                logger.warning("job %s of %s is buried without running: %s", job_id, topic, outcome.error)
            await self._settle(delivery, outcome)
            return
        if isinstance(outcome, Dropped):
            self.skipped += 1
            logger.info("job %s of %s is dropped without running: %s", job_id, topic, outcome.why)
            delivery.is_dropped = True
        self._settler.done(delivery)

    async def handle(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        """Run the handler of one delivery in this task, and settle its outcome."""
        job = self.begin(delivery)
        if not isinstance(job, Job):
            await self.settle_not_run(delivery, job)
            return
        logs.running((job,))
        if self._spans is not None:
            self.began((delivery,), (job,))
        delivery.task = task
        try:
            result = await self.runs[job.topic](job)
        except asyncio.CancelledError as error:
            delivery.task = None
            if self.ending.has_begun:
                self.handed_back((delivery,))
                raise  # this worker is stopping: the delivery stays held, and is handed back
            await self.ending.drop_others()
            await (self._cancelled(delivery) if delivery.is_cancelled else self.fail(delivery, job, error))
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises is the outcome of its job
            failure = as_failure(error, task)
            self._ran(delivery)
            if task.cancelling():
                await self.ending.drop_others()
            await self.fail(delivery, job, failure)
        else:
            self._ran(delivery)
            self.succeed(delivery, result)

    def _ran(self, delivery: Delivery) -> None:
        """Count a handler that has ended by itself, perhaps despite its cancellation."""
        if delivery.is_cancelled and delivery.task is not None:
            delivery.task.uncancel()
        delivery.task = None

    async def _cancelled(self, delivery: Delivery) -> None:
        logger.info("job %s of %s was cancelled while it ran", delivery.entry.id, delivery.shard.keys.topic)
        outcome = Buried(Reason.CANCELLED, "cancelled while it ran")
        delivery.run, delivery.notes = -delivery.run, None
        self._decided(delivery, outcome)
        await self._settle(delivery, outcome, self._server.now_ms() - delivery.started_ms)

    def cancel(self, ready: str, entry_id: str) -> None:
        """Cancel the delivery of an entry, as a client asks. One that waits here is buried when its turn comes."""
        delivery = self._held.find(ready, entry_id)
        if delivery is None:
            self._held.cancel_early(ready, entry_id)
        elif delivery.task is None:
            delivery.is_cancelled = True  # no matter if it has ended and waits for its acknowledgement
            if delivery.turn_keeper is not None:
                delivery.turn_keeper.hasten(delivery)
        elif not delivery.is_cancelled and self._handlers[delivery.shard.keys.topic].can_be_cancelled:
            delivery.is_cancelled = True
            delivery.task.cancel()

    def succeed(self, delivery: Delivery, result: object) -> None:
        """Settle a delivery whose handler has returned. Never raises: an unsettled delivery would be held for ever."""
        self.handled += 1
        self._observe(delivery)
        delivery.run = -delivery.run
        delivery.returned = result
        if self._has_lines or self._spans is not None:
            self._decided(delivery, DONE)
        self._settler.done(delivery)

    async def fail(self, delivery: Delivery, job: Job, error: BaseException) -> None:
        """Settle a delivery whose handler has raised. Never raises, whatever the error: see `succeed`."""
        delivery.run, delivery.notes = -delivery.run, None
        outcome = self._failure(delivery, job, error)
        self.failed += not (isinstance(outcome, Again) and not outcome.counts)
        self._observe(delivery)
        await self._settle(delivery, outcome, self._server.now_ms() - delivery.started_ms)

    async def _settle(self, delivery: Delivery, outcome: Again | Buried, took_ms: float | None = None) -> None:
        """Report an outcome, even if somebody cancels this task meanwhile."""
        await self.ending.finish(lambda: self._settler.settle(delivery, outcome, took_ms))

    def _observe(self, delivery: Delivery) -> None:
        """Measure how long its handler ran."""
        seconds = (self._server.now_ms() - delivery.started_ms) / 1000
        self.durations.ended(delivery.shard.keys.topic, seconds)

    def _decided(self, delivery: Delivery, outcome: Outcome, error: BaseException | None = None) -> None:
        """Log the line of a job, and end its span, if these are made."""
        if self._has_lines:
            self._log.decided(delivery, outcome)
        if self._spans is not None:
            self._spans.decided(delivery, outcome, error)

    def _failure(self, delivery: Delivery, job: Job, error: BaseException) -> Again | Buried:
        """Log a failed run and return its outcome. Never raises, though reading an error may run the user's code."""
        for shown in (readable(error), unreadable(error)):
            try:
                outcome = self._outcome(delivery, job, shown)
                self._log.failed(job, outcome, shown)
                self._decided(delivery, outcome, shown)
            except BaseException:  # noqa: BLE001  # logging formats the error, and those it came from
                continue
            return outcome
        return of_failure(
            unreadable(error),
            job.attempt,
            self._handlers[job.topic].retry.for_job(job.max_attempts).without_delays(),
            random.random(),
        )

    def _outcome(self, delivery: Delivery, job: Job, error: BaseException) -> Again | Buried:
        handler, terms = self._handlers[job.topic], delivery.shard.topic
        if isinstance(error, PayloadMismatch) and not isinstance(error, ResultMismatch):  # that is of another job
            first_ms = codec.decode(delivery.entry.record).mismatched_ms
            on_mismatch = handler.on_mismatch or terms.on_mismatch
            return of_mismatch(error, first_ms, job.started_ms, terms.mismatch_ms, on_mismatch)
        retry = handler.retry.for_job(job.max_attempts)
        try:
            return of_failure(error, job.attempt, retry, random.random())
        except BaseException:  # `delays` is the user's function
            logger.exception("the delays of topic %s cannot be used; pauses grow instead", job.topic)
        try:
            return of_failure(error, job.attempt, retry.without_delays(), random.random())
        except Exception:  # a user's subclass of RetryAfter without its attributes
            logger.exception("the error of job %s of %s cannot be used", job.id, job.topic)
            return Buried(Reason.FAILED, f"{type(error).__name__}, which cannot be used")
