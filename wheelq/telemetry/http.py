"""The spans of HTTP requests: of a callback, by the conventions for HTTP clients, and of the HTTP server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from wheelq.telemetry import context
from wheelq.telemetry.spans import ERROR, kind_of, start

Scope = dict[str, Any]
PORTS = {"http": 80, "https": 443}
FIRST_ERROR = 400


class RequestSpan:
    """One request. While it lasts, its span is the current span, and a child of the span that was current before."""

    def __init__(self, method: str, url: str, attempt: int) -> None:
        """`url` is shown as it is: without its query, if that may hold credentials."""
        parts = urlsplit(url)
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "url.full": url,
            "server.address": parts.hostname or "",
            "server.port": parts.port or PORTS.get(parts.scheme, 0),
        }
        if attempt > 1:
            attributes["http.request.resend_count"] = attempt - 1
        self._span = start(method, SpanKind.CLIENT, attributes)
        self._current = context.Current(self._span)

    def headers(self, others: Mapping[str, str]) -> dict[str, str]:
        """Replaces the context that the job carries by the span's."""
        fields = propagate.get_global_textmap().fields
        return {name: text for name, text in others.items() if name.lower() not in fields} | context.current()

    def answered(self, status: int) -> None:
        """Note the status of the answer; from 400 on it is an error."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= FIRST_ERROR:
            self._fail(str(status))

    def failed(self, error: BaseException) -> None:
        self._fail(kind_of(error))

    def _fail(self, kind: str) -> None:
        self._span.set_attribute(ERROR, kind)
        self._span.set_status(Status(StatusCode.ERROR, kind))

    def __enter__(self) -> Self:
        self._current.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current.leave()
        if error is not None:
            self.failed(error)
        self._span.end()


def instrument(app: Any, route_of: Callable[[Scope], str | None]) -> None:
    """Adds the middleware of `opentelemetry-instrumentation-asgi`: a span for each request, called `{method} {route}`.

    Does nothing if `opentelemetry-instrument` has instrumented the application, or if the package is missing: recent
    releases of FastAPI then make such spans themselves. `route_of` returns the path template for a request, or None.
    """
    if getattr(app, "_is_instrumented_by_opentelemetry", False):
        return
    try:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    except ImportError:
        return

    def details(scope: Scope) -> tuple[str, dict[str, str]]:
        route, method = route_of(scope), str(scope.get("method", "HTTP"))
        return (f"{method} {route}", {"http.route": route}) if route else (method, {})

    app.add_middleware(OpenTelemetryMiddleware, default_span_details=details, exclude_spans=["send", "receive"])
