"""`/events`: the stream that every open tab listens to."""

from __future__ import annotations

from fastapi.sse import EventSourceResponse
from starlette.responses import Response

from wheelq.server.dashboard.visit import Visit, shows


async def events(visit: Visit) -> Response:
    """Tell the tab when there is something new, until it goes."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return EventSourceResponse(visit.service.stream.listen(), headers=headers)


PLACES = (shows("/events", events),)
