"""`/metrics`: what there is to watch, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.conftest import BASE, Counting, Give, Http
from tests.lua.shard import RECORD
from tests.running import running
from tests.transports import ALWAYS, AsyncWith, Unreachable
from tests.waiting import PATIENCE
from wheelq import Scheduler, Settings
from wheelq.admin import metrics
from wheelq.base.metrics import BOUNDS, LATENESS_BOUNDS, Measured
from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.protocol.call import Call
from wheelq.protocol.calls import counts, producer, registry, worker
from wheelq.server.app import make_app
from wheelq.server.routes.health import PROMETHEUS_TEXT, metrics_text
from wheelq.server.service import Service
from wheelq.settings import OutboxSettings, SchedulerSettings, TopicSettings

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
    assert answer.headers["content-type"] == PROMETHEUS_TEXT
    found = samples(answer.text)
    assert found["wheelq_http_requests_total", "201"] == 2
    assert found["wheelq_http_requests_total", "422"] == 1
    assert found["wheelq_jobs", "waiting", "orders"] == 2
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
        bulk = await http.post("/v1/topics/orders/bulk", json={"jobs": [{"payload": 1, "delay": 60}]})
        assert (bulk.status_code, bulk.json()["outcomes"][0]["in_outbox"]) == (202, True)
        await asyncio.sleep(0.01)
        found = samples((await http.get("/metrics")).text)
    assert (found["wheelq_outbox_jobs",], found["wheelq_outbox_rejected_jobs",]) == (3, 0)
    assert found["wheelq_outbox_bytes",] > 0
    assert 0.01 <= found["wheelq_outbox_oldest_seconds",] < 60


async def test_without_an_outbox_nothing_is_told_of_one(http: Http) -> None:
    assert "outbox" not in (await http.get("/metrics")).text


async def test_the_counts_and_measurements_of_the_fleet_are_exposed(http: Http, url: str, settings: Settings) -> None:
    """By the topic; processes have no label."""
    await http.post("/v1/topics/orders/jobs", json={"delay": 0.05})
    scheduler = Scheduler.connect(url, replace(settings, scheduler=SchedulerSettings(heartbeat_ms=50, topics_ms=50)))
    async with running(scheduler):
        until = time.monotonic() + PATIENCE
        while not (found := samples((await http.get("/metrics")).text)).get((LATENESS + "_count", "orders")):
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
    below = [count for (name, *labels), count in found.items() if name == LATENESS + "_bucket"]
    assert (max(below), len(below)) == (1, len(LATENESS_BOUNDS) + 1)
    assert found["wheelq_scheduled_total", "created", "orders"] == 1
    assert found["wheelq_promoted_total", "orders"] == 1
    assert found["wheelq_due_jobs", "orders", "1m"] == 0
    assert found["wheelq_leader_changes_total", "orders"] == 1


async def test_a_key_for_one_topic_is_not_told_of_what_belongs_to_none(serve: Callable[..., Any], give: Give) -> None:
    for scope, is_told in (("read:orders", False), ("read:*", True)):
        page = (await (await serve(access="keys", token=(await give(scope))[1])).get("/metrics")).text
        for name in ("wheelq_schedulers", "wheelq_lost_workers"):
            assert (name in page) is is_told, (scope, name)


async def test_histograms_of_a_removed_group_are_not_told(http: Http) -> None:
    service = http.service  # type: ignore[attr-defined]
    await http.post("/v1/topics/orders/jobs", json={"delay": 60})
    await service.transport.send(worker.make_group(service.keys.shard("orders", 0), "here"))
    figures = [1_000, *([1] * (len(BOUNDS[Measured.HANDLER]) + 1))]
    ran = {(Measured.HANDLER, "orders", group): figures for group in ("here", "gone")}
    assert await service.transport.send(counts.observe(service.keys, "worker", 1, ran))
    found = samples((await http.get("/metrics")).text)
    groups = {name[1] for name in found if name[0] == "wheelq_handler_seconds_count"}
    assert groups == {"here"}


async def test_three_thousand_topics_are_scraped_within_half_a_second(http: Http) -> None:
    """Of processor time, because the machine may be busy. Each topic has a group, a waiting job and counts."""
    service = http.service  # type: ignore[attr-defined]
    names = [f"topic-{n:04}" for n in range(3_000)]
    calls: list[Call[Any]] = []
    for name in names:
        shard = service.keys.shard(name, 0)
        calls += [
            registry.register_topic(service.keys, name, TopicSettings()),
            worker.make_group(shard, "g"),
            producer.schedule(shard, [("a", "+3600000", RECORD)], "keep", "1"),
        ]
    for first in range(0, len(calls), 500):
        await asyncio.gather(*(service.transport.send(call) for call in calls[first : first + 500]))
    took = []
    for _ in range(3):
        service.fleet_metrics._reading.forget()
        began = time.process_time()
        answer = await http.get("/metrics")
        took.append(time.process_time() - began)
    found = samples(answer.text)
    assert all(found["wheelq_scheduled_total", "created", name] == 1 for name in names)
    assert all(found["wheelq_jobs", "waiting", name] == 1 for name in names)
    assert min(took) < 0.5


async def test_figures_are_asked_for_once_in_four_seconds(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many scrape. Here it is once in minutes, because the machine may be busy."""
    assert metrics.FRESH_S == 4
    monkeypatch.setattr(metrics, "FRESH_S", 4 * PATIENCE)
    asked = Counting("measure", times=ALWAYS)
    http = await serve(asked)
    await http.post("/v1/topics/orders/jobs", json={"delay": 60})
    first, *others = await asyncio.gather(*(http.get("/metrics") for _ in range(5)))
    assert asked.met == 1
    await http.get("/metrics")
    assert asked.met == 1
    assert len({answer.text.partition("wheelq_build_info")[2] for answer in (first, *others)}) == 1


async def test_while_redis_is_away_there_is_something_to_watch_all_the_same(serve: Callable[..., Any]) -> None:
    http = await serve(Unreachable(times=99))
    found = samples((await http.get("/metrics")).text)
    assert found["wheelq_redis_up",] == 0
    assert not [name for name, *_ in found if name == "wheelq_jobs"]


def test_the_state_of_a_receivers_breaker_is_one_of_three() -> None:
    info = DestinationInfo("shop", BreakerState.OPEN, 3, 0, 7, 5, "answered 500")
    found = samples(metrics_text({}, [info], "", None, 0))
    states = {state: found["wheelq_destination_state", "shop", state] for state in BreakerState}
    assert states == {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 0}
    assert found["wheelq_callbacks_total", "shop", "succeeded"] == 7
    assert found["wheelq_callbacks_total", "shop", "failed"] == 5
    assert found["wheelq_callbacks_in_flight", "shop"] == 3
