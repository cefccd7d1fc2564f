"""What `/metrics` tells, in the text format of Prometheus.

Of this process: its requests, the receivers that it calls, and its outbox, if it has one. Of all: what each topic
holds, and how late it is, and how late each scheduler node promoted its jobs, read from Redis when it is asked for;
while Redis is away those are missing and `wheelq_redis_up` is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from wheelq.breaker import BreakerState
from wheelq.metrics import Lateness
from wheelq.outbox import OutboxInfo
from wheelq.server.callbacks.destination import DestinationInfo
from wheelq.topics import TopicInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENESS_BUCKETS = 21
"""From 1 ms, doubling, to 17 minutes."""


def tell(
    answered: Mapping[int, int],
    destinations: Iterable[DestinationInfo],
    topics: Sequence[TopicInfo] | None,
    nodes: Mapping[str, Lateness],
    outbox: OutboxInfo | None,
    now_ms: int,
) -> bytes:
    """Everything as text, at `now_ms` by this machine's clock.

    `answered`: how many requests by status; `topics` None: Redis is away; `nodes`: how late each scheduler node was;
    `outbox` None: there is none.
    """
    told = CollectorRegistry()
    metrics = (
        _of_requests(answered),
        *_of_destinations(destinations),
        *_of_topics(topics),
        _of_nodes(nodes),
        *(_of_outbox(outbox, now_ms) if outbox is not None else ()),
    )
    for metric in metrics:
        told.register(_Told(metric))
    return generate_latest(told)


class _Told:
    """A metric that is what it is: the library asks a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _of_requests(answered: Mapping[int, int]) -> Metric:
    requests = CounterMetricFamily("wheelq_http_requests", "Requests answered.", labels=["status"])
    for status, count in sorted(answered.items()):
        requests.add_metric([str(status)], count)
    return requests


def _of_destinations(infos: Iterable[DestinationInfo]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "wheelq_destination_state", "1 for the state of a receiver's circuit breaker.", labels=["destination", "state"]
    )
    in_flight = GaugeMetricFamily("wheelq_callbacks_in_flight", "Requests under way.", labels=["destination"])
    made = CounterMetricFamily("wheelq_callbacks", "Requests made, by outcome.", labels=["destination", "outcome"])
    for info in infos:
        for possible in BreakerState:
            state.add_metric([info.name, possible], float(info.state is possible))
        in_flight.add_metric([info.name], info.in_flight)
        made.add_metric([info.name, "succeeded"], info.succeeded)
        made.add_metric([info.name, "failed"], info.failed)
    yield from (state, in_flight, made)


def _of_topics(topics: Sequence[TopicInfo] | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("wheelq_redis_up", "Whether Redis answers.", float(topics is not None))
    jobs = GaugeMetricFamily(
        "wheelq_jobs",
        "Jobs: waiting; promoted, and not finished or kept; dead.",
        labels=["topic", "state"],
    )
    overdue = GaugeMetricFamily(
        "wheelq_overdue_seconds", "How long the first waiting job has been due.", labels=["topic"]
    )
    for info in topics or ():
        for name, count in (("delayed", info.delayed), ("ready", info.ready), ("dead", info.dead)):
            jobs.add_metric([info.name, name], count)
        overdue.add_metric([info.name], info.overdue_ms / 1000)
    yield from (jobs, overdue)


def _of_nodes(nodes: Mapping[str, Lateness]) -> Metric:
    """Cumulated, as Prometheus wants it. Of whole milliseconds: less than 2**n of them is at most 2**n."""
    histogram = HistogramMetricFamily(
        "wheelq_promotion_lateness_seconds", "From a job's due time to its promotion, by node.", labels=["node"]
    )
    for name, lateness in nodes.items():
        below = [(str((1 << n) / 1000), sum(lateness.counts[: n + 1])) for n in range(LATENESS_BUCKETS)]
        histogram.add_metric([name], [*below, ("+Inf", lateness.jobs)], lateness.total_ms / 1000)
    return histogram


def _of_outbox(info: OutboxInfo, now_ms: int) -> Iterator[Metric]:
    age_ms = 0 if info.oldest_kept_ms is None else max(0, now_ms - info.oldest_kept_ms)
    yield GaugeMetricFamily("wheelq_outbox_jobs", "Jobs that wait on this server's disk for Redis.", info.jobs)
    yield GaugeMetricFamily("wheelq_outbox_bytes", "Their packed payloads.", info.bytes)
    yield GaugeMetricFamily("wheelq_outbox_oldest_age_seconds", "How long the oldest has waited.", age_ms / 1000)
    yield GaugeMetricFamily("wheelq_outbox_rejected_jobs", "Jobs that Redis refused, put aside.", info.rejected)
