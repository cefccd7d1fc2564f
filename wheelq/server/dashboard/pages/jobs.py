"""`/topics/{topic}/jobs`: the jobs of a topic by state, time and error, a page at a time.

`/topics/{topic}/bulk`: cancel or reschedule the waiting jobs that are due in a range. The first page says how many jobs
wait in the range, and asks for confirmation. Each POST then does a bounded part, and its page continues with the next:
by itself with JavaScript, by a button without. The change has a name in Redis, so a repeated step changes no job twice,
even if another server process gets it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.responses import Response

from wheelq.base.ids import make_id
from wheelq.base.plural import counted
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.model.job import from_ms
from wheelq.protocol.calls import registry
from wheelq.protocol.calls.server import server_time_us
from wheelq.server.access import Verb
from wheelq.server.dashboard.pages.overview import readable
from wheelq.server.dashboard.visit import Form, Visit, does, moment_of, seconds, shows, when_of
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


ROUNDS = 10
"""How many rounds one step takes: each changes up to 500 jobs in every shard."""
EPOCH = from_ms(0)
KEPT = ("action", "since", "until", "by", "delay", "at", "name", "count")
"""The fields that lead from one step to the next."""


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
        now_ms=await service.transport.send(server_time_us()) // 1000,
        jobs=found.jobs,
        cursor=found.cursor,
        since=query.text("since"),
        until=query.text("until"),
        error=query.text("error"),
        has_error=state in WITH_ERROR,
        has_runs=state != "waiting",
        keeps_done=settings.keep_done_ms > 0,
    )


async def confirm(visit: Visit) -> Response:
    """Ask whether all of them are meant, and say how many they are."""
    query = visit.query
    action = _bulk_action(query)
    since, until = _range(query)
    return visit.page(
        "bulk_confirm.html",
        topic=visit.topic,
        action=action,
        count=await visit.service.client.count_due(visit.topic, since=since, until=until),
        since=query.text("since"),
        until=query.text("until"),
        name=make_id(),
    )


async def act(visit: Visit) -> Response:
    """Do one step, and lead on to the next, or back to the jobs."""
    form, client = visit.form, visit.service.client
    action, name = _bulk_action(form), form.needed("name")
    since, until = _range(form)
    if since is None and until is None:
        since = EPOCH  # the client asks for a range; here the viewer has seen the number, and meant all of them
    bounds: dict[str, Any] = {"since": since, "until": until, "name": name, "rounds": ROUNDS}
    visit.changed(visit.topic)
    if action == "cancel":
        found = await client.cancel_due(visit.topic, **bounds)
    else:
        found = await client.reschedule_due(visit.topic, **bounds, **_to(form))
    if found.is_done:
        done = "cancelled" if action == "cancel" else "rescheduled"
        return visit.back(f"/topics/{visit.topic}/jobs", f"{counted(found.jobs, 'job')} {done}.")
    kept = {field: value for field in KEPT if (value := form.get(field)) is not None}
    count = max(found.jobs, form.whole("count") or 0)
    return visit.page(
        "bulk_step.html", topic=visit.topic, action=action, done=found.jobs, count=count, form_values=kept
    )


def _bulk_action(form: Form) -> str:
    action = form.needed("action")
    if action not in ("cancel", "reschedule"):
        raise InvalidInput("action", "must be cancel or reschedule")
    return action


def _range(form: Form) -> tuple[datetime | None, datetime | None]:
    return moment_of(form, "since"), moment_of(form, "until")


def _to(form: Form) -> dict[str, Any]:
    """Where to: `by`, `delay` or `at`, as the client takes them. Raises: InvalidInput."""
    by = form.get("by")
    if by is None:
        return when_of(form)
    sign = -1 if by.startswith("-") else 1
    return {"by": sign * seconds(by.lstrip("+-"), "by")}


PLACES = (
    shows("/jobs", find),
    shows("/topics/{topic}/jobs", jobs),
    shows("/topics/{topic}/bulk", confirm, Verb.CHANGE),
    does("/topics/{topic}/bulk", act, Verb.CHANGE),
)
