"""Jobs as people meet them: what a producer says, what it is told, what a handler gets.

    JobSpec ──schedule──▶ Receipt           producer: what and when → the id, the due time, whether it is new
    Job                                     handler: one delivery of one job
    state.JobInfo                           anyone: where a job stands

A *job id* is either given (`key="order-42"`, unique in its topic while the job is alive) or made by the client (`ids`),
so that a call repeated with the same id can never make two jobs. What a caller may say is checked in `arguments`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from wheelq.errors import InvalidInput

Payload = Any
"""None, bool, int (64 bit), float, str, bytes, and lists and string-keyed dicts of these."""

OnDuplicate = Literal["keep", "replace", "raise"]

Priority = Literal["high", "normal", "low"]
"""Which of the jobs that are due in the same millisecond are promoted first. What is due earlier always goes before."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job to schedule: `payload` and either `delay` (seconds or timedelta) or `at` (aware datetime).

    `key` is the job's id (else one is made), `headers` travel beside the payload, `partition_key` chooses the shard
    instead of the id: jobs with one partition key share a shard. Of jobs due in one millisecond those of high
    `priority` are promoted first. `spread` (seconds or timedelta) moves the due time back by up to so much, evenly over
    all ids and always by the same for one id. A job that cannot start by `expires` never runs: so long (seconds or
    timedelta) after its due time, or at an aware datetime.

    `nonce` is for services that make a call again on behalf of a caller who repeats it: with the `key` and the 12 bytes
    of the first time it is that call once more, and not another's with the same id (PROTOCOL.md, option `n`).
    """

    payload: Payload = None
    delay: float | timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition_key: str | None = None
    priority: Priority = "normal"
    spread: float | timedelta | None = None
    expires: float | timedelta | datetime | None = None
    nonce: bytes | None = None


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
    in_outbox: bool = False
    """True: the server is away. The job is kept in the outbox, on this machine's disk, and will be delivered."""

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)


class WaitingJob(NamedTuple):
    """A job that waits, as a page of them tells it; `get` tells the rest."""

    id: str
    due_ms: int
    group: str | None = None
    """The group in which it waits for its next attempt; None: it has not run yet."""


class WaitingPage(NamedTuple):
    """Some waiting jobs, and where to go on."""

    jobs: list[WaitingJob]
    cursor: str | None
    """What to give for the next page; None when this was the last."""


class CancelOutcome(StrEnum):
    """What `cancel` found."""

    CANCELLED = "cancelled"
    """It was waiting and will never run."""
    CANCELLING = "cancelling"
    """A worker runs it and was asked to cancel it (only with `running=True`)."""
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
    CHANGED = "changed"
    """It is due at another time than the caller thought (`if_due_ms`): nothing was changed."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


class RunNowOutcome(StrEnum):
    """What `run_now` found."""

    PROMOTED = "promoted"
    """It was waiting and is now with the workers."""
    PAUSED = "paused"
    """It waits on, because its topic is paused; it is due now, and goes first when the topic is resumed."""
    RUNNING = "running"
    """It is with the workers already."""
    NOT_FOUND = "not_found"
    """No live job has this id."""


@dataclass(slots=True, eq=False)  # not frozen: one is made for every delivery, and frozen ones cost three times as much
class Job:
    """One delivery of a job to a handler."""

    id: str
    topic: str
    payload: Payload
    due_ms: int
    attempt: int
    """1 for the first run; counts failed runs, not deliveries repeated after a crash, nor `RetryAfter`."""
    entry_id: str
    """Id of the ready entry that was delivered, for logs."""
    started_ms: float
    """When this delivery was handed to the handler, by the server's clock."""
    headers: Mapping[str, str] = field(default_factory=dict)
    redelivered: bool = False
    """True when another worker had this delivery and died, or handed it back."""
    last_error: str | None = None
    """What the last failed attempt said, at most 500 characters; None at the first."""
    first_due_ms: int = 0
    """When the job was first due; `due_ms` is when this attempt was."""
    replays: int = 0
    """How often it was called back from the dead; its attempts begin anew each time."""
    _tell: Callable[[float, str], None] | None = None

    def progress(self, fraction: float, text: str = "") -> Awaitable[None]:
        """Let others know how far this run is, 0 to 1: `client.get(...).progress` shows it within half a second.

            await job.progress(0.4, "rendering")     in a plain function, without `await`

        Say it as often as you like: at most five words a second are sent, the latest of each job. Raises: InvalidInput.
        """
        if not 0 <= fraction <= 1:
            raise InvalidInput("fraction", f"must be 0 to 1, not {fraction!r}")
        if self._tell is not None:
            self._tell(fraction, text)
        return _SAID

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


class _Said:
    """What `progress` returns: awaiting it waits for nothing, so plain functions need not."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_SAID = _Said()


def from_ms(ms: float) -> datetime:
    """Milliseconds since the Unix epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
