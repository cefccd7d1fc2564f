"""A cron expression in words: "at 02:30, Monday to Friday". Pure.

    in_words("*/15 * * * *")      every 15 minutes
    in_words("30 2 * * MON-FRI")  at 02:30, on Monday to Friday
    in_words("0 9 1 */3 *")       at 09:00, on day 1 of the month, in every 3rd month

Every field is put into words separately, so that this works for all expressions. A text without five or six fields is
returned unchanged.
"""

from __future__ import annotations

import re

from wheelq.model.recurring.cron import NICKNAMES

_MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd", 21: "21st", 22: "22nd", 23: "23rd", 31: "31st"}
LONGEST = 200
"""Longer expressions are shown as they are."""


def in_words(expression: str) -> str:
    """Returns what an expression says."""
    text = NICKNAMES.get(expression.strip().lower(), expression)
    fields = text.split()
    if len(fields) not in (5, 6) or len(text) > LONGEST:
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
