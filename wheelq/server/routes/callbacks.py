"""`/v1/destinations`: the receivers of callbacks and their health."""

from __future__ import annotations

from fastapi import Request, Response

from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import answer, caller_of, needs, problems_of, router, service_of
from wheelq.server.schemas.callbacks import DestinationList, destination_view

routes = router("callbacks")


@routes.get(
    "/destinations",
    summary="See the health of receivers",
    response_class=Response,
    responses={200: {"model": DestinationList}, **problems_of()},
    openapi_extra=needs(Verb.READ),
)
async def destinations(request: Request) -> Response:
    """Returns the receivers that this process has called: whether they answer, and the state of their circuit breakers.

    Receivers belong to no topic, so an API key needs the scope `read:*`.
    """
    if not caller_of(request).reads_all:
        raise Problem(problems.NOT_ALLOWED, "Receivers belong to no topic: the key needs the scope read:*.")
    calling = service_of(request).calling
    infos = calling.destinations() if calling is not None else ()
    return answer({"destinations": [destination_view(info) for info in infos]})
