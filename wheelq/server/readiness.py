"""Whether the service can do its work, looked at and not assumed: Redis answers, a scheduler lives, nothing is overdue.

Producers are served without a scheduler too (jobs wait), so only Redis and a stop under way make a server unready; the
rest is told in `problems`, for people and alarms.
"""

from __future__ import annotations

from pydantic import Field

from wheelq.errors import ServerError
from wheelq.protocol.keys import Keys
from wheelq.server import nodes
from wheelq.server.schemas.model import Answer
from wheelq.topics import TopicInfo
from wheelq.transport import AsyncTransport

LATE_MS = 1_000
"""Longer overdue than this means that sweeps do not keep up; paused topics aside."""


class Readiness(Answer):
    """What was found."""

    ready: bool
    redis: bool = Field(description="Whether Redis answers.")
    schedulers: int = Field(description="Scheduler nodes that live.")
    leading: int = Field(description="Shards that have a leader.")
    shards: int = Field(description="Shards in all.")
    overdue_ms: int = Field(description="How long the most overdue job has been due.")
    problems: list[str]


async def look(transport: AsyncTransport, keys: Keys, topics: list[TopicInfo]) -> Readiness:
    """How things stand. Raises: ServerError."""
    alive = await nodes.alive(transport, keys)
    leading = sum(said.get("leading", 0) for said in alive.values())
    shards = sum(topic.shards for topic in topics)
    overdue_ms = max((topic.overdue_ms for topic in topics), default=0)
    found = []
    if not alive:
        found.append("no scheduler node lives: jobs wait, and none becomes due; start wheelq scheduler")
    elif leading < shards:
        found.append(f"{shards - leading} of {shards} shards have no leader yet")
    if overdue_ms > LATE_MS:
        found.append(f"a job has been due for {overdue_ms / 1000:,.1f} s: the schedulers do not keep up")
    return Readiness(
        ready=True,
        redis=True,
        schedulers=len(alive),
        leading=leading,
        shards=shards,
        overdue_ms=overdue_ms,
        problems=found,
    )


def unready(problem: ServerError | str) -> Readiness:
    """What there is to say when there is nothing to look at, or no need."""
    is_redis = isinstance(problem, ServerError)
    return Readiness(
        ready=False, redis=not is_redis, schedulers=0, leading=0, shards=0, overdue_ms=0, problems=[str(problem)]
    )
