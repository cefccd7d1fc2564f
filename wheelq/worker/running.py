"""`Running`: one delivery, from its entry to its outcome.

    prepare ──▶ handler ──▶ succeed | fail          skipped when it is too late; cancelled when somebody asks for it

What a handler raises is the outcome of its job, and decided by `outcome`; `settling` tells Redis.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial

from wheelq import logs
from wheelq.clock import ServerClock
from wheelq.dead import Reason
from wheelq.job import Job
from wheelq.metrics import Histogram
from wheelq.protocol import codec
from wheelq.worker.handlers import Handlers, Run
from wheelq.worker.held import Delivery, Held
from wheelq.worker.notes import Notes, packed_result
from wheelq.worker.outcome import Again, Buried, of_failure
from wheelq.worker.punctuality import Dropped, too_late
from wheelq.worker.settling import Settler

logger = logging.getLogger("wheelq.worker")


class Running:
    """Runs the deliveries of one worker, and counts."""

    def __init__(
        self, group: str, handlers: Handlers, held: Held, settler: Settler, notes: Notes, server: ServerClock
    ) -> None:
        self.runs: dict[str, Run] = {}
        """How the jobs of each topic are run, hooks and all."""
        self.lateness = Histogram()
        self.handled = 0
        self.failed = 0
        self.cancelled = 0
        self.skipped = 0
        self._group = group
        self._handlers = handlers
        self._held = held
        self._settler = settler
        self._notes = notes
        self._server = server

    async def prepare(self, delivery: Delivery) -> Job | None:
        """The job for the handler; None when there is nothing to run, and the delivery is settled."""
        entry, topic = delivery.entry, delivery.line.keys.topic
        if entry.group is not None and entry.group != self._group:  # a retry that concerns another group
            self._settler.done(delivery)
            return None
        try:
            record = codec.decode(entry.record)
        except codec.UnreadableRecord as error:
            await self._settler.settle(delivery, Buried(Reason.UNREADABLE, str(error)))
            return None
        now_ms = self._server.now_ms()
        if late := too_late(now_ms, entry.due_ms, record.expires_ms(entry.due_ms), delivery.line.topic):
            await self._skip(delivery, late)
            return None
        job = Job(
            entry.id,
            topic,
            record.payload,
            entry.due_ms,
            record.attempt,
            entry.entry_id,
            max(now_ms, entry.due_ms),  # only estimated here, and by the server's clock it was due
            record.headers,
            delivery.is_redelivered,
            record.last_error,
            record.first_due_ms or entry.due_ms,
            record.replays,
            partial(self._notes.progress, delivery),
        )
        delivery.started_ms = job.started_ms
        self.lateness.add(job.started_ms - entry.due_ms)
        return job

    async def _skip(self, delivery: Delivery, late: Dropped | Buried) -> None:
        self.skipped += 1
        entry = delivery.entry
        if isinstance(late, Buried):
            logger.warning("job %s of %s is buried unrun: %s", entry.id, delivery.line.keys.topic, late.error)
            await self._settler.settle(delivery, late)
        else:
            logger.info("job %s of %s is dropped unrun: %s", entry.id, delivery.line.keys.topic, late.why)
            self._settler.done(delivery)

    async def handle(self, delivery: Delivery) -> None:
        """Run the handler of one delivery, and settle what comes of it."""
        job = await self.prepare(delivery)
        if job is None:
            return
        logs.running((job,))
        task = delivery.task = asyncio.current_task()
        try:
            result = await self.runs[job.topic](job)
        except asyncio.CancelledError as error:
            was_asked = delivery.is_cancelled and task is not None and task.uncancel() == 0
            delivery.task = None
            if task is not None and task.cancelling():
                raise  # this worker is stopping: the delivery stays held, and is handed back
            await (self._cancelled(delivery) if was_asked else self.fail(delivery, job, error))
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is the outcome of its job
            self._ran(delivery)
            await self.fail(delivery, job, error)
        else:
            self._ran(delivery)
            self.succeed(delivery, result)

    def _ran(self, delivery: Delivery) -> None:
        """Its handler has ended by itself, perhaps although it was cancelled."""
        if delivery.is_cancelled and delivery.task is not None:
            delivery.task.uncancel()
        delivery.task = None

    async def _cancelled(self, delivery: Delivery) -> None:
        self.cancelled += 1
        logger.info("job %s of %s was cancelled while it ran", delivery.entry.id, delivery.line.keys.topic)
        await self._settler.settle(delivery, Buried(Reason.CANCELLED, "cancelled while it ran"))

    def cancel(self, ready: str, entry_id: str) -> None:
        """Somebody asks for the delivery of an entry to be cancelled."""
        delivery = self._held.find(ready, entry_id)
        if delivery is None or delivery.task is None or delivery.is_cancelled:
            return
        if self._handlers[delivery.line.keys.topic].can_be_cancelled:
            delivery.is_cancelled = True
            delivery.task.cancel()

    def succeed(self, delivery: Delivery, result: object) -> None:
        """Its handler has returned."""
        self.handled += 1
        if delivery.line.topic.keep_done_ms:
            delivery.result = packed_result(delivery, result)
        self._settler.done(delivery)

    async def fail(self, delivery: Delivery, job: Job, error: BaseException) -> None:
        """Its handler has raised."""
        outcome = self._outcome(job, error)
        self.failed += not (isinstance(outcome, Again) and not outcome.counts)
        match outcome:
            case Buried():
                logger.error("job %s of %s is buried after attempt %d", job.id, job.topic, job.attempt, exc_info=error)
            case Again(pause_ms, counts=True):
                logger.warning("job %s of %s failed, again in %.1f s: %r", job.id, job.topic, pause_ms / 1000, error)
            case Again(pause_ms):
                logger.info("job %s of %s asks to run again in %.1f s", job.id, job.topic, pause_ms / 1000)
        await self._settler.settle(delivery, outcome)

    def _outcome(self, job: Job, error: BaseException) -> Again | Buried:
        retry = self._handlers[job.topic].retry
        try:
            return of_failure(error, job.attempt, retry, random.random())
        except Exception:  # `delays` is the user's function
            logger.exception("the delays of topic %s cannot be used; pauses grow instead", job.topic)
            return of_failure(error, job.attempt, retry.without_delays(), random.random())
