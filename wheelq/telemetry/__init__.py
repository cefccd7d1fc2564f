"""OpenTelemetry: spans, the context that travels with a job, and the four messaging metrics.

Needs the extra `otel`, which is the API alone. The program, or `opentelemetry-instrument`, sets the tracer provider;
until it does, nothing of this is loaded. `is_traced()` tells whether it has. Three modules read the variable behind it
instead, because no function of this package may run for a job that nothing watches: `producer.scheduling` for calls
that schedule, `producer.driver` for those on scheduled jobs, and `worker.delivery.running` for the runs of handlers.

spans        makes the spans of every operation and the four metrics, by the messaging conventions
http         the span of a callback's request; those of requests to the HTTP server, by
             `opentelemetry-instrumentation-asgi`
context      carries the context of a span in the headers of a job

The conventions are those of OpenTelemetry 1.44 for messaging, whose status is "Development". Redis itself is not
instrumented here: `opentelemetry-instrumentation-redis` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

__all__ = ["WatchedRequest", "api", "ids", "is_traced", "request"]


class _Without:
    """Replaces the API if it is not installed: no provider is ever set."""

    _TRACER_PROVIDER = None


def _installed() -> Any:
    try:
        from opentelemetry import trace  # the extra `otel`
    except ImportError:
        return _Without
    trace.get_tracer_provider()  # makes the provider that OTEL_PYTHON_TRACER_PROVIDER names
    return trace


api = _installed()
"""`opentelemetry.trace`, if it is installed; `_TRACER_PROVIDER` is None until the program has set one."""


def is_traced() -> bool:
    """Whether the program has set a tracer provider."""
    return api._TRACER_PROVIDER is not None


def ids() -> tuple[str, str] | None:
    """Returns the trace id and the span id of the current span, in hexadecimal digits; None without one."""
    if not is_traced():
        return None
    found = api.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


class WatchedRequest(Protocol):
    """A request to a receiver, for what watches it."""

    def headers(self, others: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the headers of the request, with what the receiver needs to continue a trace."""
        ...

    def answered(self, status: int) -> None:
        """Note the status of the answer."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that no answer came."""
        ...


class _Unwatched:
    """A request that nothing watches."""

    def headers(self, others: Mapping[str, str]) -> Mapping[str, str]:
        return others

    def answered(self, status: int) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass


def request(method: str, url: str, attempt: int) -> AbstractContextManager[WatchedRequest]:
    """Returns a context for one HTTP request: within a span while a tracer provider is set."""
    if not is_traced():
        return nullcontext(_Unwatched())
    from wheelq.telemetry.http import RequestSpan

    return RequestSpan(method, url, attempt)
