"""Dead jobs as callers see them: why a job was buried, filters for dead jobs, and the outcomes of a replay.

A group buries a job, and the job is dead for that group only. Its `dead_id` is the moment of its burial and its shard:
`1763000000000-0:3`. Sorting by `dead_id` gives the order of burial over all shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Self, TypedDict

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_flag, check_id, moment_ms, shown
from wheelq.model.job import Outcome, Payload, from_ms

_POSITION = re.compile(r"([0-9]{1,20})-([0-9]{1,20}):([0-9]{1,5})")
_GREATEST = 2**64 - 1
"""The largest value of either number in an entry's id."""


class Reason(StrEnum):
    """Why a job was buried."""

    FAILED = "failed"
    """Its handler failed, and it has no attempts left or the error must not be retried."""
    GIVEN_UP = "given_up"
    """Its handler raised `Bury`."""
    UNREADABLE = "unreadable"
    """Its record cannot be read by this release."""
    PAYLOAD_MISMATCH = "payload-mismatch"
    """Its payload does not fit the types of its handler, and no worker that it fits took it within `mismatch_ms`."""
    EXPIRED = "expired"
    """It could not start before its `expires`."""
    MISFIRED = "misfired"
    """It could not start within the topic's grace."""
    CANCELLED = "cancelled"
    """It was cancelled while a worker had it."""
    DELIVERIES = "deliveries"
    """It was delivered too often without an answer: it seems to kill its workers."""
    UNDELIVERED = "undelivered"
    """It follows another job, and its topic did not take it, or may have taken it too long ago to be asked."""
    NO_RECORD = "no record"
    """Its record had been removed when it fell due, so there is nothing to run again."""


class ReplayOutcome(Outcome):
    """The outcome of `replay_one`."""

    REPLAYED = "replayed"
    """It was dead and waits to run again, from attempt 1."""
    NOT_FOUND = "not_found"
    """It is not among the dead jobs: already replayed, purged or trimmed."""
    ALIVE = "alive"
    """A live job has its id, so it stays dead: two jobs with one id could not be told apart."""
    NO_RECORD = "no_record"
    """It has nothing to run: its record was missing when it was buried."""


class Replayed(NamedTuple):
    """The counts that `replay` returns."""

    replayed: int
    """Jobs that run again."""
    kept: int
    """Jobs that stay dead, because a live job has their id or their record is missing."""


class Position(NamedTuple):
    """The place of a dead job in its topic; as text, its `dead_id`."""

    ms: int
    number: int
    shard: int

    @classmethod
    def parse(cls, text: str, field: str = "dead_id") -> Self:
        """The position in a `dead_id` or cursor. Raises: InvalidInput."""
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        ms, number, shard = map(int, found.groups()) if found else (0, 0, 0)
        # Redis refuses ranges beyond the first and the last id that it can write.
        if not (0, 0) < (ms, number) < (_GREATEST, _GREATEST) or number > _GREATEST:
            raise InvalidInput(field, f"{text!r:.60} is not valid; `list` shows it, like 1763000000000-0:3")
        return cls(ms, number, shard)

    @classmethod
    def of(cls, entry_id: str, shard: int) -> Self:
        """The position of an entry of a shard's dead stream."""
        ms, _, number = entry_id.partition("-")
        return cls(int(ms), int(number), shard)

    @property
    def entry_id(self) -> str:
        """The entry in its shard's dead stream."""
        return f"{self.ms}-{self.number}"

    def __str__(self) -> str:
        return f"{self.entry_id}:{self.shard}"


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that one group has given up."""

    dead_id: str
    """The argument of `show`, `replay_one` and `purge_one`."""
    topic: str
    id: str
    """The job's id; it is not unique here: several groups may bury a job, and a later job may have the same id."""
    group: str
    reason: str
    """One of `Reason`, or a reason from a newer release."""
    error: str
    """The last error in one line, at most 500 characters."""
    traceback: str
    """The end of its traceback, at most 4,000 characters; "" when there was none."""
    attempt: int
    """The number of the last attempt."""
    first_due_ms: int
    """When the job was first due."""
    due_ms: int
    """When its last attempt was due."""
    buried_ms: int
    """When it was buried, by the server's clock."""
    payload: Payload
    """None when the record cannot be read."""
    headers: Mapping[str, str]
    replays: int = 0
    """How often it was replayed before this burial."""

    @property
    def buried(self) -> datetime:
        """`buried_ms` as an aware datetime in UTC."""
        return from_ms(self.buried_ms)


class DeadPage(NamedTuple):
    """One page of dead jobs, and the cursor of the next."""

    jobs: list[DeadJob]
    """May be fewer than the limit, even none, although more follow: a call looks at a bounded number of jobs."""
    cursor: str | None
    """The argument of `list` for the next page; None after the last."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Selects the dead jobs that match every given field."""

    group: str = ""
    reason: str = ""
    id: str = ""
    since_ms: int | None = None
    """Buried at this time or later."""
    until_ms: int | None = None
    """Buried before this time."""

    @classmethod
    def of(
        cls, group: str | None, reason: str | None, id: str | None, since: datetime | None, until: datetime | None
    ) -> Self:
        """Returns the filter for a caller's arguments. Raises: InvalidInput."""
        return cls(
            "" if group is None else check_id(group, "group"),
            "" if reason is None else check_id(reason, "reason"),
            "" if id is None else check_id(id, "id"),
            moment_ms(since, "since"),
            moment_ms(until, "until"),
        )

    def check_choice(self, all: bool, doing: str) -> None:
        """Check that a call has either a filter or `all`: a lost filter must not mean all. Raises: InvalidInput."""
        check_flag(all, "all")
        if self == DeadFilter() and not all:
            filters = ", ".join(Where.__annotations__)
            raise InvalidInput(
                "all", f"say which dead jobs to {doing}, by a filter ({filters}), or all=True (over HTTP all=true)"
            )
        if self != DeadFilter() and all:
            raise InvalidInput("all", "is not for a filter: leave either out")


class Where(TypedDict):
    """The filter's fields as keyword arguments of the methods of `client.dead`."""

    group: str | None
    reason: str | None
    id: str | None
    since: datetime | None
    until: datetime | None


def check_rate(rate: float | None) -> float:
    """Returns the milliseconds between two jobs at `rate` jobs a second; None is unlimited. Raises: InvalidInput."""
    if rate is None:
        return 0.0
    if not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1e6:  # catches NaN too
        raise InvalidInput("rate", f"must be 0.001 to 1,000,000 jobs a second, not {shown(rate)}")
    return 1000 / rate
