"""Topics: their job counts, settings and groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import ConfigDict, Field, WithJsonSchema, create_model

from wheelq.model.topic import Group, Span, Topic, TopicInfo, TopicMinute
from wheelq.server.schemas.model import WHOLE, Answer, Model, mirrors
from wheelq.settings import Misfire, OnMismatch, TopicSettings
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
    if type(one.default) is str and not one.one_of:
        document = {"type": "string", "description": one.full}
    elif not one.one_of:
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
    key_concurrency: _Whole = _change("key_concurrency")
    key_rate: float | None = _change("key_rate")
    misfire: Misfire | None = _change("misfire")
    grace_ms: _Whole = _change("grace_ms")
    on_mismatch: OnMismatch | None = _change("on_mismatch")
    mismatch_ms: _Whole = _change("mismatch_ms")
    retention_ms: _Whole = _change("retention_ms")
    keep_done_ms: _Whole = _change("keep_done_ms")
    result_max_bytes: _Whole = _change("result_max_bytes")
    dead_retention_ms: _Whole = _change("dead_retention_ms")
    dead_max: _Whole = _change("dead_max")
    on_dead: str | None = _change("on_dead")

    model_config = ConfigDict(
        json_schema_extra={
            "minProperties": 1,
            # A misfire other than "run" must say how late is too late.
            "if": {"properties": {"misfire": {"enum": ["skip", "bury"]}}, "required": ["misfire"]},
            "then": {"properties": {"grace_ms": {"minimum": 1}}, "required": ["grace_ms"]},
        }
    )


@mirrors(TopicInfo, "settings")
class TopicCounts(Answer):
    """The job counts of a topic now."""


class TopicCountsList(Answer):
    """The topics that the caller may see, by name."""

    topics: list[TopicCounts]


@mirrors(Span)
class SpanView(Answer):
    """How many jobs are due in one span of time, which begins where the previous one ends."""


class Forecast(Answer):
    """When a topic's waiting jobs are due."""

    spans: list[SpanView]


@mirrors(TopicMinute)
class MinuteView(Answer):
    """The counts of one minute."""


class History(Answer):
    """The counts of a topic, minute by minute."""

    minutes: list[MinuteView] = Field(description="In order; minutes without events are left out.")


_STANDING: dict[str, Any] = {"name": (str, ...), "paused": (bool, ...)}
_STANDING |= {one.name: (type(one.default), Field(description=one.full)) for one in _SETTINGS.values()}
TopicStanding = create_model("TopicStanding", __base__=Answer, __doc__="A topic's settings.", **_STANDING)


@mirrors(Group, "has_more")
class TopicGroup(Answer):
    """One consumer group of a topic."""

    lag: int = Field(description="Entries not yet delivered to the group; at most 10,000 on some servers.")


class TopicGroups(Answer):
    """The groups of a topic, by name."""

    groups: list[TopicGroup]


def standing(name: str, topic: Topic) -> dict[str, Any]:
    """See `TopicStanding`."""
    return {"name": name, "paused": topic.paused, **{one: getattr(topic, one) for one in _SETTINGS}}
