"""Parses the values that users write on a command line or in a file. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from wheelq.errors import InvalidInput
from wheelq.model.job import from_ms

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_PARTS = re.compile(_PART)
_DELAY = re.compile(rf"(?:{_PART})+")
WHEN = "+30m from now, 2h ago, or ISO 8601 with a time zone"
"""What `parse_moment` takes, for the help of options."""
_SECONDS = re.compile(r"-?\d+(?:\.\d+)?")


def parse_delay(text: str) -> float:
    """Returns the seconds of "30m", "1h30m", "500ms", "1d", or of plain seconds. Raises: InvalidInput.

    The client checks the limits (not negative, not absurd).
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    if _DELAY.fullmatch(text):
        return sum(float(number) * _UNIT_MS[unit] for number, unit in _PARTS.findall(text)) / 1000
    raise InvalidInput("delay", f"{text!r} is not a delay: write 30m, 90s, 1h30m, 500ms, 1d, or seconds")


def parse_at(text: str) -> datetime:
    """Returns an aware datetime from ISO 8601. Raises: InvalidInput, also if the time zone is missing."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInput("at", f"{text!r} is not an ISO 8601 time: write 2030-01-31T09:00:00+01:00") from error
    if at.utcoffset() is None:
        raise InvalidInput(
            "at", f"{text!r} has no time zone, so it could mean 24 different moments: append Z (UTC) or +01:00"
        )
    return at


def parse_due(delay: str | None, at: str | None) -> tuple[float | None, datetime | None]:
    """Returns seconds or a moment, of which one must be given. Raises: InvalidInput."""
    if delay is None and at is None:
        raise InvalidInput("--delay", "missing: give --delay 30m or --at 2026-12-01T09:00+01:00")
    if delay is not None and at is not None:
        raise InvalidInput("--at", "give either --delay or --at, not both")
    return None if delay is None else parse_delay(delay), None if at is None else parse_at(at)


def parse_past(text: str, now_ms: int) -> datetime:
    """Returns a moment in the past, from its age ("2h") or ISO 8601. Raises: InvalidInput."""
    try:
        return from_ms(now_ms - parse_delay(text) * 1000)
    except InvalidInput:
        return parse_at(text)


def parse_moment(text: str, now_ms: int) -> datetime:
    """Returns a moment: "+30m" from now, "2h" ago, or ISO 8601. Raises: InvalidInput."""
    text = text.strip()
    if text.startswith("+"):
        return from_ms(now_ms + parse_delay(text[1:]) * 1000)
    return parse_past(text, now_ms)


def parse_json(text: str, remedy: str = "") -> Any:
    """Returns the payload of a JSON text; `remedy` is added to the error message. Raises: InvalidInput."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("payload", f"{_shortened(text)} is not JSON ({error}){remedy}") from error


def parse_headers(pairs: Iterable[str]) -> dict[str, str]:
    """Returns the headers of "name=value" pairs. Raises: InvalidInput."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput("header", f"{pair!r} is not NAME=VALUE")
        headers[name] = value
    return headers


def span(ms: float) -> str:
    """Returns a duration as text, with at most two units: 1h 30m, 4s, 12ms."""
    if ms < 1000:
        return f"{max(0, ms):.0f}ms"
    rest, parts = round(ms / 1000) * 1000, []
    for unit in ("d", "h", "m", "s"):
        number, rest = divmod(rest, _UNIT_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts[:2])


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
