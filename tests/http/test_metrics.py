"""`/metrics`: what there is to watch, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.http.conftest import BASE, Http
from tests.transports import AsyncWith, Unreachable
from wheelq import Scheduler, Settings
from wheelq.breaker import BreakerState
from wheelq.metrics import Lateness
from wheelq.server import measures
from wheelq.server.app import make_app
from wheelq.server.callbacks.destination import DestinationInfo
from wheelq.server.service import Service
from wheelq.settings import OutboxSettings, SchedulerSettings

LATENESS = "wheelq_promotion_lateness_seconds"


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


async def test_the_outbox_tells_how_much_waits_in_it_and_since_when(url: str, tmp_path: Path) -> None:
    """Jobs, bytes, age in seconds, and what was put aside; nothing without an outbox."""
    outbox = OutboxSettings(path=str(tmp_path / "outbox.db"), retry_ms=60_000)
    service = Service(AsyncWith(url, Unreachable(times=99)), Settings(outbox=outbox))
    http = Http(transport=httpx.ASGITransport(make_app(service)), base_url=BASE)
    async with service.running(), http:
        assert samples((await http.get("/metrics")).text)["wheelq_outbox_jobs",] == 0
        for _ in range(2):
            assert (await http.post("/v1/topics/orders/jobs", json={"payload": 1, "delay": 60})).status_code == 202
        await asyncio.sleep(0.01)
        found = samples((await http.get("/metrics")).text)
    assert (found["wheelq_outbox_jobs",], found["wheelq_outbox_rejected_jobs",]) == (2, 0)
    assert found["wheelq_outbox_bytes",] > 0
    assert 0.01 <= found["wheelq_outbox_oldest_age_seconds",] < 60


async def test_without_an_outbox_nothing_is_told_of_one(http: Http) -> None:
    assert "outbox" not in (await http.get("/metrics")).text


async def test_how_late_each_scheduler_promoted_its_jobs_is_a_histogram_in_seconds(
    http: Http, url: str, settings: Settings
) -> None:
    """As it says in its heartbeats."""
    await http.post("/v1/topics/orders/jobs", json={"delay": 0.05})
    scheduler = Scheduler.connect(url, replace(settings, scheduler=SchedulerSettings(heartbeat_ms=50, topics_ms=50)))
    running = asyncio.create_task(scheduler.run())
    until = time.monotonic() + 20
    while not (found := samples((await http.get("/metrics")).text)).get((LATENESS + "_count", scheduler.node)):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    scheduler.stop()
    await running
    below = [count for (name, *labels), count in found.items() if name == LATENESS + "_bucket"]
    assert (min(below), max(below), len(below)) == (min(below), 1, measures.LATENESS_BUCKETS + 1)
    assert found[LATENESS + "_sum", scheduler.node] == scheduler.lateness.total_ms / 1000


def test_a_bucket_of_lateness_holds_all_that_are_within_its_bound() -> None:
    lateness = Lateness(total_ms=10_000, counts=(3, 0, 2, *[0] * 20, 1))  # the last: less than 2**23 ms late
    found = samples(measures.tell({}, [], [], {"n": lateness}, None, 0).decode())
    assert [found[LATENESS + "_bucket", le, "n"] for le in ("0.001", "0.002", "0.004", "1048.576", "+Inf")] == [
        3,
        3,
        5,
        5,
        6,
    ]
    assert (found[LATENESS + "_count", "n"], found[LATENESS + "_sum", "n"]) == (6, 10.0)


async def test_while_redis_is_away_there_is_something_to_watch_all_the_same(serve: Callable[..., Any]) -> None:
    http = await serve(Unreachable(times=99))
    found = samples((await http.get("/metrics")).text)
    assert found["wheelq_redis_up",] == 0
    assert not [name for name, *_ in found if name == "wheelq_jobs"]


def test_the_state_of_a_receivers_breaker_is_one_of_three() -> None:
    info = DestinationInfo("shop", BreakerState.OPEN, 3, 0, 7, 5, "answered 500")
    found = samples(measures.tell({}, [info], [], {}, None, 0).decode())
    states = {state: found["wheelq_destination_state", "shop", state] for state in BreakerState}
    assert states == {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 0}
    assert found["wheelq_callbacks_total", "shop", "succeeded"] == 7
    assert found["wheelq_callbacks_total", "shop", "failed"] == 5
    assert found["wheelq_callbacks_in_flight", "shop"] == 3
