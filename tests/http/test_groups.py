"""`/v1/topics/{topic}/groups`, and DELETE of groups and topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import httpx
import pytest

from tests.http.conftest import Counting
from tests.transports import ALWAYS
from wheelq import AsyncClient, Settings
from wheelq.settings import ClientSettings

Http: TypeAlias = httpx.AsyncClient
TOPIC = "/v1/topics/orders"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Producers trust what they know of a topic for a moment only: a topic's removal takes so long."""
    return replace(settings, client=ClientSettings(topics_ttl_ms=200))


async def test_groups_are_listed_and_removed(http: Http, aclient: AsyncClient) -> None:
    await aclient.make_group("orders", "billing")
    await http.post(f"{TOPIC}/jobs", json={"delay": 0, "id": "a"})
    [found] = (await http.get(f"{TOPIC}/groups")).json()["groups"]
    assert {name: found[name] for name in ("name", "lag", "pending", "workers")} == {
        "name": "billing",
        "lag": 1,
        "pending": 0,
        "workers": [],
    }
    assert (await http.delete(f"{TOPIC}/groups/billing")).status_code == 204
    assert (await http.get(f"{TOPIC}/groups")).json() == {"groups": []}
    again = await http.delete(f"{TOPIC}/groups/billing")
    assert (again.status_code, again.json()["type"]) == (404, "/docs#group-not-found")
    assert (await http.delete("/v1/topics/none/groups/billing")).status_code == 404


async def test_a_group_of_leases_goes_by_the_name_it_is_leased_by(http: Http) -> None:
    await http.post(f"{TOPIC}/jobs", json={"delay": 0})
    assert len((await http.post(f"{TOPIC}/groups/sender/lease", json={"count": 1, "lease": 30})).json()["jobs"]) == 1
    refused = await http.delete(f"{TOPIC}/groups/sender")
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs#in-use")
    assert (await http.delete(f"{TOPIC}/groups/sender", params={"force": "true"})).status_code == 204
    assert (await http.get(f"{TOPIC}/groups")).json() == {"groups": []}


async def test_a_topic_is_removed(http: Http) -> None:
    await http.post(f"{TOPIC}/jobs", json={"delay": 60})
    refused = await http.delete(TOPIC)
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs#in-use")
    removed = await http.delete(TOPIC, params={"force": "true"})
    assert removed.status_code == 204
    assert (await http.get(TOPIC)).status_code == 404
    assert (await http.delete(TOPIC)).status_code == 404


async def test_what_concerns_one_topic_counts_its_own_shards_only(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    """However many other topics there are."""
    await aclient.schedule("orders", delay=600)
    for n in range(20):
        await aclient.schedule(f"other-{n}", delay=600)
    counted = Counting("counts", times=ALWAYS)
    http = await serve(counted)
    for method, path in (("GET", ""), ("GET", "/groups"), ("DELETE", "")):
        before = counted.met
        answer = await http.request(method, TOPIC + path)
        assert answer.status_code == (200 if method == "GET" else 409)
        assert counted.met - before == 2, f"{method} {path}: the topic has two shards"
