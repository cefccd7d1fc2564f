"""What people write on a command line or in a file, as values. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from wheelq.errors import InvalidInput
from wheelq.job import from_ms

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_PARTS = re.compile(_PART)
_DELAY = re.compile(rf"(?:{_PART})+")
_SECONDS = re.compile(r"-?\d+(?:\.\d+)?")


def parse_delay(text: str) -> float:
    """Seconds of "30m", "1h30m", "500ms", "1d", or of plain seconds. Raises: InvalidInput.

    Whether it is within limits (not negative, not absurd) is for the client to say.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    if _DELAY.fullmatch(text):
        return sum(float(number) * _UNIT_MS[unit] for number, unit in _PARTS.findall(text)) / 1000
    raise InvalidInput("delay", f"{text!r} is no delay: write 30m, 90s, 1h30m, 500ms, 1d, or seconds")


def parse_at(text: str) -> datetime:
    """An aware datetime from ISO 8601. Raises: InvalidInput, also when there is no time zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInput("at", f"{text!r} is no ISO 8601 time: write 2030-01-31T09:00:00+01:00") from error
    if at.utcoffset() is None:
        raise InvalidInput(
            "at", f"{text!r} has no time zone, so it could mean 24 different moments: append Z (UTC) or +01:00"
        )
    return at


def parse_past(text: str, now_ms: int) -> datetime:
    """A moment in the past, from how long ago it was ("2h") or ISO 8601. Raises: InvalidInput."""
    try:
        return from_ms(now_ms - parse_delay(text) * 1000)
    except InvalidInput:
        return parse_at(text)


def parse_json(text: str, remedy: str = "") -> Any:
    """A payload; `remedy` is what its command knows besides. Raises: InvalidInput."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("payload", f"{_shortened(text)} is not JSON ({error}){remedy}") from error


def parse_headers(pairs: Iterable[str]) -> dict[str, str]:
    """Headers from "name=value". Raises: InvalidInput."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput("header", f"{pair!r} is not NAME=VALUE")
        headers[name] = value
    return headers


def span(ms: float) -> str:
    """A span of time for people, two units at most: 1h 30m, 4s, 12ms."""
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
