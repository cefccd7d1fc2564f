"""Pull over HTTP: consumers say that jobs failed, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.found import ajob_of
from tests.http.conftest import Http
from tests.http.test_leases import done, lease, make_ready
from tests.running import running
from tests.transports import ReplyLost
from tests.waiting import until
from wheelq import AsyncClient, JobState, Scheduler, Settings

PULL = "/v1/topics/orders/groups/billing"


async def test_a_failed_job_comes_again_after_its_pause_as_another_attempt(
    http: Http, aclient: AsyncClient, url: str, settings: Settings
) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert job["attempt"] == 1
    assert await done(http, "fail", job["handle"], error="no paper", pause=0.05) == [True]
    found = await ajob_of(aclient, "orders", "a")
    assert (found.state, found.groups["http.billing"].last_error) == (JobState.RETRYING, "no paper")
    async with running(Scheduler.connect(url, settings)):
        again: list[dict[str, Any]] = []
        await until(lambda: leased(http, again))
    assert [(job["id"], job["attempt"], job["deliveries"]) for job in again] == [("a", 2, 1)]
    assert await done(http, "ack", again[0]["handle"]) == [True]
    assert await aclient.get("orders", "a") is None


async def leased(http: Http, into: list[dict[str, Any]]) -> bool:
    into += await lease(http)
    return bool(into)


async def test_a_failed_job_waits_by_the_growing_pauses_of_handlers_unless_a_pause_is_given(
    http: Http, aclient: AsyncClient
) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "fail", job["handle"], error="no paper") == [True]
    found = await ajob_of(aclient, "orders", "a")
    assert found.groups["http.billing"].due_ms is not None
    assert 500 <= found.groups["http.billing"].due_ms - job["due_ms"] <= 60_000


async def test_a_job_is_buried_with_its_error_when_that_is_asked_for(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "fail", job["handle"], error="no  such\ncustomer", bury=True) == [True]
    (dead,) = (await aclient.dead.list("orders")).jobs
    assert (dead.id, dead.group, dead.reason, dead.error) == ("a", "http.billing", "given_up", "no such customer")
    assert await lease(http) == []


async def test_a_job_is_buried_at_its_last_attempt(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "fail", job["handle"], error="no paper", pause=1, max_attempts=1) == [True]
    (dead,) = (await aclient.dead.list("orders")).jobs
    assert (dead.reason, dead.error, dead.attempt) == ("failed", "no paper", 1)


async def test_only_the_lease_that_is_named_fails(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a", "b")
    first, second = await lease(http, count=2)
    assert await done(http, "release", first["handle"]) == [True]
    (again,) = await lease(http)
    assert again["id"] == first["id"]
    assert await done(http, "fail", first["handle"], second["handle"], error="x", pause=60) == [False, True]
    assert await done(http, "fail", second["handle"], error="x", bury=True) == [False]
    assert (await aclient.dead.list("orders")).jobs == []
    assert await done(http, "ack", again["handle"]) == [True]


async def test_other_groups_go_on_when_a_job_fails_in_one(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    others = "/v1/topics/orders/groups/mail/lease"
    (job,) = await lease(http)
    (theirs,) = (await http.post(others, json={"lease": 0.001})).json()["jobs"]
    assert await done(http, "fail", job["handle"], error="x", bury=True) == [True]
    assert theirs["id"] == "a"
    answer = await http.post(others, json={"wait": 20})
    assert [job["id"] for job in answer.json()["jobs"]] == ["a"]


async def test_a_failure_whose_reply_was_lost_is_told_once(serve: Callable[..., Any], aclient: AsyncClient) -> None:
    lost = ReplyLost("retry")
    http = await serve(lost)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    answer = await http.post(f"{PULL}/fail", json={"handles": [job["handle"]], "error": "x", "pause": 60})
    assert answer.status_code == 504
    assert await done(http, "fail", job["handle"], error="x", pause=60) == [False]
    found = await ajob_of(aclient, "orders", "a")
    assert (found.state, found.groups["http.billing"].attempt) == (JobState.RETRYING, 2)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "error"),
        ({"error": ""}, "error"),
        ({"error": "x", "pause": -1}, "pause"),
        ({"error": "x", "max_attempts": 0}, "max_attempts"),
        ({"error": "x", "later": 1}, "later"),
        ({"error": "x", "handles": ["nonsense"]}, "handles"),
    ],
)
async def test_a_wrong_failure_is_refused_by_name(
    http: Http, aclient: AsyncClient, asked: dict[str, Any], field: str
) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    answer = await http.post(f"{PULL}/fail", json={"handles": [job["handle"]], **asked})
    assert answer.status_code in (400, 422)
    assert field in answer.text
    assert await done(http, "ack", job["handle"]) == [True]
