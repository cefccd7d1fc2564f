"""Parses the values that users write on a command line or in a file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from wheelq.base.as_json import parse
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration
from wheelq.model.job import from_ms

WHEN = "+30m from now, 2h ago, ISO 8601 with a time zone, or Unix seconds"
"""What `parse_moment` takes, for the help of options."""
_UNIX_SECONDS = re.compile(r"\d{9,10}(?:\.\d{1,6})?")
"""From 1973 to 2286. A number of fewer digits is a duration."""


def parse_at(text: str, field: str = "at") -> datetime:
    """Returns an aware datetime from ISO 8601 or Unix seconds. Raises: InvalidInput, also without a time zone."""
    text = text.strip()
    if _UNIX_SECONDS.fullmatch(text):
        return from_ms(1000 * float(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(field, f"{text!r} is not an ISO 8601 time: write 2030-01-31T09:00:00+01:00") from error
    if at.utcoffset() is None:
        raise InvalidInput(
            field, f"{text!r} has no time zone, so it could mean 24 different moments: append Z (UTC) or +01:00"
        )
    return at


def parse_due(delay: str | None, at: str | None) -> tuple[float | None, datetime | None]:
    """Returns seconds or a moment, of which one must be given; `at` may be "+30m". Raises: InvalidInput."""
    if at is None:
        if delay is None:
            raise InvalidInput("--delay", "missing: give --delay 30m or --at 2026-12-01T09:00+01:00")
        return parse_duration(delay, "delay"), None
    if delay is not None:
        raise InvalidInput("--at", "give either --delay or --at, not both")
    if at.strip().startswith("+"):
        return parse_duration(at, "at"), None
    return None, parse_at(at)


def parse_moment(text: str, now_ms: Callable[[], int], field: str = "time") -> datetime:
    """Returns a moment: "+30m" from now, "2h" or "-2h" ago, or what `parse_at` takes. Raises: InvalidInput."""
    try:
        seconds = parse_duration(text, "time")
    except InvalidInput:
        return parse_at(text, field)
    if _UNIX_SECONDS.fullmatch(text.strip()):
        return parse_at(text, field)
    has_sign = text.strip().startswith(("+", "-"))
    try:
        return from_ms(now_ms() + 1000 * (seconds if has_sign else -seconds))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(field, f"{text!r} is beyond what a calendar has") from error


def parse_range(
    since: str | None, until: str | None, now_ms: Callable[[], int]
) -> tuple[datetime | None, datetime | None]:
    """Returns the ends of a range of time, as far as they are given. Raises: InvalidInput."""
    begin = None if since is None else parse_moment(since, now_ms, "since")
    return begin, None if until is None else parse_moment(until, now_ms, "until")


def parse_json(text: str, remedy: str = "") -> Any:
    """Returns the payload of a JSON text; `remedy` is added to the error message. Raises: InvalidInput."""
    try:
        return parse(text.encode())
    except ValueError as error:
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


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
