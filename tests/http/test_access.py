"""Access: keys and scopes, limits, and what an open server refuses all the same."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from loadtest.servers.nodes import free_port
from tests.found import ajob_of
from tests.http.conftest import BASE, Give, Http
from tests.transports import ALWAYS, Unreachable
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Settings
from wheelq.base.clock import wall_ms
from wheelq.embedded import EmbeddedServer
from wheelq.errors import InvalidInput
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access import ApiKey, Caller, Rates, Verb, allows, new_key
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.transport import Address, AsyncTransport

JOBS = "/v1/topics/orders/jobs"
LEASE = "/v1/topics/orders/groups/billing/lease"
DAY_MS = 86_400_000
ACL = Path(__file__).parents[2] / "config" / "acl"


async def test_with_keys_a_request_without_one_is_refused(serve: Callable[..., Any], give: Give) -> None:
    await give("*:*")
    http = await serve(access="keys")
    answer = await http.post(JOBS, json={"delay": 1})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_key_opens_what_its_scopes_say(serve: Callable[..., Any], give: Give) -> None:
    _, token = await give("schedule:ord*", "read:*")
    http = await serve(access="keys", token=token)
    assert (await http.post(JOBS, json={"delay": 60, "id": "a"})).status_code == 201
    assert (await http.get(f"{JOBS}/a")).status_code == 200
    assert (await http.post("/v1/topics/mail/jobs", json={"delay": 60})).status_code == 403
    assert (await http.delete(f"{JOBS}/a")).status_code == 403


@pytest.mark.parametrize("path", ["jobs", "bulk", "settings", "then"])
async def test_a_death_is_told_to_no_topic_for_which_the_key_may_not_schedule(
    serve: Callable[..., Any], give: Give, aclient: AsyncClient, path: str
) -> None:
    """A key could make jobs in any topic by `on_dead`, with its own payload."""
    _, token = await give("schedule:orders", "manage:orders", "consume:orders", "schedule:deaths")
    http = await serve(access="keys", token=token)

    async def ask(on_dead: str) -> tuple[int, str]:
        job = {"delay": 60, "on_dead": on_dead}
        if path == "settings":
            answer = await http.patch("/v1/topics/orders/settings", json={"on_dead": on_dead})
        elif path == "then":
            then = [{"topic": "orders", "id": "next", **job}]
            answer = await http.post("/v1/topics/orders/groups/billing/ack", json={"handles": ["h"], "then": then})
        else:
            answer = await http.post(f"/v1/topics/orders/{path}", json=job if path == "jobs" else {"jobs": [job]})
        found = answer.json()
        problem = found["outcomes"][0].get("problem", {}) if path == "bulk" else found
        return problem.get("status", 0), problem.get("field", "")

    assert await ask("secret") == (403, "on_dead")
    assert (await ask("deaths"))[1] != "on_dead"
    assert "secret" not in {one.name for one in await aclient.topics()}


@pytest.mark.parametrize("path", ["jobs", "bulk"])
async def test_a_key_that_only_schedules_replaces_no_waiting_job(
    serve: Callable[..., Any], give: Give, path: str
) -> None:
    """To replace a job is to change it: a later due time is as good as a cancellation."""
    _, schedules = await give("schedule:orders")
    _, changes = await give("schedule:orders", "change:orders")
    http = await serve(access="keys", token=schedules)
    job = {"delay": 60, "id": "a"}
    body = {**(job if path == "jobs" else {"jobs": [job]}), "on_duplicate": "replace"}
    refused = await http.post(f"/v1/topics/orders/{path}", json=body)
    assert (refused.status_code, refused.json()["field"]) == (403, "on_duplicate")
    assert "no scope for change on topic 'orders'" in refused.json()["detail"]
    assert (await http.post(JOBS, json=job)).status_code == 201
    http.headers["authorization"] = f"Bearer {changes}"
    assert (await http.post(f"/v1/topics/orders/{path}", json=body)).status_code == 200


async def test_a_key_that_only_schedules_may_not_replace_one_of_many(serve: Callable[..., Any], give: Give) -> None:
    _, schedules = await give("schedule:orders")
    http = await serve(access="keys", token=schedules)
    jobs = [{"delay": 60, "id": "a", "on_duplicate": "replace"}, {"delay": 60, "id": "b"}]
    outcomes = (await http.post("/v1/topics/orders/bulk", json={"jobs": jobs})).json()["outcomes"]
    assert (outcomes[0]["problem"]["status"], outcomes[0]["problem"]["field"]) == (403, "on_duplicate")
    assert outcomes[1]["created"]


async def test_receivers_and_the_outbox_are_shown_to_keys_that_read_every_topic(
    serve: Callable[..., Any], give: Give, tmp_path: Path
) -> None:
    """They belong to no topic, and tell of jobs of all topics."""
    register = tmp_path / "services.toml"
    register.write_text(f'[services.shop]\nurl = "https://127.0.0.1:{free_port()}"\nnetworks = ["127.0.0.0/8"]\n')
    _, mail = await give("read:mail")
    _, everything = await give("read:*", "schedule:orders")
    http = await serve(access="keys", services=str(register), outbox=tmp_path / "outbox.db", token=everything)
    assert (await http.post(JOBS, json={"delay": 0, "target": {"service": "shop"}})).status_code == 201

    async def destinations() -> list[Any]:
        return list((await http.get("/v1/destinations")).json()["destinations"])

    await until(destinations)
    text = (await http.get("/metrics")).text
    assert 'destination="shop"' in text
    assert "wheelq_outbox_jobs" in text
    http.headers["authorization"] = f"Bearer {mail}"
    refused = await http.get("/v1/destinations")
    assert (refused.status_code, refused.json()["type"]) == (403, "/docs#not-allowed")
    text = (await http.get("/metrics")).text
    assert "shop" not in text
    assert "wheelq_outbox" not in text
    assert "wheelq_redis_up 1" in text


@pytest.mark.parametrize("token", ["", "x", "wq_", "wq__", "wq_00_00", "wq_%s_wrong", "wq_%s_\u00e9"])
async def test_a_wrong_token_opens_nothing(serve: Callable[..., Any], give: Give, token: str) -> None:
    key, _ = await give("*:*")
    http = await serve(access="keys")
    headers = {"authorization": f"Bearer {token.replace('%s', key.id)}".encode()}
    assert (await http.get(f"{JOBS}/a", headers=headers)).status_code == 401


async def test_an_expired_key_opens_nothing(serve: Callable[..., Any], give: Give) -> None:
    _, token = await give("*:*", expires_ms=wall_ms() - 1)
    http = await serve(access="keys", token=token)
    assert (await http.get(f"{JOBS}/a")).status_code == 401


async def test_a_new_key_works_at_once_and_a_revoked_one_soon_stops_working(
    serve: Callable[..., Any], give: Give, transport: AsyncTransport, settings: Settings
) -> None:
    await give("*:*")
    http = await serve(access="keys", keys_ms=20)

    async def status(token: str) -> int:
        return int((await http.get(f"{JOBS}/a", headers={"authorization": f"Bearer {token}"})).status_code)

    assert await status("wq_unknown_secret") == 401
    key, token = await give("*:*")
    assert await status(token) == 404
    rotated, newer = key.rotated(wall_ms(), 0)
    await transport.send(calls.put_api_key(Keys(settings.prefix), key.id, rotated.stored()))
    assert (await status(newer), await status(token)) == (404, 401)

    async def is_revoked() -> bool:
        return await status(newer) == 401

    await transport.send(calls.drop_api_key(Keys(settings.prefix), key.id))
    await until(is_revoked)


async def test_while_redis_does_not_answer_nobody_says_that_a_key_is_unknown(
    serve: Callable[..., Any], give: Give
) -> None:
    """It may be new."""
    await give("*:*")
    silent = Unreachable(times=0)
    http = await serve(silent, access="keys", token="wq_none_x")
    assert (await http.get(JOBS)).status_code == 401
    silent._times = ALWAYS
    assert (await http.get(JOBS)).status_code == 503


@pytest.mark.parametrize("what", ["revoked", "narrowed"])
async def test_a_revoked_key_gets_no_job_from_its_waiting_lease(
    serve: Callable[..., Any],
    give: Give,
    transport: AsyncTransport,
    settings: Settings,
    aclient: AsyncClient,
    what: str,
) -> None:
    """The job is handed back at once, and its next lease is counted as the first."""
    _, other = await give("*:*")
    key, token = await give("consume:*")
    http = await serve(access="keys", keys_ms=20, token=token)
    await aclient.configure("orders")
    waiting = asyncio.create_task(http.post(LEASE, json={"wait": 20}))
    await until(lambda: http.service.leases.waiting == 1)
    if what == "revoked":
        await transport.send(calls.drop_api_key(Keys(settings.prefix), key.id))
    else:
        narrow = replace(key, scopes=("read:*",))
        await transport.send(calls.put_api_key(Keys(settings.prefix), key.id, narrow.stored()))
    await until(lambda: _status_is(http, LEASE, 401 if what == "revoked" else 403))
    await aclient.schedule("orders", delay=0)
    assert (await waiting).status_code == (401 if what == "revoked" else 403)
    http.headers["authorization"] = f"Bearer {other}"
    [job] = (await http.post(LEASE, json={})).json()["jobs"]
    assert job["deliveries"] == 1


async def test_the_stream_of_a_key_that_is_revoked_ends(
    serve: Callable[..., Any], give: Give, transport: AsyncTransport, settings: Settings
) -> None:
    await give("*:*")
    key, token = await give("read:*")
    http = await serve(access="keys", keys_ms=20, token=token)

    async def listen() -> int:
        return int((await http.get("/events", timeout=PATIENCE)).status_code)  # returns when the stream ends

    listening = asyncio.create_task(listen())
    await until(lambda: http.service.stream.open == 1)
    await transport.send(calls.drop_api_key(Keys(settings.prefix), key.id))
    assert await asyncio.wait_for(listening, PATIENCE) == 200


async def _status_is(http: Http, path: str, status: int) -> bool:
    return bool((await http.post(path, json={})).status_code == status)


async def test_health_and_docs_need_no_key(serve: Callable[..., Any], give: Give) -> None:
    await give("*:*")
    http = await serve(access="keys")
    for path in ("/healthz", "/readyz", "/version", "/docs", "/openapi.json"):
        assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize(("access", "host"), [("keys", "127.0.0.1"), ("auto", "0.0.0.0"), ("auto", "10.1.2.3")])
async def test_a_server_without_the_keys_it_needs_refuses_all_requests_and_says_how_to_go_on(
    serve: Callable[..., Any], give: Give, access: str, host: str
) -> None:
    """Beyond loopback nothing is open without keys, unless the operator says so."""
    http = await serve(access=access, host=host, keys_ms=20)
    assert (await http.get(f"{JOBS}/a")).status_code == 401

    async def problems() -> str:
        return " ".join((await http.get("/readyz")).json()["problems"])

    async def is_told() -> bool:
        return re.search(r"wheelq keys create .*access = .open.", await problems()) is not None

    await until(is_told)
    _, token = await give("*:*")
    assert (await http.get(f"{JOBS}/a", headers={"authorization": f"Bearer {token}"})).status_code == 404

    async def is_well() -> bool:
        return not await is_told()

    await until(is_well)


async def test_the_server_starts_open_beyond_loopback_only_on_request(serve: Callable[..., Any]) -> None:
    http = await serve(access="open", host="0.0.0.0")
    assert (await http.get(f"{JOBS}/a")).status_code == 404


async def test_an_open_server_does_not_listen_to_pages_of_other_sites(http: Http) -> None:
    """A browser on this machine would carry their requests here."""
    foreign = await http.post(JOBS, json={"delay": 60}, headers={"origin": "https://evil.example"})
    own = await http.post(JOBS, json={"delay": 60}, headers={"origin": str(http.base_url)})
    assert (foreign.status_code, own.status_code) == (403, 201)


async def test_an_open_server_on_loopback_does_not_answer_to_names_that_were_made_to_lead_to_it(
    serve: Callable[..., Any],
) -> None:
    """A page could otherwise call it as its own site. Who puts a proxy before it says access = "open", or uses keys."""
    http = await serve()
    for host, status in (
        ("evil.example:7380", 403),
        ("localhost:7380", 404),
        ("LOCALHOST", 404),
        ("localhost.:80", 404),
        ("127.0.0.1", 404),
        ("[::1]:7380", 404),
    ):
        assert (await http.get(f"{JOBS}/a", headers={"host": host})).status_code == status
    http = await serve(access="open")
    assert (await http.get(f"{JOBS}/a", headers={"host": "proxy.example"})).status_code == 404


async def test_names_that_are_none_leave_nothing_behind(listen: Callable[..., Any]) -> None:
    """A caller may send any topic or Host: they are looked at, and forgotten."""
    listening = await listen()
    long = b"x" * 60_000

    async def ask(n: int) -> None:
        for path, host, status in (
            (b"/%d%b/jobs" % (n, long), b"localhost", b"422"),
            (b"", b"%d%b" % (n, long), b"403"),
        ):
            head = b"GET /v1/topics%b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % (path, host)
            assert (await listening.said(head)).startswith(b"HTTP/1.1 " + status)

    await ask(0)
    tracemalloc.start()
    try:
        for n in range(50):
            await ask(n)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


async def test_a_caller_has_a_rate(serve: Callable[..., Any]) -> None:
    http = await serve(rate=1)
    answers = [await http.get(f"{JOBS}/a") for _ in range(20)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


async def test_a_body_has_a_limit_whether_it_says_its_length_or_not(serve: Callable[..., Any]) -> None:
    http = await serve(body_max_bytes=1_000)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 400

    kind = {"content-type": "application/json"}
    assert (await http.post(JOBS, content=b" " * 1_001, headers=kind)).status_code == 413
    assert (await http.post(JOBS, content=endless(), headers=kind)).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        JOBS,
        "/v1/topics/orders/jobs/cancel",
        "/v1/topics/orders/groups/g/lease",
        "/v1/topics/orders/recurring/nightly",
        "/delay/task/add",
    ],
)
async def test_a_request_about_one_job_is_as_large_as_a_job_can_be(http: Http, path: str) -> None:
    """Reading 8 MB of JSON holds up every other caller; a larger one is refused by its length, and unread."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 65_536
            yield b"[" * 65_536

    method = "PUT" if path.endswith("nightly") else "POST"
    kind = {"content-type": "application/json"}
    answer = await http.request(method, path, content=endless(), headers={**kind, "content-length": "8000000"})
    assert (_is_too_large(answer), read) == (True, 0)
    answer = await http.request(method, path, content=endless(), headers=kind)
    assert (_is_too_large(answer), read < 1_200_000) == (True, True)
    empty = b'{"delay": 60, "payload": [' + b"[]," * 300_000 + b"0]}"
    assert _is_too_large(await http.request(method, path, content=empty, headers=kind))


def _is_too_large(answer: httpx.Response) -> bool:
    """Whether the answer refuses the body itself, and not the payload that was read from it."""
    body = answer.json()
    return body.get("dm_error") == 1003 or (answer.status_code, body.get("field")) == (413, "body")


async def test_the_largest_job_that_is_allowed_has_room(http: Http) -> None:
    text = "\\u0001" * 60_000
    content = f'{{"delay": 60, "payload": "{text}", "headers": {{"h": "{text}"}}}}'
    assert (await http.post(JOBS, content=content, headers={"content-type": "application/json"})).status_code == 201
    assert (await http.post(JOBS, json={"delay": 60, "payload": [0] * 65_000})).status_code == 201


async def test_many_jobs_have_room_but_not_for_millions_of_values(http: Http) -> None:
    text = {"delay": 60, "payload": "first, second, third [fourth] " * 400}
    made = await http.post("/v1/topics/orders/bulk", json={"jobs": [text] * 500})
    assert (made.status_code, made.json()["made"]) == (200, 500)
    many = {"delay": 60, "payload": [[]] * 12_000}
    assert _is_too_large(await http.post("/v1/topics/orders/bulk", json={"jobs": [many] * 50}))


async def test_an_overloaded_server_answers_503_at_once(serve: Callable[..., Any]) -> None:
    http = await serve(max_in_flight=2)
    answers = await asyncio.gather(*(http.post(JOBS, json={"delay": 60}) for _ in range(10)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes[:2] == [201, 201]
    assert codes[-1] == 503
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 503)
    assert (await http.post(JOBS, json={"delay": 60})).status_code == 201


async def test_leases_that_wait_for_a_job_hold_nobody_up(serve: Callable[..., Any]) -> None:
    http = await serve(max_in_flight=2, max_waiting=3)
    assert (await http.post(JOBS, json={"delay": 60})).status_code == 201
    poll = "/v1/topics/orders/groups/g/lease"
    waiting = [asyncio.create_task(http.post(poll, json={"wait": 20})) for _ in range(2)]
    await until(lambda: http.service.leases.waiting == 2)
    waiting.append(asyncio.create_task(http.post(poll, json={"wait": 20})))
    await until(lambda: http.service.leases.waiting == 3)
    answers = await asyncio.gather(http.get("/healthz"), http.get(f"{JOBS}/a"))
    assert [answer.status_code for answer in answers] == [200, 404]
    http.service.drain()
    assert [(await task).status_code for task in waiting] == [200, 200, 200]


async def test_health_is_answered_however_much_is_under_way(serve: Callable[..., Any]) -> None:
    http = await serve(max_in_flight=2)
    asked = [http.get(path) for path in ("/v1/topics",) * 8 + ("/healthz", "/readyz") * 4]
    codes = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert 503 in codes[:8]
    assert codes[8:] == [200] * 8


async def test_a_foreign_page_adds_no_task_where_classic_calls_need_no_key(
    serve: Callable[..., Any], give: Give
) -> None:
    key, _ = await give("schedule:*")
    http = await serve(access="keys", classic_key=key.id)
    task = {"topic": "orders", "timing_moment": "1", "content": "x"}
    for origin, code in (("https://evil.example", 1102), ("null", 1102), (BASE, 0)):
        answer = await http.post("/delay/task/add", data=task, headers={"origin": origin})
        assert answer.json()["dm_error"] == code, origin
    assert (await http.post("/delay/task/add", data=task)).json()["dm_error"] == 0, "a program sends no Origin"


async def test_changes_are_told_to_the_audit_log(serve: Callable[..., Any], give: Give, caplog: Any) -> None:
    """Who, what, on what, with which outcome; no payload and no secret."""
    key, token = await give("*:*")
    http = await serve(access="keys", token=token)
    with caplog.at_level(logging.INFO, "wheelq.audit"):
        await http.post(JOBS, json={"delay": 60, "id": "a", "payload": "secret"})
        await http.post(JOBS, json={"delay": 60, "id": "a", "on_duplicate": "replace"})
        await http.delete(f"{JOBS}/a")
    first, line = [json.loads(record.message) for record in caplog.records if record.name == "wheelq.audit"]
    assert (first["verb"], first["method"]) == ("change", "POST")
    assert line["key"] == key.id
    assert (line["verb"], line["method"], line["path"], line["status"]) == ("change", "DELETE", f"{JOBS}/a", 204)
    assert token not in caplog.text


async def test_the_audit_log_tells_the_status_of_a_request_that_was_not_acceptable(http: Http, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "wheelq.audit"):
        answer = await http.patch(f"{JOBS}/a", json={"delay": 60}, headers={"if-match": "*"})
    (line,) = [json.loads(record.message) for record in caplog.records if record.name == "wheelq.audit"]
    assert line["status"] == answer.status_code == 422


async def test_a_page_that_does_not_take_a_method_names_those_that_it_takes(http: Http) -> None:
    answer = await http.put("/topics")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_with_all_the_audit_log_tells_the_daily_work_and_every_refusal(
    serve: Callable[..., Any], give: Give, caplog: Any
) -> None:
    _, token = await give("schedule:*", "consume:*")
    http = await serve(access="keys", token=token, audit="all")
    task = {"topic": "mail", "timing_moment": 1, "content": "x"}
    with caplog.at_level(logging.INFO, "wheelq.audit"):
        await http.post(JOBS, json={"delay": 60})
        await http.post(JOBS, json={"delay": -1})
        await http.get(JOBS)
        await http.post("/delay/task/add", json=task)
        await http.post("/delay/task/pull", json={"topic": "mail"})
        await http.post("/delay/task/pull", json={"topic": "nobody"})
        for method, path in (("GET", JOBS), ("POST", JOBS), ("DELETE", f"{JOBS}/a"), ("POST", "/delay/task/add")):
            await http.request(method, path, json=task, headers={"authorization": "Bearer wq_no_key"})
        await http.get("/healthz")
    lines = [json.loads(record.message) for record in caplog.records if record.name == "wheelq.audit"]
    assert [(line["verb"], line["status"], line.get("topic")) for line in lines] == [
        ("schedule", 201, None),
        ("schedule", 422, None),
        ("read", 403, None),
        ("schedule", 200, "mail"),
        ("consume", 200, "mail"),
        ("consume", 404, "nobody"),
        ("read", 401, None),
        ("schedule", 401, None),
        ("change", 401, None),
        ("schedule", 401, None),
    ]
    assert [line["key"] is None for line in lines] == [False] * 6 + [True] * 4
    assert '"x"' not in caplog.text


async def test_answers_carry_safe_headers_and_no_cors(http: Http) -> None:
    answer = await http.get("/healthz", headers={"origin": "https://evil.example"})
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


async def test_cors_is_on_for_the_sites_that_are_named(serve: Callable[..., Any]) -> None:
    http = await serve(cors_origins="https://shop.example")
    answer = await http.post(JOBS, json={"delay": 60}, headers={"origin": "https://shop.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, "https://shop.example")
    assert answer.headers["access-control-expose-headers"] == "etag, location, retry-after"


# Keys and rates, as values


def test_the_stored_key_does_not_contain_its_secret() -> None:
    key, token = new_key("a", ("*:*",), 0)
    assert token.split("_", 2)[2].encode() not in str(key.stored()).encode()
    assert ApiKey.read(key.id, key.stored()) == key


def test_a_rotated_key_has_a_new_secret_and_the_old_one_ends() -> None:
    key, token = new_key("a", ("*:*",), 0)
    rotated, newer = key.rotated(1_000, DAY_MS)
    old_secret, new_secret = (text.split("_", 2)[2] for text in (token, newer))
    assert rotated.is_opened_by(new_secret, 5_000)
    assert rotated.is_opened_by(old_secret, 1_000 + DAY_MS - 1)
    assert not rotated.is_opened_by(old_secret, 1_000 + DAY_MS)
    at_once, _ = key.rotated(1_000, 0)
    assert not at_once.is_opened_by(old_secret, 1_000)


@pytest.mark.parametrize("scope", ["", "read", "reed:*", "read:", "read:a b", "read:*:*"])
def test_a_wrong_scope_is_named(scope: str) -> None:
    with pytest.raises(InvalidInput, match="scope"):
        new_key("a", (scope,), 0)


def test_scopes_are_patterns() -> None:
    assert allows(("read:a.*",), Verb.READ, "a.b")
    assert not allows(("read:a.*",), Verb.READ, "b.a")
    assert not allows(("read:a.*",), Verb.CHANGE, "a.b")
    assert allows(("*:x",), Verb.MANAGE, "x")
    assert allows(("read:x",), Verb.READ, None)


def test_only_a_scope_for_every_topic_reads_all() -> None:
    for scopes, reads_all in (
        (("read:*",), True),
        (("*:*",), True),
        (("read:a*", "schedule:*"), False),
        (("*:a",), False),
        ((), False),
    ):
        assert Caller("a", scopes).reads_all is reads_all, scopes


def test_a_bucket_fills_again() -> None:
    rates = Rates(10)
    assert [rates.wait_s("a", 0.0) > 0 for _ in range(21)] == [False] * 20 + [True]
    assert rates.wait_s("b", 0.0) == 0
    assert rates.wait_s("a", 0.0) == pytest.approx(0.1)
    assert rates.wait_s("a", 0.11) == 0


# Rights in Redis


async def test_the_user_of_config_acl_may_do_all_that_the_server_does(
    private_server: Callable[..., EmbeddedServer], settings: Settings
) -> None:
    """And the server's own log of refusals stays empty."""
    url = private_server(appendonly=False).url
    rights = (ACL / "server.acl").read_text().strip().splitlines()[-1].split()[2:]
    with redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "wheelq-server", *rights, "on", ">secret")
        admin.execute_command("ACL", "LOG", "RESET")
        path = url.partition("//")[2]
        service = Service(AsyncTransport(Address(f"{url.partition('//')[0]}//wheelq-server:secret@{path}")), Settings())
        async with service.running():
            asgi = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=asgi, base_url="http://127.0.0.1") as http:
                group = "/v1/topics/orders/groups/g"
                key = {"idempotency-key": "k"}
                for id in ("a", "b", "c"):
                    assert (
                        await http.post(JOBS, json={"delay": 60, "id": id}, headers=key | {"idempotency-key": id})
                    ).is_success
                asked: list[tuple[str, str, Any]] = [
                    ("PATCH", f"{JOBS}/a", {"delay": 90}),
                    ("GET", JOBS, None),
                    ("GET", f"{JOBS}/a", None),
                    ("POST", "/v1/topics/orders/run/a", None),
                    ("DELETE", f"{JOBS}/b", None),
                    ("PATCH", "/v1/topics/orders/settings", {"max_rate": 5}),
                    ("POST", "/v1/topics/orders/pause", None),
                    ("POST", "/v1/topics/orders/resume", None),
                    ("GET", "/v1/topics", None),
                    ("GET", "/v1/topics/orders/dead", None),
                    ("POST", "/v1/topics/orders/dead/purge?all=true", None),
                    ("PUT", "/v1/topics/orders/recurring/r", {"every": 60}),
                    ("GET", "/v1/topics/orders/recurring", None),
                    ("DELETE", "/v1/topics/orders/recurring/r", None),
                    ("GET", "/readyz", None),
                    ("POST", "/delay/task/add", {"topic": "t", "timing_moment": 1, "content": "x"}),
                    ("POST", "/delay/task/pull", {"topic": "t"}),
                    ("POST", "/delay/task/add", {"topic": "t", "timing_moment": 1, "content": "x", "task_id": 7}),
                    ("POST", "/delay/task/pull", {"topic": "t", "task_id": 7}),
                ]
                for method, where, body in asked:
                    answer = await http.request(method, where, json=body)
                    assert answer.is_success, (where, answer.text)
                for does in (("release",), ("extend", "ack")):
                    (job,) = (await http.post(f"{group}/lease", json={"wait": 1})).json()["jobs"]
                    for what in does:
                        answer = await http.post(f"{group}/{what}", json={"handles": [job["handle"]]})
                        assert answer.json()["done"] == [True]
                assert (await http.post(f"{group}/lease", json={"wait": 0.3})).json()["jobs"] == []
        refused = [
            (entry["object"], entry["reason"]) for entry in admin.acl_log() if entry["object"] != "client|setinfo"
        ]
        assert refused == []


async def test_a_key_that_only_changes_jobs_does_not_read_the_one_that_it_moves(
    serve: Callable[..., Any], give: Give, aclient: AsyncClient
) -> None:
    await aclient.schedule("orders", {"card": "4111"}, delay=60, key="a", headers={"secret": "x"})
    _, token = await give("change:orders")
    http = await serve(access="keys", token=token)
    answer = await http.patch("/v1/topics/orders/jobs/a", json={"delay": 120})
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["id"], shown["state"], shown["payload"], shown["headers"]) == ("a", "waiting", None, {})
    assert shown["due_ms"] == (await ajob_of(aclient, "orders", "a")).due_ms
    assert "4111" not in answer.text
    assert "secret" not in answer.text
