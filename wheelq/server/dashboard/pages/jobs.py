"""`/topics/{topic}/jobs`: the jobs of a topic by state, time and error, a page at a time."""

from __future__ import annotations

from starlette.responses import Response

from wheelq.errors import TopicNotFound
from wheelq.protocol.calls import registry
from wheelq.server.access.keys import Verb
from wheelq.server.dashboard.pages.overview import readable
from wheelq.server.dashboard.times import moment_of
from wheelq.server.dashboard.visit import Visit, shows
from wheelq.server.problems import NOT_ALLOWED, Problem

PER_PAGE = 50
STATES = ("waiting", "ready", "running", "retrying", "done", "dead")
AT = {
    "waiting": "due",
    "retrying": "due",
    "ready": "promoted",
    "running": "promoted",
    "done": "ended",
    "dead": "buried",
}
"""What the time of a listed job means, by state."""
WITH_ERROR = ("retrying", "dead")


async def find(visit: Visit) -> Response:
    """Choose a topic, or go to a job by its id."""
    query = visit.query
    topic, id = query.get("topic"), query.get("id")
    if topic is not None and id is not None:
        if not visit.may(Verb.READ, topic):
            raise Problem(NOT_ALLOWED)
        return visit.back(f"/topics/{topic}/job", id=id, partition_key=query.get("partition_key"))
    if topic is not None:
        return visit.back(f"/topics/{topic}/jobs")
    seen = await visit.service.look.now()
    return visit.page("find.html", topics=readable(visit, seen))


async def jobs(visit: Visit) -> Response:
    """One page of the jobs in one state."""
    service, name, query = visit.service, visit.topic, visit.query
    settings = await service.transport.send(registry.topic(service.keys, name))
    if settings is None:
        raise TopicNotFound(name)
    asked = query.text("state", "waiting")
    state = asked if asked in STATES else "waiting"
    found = await service.client.jobs(
        name,
        state=state,
        since=moment_of(query, "since"),
        until=moment_of(query, "until"),
        error=query.get("error") if state in WITH_ERROR else None,
        limit=PER_PAGE,
        cursor=query.get("cursor"),
    )
    return visit.page(
        "jobs.html",
        topic=name,
        state=state,
        states=STATES,
        at=AT[state],
        now_ms=await service.transport.send(registry.server_time_us()) // 1000,
        jobs=found.jobs,
        cursor=found.cursor,
        since=query.text("since"),
        until=query.text("until"),
        error=query.text("error"),
        has_error=state in WITH_ERROR,
        has_runs=state != "waiting",
        keeps_done=settings.keep_done_ms > 0,
    )


PLACES = (shows("/jobs", find), shows("/topics/{topic}/jobs", jobs))
