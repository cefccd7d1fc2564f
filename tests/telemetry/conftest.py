"""A tracer provider and a meter provider for one test, whose spans and metrics stay in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.spec.conftest import aclient, client, inbox, make_worker, run, scheduler, settings
from tests.waiting import until

__all__ = ["aclient", "client", "inbox", "make_worker", "run", "scheduler", "settings"]


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter, reader: InMemoryMetricReader) -> None:
        self._exporter = exporter
        self._reader = reader

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, f"{name}: {[span.name for span in self.all()]}"
        return found[0]

    async def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        await until(lambda: len(self.named(name)) >= count)
        return self.named(name)

    def as_json(self) -> list[dict[str, Any]]:
        return [json.loads(span.to_json()) for span in self.all()]

    def metrics(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self._reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def noting_files() -> Iterator[set[str]]:
    """The files whose functions are called during the block."""
    ran: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(None)


def of_telemetry(files: set[str]) -> list[str]:
    return [name for name in files if "wheelq/telemetry" in name or "tracing" in name or "opentelemetry/trace" in name]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The providers may be set once in a process: a test puts its own in their place."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    metering = MeterProvider([reader])
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", tracing)
    monkeypatch.setattr(metrics, "_METER_PROVIDER", metering)
    yield Spans(exporter, reader)
    tracing.shutdown()
    metering.shutdown()
