"""Spans of both clients, and the context that their jobs carry."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan

from tests.found import ajob_of, job_of
from tests.outboxes import placed
from tests.telemetry.conftest import Spans, noting_files, of_telemetry
from wheelq import AsyncClient, CancelOutcome, Client, DuplicateJob, InvalidJob, JobSpec, Settings, Unavailable
from wheelq.embedded import EmbeddedServer
from wheelq.protocol import codec

USERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traceparent(span: ReadableSpan) -> str:
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def headers(client: Client, topic: str, id: str) -> dict[str, str]:
    found = job_of(client, topic, id)
    return dict(found.headers)


def test_a_scheduled_job_has_a_producer_span_and_carries_its_context(client: Client, topic: str, spans: Spans) -> None:
    receipt = client.schedule(topic, {"n": 1}, delay=60, key="k")
    span = spans.one(f"schedule {topic}")
    assert span.kind is trace.SpanKind.PRODUCER
    assert span.status.is_unset
    assert span.attributes == {
        "messaging.system": "wheelq",
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "k",
        "messaging.wheelq.message.due_timestamp": receipt.due_ms,
        "messaging.wheelq.outcome": "created",
        "server.address": span.attributes["server.address"],
        "server.port": span.attributes["server.port"],
    }
    assert headers(client, topic, "k") == {"traceparent": traceparent(span)}


def test_name_system_operation_topic_and_server_are_there_for_a_sampler(
    client: Client, topic: str, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, Any]] = []
    provider = trace.get_tracer_provider()
    sample = provider.sampler.should_sample  # type: ignore[attr-defined]  # that of the SDK

    def look(parent: Any, trace_id: int, name: str, kind: Any, attributes: Any, *more: Any, **rest: Any) -> Any:
        begun.append((name, dict(attributes)))
        return sample(parent, trace_id, name, kind, attributes, *more, **rest)

    monkeypatch.setattr(provider.sampler, "should_sample", look)  # type: ignore[attr-defined]  # that of the SDK
    client.schedule(topic, delay=60)
    client.cancel(topic, "nobody")
    for (name, attributes), operation in zip(begun, ("schedule", "cancel"), strict=True):
        assert name == f"{operation} {topic}"
        told = {"messaging.system", "messaging.operation.name", "messaging.destination.name", "server.address"}
        assert told <= attributes.keys()


def test_the_span_is_a_child_of_the_callers_and_baggage_goes_along(client: Client, topic: str, spans: Spans) -> None:
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    with trace.get_tracer("shop").start_as_current_span("order") as caller:
        client.schedule(topic, delay=60, key="k", headers={"lang": "de"})
        assert trace.get_current_span() is caller
    context.detach(token)
    span = spans.one(f"schedule {topic}")
    assert span.parent is not None
    assert span.parent.span_id == caller.get_span_context().span_id
    assert headers(client, topic, "k") == {"lang": "de", "traceparent": traceparent(span), "baggage": "tenant=acme"}


def test_a_context_that_the_user_put_there_stays_and_is_linked(client: Client, topic: str, spans: Spans) -> None:
    client.schedule(topic, delay=60, key="k", headers={"Traceparent": USERS})
    assert headers(client, topic, "k") == {"Traceparent": USERS}
    [link] = spans.one(f"schedule {topic}").links
    assert f"{link.context.trace_id:032x}" == USERS[3:35]


def test_each_of_many_jobs_has_a_span_of_its_own_if_asked_for(
    url: str, settings: Settings, topic: str, spans: Spans
) -> None:
    own = replace(settings, client=replace(settings.client, trace_jobs=True))
    with Client.connect(url, own) as client:
        client.schedule_many(topic, [JobSpec(n, delay=60, key=f"a{n}") for n in range(3)])
        client.schedule_many(topic, (JobSpec(n, delay=60, key=f"b{n}") for n in range(2)))
        calls = {span.get_span_context().span_id for span in spans.named(f"schedule {topic}")}
        created = {(span.attributes or {})["messaging.message.id"]: span for span in spans.named(f"create {topic}")}
        assert len(calls) == 2
        assert set(created) == {"a0", "a1", "a2", "b0", "b1"}
        for id, span in created.items():
            info = job_of(client, topic, id)
            assert info.headers["traceparent"].split("-")[2] == f"{span.get_span_context().span_id:016x}"
            assert span.parent is not None
            assert span.parent.span_id in calls
            assert span.kind.name == "PRODUCER"
            assert (span.attributes or {})["messaging.operation.type"] == "create"


def test_many_jobs_have_one_span_whose_context_all_of_them_carry(client: Client, topic: str, spans: Spans) -> None:
    client.schedule_many(topic, [JobSpec(n, delay=60, key=f"a{n}") for n in range(3)])
    client.schedule_many(topic, (JobSpec(n, delay=60, key=f"b{n}") for n in range(1_100)))
    first, second = spans.named(f"schedule {topic}")
    for span, id, count in ((first, "a2", 3), (second, "b0", 1_100), (second, "b1099", 1_100)):
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == count
        assert headers(client, topic, id)["traceparent"] == traceparent(span)


def test_a_generator_of_jobs_runs_within_the_span(client: Client, topic: str, spans: Spans) -> None:
    seen: list[int] = []

    def jobs() -> Any:
        for n in range(700):
            seen.append(trace.get_current_span().get_span_context().span_id)
            yield JobSpec(n, delay=60)

    client.schedule_many(topic, jobs())
    assert set(seen) == {spans.one(f"schedule {topic}").get_span_context().span_id}
    assert not trace.get_current_span().get_span_context().is_valid


async def test_the_asyncio_client_makes_the_same_spans(aclient: AsyncClient, topic: str, spans: Spans) -> None:
    receipts = await asyncio.gather(*(aclient.schedule(topic, n, delay=60) for n in range(20)))
    for receipt in receipts:
        found = await ajob_of(aclient, topic, receipt.id)
        [span] = [
            one
            for one in spans.named(f"schedule {topic}")
            if one.attributes and one.attributes["messaging.message.id"] == receipt.id
        ]
        assert dict(found.headers) == {"traceparent": traceparent(span)}


def test_changes_have_client_spans_with_their_outcome(client: Client, topic: str, spans: Spans) -> None:
    client.schedule(topic, delay=60, key="k")
    client.reschedule(topic, "k", delay=90)
    client.run_now(topic, "k")
    assert client.cancel(topic, "k") is CancelOutcome.RUNNING
    client.dead.replay(topic, all=True)
    told = [
        (span.name, span.kind, (span.attributes or {}).get("messaging.wheelq.outcome"))
        for span in spans.all()
        if not span.name.startswith("schedule")
    ]
    kind = trace.SpanKind.CLIENT
    assert told == [
        (f"reschedule {topic}", kind, "rescheduled"),
        (f"run_now {topic}", kind, "promoted"),
        (f"cancel {topic}", kind, "running"),
        (f"replay {topic}", kind, None),
    ]


def test_only_a_call_that_fails_has_an_error(client: Client, topic: str, spans: Spans) -> None:
    client.schedule(topic, delay=60, key="k")
    with pytest.raises(DuplicateJob):
        client.schedule(topic, delay=60, key="k", on_duplicate="raise")
    with pytest.raises(InvalidJob):
        client.schedule_many(topic, [JobSpec(1, delay=60), JobSpec(object(), delay=60)])
    kept, twice, bad = spans.named(f"schedule {topic}")
    assert "error.type" not in (kept.attributes or {})
    for span, error in ((twice, "wheelq.errors.DuplicateJob"), (bad, "wheelq.errors.InvalidJob")):
        assert (span.attributes or {})["error.type"] == error
        assert not span.status.is_ok
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_call_that_is_cancelled_leaves_no_span_behind(
    topic: str, spans: Spans, settings: Settings, private_server: Callable[..., EmbeddedServer]
) -> None:
    server = private_server()
    async with AsyncClient.connect(server.url, settings) as client:
        await client.schedule(topic, delay=60)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.schedule(topic, delay=60)
        os.kill(server.pid, signal.SIGCONT)
        assert not trace.get_current_span().get_span_context().is_valid
    _, cancelled = spans.named(f"schedule {topic}")
    assert (cancelled.attributes or {})["error.type"] == "asyncio.exceptions.CancelledError"


def test_a_job_in_the_outbox_keeps_the_context_of_its_call(
    topic: str, spans: Spans, tmp_path: Path, private_server: Callable[..., EmbeddedServer]
) -> None:
    server = private_server()
    with Client.connect(server.url, outbox=tmp_path / "outbox") as client:
        server.kill()
        assert client.schedule(topic, delay=60, key="k").in_outbox
        server.start()
        span = spans.one(f"schedule {topic}")
        assert (span.attributes or {})["messaging.wheelq.outcome"] == "in_outbox"
        while client.outbox_info().jobs:  # type: ignore[union-attr]  # it has an outbox
            try:
                client.deliver_outbox()
            except Unavailable:
                continue
        assert headers(client, topic, "k") == {"traceparent": traceparent(span)}


def test_a_job_of_an_outbox_in_a_database_carries_the_context_of_its_call(
    topic: str, tmp_path: Path, spans: Spans
) -> None:
    with placed("sqlite", tmp_path) as place, trace.get_tracer("shop").start_as_current_span("order") as caller:
        with place.transaction() as connection:
            place.outbox.schedule(connection, topic, 1, delay=60)
            place.outbox.schedule_many(connection, topic, [JobSpec(n, delay=60) for n in range(2)])
        found = [codec.decode(row["record"]).headers for row in place.all()]
    assert isinstance(caller, ReadableSpan)
    assert found == [{"traceparent": traceparent(caller)}] * 3


def test_the_metrics_of_a_client_count_jobs_and_calls(client: Client, topic: str, spans: Spans) -> None:
    client.schedule(topic, delay=60, key="k")
    client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(5)])
    client.cancel(topic, "nobody")
    with pytest.raises(DuplicateJob):
        client.schedule(topic, delay=60, key="k", on_duplicate="raise")
    found = spans.metrics()
    [sent] = found["messaging.client.sent.messages"]
    assert sent.value == 6
    assert sent.attributes["messaging.destination.name"] == topic
    durations = found["messaging.client.operation.duration"]
    told = Counter({point.attributes["messaging.operation.name"]: 0 for point in durations})
    for point in durations:
        told[point.attributes["messaging.operation.name"]] += point.count
    assert told == {"schedule": 3, "cancel": 1}
    assert all("messaging.message.id" not in point.attributes for point in (sent, *durations))


def test_without_a_provider_a_call_runs_no_line_of_the_telemetry(client: Client, topic: str) -> None:
    client.schedule(topic, delay=60)
    with noting_files() as ran:
        client.schedule(topic, delay=60)
    assert any("producer" in name for name in ran)
    assert not of_telemetry(ran)
