"""The state of a job: in each group, and overall.

    WAITING ──▶ READY ──▶ RUNNING ──▶ DONE
                  ▲          │  └────▶ DEAD
                  └─ RETRYING ◀┘            in each group separately

The overall state is that of the group that is least far: RETRYING in any, else RUNNING in any, else READY in any; when
every group has finished the job, DEAD if any gave it up, else DONE. `info.groups["billing"]` is the state in one group.

A finished job can be looked up for the topic's `keep_done_ms`, and not at all without it; a dead job as long as it is
kept. Without `keep_done_ms`, a group that has finished a job before the others is DONE without further details.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from wheelq.model.job import Payload, from_ms


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    """Waiting for its due time."""
    READY = "ready"
    """Promoted; no worker has it yet."""
    RUNNING = "running"
    """Delivered to a worker."""
    RETRYING = "retrying"
    """Failed, and waits for its next attempt."""
    DEAD = "dead"
    """Given up, and kept among the dead."""
    DONE = "done"
    """Finished."""


TIME_OF = {
    JobState.WAITING: "due",
    JobState.RETRYING: "due",
    JobState.READY: "promoted",
    JobState.RUNNING: "promoted",
    JobState.DONE: "ended",
    JobState.DEAD: "buried",
}
"""What the time of a listed job means, by state."""
FINISHED = (JobState.DONE, JobState.DEAD)
LEAST_FAR_FIRST = (JobState.RETRYING, JobState.RUNNING, JobState.READY, JobState.DEAD, JobState.DONE)


@dataclass(frozen=True, slots=True)
class Progress:
    """A handler's report of how far it is."""

    fraction: float
    """0 to 1."""
    text: str
    """What the handler said about it."""
    at_ms: int
    """When it reported this, by its worker's estimate of the server's clock."""


class Attempt(NamedTuple):
    """One run of a job in one group."""

    started_ms: int
    """When the handler started, by the worker's estimate of the server's clock."""
    duration_ms: int
    """How long it ran, in milliseconds."""
    worker: str
    error: str | None = None
    """The beginning of its error, at most 200 bytes; None if it succeeded, or asked for more time without a message."""

    @property
    def started(self) -> datetime:
        """`started_ms` as an aware datetime in UTC."""
        return from_ms(self.started_ms)


ATTEMPTS_KEPT = 10
ATTEMPT_ERROR_BYTES = 200


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The state of a job in one group. A field is None if it is not known, or has not happened."""

    state: JobState
    due_ms: int | None = None
    """When this attempt is, or was, due."""
    attempt: int | None = None
    worker: str | None = None
    """The consumer that has it, or had it last."""
    deliveries: int | None = None
    """How often this attempt was delivered to a worker; more than 1 after a worker died or handed it back."""
    started_ms: int | None = None
    """When the handler started; for a running job, None until the handler reports progress."""
    finished_ms: int | None = None
    """When it was done, or given up."""
    reason: str | None = None
    """Why it was given up."""
    last_error: str | None = None
    """The error of the last failed attempt; None while none has failed."""
    result: Payload = None
    """The handler's return value."""
    progress: Progress | None = None
    attempts: Sequence[Attempt] = ()
    """The last ten runs that ended, oldest first; known of jobs that were retried, buried or kept."""
    is_held_back: bool = False
    """Whether this attempt waits, although it is due, because its partition key is at a limit of the topic."""

    @property
    def is_finished(self) -> bool:
        """Whether the group has nothing left to do with the job."""
        return self.state in FINISHED


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The state of a job, overall and in each group. The details are from the group that is least far."""

    id: str
    topic: str
    state: JobState
    due_ms: int
    payload: Payload
    headers: Mapping[str, str]
    attempt: int
    promoted_ms: int | None = None
    """When it was promoted for the first time."""
    shard: int = 0
    """The number of the shard that has it."""
    last_error: str | None = None
    replays: int = 0
    """How often it was replayed after its death."""
    scheduled_ms: int | None = None
    """When it was scheduled, by the server's clock."""
    started_ms: int | None = None
    finished_ms: int | None = None
    """When the last group finished it."""
    worker: str | None = None
    result: Payload = None
    progress: Progress | None = None
    groups: Mapping[str, GroupInfo] = field(default_factory=dict)
    """Where it stands in each group, by name."""
    attempts: Sequence[Attempt] = ()
    """The last ten runs that ended, oldest first; known of jobs that were retried, buried or kept."""
    max_attempts: int | None = None
    """The `attempts` with which it was scheduled; None: its handler decides alone."""
    timeout: float | None = None
    """The `timeout` with which it was scheduled, in seconds; None: its handler decides alone."""
    second_id: str | None = None
    """The id of the second job of its key, if that is alive, too; only with `max_wait`."""
    bundle: str | None = None
    """The bundle of which it is a member; None: of none."""
    partition_key: str | None = None
    """With which it was scheduled."""
    is_held_back: bool = False
    """Whether it waits, although it is due, because its partition key is at a limit of the topic."""
    expires: float | None = None
    """The `expires` with which it was scheduled, if that was a number of seconds."""
    on_dead: str | None = None
    """The `on_dead` with which it was scheduled; None: its topic's holds."""

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)

    @property
    def is_finished(self) -> bool:
        """Whether every group has finished the job."""
        return self.state in FINISHED


class ListedJob(NamedTuple):
    """One row of a page: a job, perhaps in one of its groups. If several groups have the job in the page's state, each
    has its own row. A field is None if it is not known here.
    """

    id: str
    state: JobState
    at_ms: int
    """Orders the page: when it is due (waiting, retrying), promoted (ready, running), ended (done) or buried (dead)."""
    due_ms: int
    """When this attempt is, or was, due."""
    group: str | None = None
    """The only group concerned; None: every group, or there was no group yet."""
    attempt: int | None = None
    """The number of the attempt that waits, runs, or was the last."""
    worker: str | None = None
    """The consumer that has it, or had it last."""
    error: str | None = None
    """The error of its last failed attempt."""
    dead_id: str | None = None
    """Of a dead job, the argument of the methods of `client.dead`."""

    @property
    def at(self) -> datetime:
        """`at_ms` as an aware datetime in UTC."""
        return from_ms(self.at_ms)


class JobPage(NamedTuple):
    """One page of jobs, and the cursor of the next."""

    jobs: list[ListedJob]
    """May be fewer than the limit, even none, although more follow: a call looks at a bounded number of jobs."""
    cursor: str | None
    """The argument for the next page; None after the last."""


def least_far(groups: Mapping[str, GroupInfo]) -> GroupInfo:
    """Returns the group that decides a job's overall state; if all have finished, the last to finish with a result."""

    def rank(info: GroupInfo) -> tuple[int, bool, int]:
        return LEAST_FAR_FIRST.index(info.state), info.result is None, -(info.finished_ms or 0)

    return min(groups.values(), key=rank)
