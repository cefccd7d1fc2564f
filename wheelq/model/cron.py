"""Cron expressions in a time zone. cronsim parses and searches the fields; this module handles clock changes.

**An expression that names hours** (`30 2 * * *`, `0 */6 * * *`) means times on the wall clock, and each runs once:

    spring, 02:00 becomes 03:00      02:30 does not exist: it runs at 03:00, when the clocks change
    autumn, 03:00 becomes 02:00      02:30 comes twice: it runs the first time

Skipped times that move to the same moment, or to a moment that matches already, are one occurrence.

**An expression for every hour** (`*/15 * * * *`) follows elapsed time: it skips nothing and pauses for nothing, also in
the repeated hour in autumn.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from wheelq.errors import ConfigurationError, InvalidInput

DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # a wall clock has no zone
_MINUTE = timedelta(minutes=1)

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

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
        next(self._walls(_EPOCH), None)

    def after(self, ms: int) -> int | None:
        """Returns the first moment after `ms`; None if there is none in 50 years."""
        return self._on_the_wall(ms) if self._names_hours else self._as_time_passes(ms)

    def _on_the_wall(self, ms: int) -> int | None:
        for wall in self._walls(self._wall(ms, self._offset_ms(ms))):
            at = self._first(wall)
            if at > ms:
                return at
        return None

    def _as_time_passes(self, ms: int) -> int | None:
        since = ms + 1
        while True:
            offset_ms = self._offset_ms(since)
            wall = next(self._walls(self._wall(since - 1, offset_ms)), None)
            if wall is None:
                return None
            at = (wall - _EPOCH) // timedelta(milliseconds=1) - offset_ms
            change = self._change(since, at)
            if change is None:
                return at
            since = change

    def _walls(self, wall: datetime) -> Iterator[datetime]:
        """Yields the matching times after `wall`, on a wall clock that never changes."""
        try:
            from cronsim import CronSim, CronSimError  # an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "cron expressions need cronsim, which is not installed: pip install 'wheelq[recurring]'"
            ) from error
        try:
            return iter(CronSim(self._expression, wall))
        except CronSimError as error:
            raise InvalidInput("cron", _problem(self._expression, str(error))) from error

    def _first(self, wall: datetime) -> int:
        """Returns the moment when the wall clock first shows a time, or first passes it if the time is skipped."""
        while True:
            there = wall.replace(tzinfo=self._zone).astimezone(UTC)
            if there.astimezone(self._zone).replace(tzinfo=None) == wall:
                return int(there.timestamp()) * 1000
            wall += _MINUTE  # to the end of the skipped time: an hour, rarely a day

    def _wall(self, ms: int, offset_ms: int) -> datetime:
        return _EPOCH + timedelta(milliseconds=ms + offset_ms)

    def _offset_ms(self, ms: int) -> int:
        offset = datetime.fromtimestamp(ms // 1000, self._zone).utcoffset()
        assert offset is not None
        return offset // timedelta(milliseconds=1)

    def _change(self, since: int, until: int) -> int | None:
        """Returns the first moment up to `until` whose offset differs from that of `since`."""
        offset_ms = self._offset_ms(since)
        for day in range(since, until, DAY_MS):
            low, high = day, min(day + DAY_MS, until)
            if self._offset_ms(high) != offset_ms:
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self._offset_ms(middle) == offset_ms else (low, middle)
                return high
        return None


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
