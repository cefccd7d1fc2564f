"""Topics: their job counts, settings and groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field, WithJsonSchema

from wheelq.model.topic import Group, Topic, TopicInfo
from wheelq.server.schemas.model import WHOLE, Answer, Model, optional
from wheelq.settings import Misfire

_MOST = 10**15


Force = Annotated[
    Literal["true", "false"] | None,
    Query(description="Remove it even if workers are alive, or jobs wait or recur."),
    WithJsonSchema({"type": "boolean"}),
]


def _whole(text: str, lowest: int = 0) -> Any:
    return optional({"type": "integer", "minimum": lowest, "maximum": _MOST, "description": text})


class TopicSettingsChange(Model):
    """Settings of a topic; omitted ones stay unchanged. A limit of 0 means none."""

    retention_ms: Annotated[int | None, WHOLE, _whole("How long consumed jobs stay.")] = Field(
        default=None, ge=0, le=_MOST
    )
    dead_retention_ms: Annotated[int | None, WHOLE, _whole("How long dead jobs stay.")] = Field(
        default=None, ge=0, le=_MOST
    )
    dead_max: Annotated[int | None, WHOLE, _whole("Most dead jobs in each shard.")] = Field(
        default=None, ge=0, le=_MOST
    )
    keep_done_ms: Annotated[int | None, WHOLE, _whole("How long finished jobs are known.")] = Field(
        default=None, ge=0, le=_MOST
    )
    result_max_bytes: Annotated[int | None, WHOLE, _whole("Largest result kept with a finished job.", lowest=1)] = (
        Field(default=None, ge=1, le=_MOST)
    )
    max_rate: Annotated[
        float | None,
        optional({"type": "number", "minimum": 0, "maximum": 1e6, "description": "Most jobs promoted in a second."}),
    ] = Field(default=None, ge=0, le=1e6)
    max_pending: Annotated[int | None, WHOLE, _whole("Most jobs that wait.")] = Field(default=None, ge=0, le=_MOST)
    max_ready: Annotated[int | None, WHOLE, _whole("Most promoted jobs not read yet.")] = Field(
        default=None, ge=0, le=_MOST
    )
    misfire: Annotated[
        Misfire | None,
        optional({"enum": ["run", "skip", "bury"], "description": "What happens to a job that would start too late."}),
    ] = None
    grace_ms: Annotated[int | None, WHOLE, _whole("How late a job may start.")] = Field(default=None, ge=0, le=_MOST)

    model_config = ConfigDict(
        json_schema_extra={
            "minProperties": 1,
            "examples": [{"max_rate": 200}],
            # A misfire other than "run" must say how late is too late.
            "if": {"properties": {"misfire": {"enum": ["skip", "bury"]}}, "required": ["misfire"]},
            "then": {"properties": {"grace_ms": {"minimum": 1}}, "required": ["grace_ms"]},
        }
    )


class TopicCounts(Answer):
    """The job counts of a topic now."""

    name: str
    shards: int
    waiting: int = Field(description="Jobs that wait for their due time.")
    ready: int = Field(description="Promoted jobs that some group has not delivered to a worker.")
    running: int = Field(description="Jobs delivered to a worker and not acknowledged.")
    retrying: int = Field(description="Failed jobs that wait for their next attempt.")
    dead: int
    first_due_ms: int | None = Field(description="When the first waiting job is due.")
    overdue_ms: int = Field(description="How long that job has been due; 0 if it is not due yet.")


class TopicCountsList(Answer):
    """The topics that the caller may see, by name."""

    topics: list[TopicCounts]


class SpanView(Answer):
    """How many jobs are due in one span of time, which begins where the previous one ends."""

    until_ms: int | None = Field(description="Its end, from now; 0: jobs already due; null: all later jobs.")
    jobs: int


class Forecast(Answer):
    """When a topic's waiting jobs are due."""

    spans: list[SpanView]


class MinuteView(Answer):
    """The counts of one minute."""

    at_ms: int = Field(description="When it began, in ms since the epoch.")
    scheduled: int = Field(description="Jobs that were scheduled.")
    promoted: int = Field(description="Jobs that became ready, including retries.")
    done: int = Field(description="Runs that succeeded.")
    retried: int = Field(description="Runs that failed and are repeated.")
    buried: int = Field(description="Runs that failed for good.")
    late: int = Field(description="Jobs that were promoted a second or more after their due time.")


class History(Answer):
    """The counts of a topic, minute by minute."""

    minutes: list[MinuteView] = Field(description="In order; minutes without events are left out.")


class TopicStanding(Answer):
    """A topic's settings."""

    name: str
    shards: int
    paused: bool
    retention_ms: int
    dead_retention_ms: int
    dead_max: int
    keep_done_ms: int
    result_max_bytes: int
    max_rate: float
    max_pending: int
    max_ready: int
    misfire: str
    grace_ms: int


class TopicGroup(Answer):
    """One consumer group of a topic."""

    name: str
    lag: int = Field(description="Entries not yet delivered to the group; at most 10,000 on some servers.")
    pending: int = Field(description="Jobs delivered to a worker and not acknowledged.")
    oldest_ms: int | None = Field(description="When the oldest undelivered or unacknowledged entry was promoted.")
    workers: list[str] = Field(description="The workers that are alive.")


class TopicGroups(Answer):
    """The groups of a topic, by name."""

    groups: list[TopicGroup]


def counts(info: TopicInfo) -> dict[str, Any]:
    """See `TopicCounts`."""
    return {name: getattr(info, name) for name in TopicCounts.model_fields}


def standing(name: str, topic: Topic) -> dict[str, Any]:
    """See `TopicStanding`."""
    return {
        "name": name,
        **{field: value for field, value in asdict(topic).items() if field in TopicStanding.model_fields},
    }


def group_view(group: Group) -> dict[str, Any]:
    """See `TopicGroup`."""
    return {name: getattr(group, name) for name in TopicGroup.model_fields}
