"""`/schedule`: schedule a job from the page."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from wheelq.errors import InvalidInput
from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.dashboard.pages.overview import readable
from wheelq.server.dashboard.times import payload_of, seconds, when_of
from wheelq.server.dashboard.visit import Form, Visit, does, shows
from wheelq.server.problems import Problem

PRIORITIES = ("normal", "high", "low")
FIELDS = ("topic", "payload", "delay", "at", "id", "partition_key", "priority", "expires")


async def form(visit: Visit) -> Response:
    """The form."""
    return await _page(visit, visit.query)


async def schedule(visit: Visit) -> Response:
    """Schedule the job, and show it; a form with a mistake is shown again, with what is wrong."""
    asked = visit.form
    topic = asked.needed("topic")
    if not visit.may(Verb.SCHEDULE, topic):
        raise Problem(problems.NOT_ALLOWED, f"The key has no scope for schedule on topic {topic!r}.")
    try:
        receipt = await visit.service.client.schedule(topic, **_arguments(asked))
    except InvalidInput as error:
        return await _page(visit, asked, f"{error.field}: {error.problem}", 422)
    visit.changed(topic)
    key = asked.get("partition_key")
    if not receipt.created:
        note = "A live job has this id already: nothing was changed."
    else:
        note = "It is kept on this server's disk until Redis is back." if receipt.in_outbox else "The job is scheduled."
    return visit.back(f"/topics/{topic}/job", note, id=receipt.id, partition_key=key)


def _arguments(asked: Form) -> dict[str, Any]:
    priority = asked.text("priority", "normal")
    expires = asked.get("expires")
    return {
        "payload": payload_of(asked),
        "key": asked.get("id"),
        "partition_key": asked.get("partition_key"),
        "priority": priority,
        "expires": None if expires is None else seconds(expires, "expires"),
        **when_of(asked),
    }


async def _page(visit: Visit, asked: Form, problem: str = "", status: int = 200) -> Response:
    seen = await visit.service.look.now()
    return visit.page(
        "schedule.html",
        status,
        topics=[info.name for info in readable(visit, seen) if visit.may(Verb.SCHEDULE, info.name)],
        values={field: asked.text(field) for field in FIELDS},
        priorities=PRIORITIES,
        problem=problem,
        may_schedule=visit.may(Verb.SCHEDULE),
    )


PLACES = (shows("/schedule", form), does("/schedule", schedule, Verb.SCHEDULE))
