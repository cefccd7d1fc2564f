"""Liveness, readiness and version, for load balancers and people. They need no key, and reveal no secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wheelq import __version__
from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.producer.outbox.store import OutboxInfo
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.readiness import Readiness
from wheelq.server.routing import ANYONE, answer, caller_of, documented, needs, problems_of, router, service_of
from wheelq.server.schemas.model import Answer

routes = router("health", prefix="")


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


@routes.get("/healthz", **documented("Alive?", None, Alive))
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


@routes.get("/version", **documented("Which version?", None, Version))
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

    Receivers and the outbox belong to no topic: they are left out unless the key has the scope `read:*`.
    """
    service = service_of(request)
    caller = caller_of(request)
    fleet = await service.fleet_metrics.text(lambda topic: caller.may(Verb.READ, topic))
    infos = service.calling.destinations() if service.calling is not None and caller.reads_all else ()
    outbox = await service.client.outbox_info() if caller.reads_all else None
    text = metrics_text(service.answered, infos, fleet, outbox, service.clock.wall_ms())
    return Response(text, media_type=PROMETHEUS_TEXT)


def metrics_text(
    answered: Mapping[int, int],
    destinations: Iterable[DestinationInfo],
    fleet: str,
    outbox: OutboxInfo | None,
    now_ms: int,
) -> bytes:
    """Returns all metrics in the text format of Prometheus, at `now_ms` by this machine's clock.

    First come those of this process: its requests by status (`answered`), the receivers that it calls, and its outbox;
    None: there is none. Then come those of the `fleet`, from `admin.exposition`; while Redis is away they are missing,
    and `wheelq_redis_up` is 0.
    """
    registry = CollectorRegistry()
    metrics = (
        _of_requests(answered),
        *_of_destinations(destinations),
        *(_of_outbox(outbox, now_ms) if outbox is not None else ()),
    )
    for metric in metrics:
        registry.register(_Collected(metric))
    return generate_latest(registry) + fleet.encode()


class _Collected:
    """Passes ready metrics to the library, which asks a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _of_requests(answered: Mapping[int, int]) -> Metric:
    requests = CounterMetricFamily("wheelq_http_requests", "HTTP requests answered, by status.", labels=["status"])
    for status, count in sorted(answered.items()):
        requests.add_metric([str(status)], count)
    return requests


def _of_destinations(infos: Iterable[DestinationInfo]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "wheelq_destination_state", "1 for the state of a receiver's circuit breaker.", labels=["destination", "state"]
    )
    in_flight = GaugeMetricFamily("wheelq_callbacks_in_flight", "Callback requests in flight.", labels=["destination"])
    made = CounterMetricFamily(
        "wheelq_callbacks", "Callback requests made, by outcome.", labels=["destination", "outcome"]
    )
    for info in infos:
        for possible in BreakerState:
            state.add_metric([info.name, possible], float(info.state is possible))
        in_flight.add_metric([info.name], info.in_flight)
        made.add_metric([info.name, "succeeded"], info.succeeded)
        made.add_metric([info.name, "failed"], info.failed)
    yield from (state, in_flight, made)


def _of_outbox(info: OutboxInfo, now_ms: int) -> Iterator[Metric]:
    age_ms = 0 if info.oldest_kept_ms is None else max(0, now_ms - info.oldest_kept_ms)
    yield GaugeMetricFamily("wheelq_outbox_jobs", "Jobs that wait on this server's disk for Redis.", info.jobs)
    yield GaugeMetricFamily("wheelq_outbox_bytes", "Bytes of packed payloads on this server's disk.", info.bytes)
    yield GaugeMetricFamily(
        "wheelq_outbox_oldest_seconds",
        "How long the oldest job on this server's disk has waited for Redis.",
        age_ms / 1000,
    )
    yield GaugeMetricFamily("wheelq_outbox_rejected_jobs", "Jobs that Redis refused, set aside.", info.rejected)
