"""`Rule`: when a recurring job occurs, as it was said, and the occurrences that follow.

An *occurrence* is a moment of the rule, and its *due time* that moment plus jitter: a delay drawn from the name and the
moment, so that every node draws the same. An interval counts from `start`, or else from the Unix epoch, and never from
the last run: so it cannot drift, and saying the same again does not move it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, Self, get_args

from wheelq.errors import InvalidInput
from wheelq.recurrence.cron import Cron, zone_of

Missed = Literal["coalesce", "skip", "all"]
"""What becomes of occurrences that could not be made in time: the latest runs; none; all."""

SHORTEST_MS = 1_000
LONGEST_MS = 3_660 * 86_400_000
SKIP_GRACE_MS = 60_000
"""With "skip": how late an occurrence may be made, when nothing else was said."""
GAPS = 50
"""Occurrences looked at to tell how close together they come."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_LOOK_BACK_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Rule:
    """When a recurring job occurs. Made by `Rule.of`, which checks; times are milliseconds."""

    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    """IANA time zone of the cron expression."""
    start_ms: int | None = None
    """No occurrence before; an interval counts from here."""
    end_ms: int | None = None
    """No occurrence after."""
    jitter_ms: int = 0
    missed: Missed = "coalesce"
    grace_ms: int | None = None
    """Missed occurrences that are later than this do not run; None: however late they are."""

    @classmethod
    def of(
        cls,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0,
        missed: Missed = "coalesce",
        grace: float | timedelta | None = None,
    ) -> Self:
        """A rule from what was said; numbers are seconds. Raises: InvalidInput naming it, ConfigurationError."""
        if (cron is None) == (every is None):
            raise InvalidInput("cron", "give either cron (an expression) or every (seconds or a timedelta)")
        if cron is not None and not isinstance(cron, str):
            raise InvalidInput("cron", f"must be an expression like '30 2 * * *', not {type(cron).__name__}")
        if missed not in get_args(Missed):
            raise InvalidInput("missed", f"must be 'coalesce', 'skip' or 'all', not {missed!r}")
        every_ms = None if every is None else _span_ms("every", every)
        if every_ms is not None and not SHORTEST_MS <= every_ms <= LONGEST_MS:
            raise InvalidInput("every", f"must be from 1 second to 10 years, not {every!r}")
        rule = cls(
            cron,
            every_ms,
            tz,
            None if start is None else _moment_ms("start", start),
            None if end is None else _moment_ms("end", end),
            _span_ms("jitter", jitter),
            missed,
            None if grace is None else _span_ms("grace", grace),
        )
        rule._check()
        return rule

    def next(self, after_ms: int) -> int | None:
        """The first occurrence after a moment; None when there is none."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.every_ms is not None:
            anchor_ms = self.start_ms or 0
            found: int | None = anchor_ms + ((after_ms - anchor_ms) // self.every_ms + 1) * self.every_ms
        else:
            found = _cron(self.cron or "", self.tz).after(after_ms)
        return None if found is None or (self.end_ms is not None and found > self.end_ms) else found

    def last(self, until_ms: int, since_ms: int) -> int | None:
        """The last occurrence up to a moment, and not before `since_ms`; None when there is none."""
        look_back_ms = self.every_ms or _FIRST_LOOK_BACK_MS
        while True:
            from_ms = max(until_ms - look_back_ms, since_ms - 1)
            found = None
            following = self.next(from_ms)
            while following is not None and following <= until_ms:
                found, following = following, self.next(following)
            if found is not None or from_ms < since_ms:
                return found
            look_back_ms *= 8

    def due_ms(self, name: str, occurrence_ms: int) -> int:
        """When an occurrence of the recurring job of this name is due."""
        if not self.jitter_ms:
            return occurrence_ms
        draw = blake2b(f"{name}@{occurrence_ms}".encode(), digest_size=8).digest()
        return occurrence_ms + int.from_bytes(draw, "big") % (self.jitter_ms + 1)

    def _check(self) -> None:
        zone_of(self.tz)
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise InvalidInput("end", "must not be before start")
        first = self.next(self.start_ms - 1 if self.start_ms is not None else 0)
        if first is None:
            raise InvalidInput("end" if self.end_ms is not None else "cron", "there is no occurrence, ever")
        gap_ms = self._shortest_gap(first)
        if gap_ms is not None and self.jitter_ms > gap_ms:
            raise InvalidInput(
                "jitter", f"{self.jitter_ms / 1000:g} s, but occurrences come {gap_ms / 1000:g} s apart: at most that"
            )

    def _shortest_gap(self, first: int) -> int | None:
        """How close together occurrences come, as far as the first ones tell; without jitter nobody needs to know."""
        if self.every_ms is not None or not self.jitter_ms:
            return self.every_ms
        gaps: list[int] = []
        following = self.next(first)
        while following is not None and len(gaps) < GAPS:
            gaps.append(following - first)
            first, following = following, self.next(following)
        return min(gaps, default=None)

    def to_map(self) -> dict[str, Any]:
        """What differs from the defaults, as it is stored."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}

    @classmethod
    def from_map(cls, stored: dict[str, Any]) -> Self:
        """A stored rule; what a newer release wrote besides is passed over."""
        return cls(**{item.name: stored[item.name] for item in fields(cls) if item.name in stored})


@lru_cache(maxsize=1_000)
def _cron(expression: str, tz: str) -> Cron:
    return Cron(expression, zone_of(tz))


def _span_ms(field: str, span: float | timedelta) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidInput(field, f"must be seconds (a number) or a timedelta, not {type(span).__name__}")
    if not 0 <= seconds * 1000 <= LONGEST_MS:  # catches NaN too
        raise InvalidInput(field, f"must be from 0 seconds to 10 years, not {span!r}")
    return round(seconds * 1000)


def _moment_ms(field: str, moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise InvalidInput(field, f"must be an aware datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise InvalidInput(field, f"{moment.isoformat()} has no time zone: use datetime.now(UTC) or add tzinfo")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
