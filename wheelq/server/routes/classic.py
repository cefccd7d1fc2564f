"""`/delay/task/add` and `/delay/task/pull`: see `wheelq.server.classic`."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.server.access.keys import Verb
from wheelq.server.classic import request as asked
from wheelq.server.classic.envelope import success
from wheelq.server.routing import ANYONE, READS_ITSELF, router, service_of
from wheelq.server.service import address_of

routes = router("classic", prefix="/delay/task")
_ROUTE: dict[str, Any] = {"include_in_schema": False, "openapi_extra": {**ANYONE, **READS_ITSELF}}


@routes.post("/add", **_ROUTE)
async def add(request: Request) -> Response:
    """Make a task that is due at `timing_moment`."""
    topic, said = await _read(request, Verb.SCHEDULE)
    return success(task_id=await service_of(request).tasks.add(topic, said))


@routes.post("/pull", **_ROUTE)
async def pull(request: Request) -> Response:
    """The content of a task that is due: the next one, or that of `task_id`."""
    topic, said = await _read(request, Verb.CONSUME)
    tasks, task_id = service_of(request).tasks, asked.task_id_of(said)
    found = await (tasks.pull(topic) if task_id is None else tasks.pull_one(topic, str(task_id)))
    return success(task_id=int(found.id) if found.id.isdecimal() else found.id, content=found.content)


async def _read(request: Request, verb: Verb) -> tuple[str, dict[str, Any]]:
    """The parameters; the caller may do this with their topic. Raises: Problem, InvalidInput."""
    service = service_of(request)
    caller = await service.caller_of(request, service.settings.server.classic_key)
    said = asked.parse(request.headers.get("content-type", ""), await request.body())
    topic = asked.topic_of(said)
    service.admit(caller, address_of(request), verb, topic)
    return topic, said
