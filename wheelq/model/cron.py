"""Cron expressions in a time zone, searched and put into words by cronsim.

**An expression that names hours** (`30 2 * * *`, `0 */6 * * *`) means times on the wall clock, and each runs once:

    spring, 02:00 becomes 03:00      02:30 does not exist: it runs at 03:00, when the clocks change
    autumn, 03:00 becomes 02:00      02:30 comes twice: it runs the first time

Skipped times that move to the same moment, or to a moment that matches already, are one occurrence.

**An expression for every hour** (`*/15 * * * *`) follows elapsed time: it skips nothing and pauses for nothing, also in
the repeated hour in autumn. Lord Howe Island is the exception, whose clocks change by half an hour: there an expression
with one minute from 30 to 58 (`45 * * * *`) leaves out one occurrence at each change.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from difflib import get_close_matches
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from wheelq.errors import ConfigurationError, InvalidInput

if TYPE_CHECKING:
    from cronsim import CronSim

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

MINUTE_MS = 60_000
_FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L (the last) or LW (the last weekday), and a day that the months have",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday), SUN to SAT, MON#2 (the second Monday) or 5L (the last Friday)",
}


class Cron:
    """The moments that match a cron expression.

    Raises: InvalidInput, which names the field; ConfigurationError if cronsim is not installed.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._zone = zone
        self._expression = NICKNAMES.get(expression.strip().lower(), expression)
        fields = self._expression.split()
        self._names_hours = len(fields) >= 5 and fields[-4] != "*"
        if len(self._search(0).hours) == 24 and self._names_hours:  # `*/1` or `0-23`: as time passes, like `*`
            self._expression = " ".join((*fields[:-4], "*", *fields[-3:]))
            self._names_hours = False

    def after(self, ms: int) -> int | None:
        """Returns the first moment after `ms`; None if there is none in 50 years."""
        if self._names_hours:  # a time that was skipped less than a minute ago may run in this minute
            first = next((int(at.timestamp()) * 1000 for at in self._search(ms - MINUTE_MS)), None)
            if first is None or first > ms:
                return first
        moments = (int(at.timestamp()) * 1000 for at in self._search(ms))
        return next((at for at in moments if at > ms), None)  # a repeated hour is searched from its first run

    def in_words(self) -> str:
        """Returns the expression in words, such as "At 02:30 on Sunday"."""
        return self._search(0).explain()

    def _search(self, ms: int) -> CronSim:
        """Returns the search for moments from `ms` on."""
        try:
            from cronsim import CronSim, CronSimError  # an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "cron expressions need cronsim, which is not installed: pip install 'wheelq[recurring]'"
            ) from error
        since = datetime.fromtimestamp(ms // 1000, self._zone)
        try:
            search = CronSim(self._expression, since.replace(tzinfo=None) if self._names_hours else since)
        except CronSimError as error:
            raise InvalidInput("cron", _problem(self._expression, str(error))) from error
        if self._names_hours:
            search.fixup_tz = self._zone  # by itself, cronsim leaves some expressions that name hours to elapsed time
        return search


def zone_of(name: str) -> tzinfo:
    """Returns the time zone with this IANA name. Raises: InvalidInput, which suggests similar names."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        known = available_timezones()
        if not known:
            raise ConfigurationError(
                "this machine has no time zones: install them with its package manager, or pip install tzdata"
            ) from error
        raise InvalidInput("tz", f"{name!r} is not a time zone: {_meant(str(name), known)}") from error


def _meant(name: str, known: set[str]) -> str:
    folded = {zone.casefold(): zone for zone in known}
    place = name.casefold().replace(" ", "_")
    found = [zone for zone in sorted(known) if zone.casefold().rpartition("/")[2] == place.rpartition("/")[2]]
    found = found or [folded[zone] for zone in get_close_matches(place, folded, n=3, cutoff=0.85)]
    meant = f"did you mean {' or '.join(found[:3])}? " if found else ""
    return f"{meant}use an IANA name like Europe/Berlin, or UTC"


def _problem(expression: str, said: str) -> str:
    fields = expression.split()
    bad = said.removeprefix("Bad ")
    if bad in _FIELDS and len(fields) in (5, 6):
        place = list(_FIELDS).index(bad) - (len(fields) == 5)
        return f"{fields[place]!r} is not a valid {bad}: use {_FIELDS[bad]}; also *, */5, 1-5 and 1,3"
    return (
        f"{expression!r} has {len(fields)} fields, and needs five: minute hour day-of-month month day-of-week "
        "(or six, with seconds first), for instance '30 2 * * MON-FRI', or a name like @daily"
    )
