"""`/metrics`: what there is to watch, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.http.conftest import Http
from tests.transports import Unreachable
from wheelq.breaker import BreakerState
from wheelq.server import measures
from wheelq.server.callbacks.destination import DestinationInfo


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_status_and_jobs_by_topic_and_state(http: Http) -> None:
    for delay in (60, 60, -1):
        await http.post("/v1/topics/orders/jobs", json={"delay": delay})
    answer = await http.get("/metrics")
    assert answer.headers["content-type"] == measures.CONTENT_TYPE
    found = samples(answer.text)
    assert found["wheelq_http_requests_total", "201"] == 2
    assert found["wheelq_http_requests_total", "422"] == 1
    assert found["wheelq_jobs", "delayed", "orders"] == 2
    assert found["wheelq_jobs", "dead", "orders"] == 0
    assert found["wheelq_overdue_seconds", "orders"] == 0
    assert found["wheelq_redis_up",] == 1


async def test_while_redis_is_away_there_is_something_to_watch_all_the_same(serve: Callable[..., Any]) -> None:
    http = await serve(Unreachable(times=99))
    found = samples((await http.get("/metrics")).text)
    assert found["wheelq_redis_up",] == 0
    assert not [name for name, *_ in found if name == "wheelq_jobs"]


def test_the_state_of_a_receivers_breaker_is_one_of_three() -> None:
    info = DestinationInfo("shop", BreakerState.OPEN, 3, 0, 7, 5, "answered 500")
    found = samples(measures.tell({}, [info], []).decode())
    states = {state: found["wheelq_destination_state", "shop", state] for state in BreakerState}
    assert states == {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 0}
    assert found["wheelq_callbacks_total", "shop", "succeeded"] == 7
    assert found["wheelq_callbacks_total", "shop", "failed"] == 5
    assert found["wheelq_callbacks_in_flight", "shop"] == 3
