"""Dead jobs as people meet them: why one was buried, which ones are looked for, and what came of calling them back.

A job is buried by one group, and dead for that group only. It is named by its `dead_id`: the moment of its burial and
its shard, `1763000000000-0:3`. Sorted by it, dead jobs stand in the order of their burial over all shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Self, TypedDict

from wheelq.arguments import check_id, due_argument
from wheelq.errors import InvalidInput
from wheelq.job import Payload, from_ms

_POSITION = re.compile(r"([0-9]{1,20})-([0-9]{1,20}):([0-9]{1,5})")
_GREATEST = 2**64 - 1
"""What either number of an entry's id can be at most."""
LIMIT = 500
"""Most dead jobs on one page."""


class Reason(StrEnum):
    """Why a job was buried."""

    FAILED = "failed"
    """Its handler failed and the attempts are used up, or the error is not to be retried."""
    GIVEN_UP = "given_up"
    """Its handler said so: it raised `Bury`."""
    UNREADABLE = "unreadable"
    """Its record cannot be read by this release."""
    EXPIRED = "expired"
    """It was too late to start it: its `expires` had passed."""
    MISFIRED = "misfired"
    """It was too late to start it: the topic's grace had passed."""
    CANCELLED = "cancelled"
    """Somebody cancelled it while it ran."""
    DELIVERIES = "deliveries"
    """It was delivered too often without an answer: it seems to kill its workers."""
    NO_RECORD = "no record"
    """Its record was missing when it fell due: somebody removed it. There is nothing to run again."""


class ReplayOutcome(StrEnum):
    """What `replay_one` found."""

    REPLAYED = "replayed"
    """It was dead and waits to run again, from attempt 1."""
    NOT_FOUND = "not_found"
    """It is not among the dead: called back, purged or trimmed before."""
    ALIVE = "alive"
    """A live job has its id, so it stays dead: two of one id would be taken for each other."""
    NO_RECORD = "no_record"
    """There is nothing to run: its record was missing when it was buried."""


class Replayed(NamedTuple):
    """What `replay` did."""

    replayed: int
    """Jobs that run again."""
    kept: int
    """Jobs that stay dead, because a live one has their id, or their record is missing."""


class Position(NamedTuple):
    """The place of a dead job among all of its topic; as text, its `dead_id`."""

    ms: int
    number: int
    shard: int

    @classmethod
    def parse(cls, text: str, field: str = "dead_id") -> Self:
        """The position in a `dead_id` or cursor. Raises: InvalidInput."""
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        ms, number, shard = map(int, found.groups()) if found else (0, 0, 0)
        # Redis refuses to look beyond the first and the last id that it can write.
        if not (0, 0) < (ms, number) < (_GREATEST, _GREATEST) or number > _GREATEST:
            raise InvalidInput(field, f"{text!r:.60} is none: it looks like 1763000000000-0:3, and `list` tells it")
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
    """A job that was given up, by one group."""

    dead_id: str
    """What `show`, `replay_one` and `purge_one` take."""
    topic: str
    id: str
    """The job's id; several groups may have buried it, and jobs that had the id one after the other too."""
    group: str
    reason: str
    """One of `Reason`, or what a newer release wrote."""
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
    """How often it had been called back from the dead before."""

    @property
    def buried(self) -> datetime:
        """`buried_ms` as an aware datetime in UTC."""
        return from_ms(self.buried_ms)


class DeadPage(NamedTuple):
    """Some dead jobs, and where to go on."""

    jobs: list[DeadJob]
    """May be fewer than asked for, even none, although more follow: a call looks at a bounded number."""
    cursor: str | None
    """What to give `list` for the next page; None when this was the last."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead jobs are meant: those that match everything that is given."""

    group: str = ""
    reason: str = ""
    id: str = ""
    since_ms: int | None = None
    """Buried then or later."""
    until_ms: int | None = None
    """Buried before."""

    @classmethod
    def of(
        cls, group: str | None, reason: str | None, id: str | None, since: datetime | None, until: datetime | None
    ) -> Self:
        """A filter from what a caller gives. Raises: InvalidInput."""
        return cls(
            "" if group is None else check_id(group, "group"),
            "" if reason is None else check_id(reason, "reason"),
            "" if id is None else check_id(id, "id"),
            moment_ms(since, "since"),
            moment_ms(until, "until"),
        )

    def check_choice(self, all: bool, doing: str) -> None:
        """Raises: InvalidInput, unless there is either a filter or `all`: a filter that got lost must not mean all."""
        if self == DeadFilter() and not all:
            filters = ", ".join(Where.__annotations__)
            raise InvalidInput(
                "all", f"say which dead jobs to {doing}, by a filter ({filters}), or all=True (over HTTP all=true)"
            )
        if self != DeadFilter() and all:
            raise InvalidInput("all", "is not for a filter: leave either out")


class Where(TypedDict):
    """The same, as the methods of `client.dead` take it."""

    group: str | None
    reason: str | None
    id: str | None
    since: datetime | None
    until: datetime | None


def check_limit(limit: int) -> int:
    """Raises: InvalidInput, unless it can be the length of a page."""
    if not 1 <= limit <= LIMIT:
        raise InvalidInput("limit", f"must be 1 to {LIMIT}, not {limit!r}")
    return limit


def check_rate(rate: float | None) -> float:
    """Milliseconds between two jobs at so many a second; None: as fast as it goes. Raises: InvalidInput."""
    if rate is None:
        return 0.0
    if not 0.001 <= rate <= 1e6:  # catches NaN too
        raise InvalidInput("rate", f"must be 0.001 to 1,000,000 jobs a second, not {rate!r}")
    return 1000 / rate


def moment_ms(at: datetime | None, field: str) -> int | None:
    """A moment of a filter in ms since the epoch; None: none was given. Raises: InvalidInput."""
    if at is None:
        return None
    try:
        return int(due_argument(None, at, 0, 1 << 62))
    except InvalidInput as error:
        raise InvalidInput(field, error.problem) from error
