"""Adds the spans of `opentelemetry-instrumentation-asgi` to the HTTP server, if that package is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Scope = dict[str, Any]


def instrument(app: Any, route_of: Callable[[Scope], str | None]) -> None:
    """Adds the middleware that makes a span for each request, called `{method} {route}`.

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
