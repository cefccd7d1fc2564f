"""`/metrics`: what there is to watch, for Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.errors import ServerError
from wheelq.inspector import lateness_of
from wheelq.server import measures, nodes
from wheelq.server.access.keys import Verb
from wheelq.server.routing import caller_of, needs, problems_of, router, service_of

routes = router("health", prefix="")
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@routes.get(
    "/metrics",
    summary="Metrics",
    response_class=Response,
    responses={**_TEXT, **problems_of()},
    openapi_extra=needs(Verb.READ),
)
async def metrics(request: Request) -> Response:
    """For Prometheus: requests, jobs of topics that the key may read, lateness, receivers of callbacks, the outbox."""
    service = service_of(request)
    try:
        found = await service.client.topics()
        said = await nodes.alive(service.transport, service.keys)
    except ServerError:
        topics, said = None, {}
    else:
        caller = caller_of(request)
        topics = [info for info in found if caller.may(Verb.READ, info.name)]
    infos = service.calling.destinations() if service.calling is not None else ()
    outbox = await service.client.outbox_info()
    lateness = {name: lateness_of(words) for name, words in sorted(said.items())}
    text = measures.tell(service.answered, infos, topics, lateness, outbox, service.clock.wall_ms())
    return Response(text, media_type=measures.CONTENT_TYPE)
