"""The metrics of `/metrics`, in the text format of Prometheus.

First those of this process: its requests, the receivers that it calls, and its outbox, if it has one. Then those of the
fleet, from `admin.exposition`; while Redis is away they are missing and `wheelq_redis_up` is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.producer.outbox import OutboxInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def tell(
    answered: Mapping[int, int],
    destinations: Iterable[DestinationInfo],
    fleet: str,
    outbox: OutboxInfo | None,
    now_ms: int,
) -> bytes:
    """Returns all metrics as text, at `now_ms` by this machine's clock.

    `answered`: how many requests by status; `fleet`: metrics of the fleet, as text; `outbox` None: there is none.
    """
    told = CollectorRegistry()
    metrics = (
        _of_requests(answered),
        *_of_destinations(destinations),
        *(_of_outbox(outbox, now_ms) if outbox is not None else ()),
    )
    for metric in metrics:
        told.register(_Told(metric))
    return generate_latest(told) + fleet.encode()


class _Told:
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
