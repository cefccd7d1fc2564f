"""Numbers, times, cron expressions and payloads as people read them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from wheelq.model.cron import NICKNAMES
from wheelq.model.durations import span
from wheelq.model.job import from_ms

_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd", 21: "21st", 22: "22nd", 23: "23rd", 31: "31st"}
LONGEST_CRON = 200
"""Longer cron expressions are shown as they are."""
PAYLOAD_CHARS = 20_000
"""The most characters of one payload on a page."""


def number(value: float) -> str:
    """Returns a number with separators, and one decimal below ten if it is not whole."""
    if isinstance(value, float) and not value.is_integer() and abs(value) < 10:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


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
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_other)
    return text if len(text) <= PAYLOAD_CHARS else f"{text[:PAYLOAD_CHARS]}\n… {len(text) - PAYLOAD_CHARS:,} more"


def one_line(text: str, chars: int = 160) -> str:
    """Returns a text in one line, cut where it is long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= chars else f"{flat[: chars - 1]}…"


def in_words(expression: str) -> str:
    """Returns a cron expression in words.

        in_words("*/15 * * * *")      every 15 minutes
        in_words("30 2 * * MON-FRI")  at 02:30, on Monday to Friday
        in_words("0 9 1 */3 *")       at 09:00, on day 1 of the month, in every 3rd month

    Every field is put into words separately, so that this works for all expressions. A text without five or six fields
    is returned unchanged.
    """
    text = NICKNAMES.get(expression.strip().lower(), expression)
    fields = text.split()
    if len(fields) not in (5, 6) or len(text) > LONGEST_CRON:
        return expression
    seconds = fields[0] if len(fields) == 6 else "0"
    minute, hour, day, month, weekday = fields[-5:]
    parts = [_time(seconds, minute, hour), _day(day), _weekday(weekday), _month(month)]
    if parts[1] and parts[2]:
        parts[1:3] = [f"{parts[1]} or {parts[2]}"]  # cron runs when either matches
    return ", ".join(filter(None, parts))


def _time(seconds: str, minute: str, hour: str) -> str:
    if seconds == "0" and minute.isdecimal() and all(part.isdecimal() for part in hour.split(",")):
        return "at " + _listed([f"{int(part):02d}:{int(minute):02d}" for part in hour.split(",")])
    parts = [] if seconds == "0" else [_field(seconds, "second")]
    if seconds == "0" or minute != "*":
        parts.append(_field(minute, "minute"))
    if hour != "*":
        parts.append(_hours(hour))
    elif minute == "0" and seconds == "0":
        return "every hour, on the hour"
    return ", ".join(parts)


def _hours(hour: str) -> str:
    found = re.fullmatch(r"(\d+)-(\d+)", hour)
    if found:
        return f"from {int(found[1]):02d}:00 to {int(found[2]):02d}:59"
    return _field(hour, "hour")


def _field(text: str, unit: str) -> str:
    """One field: every, a step, a range, a list or one number."""
    if text == "*":
        return f"every {unit}"
    stepped = re.fullmatch(r"(\*|\d+-\d+|\d+)/(\d+)", text)
    if stepped:
        every = f"every {int(stepped[2])} {unit}s" if stepped[2] != "1" else f"every {unit}"
        return every if stepped[1] == "*" else f"{every} from {stepped[1].replace('-', ' to ')}"
    if re.fullmatch(r"\d+-\d+", text):
        return f"{unit}s {text.replace('-', ' to ')}"
    if re.fullmatch(r"\d+", text):
        return f"at {unit} {int(text)}"
    return f"at {unit}s {_listed([part.replace('-', ' to ') for part in text.split(',')])}"


def _day(day: str) -> str:
    if day in ("*", "?"):
        return ""
    if day in ("L", "LW"):
        return "on the last day of the month" if day == "L" else "on the last weekday of the month"
    stepped = re.fullmatch(r"\*/(\d+)", day)
    if stepped:
        return f"every {_ordinal(int(stepped[1]))} day of the month"
    parts = [part.replace("-", " to ") for part in day.split(",")]
    return f"on day{'s' if len(parts) > 1 or '-' in day else ''} {_listed(parts)} of the month"


def _weekday(weekday: str) -> str:
    if weekday in ("*", "?"):
        return ""
    return f"on {_listed([_one_weekday(part) for part in weekday.split(',')])}"


def _one_weekday(text: str) -> str:
    if found := re.fullmatch(r"(\w+)#(\d)", text):
        return f"the {_ordinal(int(found[2]))} {_name(found[1], _DAYS)}"
    if found := re.fullmatch(r"(\w+)L", text):
        return f"the last {_name(found[1], _DAYS)}"
    first, dash, last = text.partition("-")
    return f"{_name(first, _DAYS)} to {_name(last, _DAYS)}" if dash else _name(first, _DAYS)


def _month(month: str) -> str:
    if month == "*":
        return ""
    if stepped := re.fullmatch(r"\*/(\d+)", month):
        return f"in every {_ordinal(int(stepped[1]))} month"
    parts = []
    for part in month.split(","):
        first, dash, last = part.partition("-")
        named = _name(first, ["", *_MONTHS])
        parts.append(f"{named} to {_name(last, ['', *_MONTHS])}" if dash else named)
    return f"in {_listed(parts)}"


def _name(text: str, names: list[str]) -> str:
    if text.isdecimal():
        return names[int(text)] if int(text) < len(names) else text
    return next((name for name in names if name and name[:3].lower() == text[:3].lower()), text)


def _ordinal(number: int) -> str:
    return _ORDINALS.get(number, f"{number}th")


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return dict(value) if isinstance(value, Mapping) else str(value)
