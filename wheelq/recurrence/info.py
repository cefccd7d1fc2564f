"""Recurring jobs as people meet them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from wheelq.arguments import check_id
from wheelq.errors import InvalidInput
from wheelq.job import Payload, Priority, from_ms
from wheelq.recurrence.rule import Rule

NAME_BYTES_LIMIT = 200
"""A job id has at most 256 bytes, and an occurrence's is the name, "@" and a moment."""


class RecurringOutcome(StrEnum):
    """What became of a recurring job."""

    CREATED = "created"
    """It is new."""
    UPDATED = "updated"
    """One of this name was there and is now as said; an occurrence that waited was taken back and is made anew."""
    UNCHANGED = "unchanged"
    """It was so already, and nothing was touched."""
    PAUSED = "paused"
    """It occurs no more until resumed; an occurrence that waited was taken back."""
    RESUMED = "resumed"
    """It occurs again, from now on: what fell into the pause is not made up for."""
    REMOVED = "removed"
    """It is gone, and so is an occurrence that waited."""
    NOT_FOUND = "not_found"
    """The topic has no recurring job of this name."""


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
    """A recurring job as it stands."""

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
    """When the occurrence that was made last is due, which may lie a few seconds ahead; None before the first."""

    @property
    def next(self) -> datetime | None:
        """`next_ms` as an aware datetime in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)

    @property
    def last(self) -> datetime | None:
        """`last_ms` as an aware datetime in UTC."""
        return None if self.last_ms is None else from_ms(self.last_ms)


def check_name(name: str) -> str:
    """The name, if it can be one. Raises: InvalidInput."""
    if len(check_id(name, "name").encode()) > NAME_BYTES_LIMIT:
        raise InvalidInput("name", f"{len(name.encode())} bytes long, the limit is {NAME_BYTES_LIMIT}")
    return name
