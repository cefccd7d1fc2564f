"""Numbers, times, cron expressions and payloads as people read them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.cron import Cron
from wheelq.model.durations import exact_span, span
from wheelq.model.job import from_ms
from wheelq.settings.declaration import Declaration

PAYLOAD_CHARS = 20_000
"""The most characters of one payload on a page."""


def number(value: float) -> str:
    """Returns a number with separators, and one decimal below ten if it is not whole."""
    if isinstance(value, float) and not value.is_integer() and abs(value) < 10:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def setting(one: Declaration, value: Any) -> str:
    """Returns a setting's value as people write it, and as a form reads it again: 90d, 100,000, 0.5, run."""
    if one.unit == "ms":
        return exact_span(value)
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else str(value)


def exact(value: float) -> str:
    """Returns a number for a field of a form, from which it is read again as it was: 1234.567, 1209600."""
    return repr(value).removesuffix(".0")


def short(value: float) -> str:
    """Returns a number in at most five characters: 999, 1.2k, 34k, 5.6M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 10 else f"{scaled:.0f}{unit}"
    return number(value)


def iso(ms: int) -> str:
    """Returns a moment as ISO 8601 in UTC; "" for one that no calendar has."""
    try:
        return from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""


def moment(ms: int | None) -> str:
    """Returns a moment in UTC, to the second; "–" without one."""
    if ms is None:
        return "–"
    return iso(ms)[:19].replace("T", " ") or f"{ms} ms"


def relative(ms: int | None, now_ms: int) -> str:
    """Returns a moment as seen from now: "in 5m", "3s ago"; "–" without one."""
    if ms is None:
        return "–"
    if abs(ms - now_ms) < 1:
        return "now"
    return f"in {span(ms - now_ms)}" if ms >= now_ms else f"{span(now_ms - ms)} ago"


def pretty(value: Any) -> str:
    """Returns a payload as indented JSON, cut where it is very long; bytes are shown as hexadecimal digits."""
    text = whole(value)
    return text if len(text) <= PAYLOAD_CHARS else f"{text[:PAYLOAD_CHARS]}\n… {len(text) - PAYLOAD_CHARS:,} more"


def whole(value: Any) -> str:
    """Returns a payload as `pretty` does, however long it is."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_other)


def one_line(text: str, chars: int = 160) -> str:
    """Returns a text in one line, cut where it is long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= chars else f"{flat[: chars - 1]}…"


def in_words(expression: str) -> str:
    """Returns a cron expression in words: at 02:30 on Monday through Friday. One that cannot be read stays as it is."""
    try:
        words = Cron(expression, UTC).in_words()
    except (InvalidInput, ConfigurationError):
        return expression
    return words[0].lower() + words[1:]


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return dict(value) if isinstance(value, Mapping) else str(value)
