"""Recurring jobs as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypedDict

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id
from wheelq.model.job import Payload, Priority, from_ms
from wheelq.model.recurring.rule import Missed, Rule

NAME_BYTES_LIMIT = 200
"""An occurrence's job id, of at most 256 bytes, is the name, "@" and a moment."""


class RecurringOutcome(StrEnum):
    """The outcome of a change to a recurring job."""

    CREATED = "created"
    """It is new."""
    UPDATED = "updated"
    """It existed and was changed; its waiting occurrence was withdrawn and is made again."""
    UNCHANGED = "unchanged"
    """It was the same already; nothing was changed."""
    PAUSED = "paused"
    """It does not occur until `resume`; its waiting occurrence was withdrawn."""
    RESUMED = "resumed"
    """It occurs again from now on; occurrences missed during the pause do not run."""
    REMOVED = "removed"
    """It was removed, with its waiting occurrence."""
    NOT_FOUND = "not_found"
    """The topic has no recurring job with this name."""


class RecurringOptions(TypedDict, total=False):
    """The arguments of `client.recurring.put` besides the job itself."""

    cron: str | None
    every: float | timedelta | None
    tz: str
    start: datetime | None
    end: datetime | None
    jitter: float | timedelta
    missed: Missed
    grace: float | timedelta | None
    headers: Mapping[str, str] | None
    priority: Priority
    expires: float | timedelta | None


class RecurringReceipt(NamedTuple):
    """The answer to `put`."""

    name: str
    outcome: RecurringOutcome
    """CREATED, UPDATED or UNCHANGED."""
    next_ms: int | None
    """When it is next due; None while it is paused, or past its end."""

    @property
    def next(self) -> datetime | None:
        """`next_ms` as an aware datetime in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)


@dataclass(frozen=True, slots=True)
class RecurringInfo:
    """A recurring job and its next and last occurrence."""

    topic: str
    name: str
    rule: Rule
    payload: Payload
    headers: Mapping[str, str]
    priority: Priority
    is_paused: bool
    next_ms: int | None
    """When it is next due; None while it is paused, or past its end."""
    last_ms: int | None
    """When the last occurrence made is due, which may be a few seconds ahead; None before the first."""

    @property
    def next(self) -> datetime | None:
        """`next_ms` as an aware datetime in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)

    @property
    def last(self) -> datetime | None:
        """`last_ms` as an aware datetime in UTC."""
        return None if self.last_ms is None else from_ms(self.last_ms)


def check_name(name: str) -> str:
    """Returns the name if it is valid. Raises: InvalidInput."""
    if len(check_id(name, "name").encode()) > NAME_BYTES_LIMIT:
        raise InvalidInput("name", f"{len(name.encode())} bytes long, the limit is {NAME_BYTES_LIMIT}")
    return name
