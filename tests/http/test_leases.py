"""Pull over HTTP: jobs are leased, answered for, and come again when nobody does."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import redis

from tests.faults.stages import Meanwhile
from tests.found import ajob_of
from tests.http.conftest import Give, Http
from tests.records import record
from tests.running import running
from tests.transports import ReplyLost, Unreachable
from tests.waiting import PATIENCE, in_time, until
from wheelq import AsyncClient, CancelOutcome, JobState, Scheduler, Settings, Worker
from wheelq.base.clock import wall_ms
from wheelq.protocol.calls import access, producer
from wheelq.protocol.keys import Keys
from wheelq.server.lease_clock import LeaseClock
from wheelq.settings import Misfire, ServerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker import outcome

PULL = "/v1/topics/orders/groups/billing"
TOO_LARGE = (
    "4,099 bytes packed, the limit is 4,096; store the data elsewhere and send a reference to it, or raise "
    "result_max_bytes"
)


async def make_ready(aclient: AsyncClient, *ids: str) -> None:
    """Jobs that are due already go straight to the consumers."""
    for id in ids:
        await aclient.schedule("orders", {"id": id}, delay=0, key=id, headers={"h": "1"})


async def lease(http: Http, **asked: Any) -> list[dict[str, Any]]:
    answer = await http.post(f"{PULL}/lease", json=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


async def done(http: Http, what: str, *handles: str, **asked: Any) -> list[bool]:
    answer = await http.post(f"{PULL}/{what}", json={"handles": handles, **asked})
    found: list[bool] = answer.json()["done"]
    return found


async def test_a_leased_job_is_acknowledged_and_gone(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert (job["id"], job["payload"], job["headers"], job["deliveries"]) == ("a", {"id": "a"}, {"h": "1"}, 1)
    assert await lease(http) == []
    assert await done(http, "ack", job["handle"]) == [True]
    assert await aclient.get("orders", "a") is None
    assert await done(http, "ack", job["handle"]) == [False]


async def test_what_follows_a_job_is_made_with_its_acknowledgement(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a", "b")
    a, b = await lease(http, count=2)
    then = [
        {"topic": "emails", "payload": {"to": "ada"}, "delay": 60},
        {"topic": "invoices", "id": "i-1", "delay": 0, "headers": {"h": "2"}, "attempts": 3},
    ]
    assert await done(http, "ack", a["handle"], b["handle"], then=then) == [True, True]
    assert await done(http, "ack", a["handle"], then=then) == [False], "which makes nothing more"

    async def are_there() -> bool:
        counts = {info.name: info.waiting + info.ready for info in await aclient.topics()}
        return counts.get("emails") == 2 and counts.get("invoices") == 1

    await until(are_there)
    found = await ajob_of(aclient, "invoices", "i-1")
    assert (found.headers["h"], found.max_attempts) == ("2", 3)


async def test_a_lease_that_is_over_leaves_nothing(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (old,) = await lease(http, lease=0.05)
    await asyncio.sleep(0.06)

    async def leased_again() -> bool:
        return bool(await lease(http))

    await until(leased_again)
    assert await done(http, "ack", old["handle"], then=[{"topic": "emails", "delay": 0}]) == [False]
    assert "emails" not in [info.name for info in await aclient.topics()]


@pytest.mark.parametrize(
    ("then", "field"),
    [
        ([{"topic": "no topic", "delay": 0}], "then"),
        ([{"topic": "emails"}], "then"),
        ([{"topic": "emails", "delay": -1}], "then"),
        ([{"topic": "emails", "delay": 0, "on_duplicate": "raise"}], "then"),
        ([{"topic": "emails", "delay": 0, "payload": "x" * 70_000}], "payload"),
        ([{"topic": "emails", "delay": 0}] * 101, "then"),
        ([{"topic": "emails", "delay": 0}, {"topic": "emails", "delay": 1e12}], '"field":"then.1.delay"'),
    ],
)
async def test_a_bad_follower_is_refused_before_anything_is_settled(
    http: Http, aclient: AsyncClient, then: list[Any], field: str
) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    answer = await http.post(f"{PULL}/ack", json={"handles": [job["handle"]], "then": then})
    assert answer.status_code in (400, 413, 422)
    assert field in answer.text
    assert await done(http, "ack", job["handle"]) == [True]


async def test_one_request_makes_five_hundred_followers_at_most(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    asked = {"handles": [job["handle"]] * 6, "then": [{"topic": "emails", "delay": 0}] * 100}
    answer = await http.post(f"{PULL}/ack", json=asked)
    assert answer.status_code in (400, 422)
    assert "500" in answer.text


async def test_followers_need_the_scope_of_their_topics(
    serve: Callable[..., Any], give: Give, aclient: AsyncClient
) -> None:
    await make_ready(aclient, "a")
    _, token = await give("consume:orders", "schedule:emails")
    http = await serve(token=token, access="keys")
    (job,) = await lease(http)

    async def status(**then: Any) -> int:
        asked = {"handles": [job["handle"]], "then": [{"delay": 0, **then}]}
        return int((await http.post(f"{PULL}/ack", json=asked)).status_code)

    assert await status(topic="invoices") == 403
    assert await status(topic="emails", id="e", on_duplicate="replace") == 403
    assert await status(topic="emails") == 200


async def test_a_waiting_caller_hears_that_the_job_was_acknowledged(http: Http, aclient: AsyncClient) -> None:
    """In a topic that keeps finished jobs; scheduled again, by who did not hear that it was made, it is found there."""
    await aclient.configure("orders", keep_done_ms=60_000)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    waiting = asyncio.create_task(aclient.wait("orders", "a", timeout=PATIENCE))
    assert await done(http, "ack", job["handle"]) == [True]
    assert await waiting is None
    found = await ajob_of(aclient, "orders", "a")
    assert found.state is JobState.DONE


async def test_who_waits_for_a_job_gets_the_result_that_it_was_acknowledged_with(
    http: Http, aclient: AsyncClient
) -> None:
    """Several handles share it."""
    await aclient.configure("orders", keep_done_ms=60_000)
    await make_ready(aclient, "a", "b")
    jobs = await lease(http, count=2)
    result = {"total": 12.5, "lines": [None, True, "ü"]}
    answer = await http.post(f"{PULL}/ack", json={"handles": [job["handle"] for job in jobs], "result": result})
    assert answer.json() == {"done": [True, True], "not_kept": None}
    for id in ("a", "b"):
        assert await aclient.wait("orders", id, timeout=PATIENCE) == result
        assert (await http.get(f"/v1/topics/orders/jobs/{id}")).json()["result"] == result


@pytest.mark.parametrize(
    ("kept_ms", "result", "why"),
    [
        (60_000, "x" * 4_096, TOO_LARGE),
        (60_000, 2**64, f"{2**64} does not fit into 64 bits; send it as a string"),
        (0, "closed", "topic orders forgets finished jobs at once: set its keep_done_ms"),
    ],
)
async def test_a_job_is_done_although_its_result_cannot_be_kept(
    http: Http, aclient: AsyncClient, kept_ms: int, result: Any, why: str
) -> None:
    """As the result of a handler that is too large: the work was done."""
    await aclient.configure("orders", keep_done_ms=kept_ms)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    answer = await http.post(f"{PULL}/ack", json={"handles": [job["handle"]], "result": result})
    assert (answer.json()["done"], answer.json()["not_kept"]) == ([True], why)
    assert await lease(http) == []
    if kept_ms:
        assert await aclient.wait("orders", "a", timeout=PATIENCE) is None


async def test_a_leased_job_shows_its_progress_until_it_is_done(http: Http, aclient: AsyncClient) -> None:
    await aclient.configure("orders", keep_done_ms=60_000)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "progress", job["handle"], fraction=0.25, text="rendering" * 100) == [True]
    shown = (await http.get("/v1/topics/orders/jobs/a")).json()
    assert (shown["state"], shown["started_ms"]) == ("running", None)
    found = (await ajob_of(aclient, "orders", "a")).progress
    assert found is not None
    assert (found.fraction, found.text) == (0.25, ("rendering" * 100)[:500])
    assert abs(found.at_ms - (await ajob_of(aclient, "orders", "a")).due_ms) < 60_000
    assert await done(http, "ack", job["handle"]) == [True]
    assert (await ajob_of(aclient, "orders", "a")).progress is None


async def test_the_time_of_progress_is_that_of_redis(
    http: Http, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of leases stands still while no HTTP server runs."""
    await make_ready(aclient, "a")
    (job,) = await lease(http)

    async def standing_still(clock: LeaseClock) -> int:
        return 0

    monkeypatch.setattr(LeaseClock, "now_ms", standing_still)
    assert await done(http, "progress", job["handle"], fraction=0.25) == [True]
    found = (await ajob_of(aclient, "orders", "a")).progress
    assert found is not None
    assert abs(found.at_ms - job["due_ms"]) < 60_000


async def test_only_the_holder_of_a_lease_reports_progress(http: Http, aclient: AsyncClient) -> None:
    """Not one whose lease has ended, nor one that has given the job back."""
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "release", job["handle"]) == [True]
    assert await done(http, "progress", job["handle"], fraction=0.1) == [False]
    (again,) = await lease(http)
    assert await done(http, "progress", job["handle"], again["handle"], fraction=0.5) == [False, True]
    found = (await ajob_of(aclient, "orders", "a")).progress
    assert found is not None
    assert found.fraction == 0.5


# GET …/jobs/{id}?wait=

JOB = "/v1/topics/orders/jobs/a"


def waits(http: Http, count: int = 1) -> Callable[[], bool]:
    """Whether so many requests wait."""
    service = http.service  # type: ignore[attr-defined]
    return lambda: service.leases.waiting == count


async def test_a_request_waits_for_the_end_of_a_job_and_gets_its_result(http: Http, aclient: AsyncClient) -> None:
    await aclient.configure("orders", keep_done_ms=60_000)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    waiting = asyncio.create_task(http.get(JOB, params={"wait": 20}))
    await until(waits(http))
    await http.post(f"{PULL}/ack", json={"handles": [job["handle"]], "result": 7})
    answer = await in_time(waiting)
    assert (answer.status_code, answer.json()["state"], answer.json()["result"]) == (200, "done", 7)
    again = await in_time(http.get(JOB, params={"wait": 20}))
    assert again.json() == answer.json()
    assert waits(http, 0)()


async def test_the_result_of_a_leased_job_may_be_null(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "ack", job["handle"], result=None) == [True]


async def test_a_leased_job_may_have_more_attempts_than_a_byte_can_count(
    http: Http, aclient: AsyncClient, url: str, settings: Settings
) -> None:
    await aclient.schedule("orders", delay=0, key="a", attempts=257)
    async with running(Scheduler.connect(url, settings)):
        for attempt in range(1, 258):
            (job,) = await lease(http, wait=20)
            assert job["attempt"] == attempt
            assert await done(http, "fail", job["handle"], error="away", pause=0) == [True]
    assert [dead.attempt for dead in (await aclient.dead.list("orders")).jobs] == [257]


@pytest.mark.parametrize(("stated", "own", "attempts"), [({}, 2, 2), ({}, 6, 6), ({"max_attempts": 3}, 6, 3)])
async def test_a_leased_job_has_the_attempts_it_was_scheduled_with_but_no_more_than_its_consumer_states(
    http: Http, aclient: AsyncClient, url: str, settings: Settings, stated: dict[str, int], own: int, attempts: int
) -> None:
    body = {"delay": 0, "id": "a", "attempts": own, "timeout": 2.5}
    assert (await http.post("/v1/topics/orders/jobs", json=body)).status_code == 201
    shown = (await http.get("/v1/topics/orders/jobs/a")).json()
    assert (shown["max_attempts"], shown["timeout"]) == (own, 2.5)
    async with running(Scheduler.connect(url, settings)):
        for attempt in range(1, attempts + 1):
            (job,) = await lease(http, wait=20)
            assert (job["attempt"], job["max_attempts"], job["timeout"]) == (attempt, own, 2.5)
            assert await done(http, "fail", job["handle"], error="away", pause=0.01, **stated) == [True]
    assert [dead.attempt for dead in (await aclient.dead.list("orders")).jobs] == [attempts]


async def test_it_is_answered_when_the_job_is_given_up_or_the_time_is_over(http: Http, aclient: AsyncClient) -> None:
    await aclient.configure("orders", keep_done_ms=60_000)
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    early = await in_time(http.get(JOB, params={"wait": 0.05}))
    assert (early.status_code, early.json()["state"]) == (200, "running")
    waiting = asyncio.create_task(http.get(JOB, params={"wait": 20}))
    await until(waits(http))
    await done(http, "fail", job["handle"], error="no such order", bury=True)
    answer = await in_time(waiting)
    assert (answer.json()["state"], answer.json()["last_error"]) == ("dead", "no such order")


async def test_what_cannot_be_waited_for_is_refused(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("orders", delay=3600, key="a")
    refused = await http.get(JOB, params={"wait": 20})
    assert (refused.status_code, refused.json()["field"]) == (422, "topic")
    assert "keep_done_ms" in refused.json()["detail"]
    await aclient.configure("orders", keep_done_ms=60_000)
    assert (await http.get(JOB + "-unknown", params={"wait": 20})).status_code == 404
    assert (await http.get(JOB, params={"wait": 21})).json()["field"] == "wait"
    waiting = asyncio.create_task(http.get(JOB, params={"wait": 20}))
    await until(waits(http))
    await aclient.cancel("orders", "a")
    assert (await in_time(waiting)).status_code == 404


async def test_a_stop_answers_those_that_wait_for_the_end_of_a_job(http: Http, aclient: AsyncClient) -> None:
    await aclient.configure("orders", keep_done_ms=60_000)
    await aclient.schedule("orders", delay=3600, key="a")
    waiting = [asyncio.create_task(http.get(JOB, params={"wait": 20})) for _ in range(2)]
    await until(waits(http, 2))
    http.service.drain()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE / 4):  # less than they asked for
        answers = await asyncio.gather(*waiting)
    for answer in answers:
        assert (answer.status_code, answer.json()["state"]) == (200, "waiting")
    assert (await in_time(http.get(JOB, params={"wait": 20}))).status_code == 200


async def test_beyond_so_many_waiting_a_job_is_shown_at_once(serve: Callable[..., Any], aclient: AsyncClient) -> None:
    http = await serve(max_waiting=1)
    await aclient.configure("orders", keep_done_ms=60_000)
    await aclient.schedule("orders", delay=3600, key="a")
    waiting = asyncio.create_task(http.get(JOB, params={"wait": 20}))
    await until(waits(http))
    assert (await in_time(http.get(JOB, params={"wait": 20}))).json()["state"] == "waiting"
    assert not waiting.done()
    http.service.drain()
    await in_time(waiting)


async def test_a_caller_that_has_gone_is_waited_for_no_longer(listen: Callable[..., Any], aclient: AsyncClient) -> None:
    listening = await listen()
    await aclient.configure("orders", keep_done_ms=60_000)
    await aclient.schedule("orders", delay=3600, key="a")
    leases = listening.server._service.leases
    async with listening.connection() as (_, writer):
        writer.write(f"GET {JOB}?wait=20 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await until(lambda: leases.waiting == 1)
    await until(lambda: leases.waiting == 0, within=PATIENCE / 4)


async def test_a_key_that_was_revoked_while_its_request_waited_shows_nothing(
    serve: Callable[..., Any], aclient: AsyncClient, give: Give, transport: AsyncTransport, settings: Settings
) -> None:
    key, token = await give("read:orders")
    http = await serve(access="keys", keys_ms=20, token=token)
    await aclient.configure("orders", keep_done_ms=60_000)
    await aclient.schedule("orders", delay=3600, key="a")
    waiting = asyncio.create_task(http.get(JOB, params={"wait": 20}))
    await until(waits(http))
    await transport.send(access.drop_api_key(Keys(settings.prefix), key.id))

    async def is_revoked() -> bool:
        return bool((await http.get(JOB)).status_code == 401)

    await until(is_revoked)
    http.service.drain()
    assert (await in_time(waiting)).status_code == 401


async def test_jobs_of_all_shards_are_leased_up_to_the_count(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, *"abcdefgh")
    first, second = await lease(http, count=5), await lease(http, count=5)
    assert (len(first), len(second)) == (5, 3)
    handles = [job["handle"] for job in (*first, *second)]
    assert await done(http, "ack", *handles) == [True] * 8


async def test_a_job_that_is_not_acknowledged_comes_again_and_the_old_handle_is_worth_nothing(
    http: Http, aclient: AsyncClient
) -> None:
    await make_ready(aclient, "a")
    (first,) = await lease(http, lease=0.05)
    (second,) = await lease(http, wait=10)
    assert (second["id"], second["deliveries"]) == ("a", 2)
    assert await done(http, "ack", first["handle"]) == [False]
    assert await done(http, "extend", first["handle"]) == [False]
    assert await done(http, "release", first["handle"]) == [False]
    assert await done(http, "ack", second["handle"]) == [True]


async def test_a_lease_has_not_ended_when_the_clock_says_so_only_by_the_latest_reckoning(
    http: Http, aclient: AsyncClient
) -> None:
    """After a slow answer the time is known only roughly: then a lease ends by the earlier of two moments."""
    await make_ready(aclient, "a")
    (job,) = await lease(http, lease=20)
    http.service.leases._lease_clock._asked_at -= 30.0  # type: ignore[attr-defined]  # as after a slow answer
    assert await lease(http) == []
    assert await done(http, "ack", job["handle"]) == [True]


async def test_an_extended_lease_lasts(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http, lease=4)
    assert await done(http, "extend", job["handle"], lease=60) == [True]
    await asyncio.sleep(4.1)  # past the end of the first lease
    assert await lease(http) == []
    assert await done(http, "ack", job["handle"]) == [True]


async def test_a_released_job_is_there_for_others_at_once_or_after_a_pause(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "release", job["handle"]) == [True]
    (job,) = await lease(http)
    assert await done(http, "release", job["handle"], pause=60) == [True]
    assert await lease(http) == []


async def test_a_released_job_is_there_at_once_although_the_time_is_known_only_roughly(
    http: Http, aclient: AsyncClient
) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    http.service.leases._lease_clock._asked_at -= 30.0  # type: ignore[attr-defined]  # as after a slow answer
    assert await done(http, "release", job["handle"]) == [True]
    assert [again["id"] for again in await lease(http)] == ["a"]


async def test_a_job_that_does_not_fit_a_worker_may_be_leased_by_a_caller_of_its_group(
    url: str, http: Http, aclient: AsyncClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller knows its own types. Groups of callers are called `http.NAME` in Redis, and workers may join them."""
    monkeypatch.setattr(outcome, "SHORTEST_MISMATCH_MS", 1)
    await make_ready(aclient, "a")
    scheduler = Scheduler.connect(url, settings)
    worker = Worker.connect(url, group="http.billing", settings=settings)
    worker.task("orders")(takes_nothing)
    tasks = [asyncio.create_task(one.run()) for one in (worker, scheduler)]

    async def has_met_the_worker() -> bool:
        return (await ajob_of(aclient, "orders", "a")).last_error is not None

    await until(has_met_the_worker)
    worker.stop()
    await tasks[0]
    (job,) = await lease(http, wait=20)
    assert (job["id"], job["attempt"], job["deliveries"]) == ("a", 1, 1)
    assert await done(http, "ack", job["handle"]) == [True]
    assert await aclient.get("orders", "a") is None
    scheduler.stop()
    await tasks[1]


async def takes_nothing() -> None: ...


async def test_a_released_job_is_not_done_by_an_acknowledgement(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "release", job["handle"]) == [True]
    assert await done(http, "ack", job["handle"]) == [False]
    assert [again["id"] for again in await lease(http)] == ["a"]


async def test_every_group_gets_every_job(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    for group in ("billing", "mail"):
        answer = await http.post(f"/v1/topics/orders/groups/{group}/lease", json={})
        assert [job["id"] for job in answer.json()["jobs"]] == ["a"]


async def test_a_long_poll_gets_a_job_as_soon_as_it_is_ready(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "first")
    await lease(http)
    waiting = [asyncio.create_task(lease(http, wait=20)) for _ in range(3)]
    leases = http.service.leases  # type: ignore[attr-defined]
    await until(lambda: leases.waiting == 3)
    await make_ready(aclient, "a", "b", "c")
    async with asyncio.timeout(PATIENCE):
        found = [(await task)[0]["id"] for task in waiting]
    assert sorted(found) == ["a", "b", "c"]


async def test_a_long_poll_without_jobs_is_answered_in_the_end(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    await lease(http)
    async with asyncio.timeout(PATIENCE):
        assert await lease(http, wait=0.2) == []


async def test_a_caller_that_waited_and_has_gone_gets_no_job(listen: Callable[..., Any], aclient: AsyncClient) -> None:
    listening = await listen()
    await aclient.schedule("orders", delay=3600)
    leases = listening.server._service.leases
    async with listening.connection() as (_, writer):
        said = b'{"wait":20}'
        head = f"POST {PULL}/lease HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(said), said))
        await until(lambda: leases.waiting == 1)
    await until(lambda: leases.waiting == 0)
    await make_ready(aclient, "a")
    async with httpx.AsyncClient(base_url=listening.base, timeout=PATIENCE) as http:
        (job,) = await lease(http)
        assert (job["id"], job["deliveries"]) == ("a", 1)


async def test_a_job_leased_for_a_caller_that_has_just_gone_is_handed_back_uncounted(
    http: Http, aclient: AsyncClient
) -> None:
    """And another one that waits gets it at once."""
    await aclient.schedule("orders", delay=3600)
    leases = http.service.leases  # type: ignore[attr-defined]
    has_gone = asyncio.Event()
    lease_now = leases._lease_now

    async def then_gone(*asked: Any, **how: Any) -> Any:
        found = await lease_now(*asked, **how)
        if found:
            has_gone.set()
        return found

    leases._lease_now = then_gone
    going = asyncio.create_task(leases.lease("orders", "billing", 1, 60_000, 20, has_gone.wait))
    await until(lambda: leases.waiting == 1)
    await make_ready(aclient, "a")
    assert await going == []
    (job,) = await lease(http)
    assert (job["id"], job["deliveries"]) == ("a", 1)


async def test_a_group_that_is_removed_is_not_made_again_by_a_caller_that_waits(
    http: Http, aclient: AsyncClient
) -> None:
    await aclient.schedule("orders", delay=3_600)
    waiting = asyncio.create_task(lease(http, wait=20))
    await until(lambda: http.service.leases.waiting == 1)
    await aclient.remove_group("orders", "http.billing", force=True)
    assert await waiting == []
    assert await aclient.groups("orders") == []
    assert await lease(http) == []
    assert [group.name for group in await aclient.groups("orders")] == ["http.billing"], "a new call does"


@pytest.mark.parametrize("misfire", ["skip", "bury"])
async def test_a_lease_whose_group_is_removed_while_it_settles_late_jobs_is_empty(
    serve: Callable[..., Any], aclient: AsyncClient, url: str, settings: Settings, misfire: Any
) -> None:
    """It answered 502, with the words of Redis."""
    ready = Keys(settings.prefix).shard("orders", 0).ready
    with redis.Redis.from_url(url) as raw:
        settles = "ack_leased" if misfire == "skip" else "bury"
        http = await serve(struck := Meanwhile(settles, lambda: raw.xgroup_destroy(ready, "http.billing")))
        await aclient.configure("orders", misfire=misfire, grace_ms=1)
        assert await lease(http) == []
        receipt = await aclient.schedule("orders", delay=0)
        await until(lambda: wall_ms() > receipt.due_ms + 100)
        assert await lease(http) == []
    assert struck.struck == 1


async def test_a_stop_answers_waiting_callers_at_once(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    await lease(http)
    waiting = asyncio.create_task(lease(http, wait=20))
    service = http.service  # type: ignore[attr-defined]
    await until(lambda: service.leases.waiting == 1)
    service.drain()
    async with asyncio.timeout(15):  # less than the 20 s that it would wait
        assert await waiting == []
    assert (await http.get("/readyz")).status_code == 503


async def test_beyond_so_many_waiting_the_answer_comes_at_once(serve: Callable[..., Any], aclient: AsyncClient) -> None:
    http = await serve(max_waiting=1)
    await make_ready(aclient, "a")
    await lease(http)
    waiting = asyncio.create_task(lease(http, wait=20))
    await until(lambda: http.service.leases.waiting == 1)
    async with asyncio.timeout(15):  # less than the 20 s that it would wait
        assert await lease(http, wait=20) == []
    waiting.cancel()


async def test_a_job_leased_too_often_is_buried(serve: Callable[..., Any], aclient: AsyncClient) -> None:
    http = await serve(max_deliveries=2)
    await make_ready(aclient, "a")
    for _ in range(2):
        (job,) = await lease(http)
        await done(http, "release", job["handle"])
    assert await lease(http) == []
    (dead,) = (await aclient.dead.list("orders")).jobs
    assert (dead.id, dead.group, dead.reason) == ("a", "http.billing", "deliveries")
    assert dead.error == "leased 2 times, and neither acknowledged nor failed", "a consumer that released it answered"


async def test_a_job_that_has_expired_is_not_leased_and_forgotten(http: Http, aclient: AsyncClient) -> None:
    """As a worker treats it."""
    await aclient.schedule("orders", delay=0, key="late", expires=0.001)
    await aclient.schedule("orders", delay=0, key="good", expires=60)
    await asyncio.sleep(0.01)
    assert [job["id"] for job in await lease(http, count=10)] == ["good"]
    assert await aclient.get("orders", "late") is None


async def test_a_lease_that_ended_after_the_job_had_expired_was_its_last(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("orders", delay=0, key="a", expires=5)
    (job,) = await lease(http, lease=5.2)
    assert job["id"] == "a"
    await asyncio.sleep(5.3)  # past the end of the lease, and of the time in which it may start
    assert await lease(http) == []
    (dead,) = (await aclient.dead.list("orders")).jobs
    assert (dead.id, dead.reason) == ("a", "expired")


async def store(transport: AsyncTransport, settings: Settings, id: str, packed: bytes) -> None:
    """Schedules a job with this packed payload, as a program with scripts of its own may."""
    keys = Keys(settings.prefix).shard("orders", zlib.crc32(id.encode()) % 2)
    await transport.send(producer.schedule(keys, [(id, "+0", record()[:17] + packed)], "keep", "2"))


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (b"\x91" * 900 + b"\xc0", "[" * 900 + "null" + "]" * 900),
        (b"\xd6\xff\x00\x00\x00\x05", "5.0"),
    ],
    ids=["deep", "a msgpack timestamp"],
)
async def test_a_job_with_any_payload_that_can_be_stored_is_leased_beside_others(
    http: Http, aclient: AsyncClient, transport: AsyncTransport, settings: Settings, packed: bytes, text: str
) -> None:
    """Otherwise no lease that has the job is answered, and the others in it are leased until they are buried."""
    await make_ready(aclient, "a")
    await store(transport, settings, "b", packed)
    answer = await http.post(f"{PULL}/lease", json={"count": 10})
    assert answer.status_code == 200
    assert f'"payload":{text}' in answer.text
    assert answer.text.count('"handle"') == 2
    assert f'"payload":{text}' in (await http.get("/v1/topics/orders/jobs/b")).text


async def test_a_job_that_cannot_be_read_is_shown_with_the_reason(
    http: Http, aclient: AsyncClient, transport: AsyncTransport, settings: Settings
) -> None:
    await make_ready(aclient, "a")
    await store(transport, settings, "b", b"\xa2\xff\xfe")
    job = (await http.get("/v1/topics/orders/jobs/b")).json()
    assert (job["state"], job["payload"]) == ("ready", None)
    assert job["last_error"].startswith("its record is unreadable: not msgpack")
    assert [job["id"] for job in await lease(http, count=10)] == ["a"]
    job = (await http.get("/v1/topics/orders/jobs/b")).json()
    assert (job["state"], job["groups"]["http.billing"]["reason"]) == ("dead", "unreadable")


@pytest.mark.parametrize(("misfire", "leased"), [("run", ["a"]), ("skip", []), ("bury", [])])
async def test_a_job_later_than_its_topics_grace_is_leased_skipped_or_buried(
    http: Http, aclient: AsyncClient, misfire: Misfire, leased: list[str]
) -> None:
    await aclient.schedule("orders", delay=3600)
    await aclient.configure("orders", misfire=misfire, grace_ms=5)
    await make_ready(aclient, "a")
    await asyncio.sleep(0.02)
    assert [job["id"] for job in await lease(http)] == leased
    dead = (await aclient.dead.list("orders")).jobs
    assert [(job.id, job.group, job.reason) for job in dead] == (
        [("a", "http.billing", "misfired")] if misfire == "bury" else []
    )


async def test_a_lost_reply_costs_the_time_of_the_lease_and_no_job(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    http = await serve(ReplyLost("lease", after=4, times=2))
    await aclient.schedule("orders", delay=3600)
    assert await lease(http) == []  # four calls: each of two shards is asked, gets its group, and is asked again
    await make_ready(aclient, "a")
    for _ in range(2):  # each begins with another shard, so one of the two has the job
        lost = await http.post(f"{PULL}/lease", json={"lease": 0.05})
        assert lost.status_code == 504
    (job,) = await lease(http, wait=10)
    assert job["id"] == "a"


async def test_a_paused_topic_is_not_leased(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    await aclient.pause("orders")
    assert await lease(http) == []


async def test_a_group_that_asks_first_while_its_topic_is_paused_gets_every_job_from_then_on(
    http: Http, aclient: AsyncClient
) -> None:
    """Although an older group has ended them before it asks again."""
    await aclient.make_group("orders", "older")
    await make_ready(aclient, "before")
    await aclient.pause("orders")
    assert await lease(http) == []
    await aclient.resume("orders")
    assert "http.billing" in {group.name for group in await aclient.groups("orders")}


async def test_a_handle_that_is_named_twice_is_acknowledged_once(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (job,) = await lease(http)
    assert await done(http, "ack", job["handle"], job["handle"]) == [True, False]
    page = (await http.get("/metrics")).text
    assert 'wheelq_finished_total{topic="orders",' in page
    assert sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("wheelq_finished_total")) == 1


async def test_an_old_handle_takes_nothing_from_the_new_one_in_the_same_call(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    (old,) = await lease(http)
    assert await done(http, "release", old["handle"]) == [True]
    (new,) = await lease(http)
    assert await done(http, "ack", old["handle"], new["handle"], new["handle"]) == [False, True, False]


@pytest.mark.parametrize("member", ["b", "a\x1fhttp.billing", "a\x1f", "a\x1f\x1fx"])
async def test_a_handle_that_its_holder_has_altered_does_nothing(http: Http, aclient: AsyncClient, member: str) -> None:
    await make_ready(aclient, "a", "b")
    leased = await lease(http, count=2)
    job, other = sorted(leased, key=lambda one: one["id"])
    shard, entry, number, _ = job["handle"].split(".")
    altered = ".".join((shard, entry, number, member.encode().hex()))
    assert await done(http, "ack", altered) == [False]
    assert await done(http, "progress", altered, fraction=0.5) == [False]
    if member == "b":
        assert (await ajob_of(aclient, "orders", "b")).progress is None
    assert await done(http, "ack", job["handle"], other["handle"]) == [True, True]
    assert await aclient.get("orders", "a") is None


async def test_a_job_whose_lease_is_given_back_is_shown_as_ready(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a", "b")
    back, kept = await lease(http, count=2)
    assert await done(http, "release", back["handle"]) == [True]

    async def listed(state: str) -> list[tuple[str, str | None, str | None]]:
        return [(job.id, job.group, job.worker) for job in (await aclient.jobs("orders", state=state)).jobs]

    assert await listed("ready") == [(back["id"], "http.billing", None)]
    assert await listed("running") == [(kept["id"], "http.billing", "http")]
    found = await ajob_of(aclient, "orders", back["id"])
    assert (found.state, found.worker, found.groups["http.billing"].deliveries) == (JobState.READY, None, 1)


@pytest.fixture
async def on_two_shards(aclient: AsyncClient) -> None:
    await aclient.configure("orders")
    await aclient.set_shards("orders", 2)
    for n in range(8):
        await aclient.schedule("orders", delay=0, key=f"job-{n}")


@pytest.mark.usefixtures("on_two_shards")
async def test_what_one_shard_has_given_is_answered_though_another_cannot_be_asked(serve: Callable[..., Any]) -> None:
    """Otherwise its jobs would be leased to nobody, and be given up in the end."""
    http = await serve(Unreachable("lease", after=3))  # the calls before make the groups
    some = await lease(http, count=8)
    others = await lease(http, count=8)
    assert 0 < len(some) < 8
    assert len({job["id"] for job in some + others}) == 8


@pytest.mark.usefixtures("on_two_shards")
@pytest.mark.parametrize(("what", "call"), [("ack", "ack_leased"), ("release", "release_leased"), ("fail", "retry")])
async def test_leases_that_were_settled_in_part_are_not_said_to_be_unchanged(
    serve: Callable[..., Any], what: str, call: str
) -> None:
    http = await serve(Unreachable(call, after=1))
    handles = [job["handle"] for job in await lease(http, count=8)]
    body = {"handles": handles} | ({"error": "no"} if what == "fail" else {})
    assert (await http.post(f"{PULL}/{what}", json=body)).status_code == 504
    assert sorted({*await done(http, what, *handles, **({"error": "no"} if what == "fail" else {}))}) == [False, True]


async def test_jobs_that_were_leased_beside_one_that_cannot_be_settled_are_handed_back(
    serve: Callable[..., Any], aclient: AsyncClient, transport: AsyncTransport, settings: Settings
) -> None:
    await aclient.configure("orders")
    await store(transport, settings, "bad", b"\xa2\xff\xfe")
    await make_ready(aclient, "good")
    http = await serve(Unreachable("bury"))
    assert (await http.post(f"{PULL}/lease", json={"count": 2})).status_code == 503
    assert [(job["id"], job["deliveries"]) for job in await lease(http, count=2)] == [("good", 1)]


async def test_a_lease_cannot_be_asked_to_cancel(http: Http, aclient: AsyncClient) -> None:
    await make_ready(aclient, "a")
    await lease(http)
    assert await aclient.cancel("orders", "a", running=True) is CancelOutcome.RUNNING


async def test_bytes_and_unknown_topics(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("orders", b"\x00", delay=0)
    assert (await lease(http))[0]["payload_base64"] == "AA=="
    unknown = await http.post("/v1/topics/nothing/groups/g/lease", json={})
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/docs#topic-not-found")


@pytest.mark.parametrize("handle", ["", "?", "AAAA", "MCBhIGIgYw", "x" * 5_000])
async def test_a_wrong_handle_is_refused(http: Http, aclient: AsyncClient, handle: str) -> None:
    await make_ready(aclient, "a")
    answer = await http.post(f"{PULL}/ack", json={"handles": [handle]})
    assert (answer.status_code, answer.json()["field"]) == (422, "handles")


@pytest.mark.parametrize(("body", "field"), [({"count": 0}, "count"), ({"lease": 0}, "lease"), ({"wait": 99}, "wait")])
async def test_a_wrong_field_is_named_in_the_answer(http: Http, body: dict[str, Any], field: str) -> None:
    answer = await http.post(f"{PULL}/lease", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_by_default_a_job_is_leased_as_often_as_a_worker_would() -> None:
    assert ServerSettings().max_deliveries == 10
