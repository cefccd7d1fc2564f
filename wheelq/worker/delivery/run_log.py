"""Log lines about the runs of handlers: `RunLog`, and `HoldWarning` for handlers that block the event loop.

    job order-42 of orders is done: attempt 1, 3 ms late, took 12 ms        one line per job, if that is asked for
    job order-43 of orders failed, again in 2.0 s: ValueError('no price')   the first of its kind with the traceback
    handler resize of images held the event loop for 5.0 s: ...             each handler once a minute

The logger `wheelq.jobs` writes the lines per job: at level INFO with `log_jobs` in [worker], else at DEBUG. Failures
are of one kind if the topic and the type of the exception are the same. The traceback of a kind is logged again after
ten minutes, so that a rotated log has it too. Jobs that are given up always get it. Payloads that do not fit their
handler get a line a minute.
"""

from __future__ import annotations

import logging

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.dead import Reason
from wheelq.model.job import Job
from wheelq.model.retry import Postponed, RetryAfter
from wheelq.worker.delivery.held import Delivery
from wheelq.worker.handlers.handler import Handlers
from wheelq.worker.outcome import Again, Buried, Outcome

logger = logging.getLogger("wheelq.worker")
jobs_logger = logging.getLogger("wheelq.jobs")

TRACEBACK_AGAIN_MS = 600_000
MISMATCH_AGAIN_MS = 60_000
KINDS = 1_000
"""How many kinds of failures are remembered."""
HELD_AGAIN_S = 60.0
"""The least number of seconds between two warnings about the same handler."""
OF_ASYNC = "Make it a plain function, which runs in a thread, or move the long part to asyncio.to_thread"
OF_INLINE = "Leave out inline=True, so that it runs in a thread"


class RunLog:
    """Writes the log of one worker's runs."""

    def __init__(self, server: ServerClock, log_jobs: bool) -> None:
        self._server = server
        self._level = logging.INFO if log_jobs else logging.DEBUG
        self._shown_ms: dict[tuple[str, str], float] = {}

    def has_lines(self) -> bool:
        """Whether the logger's level includes lines per job."""
        return jobs_logger.isEnabledFor(self._level)

    def decided(self, delivery: Delivery, outcome: Outcome) -> None:
        """Log the line of one job."""
        entry, now_ms = delivery.entry, self._server.now_ms()
        late_ms, took_ms = delivery.started_ms - entry.due_ms, now_ms - delivery.started_ms
        jobs_logger.log(
            self._level,
            "job %s of %s %s: attempt %d, %.0f ms late, took %.0f ms",
            entry.id,
            delivery.shard.keys.topic,
            _verb(outcome),
            entry.attempt,
            late_ms,
            took_ms,
            extra={"lateness_ms": round(late_ms), "duration_ms": round(took_ms)},
        )

    def failed(self, job: Job, outcome: Again | Buried, error: BaseException) -> None:
        match outcome:
            case Again(mismatched_ms=int()) | Buried(Reason.PAYLOAD_MISMATCH):
                self._mismatched(job, outcome)
            case Buried():
                logger.error("job %s of %s is buried after attempt %d", job.id, job.topic, job.attempt, exc_info=error)
            case Again(pause_ms, counts=True):
                shown = error if self._is_new_failure(job.topic, error) else None
                logger.warning(
                    "job %s of %s failed, again in %.1f s: %r",
                    job.id,
                    job.topic,
                    pause_ms / 1000,
                    error,
                    exc_info=shown,
                )
            case Again(pause_ms):
                level = logging.DEBUG if isinstance(error, Postponed) else logging.INFO
                logger.log(level, "job %s of %s asks to run again in %.1f s", job.id, job.topic, pause_ms / 1000)

    def _mismatched(self, job: Job, outcome: Again | Buried) -> None:
        """Log that payloads do not fit: of jobs that wait and of jobs that are buried, a line a minute each."""
        is_buried = isinstance(outcome, Buried)
        if self._is_news(job.topic, "buried" if is_buried else "waiting", MISMATCH_AGAIN_MS):
            then = "and is buried" if is_buried else "and waits for a worker that it fits"
            level = logging.ERROR if is_buried else logging.WARNING
            logger.log(level, "job %s of %s does not fit its handler, %s: %s", job.id, job.topic, then, outcome.error)

    def _is_new_failure(self, topic: str, error: BaseException) -> bool:
        """Whether to log the traceback. A handler that asks for another attempt needs none."""
        if isinstance(error, RetryAfter):
            return False
        return self._is_news(topic, f"{type(error).__module__}.{type(error).__qualname__}", TRACEBACK_AGAIN_MS)

    def _is_news(self, topic: str, what: str, again_ms: int) -> bool:
        """Whether this was not logged of the topic lately."""
        kind, now_ms = (topic, what), self._server.now_ms()
        shown_ms = self._shown_ms.pop(kind, None)
        is_news = shown_ms is None or now_ms - shown_ms >= again_ms
        self._shown_ms[kind] = now_ms if is_news or shown_ms is None else shown_ms
        if len(self._shown_ms) > KINDS:
            del self._shown_ms[next(iter(self._shown_ms))]
        return is_news


class HoldWarning:
    """Logs which handler blocks the event loop: an async one, or a plain one with `inline=True`.

    While a handler computes, or waits without `await`, nothing else in its worker runs: no other handler, no ack, no
    heartbeat. So the pool times each step of a delivery, from one `await` to the next. This costs one reading of the
    clock for each step, and no thread or timer.
    """

    def __init__(self, handlers: Handlers, clock: Clock) -> None:
        self._handlers = handlers
        self._clock = clock
        self._quiet_until: dict[str, float] = {}  # by topic

    def held(self, delivery: Delivery, seconds: float) -> None:
        """Name the handler of a delivery, one of whose steps took so long."""
        topic, now = delivery.shard.keys.topic, self._clock.monotonic()
        handler = self._handlers[topic]
        if handler.has_thread or now < self._quiet_until.get(topic, now):
            return
        self._quiet_until[topic] = now + HELD_AGAIN_S
        logger.warning(
            "handler %s of %s held the event loop for %.1f s: nothing else of this worker ran meanwhile. %s",
            getattr(handler.function, "__qualname__", repr(handler.function)),
            topic,
            seconds,
            OF_INLINE if handler.inline else OF_ASYNC,
        )


def _verb(outcome: Outcome) -> str:
    match outcome:
        case Buried():
            return "is buried"
        case Again(counts=True):
            return "failed"
        case Again():
            return "runs again later"
        case _:
            return "is done"
