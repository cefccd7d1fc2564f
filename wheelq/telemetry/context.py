"""Carries the context of a span in the headers of a job.

The fields are those of the program's propagator: `traceparent`, `tracestate` and `baggage` unless OTEL_PROPAGATORS says
otherwise. Headers that the producer has put there itself stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token

from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract, inject
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext, get_current_span, set_span_in_context


class _Headers(Getter[Mapping[str, str]]):
    """Reads headers whatever the case of their names."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        if key in carrier:
            return [carrier[key]]
        found = [text for name, text in carrier.items() if name.lower() == key]
        return found or None

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return [name.lower() for name in carrier]


_HEADERS = _Headers()


def of_headers(headers: Mapping[str, str]) -> Context:
    """Returns the context that the headers of a job carry: the span that created it, and baggage."""
    return extract(headers, Context(), _HEADERS)


def creator(context: Context) -> SpanContext | None:
    """Returns the span that created a job, from the context of its headers; None if they name none."""
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None


def without_span(context: Context) -> Context:
    """Returns the context with its baggage and without its span: a span that starts in it is a new trace."""
    return set_span_in_context(INVALID_SPAN, context)


def with_current(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the headers with the current context added, unless they name a span already. What they hold is kept."""
    if headers and creator(of_headers(headers)) is not None:
        return dict(headers)
    return {**current(), **(headers or {})}


def current() -> dict[str, str]:
    """Returns the fields that carry the current context."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


class Current:
    """Makes a span the current one for a while."""

    def __init__(self, span: Span, context: Context | None = None) -> None:
        """`context` has the other current values meanwhile, such as baggage; by default the present context."""
        self._span = span
        self._context = context
        self._token: Token[Context] | None = None

    def enter(self) -> None:
        self._token = attach(set_span_in_context(self._span, self._context))

    def leave(self) -> None:
        """Restore the former current span; call it in the same context as `enter`."""
        if self._token is not None:
            detach(self._token)
