"""OpenTelemetry: spans, the context that travels with a job, and the four messaging metrics.

Needs the extra `otel`, which is the API alone. The program, or `opentelemetry-instrument`, sets the tracer provider;
until it does, nothing of this is loaded, and each place that could make a span pays for one `if`:

    if api._TRACER_PROVIDER is not None:
        from wheelq.telemetry import spans

`api` is `opentelemetry.trace`. The `if` reads its variable, because a function call would cost more for every job.

spans        makes the spans of every operation and the four metrics, by the messaging conventions
http         the span of a callback's request; those of requests to the HTTP server, by
             `opentelemetry-instrumentation-asgi`
context      carries the context of a span in the headers of a job

The conventions are those of OpenTelemetry 1.44 for messaging, whose status is "Development". Redis itself is not
instrumented here: `opentelemetry-instrumentation-redis` does that.
"""

from __future__ import annotations

from typing import Any

__all__ = ["api", "ids"]


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


def ids() -> tuple[str, str] | None:
    """Returns the trace id and the span id of the current span, in hexadecimal digits; None without one."""
    if api._TRACER_PROVIDER is None:
        return None
    found = api.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None
