"""`/delay/task/add` and `/delay/task/pull`: see `wheelq.server.classic`."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.server.access import Verb
from wheelq.server.audit import AuditEntry
from wheelq.server.classic import parse, success, task_id_of, topic_of
from wheelq.server.routing import ANYONE, READS_ITSELF, Resource, service_of
from wheelq.server.schemas.reading import body_of
from wheelq.server.service import address_of

routes = Resource("classic", prefix="/delay/task")
_ROUTE: dict[str, Any] = {"include_in_schema": False, "openapi_extra": {**ANYONE, **READS_ITSELF}}


@routes.post("/add", **_ROUTE)
async def add(request: Request) -> Response:
    """Creates a task that is due at `timing_moment`."""
    with _entry(request, Verb.SCHEDULE) as entry:
        topic, said = await _read(request, entry)
        task_id = await service_of(request).tasks.add(topic, said)
        entry.status = 200
        return success(task_id=task_id)


@routes.post("/pull", **_ROUTE)
async def pull(request: Request) -> Response:
    """Returns the content of a due task: the next one, or the one with `task_id`."""
    with _entry(request, Verb.CONSUME) as entry:
        topic, said = await _read(request, entry)
        tasks, task_id = service_of(request).tasks, task_id_of(said)
        found = await (tasks.pull(topic) if task_id is None else tasks.pull_one(topic, str(task_id)))
        entry.status = 200
        return success(task_id=int(found.id) if found.id.isdecimal() else found.id, content=found.content)


def _entry(request: Request, verb: Verb) -> AuditEntry:
    return service_of(request).audit.of(request, verb, address_of(request))


async def _read(request: Request, entry: AuditEntry) -> tuple[str, dict[str, Any]]:
    """Returns the topic and the parameters, after checking the caller's rights. Raises: Problem, InvalidInput."""
    service = service_of(request)
    entry.caller = caller = await service.caller_of(request, service.settings.server.classic_key)
    body = await body_of(request, service.job_limits.size)
    said = parse(request.headers.get("content-type", ""), body, service.job_limits)
    entry.topic = topic = topic_of(said)
    service.admit(caller, entry.address, entry.verb, topic)
    return topic, said
