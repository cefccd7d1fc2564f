"""Times and payloads as viewers write them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from wheelq.base.as_json import parse
from wheelq.errors import InvalidInput
from wheelq.server.dashboard.visit import Form

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")
_LONGEST = 60


def seconds(text: str, field: str) -> float:
    """Returns the seconds of "30m", "1h 30min" or plain seconds. Raises: InvalidInput."""
    text = text.strip()
    if len(text) <= _LONGEST and re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if len(text) <= _LONGEST and _WHOLE.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    raise InvalidInput(field, f"{text!r:.60} is not a duration: write 30s, 5min, 1h 30min, 2d, or seconds")


def moment(text: str, field: str) -> datetime:
    """Returns a moment in ISO 8601; one without a time zone is in UTC. Raises: InvalidInput."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidInput(field, f"{text!r:.60} is not a time: write 2030-01-31 09:00, which is UTC") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def moment_of(form: Form, field: str) -> datetime | None:
    """Returns the moment in a field; None if it is empty. Raises: InvalidInput."""
    text = form.get(field)
    return None if text is None else moment(text, field)


def payload_of(form: Form, field: str = "payload") -> Any:
    """Returns the JSON in a field; None if it is empty. Raises: InvalidInput."""
    text = form.get(field)
    if text is None:
        return None
    try:
        return parse(text.encode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field, f"is not JSON ({error})") from error


def when_of(form: Form) -> dict[str, Any]:
    """Returns `delay` or `at`, as the client takes them. Raises: InvalidInput."""
    delay, at = form.get("delay"), form.get("at")
    if (delay is None) == (at is None):
        raise InvalidInput("delay", "give either a delay or a time")
    return {"delay": seconds(delay, "delay")} if delay is not None else {"at": moment(at or "", "at")}
