"""`/`: the problems first, then the most important figures. `/events`: the stream that every open tab listens to.

`/fleet`: the schedulers and workers that live, and the shards that no scheduler leads. `/callbacks`: the receivers that
this process calls, with their circuit breakers; and its outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi.sse import EventSourceResponse
from starlette.responses import Response

from wheelq.admin import WorkerInfo
from wheelq.admin.diagnosis import Finding, Level
from wheelq.admin.figures import Fleet
from wheelq.admin.metrics import STATES
from wheelq.base.metrics import Lateness
from wheelq.base.plural import counted
from wheelq.model.topic import TopicInfo
from wheelq.producer.breaker import BreakerState
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.dashboard.entering import viewer_of
from wheelq.server.dashboard.pages.future import PastCharts, chart, colours_in, legend, past
from wheelq.server.dashboard.visit import Visit, shows
from wheelq.server.problems import Problem
from wheelq.server.service import address_of

MOST_TOPICS = 12
_WORST_FIRST = {Level.PROBLEM: 0, Level.WARNING: 1, Level.OK: 2}
MOST_WORKERS = 200
SOON_S = 30.0
"""For how long this process must have looked for its own rates: heartbeats come every second or so."""


async def overview(visit: Visit) -> Response:
    """The figures of the last look, and what `wheelq doctor` finds."""
    seen = await visit.service.snapshot.now()
    topics = visit.readable(seen)
    outlook, lately, findings = await asyncio.gather(
        visit.service.due_counts.span("hour", topics), past(visit, topics, seen.at_ms), _findings(visit)
    )
    colours = colours_in(outlook, seen.topics)
    return visit.page(
        "overview.html",
        seen=seen,
        workers=len(readable_workers(visit, seen)),
        totals=_totals(topics),
        findings=[finding for finding in findings if finding.level is not Level.OK],
        checked=len(findings),
        topics=sorted(topics, key=_matters, reverse=True)[:MOST_TOPICS],
        left_out=max(0, len(topics) - MOST_TOPICS),
        upcoming=chart(visit, outlook, None, colours, height=180),
        upcoming_parts=legend(outlook, colours),
        upcoming_without=outlook.left_out,
        due_in_hour=sum(outlook.bars),
        past=lately,
        sees_all=visit.caller.reads_all,
        **_figures(visit, seen, lately),
    )


def _figures(visit: Visit, seen: Fleet, lately: PastCharts) -> dict[str, Any]:
    """The rates and the lateness. Heartbeats have them of all topics together, and only for viewers who read all.

    Until this process has looked for `SOON_S`, rates are those of the last whole minute, which is in Redis.
    """
    flow, last = visit.service.snapshot.flow(), lately.last
    is_live = visit.caller.reads_all and flow.seconds >= SOON_S
    minute = "last whole minute" + (f", without {counted(lately.left_out, 'topic')}" if lately.left_out else "")
    rates = [("Scheduled", last.scheduled[0] / 60, minute)]
    if is_live:
        live = (("Promoted", flow.promoted), ("Done", flow.handled), ("Failed", flow.failed))
        rates += [(label, count / flow.seconds, f"last {flow.seconds:.0f} s") for label, count in live]
    else:
        recorded = (("Promoted", last.promoted), ("Done", last.done), ("Failed", last.failed))
        rates += [(label, count[0] / 60, minute) for label, count in recorded]
    nodes = seen.processes.nodes if visit.caller.reads_all else []
    lateness = flow.lateness if is_live else sum((node.lateness for node in nodes), Lateness())
    return {
        "rates": rates,
        "lateness_since": f"last {flow.seconds:.0f} s" if is_live else "since the schedulers started",
        "p50": lateness.percentile(0.5) if lateness.jobs else None,
        "p99": lateness.percentile(0.99) if lateness.jobs else None,
    }


async def _findings(visit: Visit) -> Sequence[Finding]:
    """What the checkup finds, the worst first; it concerns all topics."""
    if not visit.caller.reads_all:
        return ()
    return sorted(await visit.service.diagnosis.get(), key=lambda finding: _WORST_FIRST[finding.level])


def _totals(topics: Sequence[TopicInfo]) -> dict[str, int]:
    """Returns the jobs by state, how many topics have overdue ones, and how long the most overdue has been due."""
    late = [info.overdue_ms for info in topics if info.overdue_ms and not info.settings.paused]
    jobs = {state: sum(getattr(info, state) for info in topics) for state in STATES}
    return {**jobs, "overdue": len(late), "overdue_ms": max(late, default=0)}


def _matters(info: TopicInfo) -> tuple[bool, int]:
    active = info.ready + info.running + info.retrying
    return bool(info.overdue_ms or info.settings.paused), active * 1_000 + info.waiting + info.dead


async def events(visit: Visit) -> Response:
    """Tell the tab when there is something new, until it goes."""

    async def check() -> None:
        caller, _ = await viewer_of(visit.service, visit.request)
        if not caller.may(Verb.READ, None):
            raise Problem(problems.NOT_ALLOWED)

    viewer = visit.caller.id or address_of(visit.request)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if visit.request.method == "HEAD":  # a stream would not end
        return Response(headers=headers, media_type="text/event-stream")
    return EventSourceResponse(visit.service.stream.listen(viewer, check), headers=headers)


async def fleet(visit: Visit) -> Response:
    """Every scheduler and worker that lives, by their heartbeats."""
    seen = await visit.service.snapshot.now()
    sees_all = visit.caller.reads_all
    workers = readable_workers(visit, seen)
    return visit.page(
        "fleet.html",
        seen=seen,
        nodes=seen.processes.nodes if sees_all else [],
        couriers=seen.processes.couriers if sees_all else (),
        workers=workers[:MOST_WORKERS],
        workers_left_out=max(0, len(workers) - MOST_WORKERS),
        may_read={topic for worker in workers for topic in worker.topics if visit.may(Verb.READ, topic)},
        sees_all=sees_all,
    )


def readable_workers(visit: Visit, seen: Fleet) -> list[WorkerInfo]:
    """Returns the workers of at least one topic that the viewer may read."""
    if visit.caller.reads_all:
        return seen.processes.workers
    return [one for one in seen.processes.workers if any(visit.may(Verb.READ, topic) for topic in one.topics)]


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


PLACES = (
    shows("/", overview),
    shows("/events", events),
    shows("/fleet", fleet),
    shows("/callbacks", callbacks),
)
