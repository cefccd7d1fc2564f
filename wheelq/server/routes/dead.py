"""`/v1/topics/{topic}/dead`: lists, replays and removes dead jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response

from wheelq.model.dead import ReplayOutcome, Where
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import Resource, answer, service_of
from wheelq.server.schemas import views
from wheelq.server.schemas.model import Topic
from wheelq.server.schemas.views import (
    All,
    DeadCursor,
    DeadId,
    DeadList,
    DeadView,
    Exactly,
    From,
    Limit,
    PurgedCount,
    ReplayedCount,
    To,
)

routes = Resource("dead letters", "/v1/topics/{topic}/dead")


async def _filter(
    group: Exactly = None, reason: Exactly = None, id: Exactly = None, since: From = None, until: To = None
) -> Where:
    return Where(group=group, reason=reason, id=id, since=views.at(since), until=views.at(until))


Filter = Annotated[Where, Depends(_filter)]
"""The filter for dead jobs."""


@routes.on("GET", "", "List dead jobs", Verb.READ, DeadList, problems.TOPIC_NOT_FOUND)
async def list_dead(
    request: Request, topic: Topic, where: Filter, limit: Limit = 50, cursor: DeadCursor = None
) -> Response:
    """Lists the newest first. A page may be short although more follow: go on while there is a cursor."""
    page = await service_of(request).client.dead.list(topic, **where, limit=limit, cursor=cursor)
    return answer({"jobs": [DeadView.shows(job) for job in page.jobs], "cursor": page.cursor})


@routes.on("POST", "/replay", "Replay dead jobs", Verb.MANAGE, ReplayedCount, problems.TOPIC_NOT_FOUND)
async def replay(request: Request, topic: Topic, where: Filter, all: All = None) -> Response:
    """All matching jobs (or all, with `all=true`) run again from attempt 1, each in its group only. Safe to repeat."""
    found = await service_of(request).client.dead.replay(topic, **where, all=all == "true")
    return answer({"replayed": found.replayed, "kept": found.kept})


@routes.on(
    "POST",
    "/replay-one",
    "Replay one dead job",
    Verb.MANAGE,
    {204: "It waits to run again."},
    problems.TOPIC_NOT_FOUND,
    problems.DEAD_NOT_FOUND,
    problems.DUPLICATE,
)
async def replay_one(request: Request, topic: Topic, dead_id: DeadId) -> Response:
    """It runs again with the same id, payload and headers, from attempt 1, in its group only."""
    match await service_of(request).client.dead.replay_one(topic, dead_id):
        case ReplayOutcome.REPLAYED:
            return Response(status_code=204)
        case ReplayOutcome.ALIVE:
            raise Problem(problems.DUPLICATE, "So it stays dead.")
    raise Problem(problems.DEAD_NOT_FOUND)


@routes.on("POST", "/purge", "Remove dead jobs for good", Verb.MANAGE, PurgedCount, problems.TOPIC_NOT_FOUND)
async def purge(request: Request, topic: Topic, where: Filter, all: All = None) -> Response:
    """Removes all matching jobs, or with `all=true` all dead jobs of the topic. They cannot be replayed any more."""
    purged = await service_of(request).client.dead.purge(topic, **where, all=all == "true")
    return answer({"purged": purged})
