"""Spans of workers: one around each run, whose context the handler has, in threads and batches too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

from tests.spec.conftest import Inbox, Run, nothing_is_left
from tests.telemetry.conftest import Spans, noting_files, of_telemetry
from tests.waiting import until
from wheelq import (
    AsyncClient,
    Bury,
    Client,
    Continuation,
    InvalidSetting,
    Job,
    JobSpec,
    Retry,
    RetryAfter,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.settings import WorkerSettings


@pytest.fixture
def worker(url: str, settings: Settings, scheduler: Scheduler) -> Worker:
    """A worker that has no handler yet, beside a scheduler that runs."""
    return Worker.connect(url, group="g", settings=settings)


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


async def test_a_run_is_a_trace_of_its_own_linked_to_what_scheduled_the_job(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:
    seen: list[trace.Span] = []

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        seen.append(trace.get_current_span())

    client.schedule(topic, delay=0, key="k")
    run(worker)
    [span] = await spans.wait_for(f"process {topic}")
    made = spans.one(f"schedule {topic}")
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [made.get_span_context().span_id]
    assert span.get_span_context().trace_id != made.get_span_context().trace_id
    assert [one.get_span_context() for one in seen] == [span.get_span_context()]
    attributes = dict(span.attributes or {})
    assert attributes.pop("messaging.wheelq.message.lateness_ms") >= 0
    assert attributes == {
        "messaging.system": "wheelq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": "g",
        "messaging.client.id": worker.name,
        "messaging.message.id": "k",
        "messaging.wheelq.message.attempt": 1,
        "server.address": attributes["server.address"],
        "server.port": attributes["server.port"],
    }
    assert events(span) == ["ack"]
    assert span.status.is_unset


@pytest.mark.parametrize("is_asked", [True, False])
async def test_on_request_the_calls_that_settle_jobs_have_spans_linked_to_their_runs(
    url: str,
    settings: Settings,
    client: Client,
    scheduler: Scheduler,
    run: Run,
    topic: str,
    spans: Spans,
    is_asked: bool,
) -> None:
    own = replace(settings, worker=replace(settings.worker, trace_settling=is_asked))
    worker = Worker.connect(url, group="g", settings=own)

    @worker.handler(topic, retry=Retry(max_attempts=2, base=0.01))
    async def handle(job: Job) -> None:
        if job.id == "bad" or job.attempt == 1:
            raise ConnectionError

    client.schedule_many(topic, [JobSpec(key="good", delay=0), JobSpec(key="bad", delay=0)])
    run(worker)
    runs = await spans.wait_for(f"process {topic}", 4)

    def settling(*names: str) -> list[ReadableSpan]:
        return [span for name in names for span in spans.named(f"{name} {topic}")]

    def is_settled() -> bool:
        [info] = [info for info in client.topics() if info.name == topic]
        return info.ready + info.running + info.retrying == 0

    await until(is_settled)
    if not is_asked:
        assert settling("ack", "retry", "bury") == []
        return
    await until(lambda: sum(len(span.links) for span in settling("ack", "retry", "bury")) == 4)
    for name in ("ack", "retry", "bury"):
        linked = {link.context.span_id for span in settling(name) for link in span.links}
        assert linked == {one.get_span_context().span_id for one in runs if name in events(one)}
        for span in settling(name):
            attributes = dict(span.attributes or {})
            assert (span.kind, span.parent) == (trace.SpanKind.CLIENT, None)
            assert attributes["messaging.operation.type"] == "settle"
            assert attributes["messaging.consumer.group.name"] == "g"
            assert attributes["messaging.batch.message_count"] == len(span.links)


async def test_a_setting_makes_a_run_a_child_of_what_scheduled_the_job(
    url: str, settings: Settings, client: Client, scheduler: Scheduler, run: Run, topic: str, spans: Spans
) -> None:
    worker = Worker.connect(url, settings=replace(settings, worker=replace(settings.worker, trace="parent")))
    worker.handler(topic)(lambda job: None)
    client.schedule(topic, delay=0)
    run(worker)
    [span] = await spans.wait_for(f"process {topic}")
    made = spans.one(f"schedule {topic}").get_span_context()
    assert span.parent is not None
    assert (span.parent.span_id, span.get_span_context().trace_id) == (made.span_id, made.trace_id)
    assert not span.links


@pytest.mark.parametrize("mode", ["link", "parent"])
async def test_the_trace_goes_on_with_what_follows_a_job(
    url: str, settings: Settings, client: Client, scheduler: Scheduler, run: Run, topic: str, spans: Spans, mode: str
) -> None:
    worker = Worker.connect(url, settings=replace(settings, worker=replace(settings.worker, trace=mode)))
    worker.handler(topic)(lambda job: job.then(f"{topic}-next"))
    worker.handler(f"{topic}-next")(lambda job: None)
    client.schedule(topic, delay=0)
    run(worker)
    [after] = await spans.wait_for(f"process {topic}-next")
    before = spans.one(f"process {topic}").get_span_context()
    way = [after.parent] if mode == "parent" else [link.context for link in after.links]
    assert [one.span_id for one in way if one] == [before.span_id]
    assert (after.get_span_context().trace_id == before.trace_id) == (mode == "parent")


async def test_the_follower_of_a_bundle_carries_the_context_of_the_call_that_made_the_bundle(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:
    for name in (topic, f"{topic}-next"):
        worker.handler(name)(lambda job: None)
    with trace.get_tracer("test").start_as_current_span("upload") as upload:
        jobs = [JobSpec(n, delay=0) for n in range(3)]
        client.schedule_many(topic, jobs, then=Continuation(f"{topic}-next", headers={"a": "b"}))
    run(worker)
    [after] = await spans.wait_for(f"process {topic}-next")
    assert [link.context.span_id for link in after.links] == [upload.get_span_context().span_id]


async def test_a_plain_handler_has_the_span_and_the_baggage_in_its_thread(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:
    seen: list[tuple[bool, int, object]] = []

    @worker.handler(topic)
    def handle(job: Job) -> None:
        on_main = threading.current_thread() is threading.main_thread()
        with trace.get_tracer("shop").start_as_current_span("inside"):
            seen.append((on_main, trace.get_current_span().get_span_context().trace_id, baggage.get_baggage("tenant")))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    client.schedule(topic, delay=0)
    context.detach(token)
    run(worker)
    [span] = await spans.wait_for(f"process {topic}")
    assert seen == [(False, span.get_span_context().trace_id, "acme")]
    inside = spans.one("inside")
    assert inside.parent is not None
    assert inside.parent.span_id == span.get_span_context().span_id


async def test_jobs_that_run_at_the_same_time_do_not_share_a_span(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:
    seen: dict[str, int] = {}
    running = 0

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        nonlocal running
        running += 1
        await until(lambda: running == 10)
        seen[job.id] = trace.get_current_span().get_span_context().span_id

    client.schedule_many(topic, [JobSpec(delay=0, key=f"k{n}") for n in range(10)])
    run(worker)
    found = await spans.wait_for(f"process {topic}", 10)
    ids = {str((span.attributes or {})["messaging.message.id"]): span.get_span_context().span_id for span in found}
    assert seen == ids


async def test_a_job_of_a_job_belongs_to_its_trace(
    url: str, settings: Settings, worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:
    async with AsyncClient.connect(url, settings) as inner:

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            await inner.schedule(f"{topic}-next", delay=60)

        client.schedule(topic, delay=0)
        run(worker)
        [span] = await spans.wait_for(f"process {topic}")
        made = spans.one(f"schedule {topic}-next")
    assert made.parent is not None
    assert made.parent.span_id == span.get_span_context().span_id


async def test_a_batch_has_one_span_with_a_link_for_each_job(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans
) -> None:

    @worker.batch_handler(topic, max_size=3, max_wait=30)
    async def handle(jobs: list[Job]) -> list[object]:
        return [ValueError("no") if job.id == "b" else None for job in jobs]

    for id in "abc":
        client.schedule(topic, delay=0, key=id)
    run(worker)
    [span] = await spans.wait_for(f"process {topic}")
    made = {one.get_span_context().span_id for one in spans.named(f"schedule {topic}")}
    assert {link.context.span_id for link in span.links} == made
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert sorted(events(span)) == ["ack", "ack", "exception", "retry"]
    assert (span.attributes or {})["error.type"] == "ValueError"


async def test_only_a_failure_is_an_error(worker: Worker, client: Client, run: Run, topic: str, spans: Spans) -> None:

    @worker.handler(topic, retry=Retry(delays=[3_600]))
    async def handle(job: Job) -> None:
        match job.payload:
            case "later":
                raise RetryAfter(3_600)
            case "again":
                raise ValueError("no")
            case "never":
                raise Bury("hopeless")

    client.schedule_many(topic, [JobSpec(what, delay=0, key=what) for what in ("later", "again", "never", "fine")])
    run(worker)
    found = await spans.wait_for(f"process {topic}", 4)
    told = {}
    for span in found:
        attributes = span.attributes or {}
        error = attributes.get("error.type")
        assert span.status.is_ok is False or error is None
        assert (span.status.status_code is trace.StatusCode.ERROR) == (error is not None)
        told[attributes["messaging.message.id"]] = (events(span), error)
    assert told == {
        "later": (["retry_after"], None),
        "again": (["retry", "exception"], "ValueError"),
        "never": (["bury", "exception"], "wheelq.model.retry.Bury"),
        "fine": (["ack"], None),
    }


async def test_a_skipped_job_has_no_span(worker: Worker, client: Client, run: Run, topic: str, spans: Spans) -> None:
    worker.handler(topic)(lambda job: None)
    client.schedule(topic, delay=0, key="expired", expires=0.001)
    await until(lambda: (info := client.get(topic, "expired")) is not None and info.promoted_ms is not None)
    client.schedule(topic, delay=0, key="fine")
    run(worker)
    await spans.wait_for(f"process {topic}")
    await until(lambda: worker.skipped == 1)
    assert (spans.one(f"process {topic}").attributes or {})["messaging.message.id"] == "fine"


async def test_a_run_that_a_stop_breaks_off_is_handed_back(
    worker: Worker, client: Client, run: Run, topic: str, spans: Spans, inbox: Inbox
) -> None:

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        inbox.put(job)
        await until(lambda: False)

    client.schedule(topic, delay=0)
    running = run(worker)
    await inbox.wait_for(1)
    worker.stop(grace=0.01)
    await running
    span = spans.one(f"process {topic}")
    assert events(span) == ["hand_back"]
    assert span.status.is_unset


@pytest.mark.parametrize("broken", ["on_start", "on_end"])
async def test_a_provider_that_is_broken_stops_no_job(
    worker: Worker,
    aclient: AsyncClient,
    run: Run,
    topic: str,
    spans: Spans,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    worker.handler(topic)(lambda job: None)
    await aclient.schedule(topic, delay=0)

    def fail(*span: object, **more: object) -> None:
        raise RuntimeError("no disk")

    provider = trace.get_tracer_provider()
    monkeypatch.setattr(provider._active_span_processor, broken, fail)  # type: ignore[attr-defined]  # that of the SDK
    run(worker)
    await until(lambda: worker.handled == 1)
    monkeypatch.undo()
    await nothing_is_left(aclient, topic)
    assert any("no disk" in record.getMessage() for record in caplog.records)


async def test_the_metrics_of_a_worker_count_runs_and_their_failures(
    worker: Worker, aclient: AsyncClient, run: Run, topic: str, spans: Spans
) -> None:

    @worker.handler(topic, retry=Retry(max_attempts=1))
    async def handle(job: Job) -> None:
        if job.payload == "bad":
            raise ValueError("no")

    await aclient.schedule_many(topic, [JobSpec(what, delay=0) for what in ("bad", "good", "good")])
    run(worker)
    await spans.wait_for(f"process {topic}", 3)
    await until(lambda: worker.handled + worker.failed == 3)
    found = spans.metrics()
    [consumed] = found["messaging.client.consumed.messages"]
    assert (consumed.value, consumed.attributes["messaging.consumer.group.name"]) == (3, "g")
    told = {point.attributes.get("error.type"): point.count for point in found["messaging.process.duration"]}
    assert told == {None: 2, "ValueError": 1}
    assert worker.handled == 2


def test_a_way_to_trace_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="trace must be one of link, parent"):
        WorkerSettings(trace="both")  # type: ignore[arg-type]  # on purpose


async def test_without_a_provider_a_run_runs_no_line_of_the_telemetry(
    aclient: AsyncClient, scheduler: Scheduler, run: Run, topic: str, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    run(make_worker())
    await aclient.schedule(topic, delay=0)
    await inbox.wait_for(1)
    with noting_files() as ran:
        await aclient.schedule(topic, delay=0)
        await inbox.wait_for(2)
        await nothing_is_left(aclient, topic)
    assert any(name.endswith("worker/delivery/running.py") for name in ran)
    assert not of_telemetry(ran)
