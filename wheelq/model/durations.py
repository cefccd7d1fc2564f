"""Durations as people write and read them: 30s, 1h 30m, 2d. Pure."""

from __future__ import annotations

import re

from wheelq.errors import InvalidInput

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "m": 60_000, "s": 1_000, "ms": 1}
_SHOWN = ("d", "h", "m", "s")
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|s|min|m|h|d)\s*")
_DURATION = re.compile(rf"[+-]?(?:{_NUMBER}|(?:{_PART.pattern})+)")
_LONGEST_TEXT = 60


def parse_duration(text: str, field: str) -> float:
    """Returns the seconds of "30m", "1h 30m", "500ms", "-1d" or plain seconds. Raises: InvalidInput, about `field`.

    Limits are the caller's to check, and so is a negative duration where there can be none.
    """
    text = text.strip()
    if len(text) > _LONGEST_TEXT or not _DURATION.fullmatch(text):
        raise InvalidInput(field, f"{text!r:.60} is not a duration: write 30m, 90s, 1h 30m, 500ms, 1d, or seconds")
    parts = _PART.findall(text)
    if not parts:
        return float(text)
    seconds = sum(float(number) * _UNIT_MS[unit] for number, unit in parts) / 1000
    return -seconds if text.startswith("-") else seconds


def exact_span(ms: int) -> str:
    """Returns whole milliseconds in text that `parse_duration` reads as the same number: 90d, 1h 30m 500ms, 0."""
    parts = []
    for unit in (*_SHOWN, "ms"):
        number, ms = divmod(ms, _UNIT_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts) or "0"


def span(ms: float) -> str:
    """Returns a duration as text, with at most two units: 1h 30m, 4s, 12ms."""
    if ms < 1000:
        return f"{max(0, ms):.0f}ms"
    rest, parts = round(ms / 1000) * 1000, []
    for unit in _SHOWN:
        number, rest = divmod(rest, _UNIT_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts[:2])
