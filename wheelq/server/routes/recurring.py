"""`/v1/topics/{topic}/recurring`: jobs that occur again and again."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.model.recurring import RecurringOutcome
from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import answer, needs, problems_of, router, service_of
from wheelq.server.schemas import jobs
from wheelq.server.schemas.model import Topic
from wheelq.server.schemas.recurring import Name, RecurringList, RecurringMade, RecurringRule, RecurringView, made, view

routes = router("recurring")
_CHANGED: dict[str, Any] = {
    "status_code": 204,
    "response_class": Response,
    "responses": {204: {"description": "Done."}, **problems_of(problems.RECURRING_NOT_FOUND)},
    "openapi_extra": needs(Verb.MANAGE),
}


@routes.get(
    "/topics/{topic}/recurring",
    summary="List recurring jobs",
    response_class=Response,
    responses={200: {"model": RecurringList}, **problems_of()},
    openapi_extra=needs(Verb.READ),
)
async def list_recurring(request: Request, topic: Topic) -> Response:
    """Lists all recurring jobs of the topic, by name."""
    found = await service_of(request).client.recurring.list(topic)
    return answer({"recurring": [view(info) for info in found]})


@routes.get(
    "/topics/{topic}/recurring/{name}",
    summary="Look a recurring job up",
    response_class=Response,
    responses={200: {"model": RecurringView}, **problems_of(problems.RECURRING_NOT_FOUND)},
    openapi_extra=needs(Verb.READ),
)
async def get_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Returns the recurring job with its next and last occurrence."""
    found = await service_of(request).client.recurring.get(topic, name)
    if found is None:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return answer(view(found))


@routes.put(
    "/topics/{topic}/recurring/{name}",
    summary="Create or change a recurring job",
    response_class=Response,
    responses={200: {"model": RecurringMade}, 201: {"model": RecurringMade}, **problems_of()},
    openapi_extra=needs(Verb.MANAGE),
)
async def put_recurring(request: Request, topic: Topic, name: Name, rule: RecurringRule) -> Response:
    """Creates the recurring job, or changes it from now on. A repeated request changes nothing."""
    found = await service_of(request).client.recurring.put(topic, name, **rule.said())
    return answer(made(found), 201 if found.outcome is RecurringOutcome.CREATED else 200)


@routes.delete("/topics/{topic}/recurring/{name}", summary="Remove a recurring job", **_CHANGED)
async def remove_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Also removes its waiting occurrence."""
    return _done(await service_of(request).client.recurring.remove(topic, name))


@routes.post("/topics/{topic}/recurring/{name}/pause", summary="Pause a recurring job", **_CHANGED)
async def pause_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """It does not occur until it is resumed."""
    return _done(await service_of(request).client.recurring.pause(topic, name))


@routes.post("/topics/{topic}/recurring/{name}/resume", summary="Resume a recurring job", **_CHANGED)
async def resume_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """It occurs again from now on; occurrences missed during the pause do not run."""
    return _done(await service_of(request).client.recurring.resume(topic, name))


@routes.post(
    "/topics/{topic}/recurring/{name}/trigger",
    summary="Run a recurring job once, now",
    status_code=201,
    response_class=Response,
    responses={201: {"model": jobs.Made}, **problems_of(problems.RECURRING_NOT_FOUND)},
    openapi_extra=needs(Verb.MANAGE),
)
async def trigger_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Runs it besides its occurrences, even while it is paused."""
    receipt = await service_of(request).client.recurring.trigger(topic, name)
    if receipt is None:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return answer(jobs.made(receipt), 201)


def _done(outcome: RecurringOutcome) -> Response:
    if outcome is RecurringOutcome.NOT_FOUND:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return Response(status_code=204)
