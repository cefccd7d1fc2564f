"""`TopicMinute`: what happened in a topic in one minute."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from wheelq.errors import InvalidInput
from wheelq.model.job import from_ms

KEPT_HOURS = 72
"""For how many hours minutes are kept."""


@dataclass(frozen=True, slots=True)
class TopicMinute:
    """What happened in a topic in one minute, all shards and groups together."""

    FIGURES: ClassVar[int] = 6

    at_ms: int
    """When the minute began, in ms since the epoch."""
    scheduled: int = 0
    """Jobs that were made."""
    promoted: int = 0
    """Jobs that became ready, retries among them."""
    done: int = 0
    """Runs that succeeded; a job has one in each group."""
    retried: int = 0
    """Runs that failed and are repeated later."""
    buried: int = 0
    """Runs that failed for good: their jobs are dead."""
    late: int = 0
    """Jobs that were promoted a second (1,024 ms) or more after their due time."""

    @property
    def at(self) -> datetime:
        """`at_ms` as an aware datetime in UTC."""
        return from_ms(self.at_ms)

    def __add__(self, other: TopicMinute) -> TopicMinute:
        return TopicMinute(
            self.at_ms,
            self.scheduled + other.scheduled,
            self.promoted + other.promoted,
            self.done + other.done,
            self.retried + other.retried,
            self.buried + other.buried,
            self.late + other.late,
        )


def check_hours(hours: int) -> int:
    """Returns the number of hours to look back, if it is valid. Raises: InvalidInput."""
    if type(hours) is not int or not 1 <= hours <= KEPT_HOURS:
        raise InvalidInput("hours", f"must be a whole number from 1 to {KEPT_HOURS}, not {hours!r}")
    return hours
