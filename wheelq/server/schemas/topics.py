"""Topics: their job counts, settings and groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field, WithJsonSchema, create_model

from wheelq.model.topic import Group, Topic, TopicInfo
from wheelq.server.schemas.model import WHOLE, Answer, Model
from wheelq.settings import Misfire, TopicSettings
from wheelq.settings.declaration import declarations

_SETTINGS = declarations(TopicSettings)
_Whole = Annotated[int | None, WHOLE]


Force = Annotated[
    Literal["true", "false"] | None,
    Query(description="Remove it even if workers are alive, or jobs wait or recur."),
    WithJsonSchema({"type": "boolean"}),
]


def _change(name: str) -> Any:
    """Returns a field that changes a setting, with its declared meaning and range, and may be left out."""
    one = _SETTINGS[name]
    document: dict[str, Any] = {"enum": list(one.one_of), "description": one.full}
    if not one.one_of:
        kind = "number" if isinstance(one.default, float) else "integer"
        document = {"type": kind, "minimum": one.lowest, "maximum": one.most, "description": one.full}

    def describe(schema: dict[str, Any]) -> None:
        schema.clear()
        schema.update(document)

    return Field(default=None, json_schema_extra=describe, ge=document.get("minimum"), le=document.get("maximum"))


class TopicSettingsChange(Model):
    """Settings of a topic; omitted ones stay unchanged."""

    max_rate: float | None = _change("max_rate")
    max_pending: _Whole = _change("max_pending")
    max_ready: _Whole = _change("max_ready")
    misfire: Misfire | None = _change("misfire")
    grace_ms: _Whole = _change("grace_ms")
    retention_ms: _Whole = _change("retention_ms")
    keep_done_ms: _Whole = _change("keep_done_ms")
    result_max_bytes: _Whole = _change("result_max_bytes")
    dead_retention_ms: _Whole = _change("dead_retention_ms")
    dead_max: _Whole = _change("dead_max")

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


_STANDING: dict[str, Any] = {"name": (str, ...), "paused": (bool, ...)}
_STANDING |= {one.name: (type(one.default), Field(description=one.full)) for one in _SETTINGS.values()}
TopicStanding = create_model("TopicStanding", __base__=Answer, __doc__="A topic's settings.", **_STANDING)


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
    return {"name": name, "paused": topic.paused, **{one: getattr(topic, one) for one in _SETTINGS}}


def group_view(group: Group) -> dict[str, Any]:
    """See `TopicGroup`."""
    return {name: getattr(group, name) for name in TopicGroup.model_fields}
