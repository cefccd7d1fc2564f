"""`/fleet`: the schedulers and workers that live, and the shards that no scheduler leads.

`/callbacks`: the receivers that this process calls, with their circuit breakers; and its outbox.
"""

from __future__ import annotations

from starlette.responses import Response

from wheelq.admin import WorkerInfo
from wheelq.producer.breaker import BreakerState
from wheelq.server.access import Verb
from wheelq.server.dashboard.look import Seen
from wheelq.server.dashboard.visit import Visit, shows

MOST = 200


async def fleet(visit: Visit) -> Response:
    """Every scheduler and worker that lives, by their heartbeats."""
    seen = await visit.service.look.now()
    sees_all = visit.caller.reads_all
    workers = readable_workers(visit, seen)
    return visit.page(
        "fleet.html",
        seen=seen,
        nodes=seen.nodes if sees_all else [],
        workers=workers[:MOST],
        workers_left_out=max(0, len(workers) - MOST),
        may_read={topic for worker in workers for topic in worker.topics if visit.may(Verb.READ, topic)},
        sees_all=sees_all,
    )


def readable_workers(visit: Visit, seen: Seen) -> list[WorkerInfo]:
    """Returns the workers of at least one topic that the viewer may read."""
    if visit.caller.reads_all:
        return list(seen.workers)
    return [worker for worker in seen.workers if any(visit.may(Verb.READ, topic) for topic in worker.topics)]


async def callbacks(visit: Visit) -> Response:
    """The receivers, the worst first, and what waits on this server's disk."""
    service = visit.service
    found = service.calling.destinations() if service.calling is not None else ()
    worst_first = sorted(found, key=lambda info: (info.state is BreakerState.CLOSED, -info.failed, info.name))
    sees_all = visit.caller.reads_all
    return visit.page(
        "callbacks.html",
        destinations=worst_first if sees_all else [],
        calls=service.calling is not None,
        outbox=await service.client.outbox_info() if sees_all else None,
        now_ms=service.clock.wall_ms(),
        sees_all=sees_all,
    )


PLACES = (shows("/fleet", fleet), shows("/callbacks", callbacks))
