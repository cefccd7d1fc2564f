"""Where a job stands: in each group, and all in all.

    DELAYED ──▶ READY ──▶ RUNNING ──▶ DONE
                  ▲          │  └────▶ DEAD
                  └─ RETRYING ◀┘            in each group on its own

All in all a job is as far as the group that is least far: RETRYING in any, else RUNNING in any, else READY in any;
when every group has finished it, DEAD if any gave it up, else DONE. Who wants to know about one group asks
`info.groups["billing"]`.

A finished job is known for the topic's `keep_done_ms`, and not at all without; a dead one as long as it is kept among
the dead. Without `keep_done_ms` a group that has finished a job which others have not is DONE without further details.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from wheelq.job import Payload, from_ms


class JobState(StrEnum):
    """Where a job stands."""

    DELAYED = "delayed"
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


FINISHED = (JobState.DONE, JobState.DEAD)
LEAST_FAR_FIRST = (JobState.RETRYING, JobState.RUNNING, JobState.READY, JobState.DEAD, JobState.DONE)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler said it was."""

    fraction: float
    """0 to 1."""
    text: str
    at_ms: int
    """When it said so, by the server's clock as its worker knew it."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Where a job stands in one group. What is not known, or has not happened, is None."""

    state: JobState
    due_ms: int | None = None
    """When this attempt is, or was, due."""
    attempt: int | None = None
    worker: str | None = None
    """The consumer that has it, or had it last."""
    deliveries: int | None = None
    """How often this attempt was handed to a worker; more than 1 after a worker died or handed it back."""
    started_ms: int | None = None
    """When the handler was started; of a running job it is known once the handler has told its progress."""
    finished_ms: int | None = None
    """When it was done, or given up."""
    reason: str | None = None
    """Why it was given up."""
    last_error: str | None = None
    """What the last failed attempt said; None while none has failed."""
    result: Payload = None
    """What the handler returned."""
    progress: Progress | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the group has nothing left to do with the job."""
        return self.state in FINISHED


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of a job: all in all, and in each group. Details are those of the group that is least far."""

    id: str
    topic: str
    state: JobState
    due_ms: int
    payload: Payload
    headers: Mapping[str, str]
    attempt: int
    promoted_ms: int | None = None
    """When it was made ready for the first time."""
    shard: int = 0
    last_error: str | None = None
    replays: int = 0
    """How often it was called back from the dead."""
    scheduled_ms: int | None = None
    """When its producer made it, by the producer's clock."""
    started_ms: int | None = None
    finished_ms: int | None = None
    """When the last group finished it."""
    worker: str | None = None
    result: Payload = None
    progress: Progress | None = None
    groups: Mapping[str, GroupInfo] = field(default_factory=dict)

    @property
    def due(self) -> datetime:
        """`due_ms` as an aware datetime in UTC."""
        return from_ms(self.due_ms)

    @property
    def is_finished(self) -> bool:
        """Whether no group has anything left to do."""
        return self.state in FINISHED


def least_far(groups: Mapping[str, GroupInfo]) -> GroupInfo:
    """The group that decides where a job stands; of several that are finished, the one that finished last."""

    def rank(info: GroupInfo) -> tuple[int, int]:
        return LEAST_FAR_FIRST.index(info.state), -(info.finished_ms or 0)

    return min(groups.values(), key=rank)
