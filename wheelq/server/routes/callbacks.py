"""`/v1/destinations`: the receivers of callbacks and how they are."""

from __future__ import annotations

from fastapi import Request, Response

from wheelq.server.access.keys import Verb
from wheelq.server.routing import answer, needs, problems_of, router, service_of
from wheelq.server.schemas.callbacks import Destinations, destination_view

routes = router("callbacks")


@routes.get(
    "/destinations",
    summary="See how receivers are",
    response_class=Response,
    responses={200: {"model": Destinations}, **problems_of()},
    openapi_extra=needs(Verb.READ),
)
async def destinations(request: Request) -> Response:
    """Whom this process has called, whether they answer, and for whom its circuit breaker is open."""
    calling = service_of(request).calling
    infos = calling.destinations() if calling is not None else ()
    return answer({"destinations": [destination_view(info) for info in infos]})
