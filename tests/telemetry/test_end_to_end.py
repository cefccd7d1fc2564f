"""One exported trace: an HTTP request makes a job, a worker runs it as a callback, and a receiver gets that."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan

from loadtest.servers.nodes import free_port
from tests.callbacks.receiving import write_register
from tests.spec.conftest import Run
from tests.telemetry.conftest import Spans
from tests.waiting import PATIENCE, until
from wheelq import Scheduler, Settings
from wheelq.logs import JobFilter
from wheelq.server.run import HttpServer
from wheelq.settings import ServerSettings, WorkerSettings


class Receiver:
    """Takes callbacks at a port of this process, within the spans of the ASGI instrumentation."""

    def __init__(self) -> None:
        self.port = free_port()
        self.headers: list[dict[str, str]] = []
        self.statuses = [200]
        asgi = OpenTelemetryMiddleware(self._receive, exclude_spans=["send", "receive"])
        config = uvicorn.Config(asgi, host="127.0.0.1", port=self.port, log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)

    async def _receive(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        status = self.statuses[min(len(self.headers), len(self.statuses)) - 1]
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    running = asyncio.create_task(receiver.server._serve(None))
    await until(lambda: receiver.server.started)
    yield receiver
    receiver.server.should_exit = True
    await running


@pytest.fixture
async def serve(url: str, tmp_path: Path, receiver: Receiver, run: Run) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(trace=…)` runs a scheduler and an HTTP server that makes callbacks; answers a caller of it."""
    ends: list[Callable[[], Any]] = []

    async def start(trace: Any = "link", port: int = receiver.port) -> httpx.AsyncClient:
        settings = Settings(
            prefix=f"traces-{secrets.token_hex(6)}",
            server=ServerSettings(port=free_port(), services=str(write_register(tmp_path, shop=port)), drain_ms=500),
            worker=WorkerSettings(trace=trace),
        )
        run(Scheduler.connect(url, settings))
        server = HttpServer.connect(url, settings)
        listening = asyncio.create_task(server.listen())
        await until(lambda: server.started)
        http = httpx.AsyncClient(base_url=server.shown, timeout=PATIENCE)

        async def end() -> None:
            await http.aclose()
            server.stop()
            await listening

        ends.append(end)
        return http

    yield start
    for end in ends:
        await end()


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


JOB = {"id": "order-42", "payload": {"id": 42}, "delay": 0.05, "target": {"service": "shop", "path": "/paid"}}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("trace", ["link", "parent"])
async def test_a_trace_leads_from_a_request_through_the_job_to_the_receiver_of_its_callback(
    serve: Callable[..., Any], receiver: Receiver, topic: str, spans: Spans, trace: str, tmp_path: Path
) -> None:
    http = await serve(trace)
    state = {"tracestate": "vendor=of-this-trace"}
    context = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "baggage": "tenant=acme", **state}
    answer = await http.post(f"/v1/topics/{topic}/jobs", json=JOB, headers=context)
    assert answer.status_code == 201
    [received] = await spans.wait_for("POST /paid")
    await spans.wait_for(f"process {topic}")
    request = spans.one("POST /v1/topics/{topic}/jobs")
    made, ran, called = (spans.one(name) for name in (f"schedule {topic}", f"process {topic}", "POST"))

    exported = tmp_path / "trace.json"
    exported.write_text(json.dumps(spans.as_json()))
    told = {span["context"]["span_id"]: span for span in json.loads(exported.read_text())}
    way = [told[f"0x{id_of(received):016x}"]]
    while (
        parent := way[-1]["parent_id"] or next((link["context"]["span_id"] for link in way[-1]["links"]), "")
    ) in told:
        way.append(told[parent])
    assert [span["name"] for span in reversed(way)] == [
        "POST /v1/topics/{topic}/jobs",
        f"schedule {topic}",
        f"process {topic}",
        "POST",
        "POST /paid",
    ]
    assert [span["kind"].rpartition(".")[2] for span in reversed(way)] == [
        "SERVER", "PRODUCER", "CONSUMER", "CLIENT", "SERVER",
    ]  # fmt: skip
    traces = [f"{span.get_span_context().trace_id:032x}" for span in (request, made, ran, called, received)]
    assert traces[:2] == [TRACE, TRACE]
    assert len(set(traces[2:])) == 1
    assert (traces[2] == TRACE) == (trace == "parent")
    assert (called.attributes or {})["http.response.status_code"] == 200
    assert (called.attributes or {})["url.full"] == f"http://127.0.0.1:{receiver.port}/paid"
    assert (ran.attributes or {})["messaging.consumer.group.name"] == "callbacks"
    assert receiver.headers[0]["baggage"] == "tenant=acme"
    assert ("tracestate" in receiver.headers[0]) == (trace == "parent")
    assert receiver.headers[0]["traceparent"].startswith(f"00-{traces[2]}-{id_of(called):016x}-")


async def test_jobs_that_are_gathered_keep_the_context_of_their_own_request(
    serve: Callable[..., Any], topic: str, spans: Spans
) -> None:
    http = await serve()
    await asyncio.gather(
        *(http.post(f"/v1/topics/{topic}/jobs", json={"id": f"k{n}", "delay": 600}) for n in range(30))
    )
    requests = {id_of(span) for span in await spans.wait_for("POST /v1/topics/{topic}/jobs", 30)}
    made = {(span.attributes or {})["messaging.message.id"]: span for span in spans.named(f"schedule {topic}")}
    assert len(made) == len(requests) == 30
    assert {span.parent.span_id for span in made.values() if span.parent is not None} == requests
    for n in range(30):
        found = (await http.get(f"/v1/topics/{topic}/jobs/k{n}")).json()
        assert found["headers"]["traceparent"].split("-")[2] == f"{id_of(made[f'k{n}']):016x}"


async def test_requests_are_named_by_their_route(serve: Callable[..., Any], topic: str, spans: Spans) -> None:
    """The path of one may also look like that of another, which takes other methods."""
    http = await serve()
    await http.post(f"/v1/topics/{topic}/jobs", json={"id": "a", "delay": 600})
    await http.post(f"/v1/topics/{topic}/jobs/cancel", json={"ids": ["a"]})
    await spans.wait_for("POST /v1/topics/{topic}/jobs/cancel", 1)


async def test_a_lease_is_linked_to_what_made_its_jobs(serve: Callable[..., Any], topic: str, spans: Spans) -> None:
    http = await serve()
    for n in range(3):
        await http.post(f"/v1/topics/{topic}/jobs", json={"id": f"k{n}", "delay": 0})
    jobs: list[Any] = []
    while len(jobs) < 3:
        answer = await http.post(f"/v1/topics/{topic}/groups/g/lease", json={"count": 5, "wait": 20})
        jobs += answer.json()["jobs"]
    made = {id_of(span) for span in spans.named(f"schedule {topic}")}

    def links() -> set[int]:
        return {link.context.span_id for span in spans.named(f"receive {topic}") for link in span.links}

    await until(lambda: links() == made)
    leases = spans.named(f"receive {topic}")
    assert all((span.attributes or {})["messaging.consumer.group.name"] == "http.g" for span in leases)
    assert all(span.kind.name == "CLIENT" and span.parent is not None for span in leases)


async def test_a_callback_that_fails_is_an_error_of_the_request_and_of_the_run(
    serve: Callable[..., Any], receiver: Receiver, topic: str, spans: Spans
) -> None:
    receiver.statuses = [500, 200]
    http = await serve()
    await http.post(f"/v1/topics/{topic}/jobs", json=JOB)
    first, second = await spans.wait_for(f"process {topic}", 2)
    failed, fine = await spans.wait_for("POST", 2)
    assert (failed.attributes or {})["error.type"] == "500"
    assert "error.type" in (first.attributes or {})
    assert (fine.attributes or {})["http.request.resend_count"] == 1
    assert "error.type" not in {**(fine.attributes or {}), **(second.attributes or {})}


async def test_log_lines_carry_the_ids_of_the_span(
    serve: Callable[..., Any], topic: str, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(JobFilter())
    http = await serve(port=free_port())  # where nobody listens: the run fails, and that is logged
    with caplog.at_level(logging.INFO, "wheelq"):
        await http.post(f"/v1/topics/{topic}/jobs", json=JOB)
        [span, *_] = await spans.wait_for(f"process {topic}")
    lines = [record for record in caplog.records if "failed, again" in record.getMessage()]
    context = span.get_span_context()
    assert vars(lines[0])["trace_id"] == f"{context.trace_id:032x}"
    assert vars(lines[0])["span_id"] == f"{context.span_id:016x}"
    assert vars(lines[0])["span"] == f" trace_id={context.trace_id:032x} span_id={context.span_id:016x}"
