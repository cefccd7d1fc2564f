"""Query parameters of lists, and pages of jobs that wait or are dead."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field, WithJsonSchema

from wheelq.dead import DeadJob
from wheelq.job import WaitingJob
from wheelq.operations.browse import CURSOR_PATTERN
from wheelq.server.schemas.jobs import moment, payload_fields
from wheelq.server.schemas.model import AT_PATTERN, Answer, parse_at

Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]


def _given(pattern: str, description: str, **more: Any) -> Any:
    """A query parameter that may be left out."""
    schema = {"type": "string", "pattern": pattern, **more}
    return Annotated[str | None, Query(pattern=pattern, description=description), WithJsonSchema(schema)]


_POSITION = r"^[1-9][0-9]{0,12}-[0-9]{1,10}:[0-9]{1,4}$"
WaitingCursor = _given(f"^{CURSOR_PATTERN}$", "The cursor of the page before; all else as it was there.")
DeadCursor = _given(_POSITION, "The cursor of the page before; all else as it was there.")
From = _given(AT_PATTERN, "Only from this moment on.", examples=["2030-01-31T09:00:00Z"])
To = _given(AT_PATTERN, "Only before this moment.", examples=["2030-02-01T09:00:00Z"])
Name = _given(r"^[ -~]{1,64}$", "Only these.")
All = Annotated[
    Literal["true", "false"],
    Query(description="All dead jobs of the topic are meant: to be said where no filter is given, and only there."),
    WithJsonSchema({"type": "boolean"}),
]
DeadId = Annotated[str, Query(pattern=_POSITION, description="As the list names it.", examples=["1763000000000-0:1"])]


class Waiting(Answer):
    """A job that waits."""

    id: str
    due_ms: int
    due: str
    group: str | None = Field(description="The group in which it waits for its next attempt, if it has run there.")


class WaitingList(Answer):
    """A page of jobs that wait, in order of due time."""

    jobs: list[Waiting]
    cursor: str | None = Field(description="For the next page; null: this was the last.")


class Dead(Answer):
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

    jobs: list[Dead]
    cursor: str | None = Field(description="For the next page; null: this was the last.")


class ReplayedCount(Answer):
    """What was called back."""

    replayed: int
    kept: int = Field(description="Still dead: a live job has their id, or their record is missing.")


class PurgedCount(Answer):
    """What was removed for good."""

    purged: int


def waiting(job: WaitingJob) -> dict[str, Any]:
    """See `Waiting`."""
    return {"id": job.id, "due_ms": job.due_ms, "due": moment(job.due_ms), "group": job.group}


def dead(job: DeadJob) -> dict[str, Any]:
    """See `Dead`."""
    same = ("dead_id", "id", "group", "reason", "error", "attempt", "due_ms", "first_due_ms", "buried_ms", "replays")
    return {
        **{name: getattr(job, name) for name in same},
        "buried": moment(job.buried_ms),
        "headers": dict(job.headers),
        **payload_fields(job.payload),
    }


def at(text: str | None) -> datetime | None:
    """The moment of a query parameter."""
    return None if text is None else parse_at(text)
