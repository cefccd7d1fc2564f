"""Jobs as people meet them: what a producer says, what it is told, what a handler gets.

    JobSpec ──schedule──▶ Receipt           producer: what and when → the id, the due time, whether it is new
    Job                                     handler: one delivery of one job
    JobInfo                                 anyone: where a job stands

A *job id* is either given (`key="order-42"`, unique in its topic while the job is alive) or made here: 26 characters
that sort by creation time, so that a call repeated with the same id can never make two jobs.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple, get_args

from wheelq.clock import wall_ms
from wheelq.errors import InvalidInput

Payload = Any
"""None, bool, int (64 bit), float, str, bytes, and lists and string-keyed dicts of these."""

OnDuplicate = Literal["keep", "replace", "raise"]

TOPIC_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ID_BYTES_LIMIT = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job to schedule: `payload` and either `delay` (seconds or timedelta) or `at` (aware datetime).

    `key` is the job's id (else one is made), `headers` travel beside the payload, `partition_key` chooses the shard
    instead of the id: jobs with one partition key share a shard.
    """

    payload: Payload = None
    delay: float | timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition_key: str | None = None


class Receipt(NamedTuple):
    """The answer to a schedule call for one job."""

    id: str
    """The job's id."""
    due_ms: int
    """When it is due, in milliseconds since the Unix epoch; of the live job if one was already there."""
    created: bool
    """False: a live job has this id, and nothing was changed."""
    replaced: bool = False
    """True: a waiting job had this id and took the new payload and time (`on_duplicate="replace"`)."""

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)


class CancelOutcome(StrEnum):
    """What `cancel` found."""

    CANCELLED = "cancelled"
    """It was waiting and will never run."""
    RUNNING = "running"
    """Too late: it is with the workers, queued or running, or waits for a retry there."""
    NOT_FOUND = "not_found"
    """No live job has this id: never scheduled, finished or cancelled before."""


class RescheduleOutcome(StrEnum):
    """What `reschedule` found."""

    RESCHEDULED = "rescheduled"
    """It was waiting and has the new due time."""
    RUNNING = "running"
    """Too late: it is with the workers."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


class RunNowOutcome(StrEnum):
    """What `run_now` found."""

    PROMOTED = "promoted"
    """It was waiting and is now with the workers."""
    RUNNING = "running"
    """It is with the workers already."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


class JobState(StrEnum):
    """Where a live job stands."""

    DELAYED = "delayed"
    """Waiting for its due time."""
    READY = "ready"
    """Promoted; no worker of the asked group has it yet."""
    RUNNING = "running"
    """Delivered to a worker."""
    RETRYING = "retrying"
    """Failed in some group, and waits for its next attempt there."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of a live job."""

    id: str
    topic: str
    state: JobState
    due_ms: int
    payload: Payload
    headers: Mapping[str, str]
    attempt: int
    promoted_ms: int | None = None
    shard: int = 0

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)


@dataclass(slots=True, eq=False)  # not frozen: one is made for every delivery, and frozen ones cost three times as much
class Job:
    """One delivery of a job to a handler."""

    id: str
    topic: str
    payload: Payload
    due_ms: int
    attempt: int
    """1 for the first run; counts failed runs, not deliveries repeated after a crash."""
    entry_id: str
    """Id of the ready entry that was delivered, for logs."""
    started_ms: float
    """When this delivery was handed to the handler, by the server's clock."""
    headers: Mapping[str, str] = field(default_factory=dict)
    redelivered: bool = False
    """True when another worker had this delivery and died, or handed it back."""

    @property
    def due(self) -> datetime:
        """When it was due, as an aware datetime in UTC."""
        return from_ms(self.due_ms)

    @property
    def promoted_ms(self) -> int:
        """When the scheduler made it ready, by the server's clock."""
        return int(self.entry_id.partition("-")[0])

    @property
    def lateness(self) -> float:
        """Seconds from the due time to the start of the handler."""
        return (self.started_ms - self.due_ms) / 1000


def from_ms(ms: float) -> datetime:
    """Milliseconds since the Unix epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)


def check_topic(topic: str) -> str:
    """The topic's name, if it is one. Raises: InvalidInput."""
    if not isinstance(topic, str) or not TOPIC_PATTERN.fullmatch(topic):
        raise InvalidInput(
            "topic",
            f"{topic!r} is no topic name: use 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first",
        )
    return topic


def check_id(id: str, field: str = "key") -> str:
    """The job id, if it can be one. Raises: InvalidInput."""
    if not isinstance(id, str) or not id:
        raise InvalidInput(field, f"a job id is a non-empty string, not {id!r}")
    if _CONTROL.search(id):
        raise InvalidInput(field, f"{id!r} holds control characters, which a job id may not")
    try:
        id_bytes = len(id.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"{id!r} is not valid Unicode text ({error.reason})") from error
    if id_bytes > ID_BYTES_LIMIT:
        raise InvalidInput(field, f"{id_bytes} bytes long, the limit is {ID_BYTES_LIMIT}")
    return id


def check_on_duplicate(on_duplicate: str) -> None:
    """Raises: InvalidInput, unless it is one of the three words."""
    if on_duplicate not in get_args(OnDuplicate):
        raise InvalidInput("on_duplicate", f"must be 'keep', 'replace' or 'raise', not {on_duplicate!r}")


_MAX_DELAY_HINT = "schedule it nearer, or raise max_delay_ms"


def due_argument(delay: float | timedelta | None, at: datetime | None, now_ms: int, max_delay_ms: int) -> str:
    """When a job is due, as the schedule script reads it: "+ms" after the server's now, or "ms" since the epoch.

    `now_ms` (this machine's clock) serves only to refuse an absurd `at`. Raises: InvalidInput.
    """
    if at is not None:
        if delay is not None:
            raise InvalidInput("at", "give either delay or at, not both")
        return str(_due_ms(at, now_ms, max_delay_ms))
    if delay is None:
        raise InvalidInput("delay", "missing: give delay (seconds or timedelta) or at (aware datetime)")
    return "+" + str(_delay_ms(delay, max_delay_ms))


def _delay_ms(delay: float | timedelta, max_delay_ms: int) -> int:
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise InvalidInput("delay", f"must be seconds (a number) or a timedelta, not {type(delay).__name__}")
    if not delay >= 0:  # catches NaN too
        raise InvalidInput("delay", f"must not be negative, not {delay!r}; 0 means at once")
    if delay * 1000 > max_delay_ms:
        raise InvalidInput(
            "delay", f"{delay!r} s is beyond the limit of {max_delay_ms / 1000:,.0f} s; {_MAX_DELAY_HINT}"
        )
    ms = int(delay * 1000)
    # Never early: a fraction of a millisecond is rounded up. Multiplying may miss a whole number by a hair (0.29 s is
    # 290.00000000000006 ms), and such a hair is not a fraction.
    return ms if delay * 1000 - ms < 1e-6 else ms + 1


def _due_ms(at: datetime, now_ms: int, max_delay_ms: int) -> int:
    if not isinstance(at, datetime):
        raise InvalidInput("at", f"must be an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidInput("at", f"{at.isoformat()} has no time zone: use datetime.now(UTC) or add tzinfo")
    microseconds = (at - _EPOCH) // timedelta(microseconds=1)
    ms = -(-microseconds // 1000)
    if ms < 0:
        raise InvalidInput("at", f"{at.isoformat()} lies before 1970")
    if ms - now_ms > max_delay_ms:
        raise InvalidInput(
            "at", f"{at.isoformat()} is beyond the limit of {max_delay_ms / 1000:,.0f} s from now; {_MAX_DELAY_HINT}"
        )
    return ms


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# --- ids made by the producer -----------------------------------------------------------------------------------
# 48 bits of milliseconds, 50 bits that belong to this process alone, 30 bits of counting: 26 Crockford base32
# characters, like a ULID. Ten bits at a time from a table, because bulk producers make one for every microsecond.
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _BASE32 for b in _BASE32]


class _IdMaker:
    def __init__(self) -> None:
        self.seed()

    def seed(self) -> None:
        self._process = "".join(_PAIRS[secrets.randbelow(1024)] for _ in range(5))
        self._numbers = itertools.count(secrets.randbelow(1 << 20))
        self._ms = -1
        self._stem = ""

    def make(self) -> str:
        ms = wall_ms()
        if ms != self._ms:
            stem = "".join(_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)) + self._process
            self._ms, self._stem = ms, stem
        n = next(self._numbers)
        return self._stem + _PAIRS[n >> 20 & 1023] + _PAIRS[n >> 10 & 1023] + _PAIRS[n & 1023]


_ids = _IdMaker()
os.register_at_fork(after_in_child=_ids.seed)


make_id = _ids.make
"""A new job id: 26 characters, sorting by creation time, unique over processes, forks and threads."""
