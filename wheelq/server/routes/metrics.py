"""`/metrics`: metrics for Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from wheelq.server import prometheus
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
    """Returns metrics of this server (requests, callbacks, outbox) and of the fleet, for topics that the key may
    read.
    """
    service = service_of(request)
    caller = caller_of(request)
    fleet = await service.fleet_metrics.text(lambda topic: caller.may(Verb.READ, topic))
    infos = service.calling.destinations() if service.calling is not None else ()
    outbox = await service.client.outbox_info()
    text = prometheus.tell(service.answered, infos, fleet, outbox, service.clock.wall_ms())
    return Response(text, media_type=prometheus.CONTENT_TYPE)
