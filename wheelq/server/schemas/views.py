"""Jobs as they are looked up and listed: the view of a job, with all that the library's `client.get` returns; query
parameters of lists, and pages of jobs; bundles.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field, WithJsonSchema

from wheelq.model.bundle import Bundle
from wheelq.model.dead import DeadJob
from wheelq.model.job import WaitingJob
from wheelq.model.state import Attempt, GroupInfo, JobInfo, JobState, ListedJob, Progress
from wheelq.producer.listing import CURSOR_PATTERN
from wheelq.server.schemas.model import NOT_CONTROL, Answer, Moment, mirrors, parse_at


@mirrors(Progress)
class ProgressView(Answer):
    """A handler's report of its progress."""


@mirrors(Attempt)
class AttemptView(Answer):
    """One run of a job that has ended."""

    started: str


class _Run(Answer):
    """The runs in one group, or in the group that is least far."""

    state: JobState
    worker: str | None = Field(description="The worker that has the job, or had it last.")
    started_ms: int | None = Field(description="When the handler started; while running, known only after a report.")
    last_error: str | None = Field(description="The error of the last failed attempt.")
    result: Any = Field(default=None, description="What the handler returned; kept for the topic's keep_done_ms.")
    result_base64: str | None = Field(
        default=None, description="The result in base64, if it is bytes; replaces `result`."
    )
    progress: ProgressView | None
    attempts: list[AttemptView] = Field(
        description="The last ten runs that ended, oldest first; known of jobs that were retried, buried or kept."
    )


@mirrors(GroupInfo)
class GroupView(_Run):
    """The state of a job in one group. A field is null if it is not known, or has not happened."""

    deliveries: int | None = Field(description="How often it was delivered; above 1: a worker died or gave it back.")


@mirrors(JobInfo)
class JobView(_Run):
    """The state of a job, overall and in each group. A field is null if it is not known, or has not happened.

    The overall state and the details are those of the group that is least far.
    """

    due: str
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]
    scheduled_ms: int | None = Field(description="When it was scheduled, by the server's clock.")
    promoted_ms: int | None = Field(description="When it was promoted for the first time.")
    finished_ms: int | None = Field(description="When the last group finished it.")
    replays: int = Field(description="How often it was replayed.")
    max_attempts: int | None = Field(description="The `attempts` with which it was scheduled, if any.")
    timeout: float | None = Field(description="The `timeout` with which it was scheduled, if any.")
    expires: float | None = Field(description="The `expires` with which it was scheduled, if any.")
    on_dead: str | None = Field(description="The `on_dead` with which it was scheduled, if any.")
    second_id: str | None = Field(
        description="The id of the second job of its key, if that is alive, too (`max_wait`)."
    )
    shard: int
    groups: dict[str, GroupView] = Field(
        description="By group; groups of leases are named http.NAME. Empty while the job waits."
    )


LONGEST_WAIT_S = 20
WaitForEnd = Annotated[
    float, Query(ge=0, le=LONGEST_WAIT_S, description="How many seconds to wait until the job is finished.")
]
Limit = Annotated[int, Query(ge=1, le=500, description="The most jobs on the page.")]


_POSITION = r"^[1-9][0-9]{0,12}-[0-9]{1,10}:[0-9]{1,4}$"
_CONTINUE = "The cursor of the previous page; keep all other parameters."
JobCursor = Annotated[str | None, Query(pattern=f"^(?:{CURSOR_PATTERN})$", description=_CONTINUE)]
DeadCursor = Annotated[str | None, Query(pattern=_POSITION, description=_CONTINUE)]
From = Annotated[Moment | None, Query(description="Only from this moment on.", examples=["2030-01-31T09:00:00Z"])]
To = Annotated[Moment | None, Query(description="Only before this moment.", examples=["2030-02-01T09:00:00Z"])]
State = Annotated[
    Literal["waiting", "ready", "running", "retrying", "done", "dead"] | None,
    Query(description="Only jobs in this state. Without it, jobs that wait for their first run or a retry."),
]
ErrorText = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="Only retrying or dead jobs whose last error contains this."),
]
Prefix = Annotated[
    str | None,
    Query(max_length=256, pattern=NOT_CONTROL, description="Only jobs whose id begins with this."),
]
Exactly = Annotated[
    str | None, Query(max_length=256, pattern=NOT_CONTROL, description="Only dead jobs with exactly this value.")
]
All = Annotated[
    Literal["true", "false"] | None,
    Query(description="Selects all dead jobs of the topic; required without a filter, and not allowed with one."),
    WithJsonSchema({"type": "boolean"}),
]
DeadId = Annotated[
    str, Query(pattern=_POSITION, description="The dead_id in the list.", examples=["1763000000000-0:1"])
]


@mirrors(ListedJob)
class ListedView(Answer):
    """A job in a list. Unknown fields are null; looking the job up tells more."""

    at: str
    due: str
    dead_id: str | None = Field(description="Names a dead job, to replay it.")


class JobList(Answer):
    """A page of jobs; it may hold fewer than the limit, even none, although more follow: the last has no cursor."""

    jobs: list[ListedView]
    cursor: str | None = Field(description="For the next page; null: this was the last.")


@mirrors(DeadJob, "topic", "traceback")
class DeadView(Answer):
    """A job that one group gave up."""

    dead_id: str = Field(description="Names it, to replay it.")
    reason: str = Field(description="Why it was given up, such as failed or expired.")
    buried: str
    payload: Any = None
    payload_base64: str | None = None


class DeadList(Answer):
    """A page of dead jobs, in order of burial."""

    jobs: list[DeadView]
    cursor: str | None = Field(description="For the next page; null: this was the last.")


class ReplayedCount(Answer):
    """How many dead jobs were replayed."""

    replayed: int
    kept: int = Field(description="Still dead: a live job has their id, or their record is missing.")


class PurgedCount(Answer):
    """How many dead jobs were removed for good."""

    purged: int


BundleName = Annotated[str, Path(pattern=r"^[0-9A-Za-z]{1,64}$", description="The rest of its id, behind the colon.")]


class DeadMember(Answer):
    """A dead member; the dead letters of its topic tell more."""

    topic: str
    dead_id: str = Field(description="Names it, to replay it.")
    id: str
    group: str
    reason: str
    error: str


@mirrors(Bundle, "dead_jobs")
class BundleView(Answer):
    """A bundle, and how many of its members stand where."""

    dead_jobs: list[DeadMember] = Field(description="Up to 100 of the dead members.")


class CancelledCount(Answer):
    """How many waiting members were cancelled."""

    cancelled: int


def waiting(job: WaitingJob) -> dict[str, Any]:
    """See `ListedView`."""
    state = JobState.WAITING if job.group is None else JobState.RETRYING
    return ListedView.shows(ListedJob(job.id, state, job.due_ms, job.due_ms, job.group))


def at(text: str | None) -> datetime | None:
    """Returns the moment of a query parameter."""
    return None if text is None else parse_at(text)
