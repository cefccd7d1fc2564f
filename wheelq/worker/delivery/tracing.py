"""`RunSpans`: the span around each run of a handler; used while a tracer provider is set.

    process {topic}    begins before the handler, with the hooks inside, and ends when the outcome is decided
                       events: ack, retry, retry_after, bury; for a worker that stops: hand_back

A run has its own context (see `Pool`), so the span stays current to its end, also in threads. It ends before the
outcome is reported to Redis, so its duration is the handler's. With `trace_settling`, each report has its own span.

Errors of a provider, such as a broken span processor, are logged; the job runs and is settled without a span.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wheelq import reminders
from wheelq.model.dead import Reason
from wheelq.model.job import Job
from wheelq.telemetry import spans
from wheelq.worker.delivery.held import Consumer, Delivery
from wheelq.worker.outcome import Again, Buried, Outcome

logger = logging.getLogger("wheelq.worker")


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  # a provider may be anything
        reminders.warn(logger, "runs have no spans, or not whole ones", error)


class RunSpans:
    """Makes the spans of one worker's runs."""

    def __init__(self, consumer: Consumer) -> None:
        self._me = consumer

    @_harmless()
    def began(self, deliveries: Sequence[Delivery], jobs: Sequence[Job]) -> None:
        """Begin the span of a run of these jobs in this context; it becomes the span of each delivery."""
        me = self._me
        carried = [spans.Carried(job.id, job.headers, job.attempt, round(job.started_ms - job.due_ms)) for job in jobs]
        is_child = me.settings.trace == "parent"
        span = spans.Processing(jobs[0].topic, me.group, me.name, me.transport.node, carried, is_child)
        span.begin()
        for delivery in deliveries:
            delivery.span = span

    @_harmless()
    def handed_back(self, delivery: Delivery) -> None:
        """Record in the span that the worker stops."""
        if delivery.span is not None:
            delivery.span.handed_back()

    @_harmless()
    def decided(self, delivery: Delivery, outcome: Outcome, error: BaseException | None) -> None:
        """Record the outcome of a job in the span; `error` is the handler's."""
        if delivery.span is None:  # it began before there was a tracer provider
            return
        settled, id = delivery.span.settled, delivery.entry.id
        match outcome:
            case Again(pause_ms, counts=True):
                settled("retry", id, {spans.PAUSE: pause_ms}, error)
            case Again(pause_ms):
                settled("retry_after", id, {spans.PAUSE: pause_ms})
            case Buried(reason):
                is_failure = reason is not Reason.CANCELLED
                settled("bury", id, {spans.REASON: reason.value}, error if is_failure else None)
            case _:
                settled("ack", id, {})


@contextmanager
def settling(me: Consumer, name: str, deliveries: Sequence[Delivery]) -> Iterator[None]:
    """The span of a call that settles these deliveries."""
    call: spans.Observed | None = None
    with _harmless():
        runs = [delivery.span for delivery in deliveries if delivery.span is not None]
        call = spans.settling(name, deliveries[0].shard.keys.topic, me.group, me.name, me.transport.node, runs)
    try:
        yield
    except Exception as error:
        with _harmless():
            if call is not None:
                call.fail(error)
        raise
    finally:
        with _harmless():
            if call is not None:
                call.end()
