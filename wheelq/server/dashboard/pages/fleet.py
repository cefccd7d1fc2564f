"""`/fleet`: the schedulers and workers that live, and the shards that no scheduler leads."""

from __future__ import annotations

from starlette.responses import Response

from wheelq.server.access.keys import Verb
from wheelq.server.dashboard.visit import Visit, shows

MOST = 200


async def fleet(visit: Visit) -> Response:
    """Every scheduler and worker that lives, by their heartbeats."""
    seen = await visit.service.look.now()
    sees_all = visit.sees_all()
    workers = [
        worker for worker in seen.workers if sees_all or any(visit.may(Verb.READ, topic) for topic in worker.topics)
    ]
    return visit.page(
        "fleet.html",
        seen=seen,
        nodes=seen.nodes if sees_all else [],
        workers=workers[:MOST],
        workers_left_out=max(0, len(workers) - MOST),
        may_read={topic for worker in workers for topic in worker.topics if visit.may(Verb.READ, topic)},
        sees_all=sees_all,
    )


PLACES = (shows("/fleet", fleet),)
