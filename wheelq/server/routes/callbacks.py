"""`/v1/destinations`: the receivers of callbacks and their health."""

from __future__ import annotations

from fastapi import Request, Response

from wheelq.server.access.keys import Verb
from wheelq.server.routing import answer, needs, problems_of, router, service_of
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
    """The receivers that this process has called, whether they answer, and whether their circuit breakers are open."""
    calling = service_of(request).calling
    infos = calling.destinations() if calling is not None else ()
    return answer({"destinations": [destination_view(info) for info in infos]})
