"""Liveness, readiness and version, for load balancers and people. They need no key, and reveal no secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from wheelq import __version__
from wheelq.admin.metrics import counter, gauge, labels_of
from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.producer.outbox.store import OutboxInfo
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.readiness import Readiness
from wheelq.server.routing import ANYONE, Resource, answer, caller_of, needs, problems_of, service_of
from wheelq.server.schemas.model import Answer

routes = Resource("health", prefix="")


_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Alive(Answer):
    """The process answers."""

    status: str


class Version(Answer):
    """The version of this server."""

    name: str
    version: str


@routes.on("GET", "/healthz", "Alive?", None, Alive)
async def is_alive() -> Response:
    """Tells whether this process answers, without asking Redis. Use it to decide on a restart."""
    return answer({"status": "alive"})


@routes.get(
    "/readyz",
    summary="Ready?",
    response_class=Response,
    responses={200: {"model": Readiness}, 503: {"model": Readiness}},
    openapi_extra=ANYONE,
)
async def is_ready(request: Request) -> Response:
    """Tells whether requests should come here: checks Redis, and whether schedulers are alive and keep up."""
    found = await service_of(request).readiness()
    headers = None if found.ready else {"retry-after": "2"}
    return answer(found.model_dump(), 200 if found.ready else problems.NOT_READY.status, headers)


@routes.on("GET", "/version", "Which version?", None, Version)
async def version() -> Response:
    """Returns the version of this server."""
    body: dict[str, Any] = {"name": "wheelq", "version": __version__}
    return answer(body)


@routes.get(
    "/metrics",
    summary="Metrics",
    response_class=Response,
    responses={**_TEXT, **problems_of()},
    openapi_extra=needs(Verb.READ),
)
async def metrics(request: Request) -> Response:
    """Returns metrics of this server and of the fleet, for topics that the key may read.

    Receivers and outboxes belong to no topic: they are left out unless the key has the scope `read:*`.
    """
    service = service_of(request)
    caller = caller_of(request)
    fleet = await service.fleet_metrics.text(lambda topic: caller.may(Verb.READ, topic), reads_all=caller.reads_all)
    infos = service.calling.destinations() if service.calling is not None and caller.reads_all else ()
    outbox = await service.client.outbox_info() if caller.reads_all else None
    text = metrics_text(service.answered, infos, fleet, outbox, service.clock.wall_ms())
    return Response(text, media_type=PROMETHEUS_TEXT)


def metrics_text(
    answered: Mapping[int, int],
    destinations: Sequence[DestinationInfo],
    fleet: str,
    outbox: OutboxInfo | None,
    now_ms: int,
) -> str:
    """Returns all metrics in the text format of Prometheus, at `now_ms` by this machine's clock.

    First come those of this process: its requests by status (`answered`), the receivers that it calls, and its outbox;
    None: there is none. Then come those of the `fleet`, from `admin.metrics`; while Redis is away they are missing, and
    `wheelq_redis_up` is 0.
    """
    page: list[str] = []
    requests = ((labels_of(status=str(status)), count) for status, count in sorted(answered.items()))
    counter(page, "wheelq_http_requests_total", "HTTP requests answered, by status.", requests)
    _destinations(page, destinations)
    if outbox is not None:
        _outbox(page, outbox, now_ms)
    return "".join(page) + fleet


def _destinations(page: list[str], infos: Sequence[DestinationInfo]) -> None:
    states = (
        (labels_of(destination=info.name, state=state), float(info.state is state))
        for info in infos
        for state in BreakerState
    )
    gauge(page, "wheelq_destination_state", "1 for the state of a receiver's circuit breaker.", states)
    in_flight = ((labels_of(destination=info.name), info.in_flight) for info in infos)
    gauge(page, "wheelq_callbacks_in_flight", "Callback requests in flight.", in_flight)
    made = (
        (labels_of(destination=info.name, outcome=outcome), getattr(info, outcome))
        for info in infos
        for outcome in ("succeeded", "failed")
    )
    counter(page, "wheelq_callbacks_total", "Callback requests made, by outcome.", made)


def _outbox(page: list[str], info: OutboxInfo, now_ms: int) -> None:
    age_ms = 0 if info.oldest_kept_ms is None else max(0, now_ms - info.oldest_kept_ms)
    gauge(page, "wheelq_outbox_jobs", "Jobs that wait on this server's disk for Redis.", [("", info.jobs)])
    gauge(page, "wheelq_outbox_bytes", "Bytes of packed payloads on this server's disk.", [("", info.bytes)])
    text = "How long the oldest job on this server's disk has waited for Redis."
    gauge(page, "wheelq_outbox_oldest_seconds", text, [("", age_ms / 1000)])
    gauge(page, "wheelq_outbox_rejected_jobs", "Jobs that Redis refused, set aside.", [("", info.rejected)])
