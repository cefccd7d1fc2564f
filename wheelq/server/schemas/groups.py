"""Groups: their lag and their workers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field, WithJsonSchema

from wheelq.model.topic import Group
from wheelq.server.schemas.model import Answer

Force = Annotated[
    Literal["true", "false"] | None,
    Query(description="Remove it even if workers are alive, or jobs wait or recur."),
    WithJsonSchema({"type": "boolean"}),
]


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


def view(group: Group) -> dict[str, Any]:
    """See `TopicGroup`."""
    return {name: getattr(group, name) for name in TopicGroup.model_fields}
