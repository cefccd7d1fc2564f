"""`/callbacks`: the receivers that this process calls, with their circuit breakers; and its outbox."""

from __future__ import annotations

from starlette.responses import Response

from wheelq.producer.breaker import BreakerState
from wheelq.server.dashboard.visit import Visit, shows


async def callbacks(visit: Visit) -> Response:
    """The receivers, the worst first, and what waits on this server's disk."""
    service = visit.service
    found = service.calling.destinations() if service.calling is not None else ()
    worst_first = sorted(found, key=lambda info: (info.state is BreakerState.CLOSED, -info.failed, info.name))
    sees_all = visit.sees_all()
    return visit.page(
        "callbacks.html",
        destinations=worst_first if sees_all else [],
        calls=service.calling is not None,
        outbox=await service.client.outbox_info() if sees_all else None,
        now_ms=service.clock.wall_ms(),
        sees_all=sees_all,
    )


PLACES = (shows("/callbacks", callbacks),)
