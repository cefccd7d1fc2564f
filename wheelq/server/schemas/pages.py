"""Query parameters of lists, and pages of waiting or dead jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field, WithJsonSchema

from wheelq.model.dead import DeadJob
from wheelq.model.job import WaitingJob
from wheelq.model.state import JobState, ListedJob
from wheelq.producer.listing import CURSOR_PATTERN
from wheelq.server.schemas.jobs import moment, payload_fields
from wheelq.server.schemas.model import AT_PATTERN, Answer, parse_at

Limit = Annotated[int, Query(ge=1, le=500, description="The most jobs on the page.")]


def _given(pattern: str, description: str, **more: Any) -> Any:
    """A query parameter that may be left out."""
    schema = {"type": "string", "pattern": pattern, **more}
    return Annotated[str | None, Query(pattern=pattern, description=description), WithJsonSchema(schema)]


_POSITION = r"^[1-9][0-9]{0,12}-[0-9]{1,10}:[0-9]{1,4}$"
JobCursor = _given(f"^(?:{CURSOR_PATTERN})$", "The cursor of the previous page; keep all other parameters.")
DeadCursor = _given(_POSITION, "The cursor of the previous page; keep all other parameters.")
From = _given(AT_PATTERN, "Only from this moment on.", examples=["2030-01-31T09:00:00Z"])
To = _given(AT_PATTERN, "Only before this moment.", examples=["2030-02-01T09:00:00Z"])
State = Annotated[
    Literal["waiting", "ready", "running", "retrying", "done", "dead"] | None,
    Query(description="Only jobs in this state. Without it, jobs that wait for their first run or a retry."),
    WithJsonSchema({"type": "string", "enum": [str(state) for state in JobState]}),
]
ErrorText = Annotated[
    str | None,
    Query(min_length=1, max_length=200, description="Only retrying or dead jobs whose last error contains this."),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 200}),
]
Name = _given(r"^[ -~]{1,64}$", "Only dead jobs with this value.")
All = Annotated[
    Literal["true", "false"] | None,
    Query(description="Selects all dead jobs of the topic; required without a filter, and not allowed with one."),
    WithJsonSchema({"type": "boolean"}),
]
DeadId = Annotated[
    str, Query(pattern=_POSITION, description="The dead_id in the list.", examples=["1763000000000-0:1"])
]


class ListedView(Answer):
    """A job in a list. Unknown fields are null; looking the job up tells more."""

    id: str
    state: JobState
    at_ms: int = Field(
        description="What the list is ordered by: when it is due (waiting, retrying), was promoted (ready, running), "
        "ended (done) or was buried (dead)."
    )
    at: str
    due_ms: int
    due: str
    group: str | None = Field(description="The only group concerned, as in a retry.")
    attempt: int | None
    worker: str | None
    error: str | None = Field(description="The error of its last failed attempt.")
    dead_id: str | None


class JobList(Answer):
    """A page of jobs; it may hold fewer than the limit, even none, although more follow: the last has no cursor."""

    jobs: list[ListedView]
    cursor: str | None = Field(description="For the next page; null: this was the last.")


class DeadView(Answer):
    """A job that one group gave up."""

    dead_id: str
    id: str
    group: str
    reason: str
    error: str
    attempt: int
    due_ms: int
    first_due_ms: int
    buried_ms: int
    buried: str
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]
    replays: int


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


def listed(job: ListedJob) -> dict[str, Any]:
    """See `ListedView`."""
    return {**job._asdict(), "at": moment(job.at_ms), "due": moment(job.due_ms)}


def waiting(job: WaitingJob) -> dict[str, Any]:
    """See `ListedView`."""
    state = JobState.WAITING if job.group is None else JobState.RETRYING
    return listed(ListedJob(job.id, state, job.due_ms, job.due_ms, job.group))


def dead(job: DeadJob) -> dict[str, Any]:
    """See `DeadView`."""
    same = ("dead_id", "id", "group", "reason", "error", "attempt", "due_ms", "first_due_ms", "buried_ms", "replays")
    return {
        **{name: getattr(job, name) for name in same},
        "buried": moment(job.buried_ms),
        "headers": dict(job.headers),
        **payload_fields(job.payload),
    }


def at(text: str | None) -> datetime | None:
    """Returns the moment of a query parameter."""
    return None if text is None else parse_at(text)
