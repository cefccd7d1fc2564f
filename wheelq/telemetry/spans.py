"""Makes the spans of every operation, with the attributes of the messaging conventions.

| span               | kind     | made by                                     | parent and links                   |
|--------------------|----------|---------------------------------------------|------------------------------------|
| `schedule {topic}` | PRODUCER | a client that schedules one job, or many    | the caller; linked: a header's     |
| `create {topic}`   | PRODUCER | a client, for each of many jobs, if asked   | `schedule`; linked: a header's     |
| `cancel {topic}` … | CLIENT   | a client that changes a job, or replays     | the caller                         |
| `process {topic}`  | CONSUMER | a worker, around a handler                  | linked to its creator, or child    |
| `receive {topic}`  | CLIENT   | the HTTP server, for a lease                | the request; a link for each job   |
| `ack {topic}` …    | CLIENT   | a worker that settles jobs, if asked        | none; a link for each run          |
| `POST`             | CLIENT   | a callback                                  | `process`                          |

Name, system, operation, topic and server are set when the span starts, so that a sampler can decide by them.

| metric                                | unit      | counted                                           |
|---------------------------------------|-----------|---------------------------------------------------|
| `messaging.client.sent.messages`      | {message} | jobs of schedule calls                            |
| `messaging.client.consumed.messages`  | {message} | jobs given to a handler, or leased over HTTP      |
| `messaging.client.operation.duration` | s         | calls to the server: schedule, cancel, lease …    |
| `messaging.process.duration`          | s         | from the start of a handler to its outcome        |

The metrics go through the program's meter provider. Their attributes name the operation, the topic, the group, the
server and the kind of an error; never an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import NamedTuple, Self

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, MeterProvider, get_meter_provider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from wheelq.base.clock import SystemClock
from wheelq.telemetry import context as carried

ID = "messaging.message.id"
BATCH = "messaging.batch.message_count"
SHARD = "messaging.destination.partition.id"
GROUP = "messaging.consumer.group.name"
CLIENT = "messaging.client.id"
ERROR = "error.type"
DUE = "messaging.wheelq.message.due_timestamp"
ATTEMPT = "messaging.wheelq.message.attempt"
LATENESS = "messaging.wheelq.message.lateness_ms"
OUTCOME = "messaging.wheelq.outcome"
PAUSE = "messaging.wheelq.pause_ms"
REASON = "messaging.wheelq.reason"

Where = tuple[str, int]
"""Host and port of the Redis server, or of the first node of a cluster."""
Attributes = Mapping[str, AttributeValue]

_now = SystemClock().monotonic


class Carried(NamedTuple):
    """The facts about a job to run, from its headers and its delivery."""

    id: str
    headers: Mapping[str, str]
    attempt: int
    lateness_ms: int


class Observed:
    """One operation on a topic: its metrics, and its span, which is the current span while the operation lasts."""

    def __init__(
        self,
        name: str,
        type: str,
        kind: SpanKind,
        topic: str,
        server: Where,
        attributes: Attributes,
        context: Context | None = None,
        links: Iterable[SpanContext] = (),
        verb: str = "",
    ) -> None:
        """`name` and `type` are the operation's, by the conventions; "" if it has no type.

        The span is called `{verb} {topic}`, or else `{name} {topic}`.
        """
        self._common: dict[str, AttributeValue] = {
            "messaging.system": "wheelq",
            "messaging.operation.name": name,
            "messaging.destination.name": topic,
            "server.address": server[0],
            "server.port": server[1],
        }
        if type:
            self._common["messaging.operation.type"] = type
        if GROUP in attributes:
            self._common[GROUP] = attributes[GROUP]
        self._is_process = type == "process"
        self._began = _now()
        self.span = start(f"{verb or name} {topic}", kind, {**self._common, **attributes}, context, links)
        self._current = carried.Current(self.span, context)

    def set(self, attributes: Attributes) -> None:
        """Set more attributes of the span."""
        self.span.set_attributes(attributes)

    def begin(self) -> None:
        """Make the span the current one in this context, for good: it belongs to the operation alone."""
        self._current.enter()

    def fail(self, error: BaseException) -> None:
        """Note that the operation has failed."""
        self._common[ERROR] = kind_of(error)
        note_failure(self.span, error)

    def end(self) -> None:
        """End the span, and record the duration."""
        measured = instruments().process_s if self._is_process else instruments().operation_s
        measured.record(_now() - self._began, self._common, set_span_in_context(self.span))
        self.span.end()

    def sent(self, jobs: int) -> None:
        """Count jobs that were sent."""
        instruments().sent.add(jobs, self._common)

    def consumed(self, jobs: int) -> None:
        """Count jobs that were given to a consumer."""
        instruments().consumed.add(jobs, self._common)

    def __enter__(self) -> Self:
        self._current.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current.leave()
        if error is not None:
            self.fail(error)
        self.end()


class Processing(Observed):
    """The run of a handler, for one job or a batch. It ends when each of its jobs has its outcome."""

    def __init__(
        self, topic: str, group: str, worker: str, server: Where, jobs: Sequence[Carried], is_child: bool
    ) -> None:
        """`is_child`: the span that created a single job is the parent; otherwise the creators are linked."""
        attributes: dict[str, AttributeValue] = {GROUP: group, CLIENT: worker}
        found = [carried.of_headers(job.headers) for job in jobs]
        links = [creator for context in found if (creator := carried.creator(context)) is not None]
        context = Context()
        if len(jobs) == 1:
            [job], [context] = jobs, found
            attributes |= {ID: job.id, ATTEMPT: job.attempt, LATENESS: job.lateness_ms}
        else:
            attributes[BATCH] = len(jobs)
        if len(jobs) == 1 and is_child:
            links = []
        else:
            context = carried.without_span(context)
        super().__init__("process", "process", SpanKind.CONSUMER, topic, server, attributes, context, links)
        self._left = len(jobs)
        self.consumed(len(jobs))

    def handed_back(self) -> None:
        """Note that the worker stops: another one runs what has no outcome yet."""
        if self._left:
            self._left = 0
            self.span.add_event("hand_back")
            self.end()

    def settled(self, event: str, id: str, attributes: Attributes, error: BaseException | None = None) -> None:
        """Note the outcome of one job, and the `error` if that is a failure."""
        self.span.add_event(event, {ID: id, **attributes})
        if error is not None:
            self.fail(error)
        self._left -= 1
        if not self._left:
            self.end()


def scheduling(topic: str, server: Where, headers: Iterable[Mapping[str, str]], attributes: Attributes) -> Observed:
    """Returns the span of a schedule call; `headers` are those that already name a creator, which is linked."""
    return Observed("schedule", "send", SpanKind.PRODUCER, topic, server, attributes, links=_creators(headers))


def creating(topic: str, server: Where, headers: Iterable[Mapping[str, str]], attributes: Attributes) -> Observed:
    """The span of one of many jobs that are scheduled together; `headers` as for `scheduling`."""
    return Observed("create", "create", SpanKind.PRODUCER, topic, server, attributes, links=_creators(headers))


def _creators(headers: Iterable[Mapping[str, str]]) -> list[SpanContext]:
    return [creator for one in headers if (creator := carried.creator(carried.of_headers(one))) is not None]


def changing(name: str, topic: str, server: Where, attributes: Attributes) -> Observed:
    """Returns the span of a call that changes scheduled jobs."""
    return Observed(name, "", SpanKind.CLIENT, topic, server, attributes)


def settling(name: str, topic: str, group: str, worker: str, server: Where, runs: Sequence[Processing]) -> Observed:
    """Returns the span of a call that settles jobs, which is not current; `runs` are the spans of their runs."""
    attributes: Attributes = {GROUP: group, CLIENT: worker, BATCH: len(runs)}
    links = [run.span.get_span_context() for run in runs]
    return Observed(name, "settle", SpanKind.CLIENT, topic, server, attributes, Context(), links)


def leasing(topic: str, group: str, server: Where) -> Observed:
    """Returns the span of a lease; link its jobs once they are known."""
    return Observed("lease", "receive", SpanKind.CLIENT, topic, server, {GROUP: group}, verb="receive")


def link_jobs(lease: Observed, headers: Sequence[Mapping[str, str]]) -> None:
    """Link the creators of a lease's jobs, and count the jobs."""
    for creator in _creators(headers):
        lease.span.add_link(creator)
    lease.set({BATCH: len(headers)})
    if headers:
        lease.consumed(len(headers))


def start(
    name: str,
    kind: SpanKind,
    attributes: Attributes,
    context: Context | None = None,
    links: Iterable[SpanContext] = (),
) -> Span:
    """Starts a span, in the current context unless another is given; it is not the current span yet."""
    tracer = _tracer(get_tracer_provider())
    return tracer.start_span(name, context, kind, attributes, [Link(one) for one in links])


def kind_of(error: BaseException) -> str:
    """Returns the `error.type` of an exception: its class, with the module unless that is `builtins`."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def note_failure(span: Span, error: BaseException) -> None:
    """Mark a span as failed because of an exception."""
    span.set_attribute(ERROR, kind_of(error))
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, kind_of(error)))


@lru_cache(maxsize=4)
def _tracer(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("wheelq")


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bounds of durations that the conventions advise."""


class Instruments(NamedTuple):
    """The metrics of one meter provider."""

    sent: Counter
    consumed: Counter
    operation_s: Histogram
    process_s: Histogram


def instruments() -> Instruments:
    """Returns the metrics of the meter provider that is set; without one they record nothing."""
    return _of(get_meter_provider())


@lru_cache(maxsize=4)
def _of(provider: MeterProvider) -> Instruments:
    meter = provider.get_meter("wheelq")
    seconds = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS)
    return Instruments(
        meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that a producer scheduled."),
        meter.create_counter("messaging.client.consumed.messages", "{message}", "Jobs that were given to a consumer."),
        seconds("messaging.client.operation.duration", description="Duration of an operation of a client."),
        seconds("messaging.process.duration", description="From the start of a handler to its outcome."),
    )
