"""The dashboard over HTTP: who may see and do what, and that only its own pages can act."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import msgpack
import pytest
import redis
import redis.asyncio

from tests.found import ajob_of
from tests.http.conftest import BASE, Give, Http
from tests.running import running
from tests.transports import ReplyLost
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Continuation, JobSpec, Settings, Worker
from wheelq.base.clock import ManualClock, wall_ms
from wheelq.model.job import from_ms
from wheelq.protocol import codec
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access import new_key
from wheelq.server.dashboard import snapshot
from wheelq.server.dashboard.entering import SESSION_MS, is_valid_session, new_session
from wheelq.server.dashboard.pages import topics
from wheelq.server.dashboard.timeline import RECORDED_MS, TopicHistory, series
from wheelq.transport import Address, AsyncTransport

EVERY_PAGE = (
    "/",
    "/future",
    "/future?span=week",
    "/future?topic=orders",
    "/topics",
    "/topics/orders",
    "/jobs",
    "/topics/orders/jobs",
    "/topics/orders/jobs?state=retrying&error=x",
    "/topics/orders/jobs?state=done",
    "/topics/orders/job?id=order-1",
    "/topics/orders/bulk?action=cancel",
    "/schedule",
    "/dead",
    "/topics/orders/dead",
    "/topics/orders/dead/confirm?action=purge",
    "/recurring",
    "/recurring/edit",
    "/recurring/edit?topic=orders&name=nightly",
    "/groups",
    "/fleet",
    "/callbacks",
)


@pytest.fixture
async def shop(aclient: AsyncClient) -> AsyncClient:
    """A topic with a job that waits, and a recurring one."""
    await aclient.schedule("orders", {"id": 1}, delay=3_600, key="order-1")
    await aclient.recurring.put("orders", "nightly", cron="0 2 * * *", tz="Europe/Berlin")
    return aclient


class Browser:
    """Loads pages and sends their forms, as a browser does: with cookies, and the Origin of what it sees."""

    def __init__(self, http: Http, base: str = "") -> None:
        self.http = http
        self.base = base

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def token(self, path: str = "/schedule") -> str:
        """The token in the first form of a page."""
        found = re.search(r'name="token" value="([0-9a-f]{32})"', (await self.get(path)).text)
        assert found is not None
        return found[1]

    async def send(self, path: str, page: str = "/schedule", **fields: str) -> httpx.Response:
        """Send a form from a page."""
        token = await self.token(page)
        return await self.http.post(path, data={"token": token, **fields}, headers={"origin": BASE})

    async def sign_in(self, token: str) -> httpx.Response:
        return await self.send("/sign-in", "/sign-in", key=token)


async def test_after_a_change_the_page_of_due_jobs_counts_again(http: Http, shop: AsyncClient) -> None:
    """Else it shows for up to a minute what was due before."""
    browser = Browser(http)

    async def due() -> int:
        page = (await browser.get("/future?span=week")).text
        return sum(map(int, re.findall(r"(\d+) jobs? due", page)))

    before = await due()
    assert (await browser.send("/schedule", topic="orders", delay="2h")).status_code == 303
    assert await due() > before


async def test_every_page_is_there_and_sends_strict_headers(http: Http, shop: AsyncClient) -> None:
    for path in EVERY_PAGE:
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert answer.headers.get_list("content-security-policy") == [
            "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        ]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert " style=" not in answer.text
        assert "<script>" not in answer.text
        assert set(re.findall(r'(?:src|href|action)="(\w+:)', answer.text)) == set(), "nothing from elsewhere"


async def test_every_page_answers_head_as_it_answers_get(serve: Callable[..., Any], give: Give) -> None:
    _, token = await give("*:*")
    http = await serve(access="keys")
    assert (await http.head("/sign-in")).status_code == 200
    http.headers["authorization"] = f"Bearer {token}"
    for path in ("/", "/events", "/guide", "/schedule"):
        answer = await http.head(path, timeout=PATIENCE)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (
            200,
            "text/event-stream" if path == "/events" else "text/html",
        )


async def test_files_of_pages_are_cached_by_what_they_hold(http: Http) -> None:
    page = (await http.get("/")).text
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        answer = await http.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await http.get("/static/0/../../app.py")).status_code == 404
    assert (await http.get("/static/0/nothing.js")).status_code == 404


async def test_the_script_is_small() -> None:
    from wheelq.server.dashboard.rendering import static

    found = static("dashboard.js")
    assert found is not None
    assert len(found.body) < 30_000


# Rights to see


async def test_without_a_session_a_page_leads_to_the_sign_in(serve: Callable[..., Any], give: Give) -> None:
    await give("*:*")
    http = await serve(access="keys")
    answer = await http.get("/topics?q=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Ftopics%3Fq%3Da")
    assert (await http.get("/events")).status_code == 401
    assert (await http.get("/guide/production")).status_code == 200, "the guide is for everybody"


async def test_an_api_key_signs_in_and_out(serve: Callable[..., Any], give: Give, shop: AsyncClient) -> None:
    _, token = await give("*:*")
    browser = Browser(await serve(access="keys"))
    answer = await browser.sign_in(token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith("wheelq_session"))
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert token.split("_", 2)[2] not in cookie
    for path in EVERY_PAGE:
        assert (await browser.get(path)).status_code == 200, path
    assert (await browser.send("/sign-out")).headers["location"] == "/sign-in"
    assert (await browser.get("/")).status_code == 303


@pytest.mark.parametrize("wrong", ["x", "wq_00_00", "%s0"])
async def test_a_wrong_key_does_not_sign_in(serve: Callable[..., Any], give: Give, wrong: str) -> None:
    _, token = await give("*:*")
    browser = Browser(await serve(access="keys"))
    answer = await browser.sign_in(wrong.replace("%s", token))
    assert answer.status_code == 401
    assert "not known" in answer.text
    assert "wheelq_session" not in browser.http.cookies


async def test_a_session_is_taken_by_any_process_and_ends_with_its_key(
    serve: Callable[..., Any], give: Give, url: str, settings: Settings
) -> None:
    key, token = await give("*:*")
    first, second = await serve(access="keys"), await serve(access="keys")
    await Browser(first).sign_in(token)
    second.cookies = first.cookies
    assert (await second.get("/")).status_code == 200
    transport = AsyncTransport(Address(url))
    await transport.send(calls.drop_api_key(Keys(settings.prefix), key.id))
    await transport.close()
    await second.service.keyring.read()  # type: ignore[attr-defined]
    assert (await second.get("/")).status_code == 303


async def test_the_audit_log_tells_of_sign_ins_right_and_wrong(
    serve: Callable[..., Any], give: Give, caplog: pytest.LogCaptureFixture
) -> None:
    key, token = await give("*:*")
    browser = Browser(await serve(access="keys"))
    with caplog.at_level("INFO", "wheelq.audit"):
        for wrong in ("nonsense", f"wq_{key.id}_wrong", token):
            await browser.sign_in(wrong)
        await browser.send("/sign-out")
    told = [json.loads(record.message) for record in caplog.records if record.name == "wheelq.audit"]
    assert [(line["verb"], line["key"], line["status"]) for line in told] == [
        ("sign-in", None, 401),
        ("sign-in", key.id, 401),
        ("sign-in", key.id, 303),
        ("sign-out", key.id, 303),
    ]
    assert "nonsense" not in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
async def test_a_stranger_can_send_no_large_form(serve: Callable[..., Any], give: Give, path: str) -> None:
    """It is refused by its length, and otherwise as soon as too much has come: parsing it would stop the server."""
    await give("*:*")
    http = await serve(access="keys")
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 4_096
            yield b"a=b&" * 1_024

    own = {"origin": BASE, "content-type": "application/x-www-form-urlencoded"}
    declared = await http.post(path, content=endless(), headers={**own, "content-length": "8000000"})
    assert (declared.status_code, declared.headers["connection"], read) == (413, "close", 0)
    assert (await http.post(path, content=endless(), headers=own)).status_code == 413
    assert read <= 20_480


async def test_the_form_of_a_viewer_holds_a_job_and_no_more(http: Http) -> None:
    browser = Browser(http)
    payload = '"' + "\\u0001" * 10_000 + '"'
    made = await browser.send("/schedule", topic="orders", delay="1h", payload=payload)
    assert made.status_code == 303
    assert (await browser.send("/schedule", topic="orders", delay="1h", payload="x" * 2_000_000)).status_code == 413


async def test_sign_in_leads_only_to_pages_of_this_server(serve: Callable[..., Any], give: Give) -> None:
    _, token = await give("*:*")
    for there in ("https://evil.example/", "//evil.example/", "/\\evil.example/", "javascript:alert(1)"):
        browser = Browser(await serve(access="keys"))
        answer = await browser.send("/sign-in", "/sign-in", key=token, next=there)
        assert answer.headers["location"] == "/"


def test_a_session_is_valid_for_its_key_and_its_time() -> None:
    key, _ = new_key("a", ("*:*",), 0)
    other, _ = new_key("b", ("*:*",), 0)
    cookie = new_session(key, 1_000)
    assert is_valid_session(cookie, key, 2_000)
    assert not is_valid_session(cookie, key, 1_000 + SESSION_MS)
    assert not is_valid_session(cookie, other, 2_000)
    id, expires, mac = cookie.split(".")
    assert not is_valid_session(f"{id}.{int(expires) + 1}.{mac}", key, 2_000)
    rotated, _ = key.rotated(2_000, 60_000)
    assert is_valid_session(cookie, rotated, 3_000)
    assert not is_valid_session(cookie, rotated, 62_001)


async def test_a_key_sees_only_its_topics(serve: Callable[..., Any], give: Give, shop: AsyncClient) -> None:
    await shop.schedule("secret", {"x": 1}, delay=60, key="hidden-1")
    await shop.recurring.put("secret", "hidden-2", every=60)
    _, token = await give("read:orders")
    browser = Browser(await serve(access="keys"))
    await browser.sign_in(token)
    for path in EVERY_PAGE:
        if path not in ("/schedule",):
            answer = await browser.get(path)
            assert "secret" not in answer.text, path
            assert "hidden-" not in answer.text, path
    for path in ("/topics/secret", "/topics/secret/jobs", "/topics/secret/job?id=hidden-1", "/future?topic=secret"):
        assert (await browser.get(path)).status_code == 403, path


async def test_the_page_of_a_job_shows_its_bundle_only_to_those_who_may_read_the_bundle_s_topic(
    serve: Callable[..., Any], give: Give, shop: AsyncClient
) -> None:
    then = Continuation("secret", key="hidden-follower")
    await shop.schedule_many("orders", [JobSpec(delay=60, key="member")], then=then)
    (_, orders), (_, everything) = await give("read:orders"), await give("read:*")
    for token, is_shown in ((orders, False), (everything, True)):
        browser = Browser(await serve(access="keys"))
        await browser.sign_in(token)
        answer = await browser.get("/topics/orders/job?id=member")
        assert answer.status_code == 200
        assert ("hidden-follower" in answer.text) is is_shown


async def test_the_overview_counts_only_what_happened_in_the_viewer_s_topics(
    serve: Callable[..., Any], give: Give, shop: AsyncClient, url: str, settings: Settings
) -> None:
    """Heartbeats count the jobs of all topics together: here those of a worker of another topic."""
    (_, orders), (_, everything) = await give("read:orders"), await give("read:*")
    http = await serve(access="keys", token=orders)
    await http.get("/")
    with redis.Redis.from_url(url) as db:
        seen_ms = db.time()[0] * 1_000
        busy = {"seen_ms": seen_ms, "group": "g", "topics": ["secret"], "handled": 6_000_000, "failed": 6_000_000}
        db.hset(Keys(settings.prefix).workers, "busy", msgpack.packb(busy))
    http.service.snapshot.forget()  # type: ignore[attr-defined]
    page = (await http.get("/")).text
    assert (_tile(page, "Done"), _tile(page, "Failed"), _tile(page, "Running", "note")) == ("0/s", "0/s", "0 workers")
    http.headers["authorization"] = f"Bearer {everything}"
    page = (await http.get("/")).text
    assert (_tile(page, "Done"), _tile(page, "Done", "note")) == ("0/s", "last whole minute"), "it looked twice at once"
    readings = http.service.snapshot._readings  # type: ignore[attr-defined]
    readings[0] = readings[0]._replace(at_ms=readings[0].at_ms - 40_000)
    page = (await http.get("/")).text
    assert "0/s" not in (_tile(page, "Done"), _tile(page, "Failed"))
    assert re.fullmatch(r"last 4\d s", _tile(page, "Done", "note"))
    assert _tile(page, "Running", "note") == "1 worker"


async def test_the_first_load_shows_the_rates_of_the_last_whole_minute_in_redis(
    serve: Callable[..., Any], shop: AsyncClient, url: str, settings: Settings
) -> None:
    with redis.Redis.from_url(url) as db:
        minute = (db.time()[0] * 1_000 - RECORDED_MS) // 60_000
        for n in (minute - 1, minute):  # the one before, if that minute turns before the page is made
            key = Keys(settings.prefix).shard("orders", 0).history(n // 60)
            db.hset(key, str(n % 60), bytes([90, 60, 30, 6, 6]))
    page = (await (await serve()).get("/")).text
    rates = [_tile(page, label) for label in ("Scheduled", "Promoted", "Done", "Failed")]
    assert rates == ["1.5/s", "1/s", "0.5/s", "0.2/s"]
    assert _tile(page, "Promoted", "note") == "last whole minute"


async def test_a_minute_that_ends_is_in_the_history_when_it_is_recorded(
    shop: AsyncClient, transport: AsyncTransport, url: str, settings: Settings
) -> None:
    """What was read of an hour is remembered, but not across the end of a minute."""
    keys, clock, topics = Keys(settings.prefix), ManualClock(), await shop.topics()
    history, hour, now_ms = TopicHistory(transport, keys, clock), 480_000, 480_000 * 3_600_000 + 10 * 60_000
    assert await history.minutes(topics, now_ms + 58_000) == {}
    with redis.Redis.from_url(url) as db:
        db.hset(keys.shard("orders", 0).history(hour), "10", bytes([60]))
    clock.advance(7.0)
    found = await history.minutes(topics, now_ms + 60_000 + RECORDED_MS)
    assert series(found, now_ms + 60_000 + RECORDED_MS, 60_000, 1).scheduled == [60]


async def test_the_bars_of_the_overview_have_a_legend_with_a_colour_for_each_topic(
    http: Http, shop: AsyncClient
) -> None:
    for n in range(9):
        await shop.schedule_many(f"topic-{n}", [JobSpec(delay=1_800)] * (1 if n in (0, 3) else 2))
    page = (await http.get("/")).text
    legend = page.partition('id="upcoming"')[2].partition("</section>")[0].partition('class="legend"')[2]
    found = re.findall(r'class="c(.)"/></svg>([^<]+)</li>', legend)
    assert [name for _, name in found] == [*(f"topic-{n}" for n in (1, 2, 4, 5, 6, 7, 8)), "3 more topics"]
    assert len({colour for colour, _ in found}) == 8


async def test_the_fleet_page_shows_the_versions(http: Http, shop: AsyncClient, url: str, settings: Settings) -> None:
    """Of schedulers and workers; "-" for one whose heartbeats do not tell it."""
    with redis.Redis.from_url(url) as db:
        told, keys = {"seen_ms": db.time()[0] * 1_000, "group": "g", "topics": []}, Keys(settings.prefix)
        db.hset(keys.nodes, "newer", msgpack.packb({**told, "version": "99.1"}))
        db.hset(keys.workers, mapping={"newer": msgpack.packb({**told, "version": "99.2"}), "old": msgpack.packb(told)})
    http.service.snapshot.forget()  # type: ignore[attr-defined]
    assert re.findall(r"<td[^>]*>(99\.[12]|-)</td>", (await http.get("/fleet")).text) == ["99.1", "99.2", "-"]


def _tile(page: str, label: str, part: str = "value") -> str:
    tile = page.partition(f"{label}</div>")[2] or page.partition(f"{label}</a></div>")[2]
    found = re.search(f'class="tile-{part}">([^<]*)<', tile)
    assert found is not None
    return found[1]


async def test_a_key_that_only_reads_sees_no_forms_and_changes_nothing(
    serve: Callable[..., Any], give: Give, shop: AsyncClient
) -> None:
    _, token = await give("read:*")
    browser = Browser(await serve(access="keys"))
    await browser.sign_in(token)
    for path in EVERY_PAGE:
        forms = re.findall(r'<form method="post" action="([^"]+)"', (await browser.get(path)).text)
        assert set(forms) <= {"/sign-out"}, path
    assert "Read only" in (await browser.get("/")).text
    for path, fields in ACTIONS:
        answer = await browser.send(path, "/", **fields)
        assert answer.status_code == 403, path
    assert await shop.get("orders", "order-1") is not None


async def test_a_key_that_only_schedules_has_the_form_and_may_sign_out(
    serve: Callable[..., Any], give: Give, shop: AsyncClient
) -> None:
    _, token = await give("schedule:orders")
    browser = Browser(await serve(access="keys"))
    assert (await browser.sign_in(token)).headers["location"] == "/schedule"
    answer = await browser.send("/schedule", topic="orders", delay="60", id="new")
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedule")
    assert "Its id is new." in (await browser.get("/schedule")).text
    assert await shop.get("orders", "new") is not None
    refused = await browser.get("/topics/orders")
    assert (refused.status_code, "/sign-out" in refused.text) == (403, True)


async def test_scopes_of_the_form_s_topic_count(serve: Callable[..., Any], give: Give, shop: AsyncClient) -> None:
    """Where the topic is in the form and not in the path."""
    _, token = await give("read:*", "schedule:mail", "manage:mail")
    browser = Browser(await serve(access="keys"))
    await browser.sign_in(token)
    assert (await browser.send("/schedule", topic="orders", delay="60")).status_code == 403
    run = {"topic": "orders", "name": "nightly", "action": "remove"}
    assert (await browser.send("/recurring/act", **run)).status_code == 403
    put = {"topic": "orders", "name": "new", "is_new": "yes", "every": "60"}
    assert (await browser.send("/recurring/put", **put)).status_code == 403
    assert (await browser.send("/schedule", topic="mail", delay="60")).status_code == 303


async def test_a_job_that_runs_again_keeps_its_terms(
    serve: Callable[..., Any], give: Give, aclient: AsyncClient
) -> None:
    terms: dict[str, Any] = {"attempts": 3, "timeout": 10.0, "expires": 60.0, "on_dead": "alarms"}
    await aclient.configure("orders", keep_done_ms=600_000)
    await aclient.schedule("orders", delay=0, key="first", **terms)
    may_all = (await give("*:*"))[1]
    http = await serve(access="keys", token=may_all)
    [job] = (await http.post("/v1/topics/orders/groups/g/lease", json={})).json()["jobs"]
    await http.post("/v1/topics/orders/groups/g/ack", json={"handles": [job["handle"]]})
    assert (await http.get("/v1/topics/orders/jobs/first")).json().items() >= {
        "on_dead": "alarms",
        "expires": 60,
    }.items()
    ids = []
    for token in ((await give("*:orders"))[1], may_all):
        browser = Browser(await serve(access="keys"))
        await browser.sign_in(token)
        answer = await browser.send("/topics/orders/job/rerun", id="first")
        ids.append(re.search(r"[?&]id=(\w+)", answer.headers.get("location", "")))
    assert ids[0] is None, "it may not schedule in the topic that is told of a dead job"
    assert ids[1] is not None
    again = await ajob_of(aclient, "orders", ids[1][1])
    assert (again.max_attempts, again.timeout, again.expires, again.on_dead) == (3, 10.0, 60.0, "alarms")


async def test_a_job_that_is_run_again_from_a_page_without_its_partition_key_has_that_key(
    http: Http, shop: AsyncClient, url: str, settings: Settings
) -> None:
    """A list of finished jobs knows no keys; the job's own record does."""
    await shop.configure("orders", keep_done_ms=60_000)
    worker = Worker.connect(url, settings=settings)
    worker.handler("orders")(lambda job: None)
    async with running(worker):
        receipt = await shop.schedule("orders", key="ended", partition_key="cust", delay=0)
        await shop.wait(receipt, timeout=PATIENCE)
    action = "/topics/orders/job/rerun"
    fields = FormFields(action, (await http.get("/topics/orders/job?id=ended")).text).fields
    answer = await http.post(action, data={**fields, "question": ""}, headers={"origin": BASE})
    assert answer.status_code == 303, answer.text
    again = parse_qs(urlsplit(answer.headers["location"]).query)
    assert again["partition_key"] == ["cust"]
    found = await shop.get("orders", again["id"][0], partition_key="cust")
    assert (found and found.partition_key) == "cust"


async def test_a_form_undoes_nothing_that_others_have_changed_since_its_page_was_shown(
    http: Http, shop: AsyncClient
) -> None:
    await shop.recurring.put("orders", "nightly", {"old": 1}, every=60)

    async def fields(page: str, action: str) -> dict[str, str]:
        return FormFields(action, (await http.get(page)).text).fields

    places = {
        "/topics/orders/settings": ("/topics/orders", {"max_pending": "77"}),
        "/recurring/put": ("/recurring/edit?topic=orders&name=nightly", {"every": "90"}),
    }
    before = {action: await fields(page, action) for action, (page, _) in places.items()}
    await shop.configure("orders", max_rate=7)
    await shop.recurring.put("orders", "nightly", {"new": 2}, every=60)
    for action, (page, touched) in places.items():
        late = await http.post(action, data={**before[action], **touched}, headers={"origin": BASE})
        assert (late.status_code, "Somebody has changed this" in late.text) == (412, True)
        now = {**await fields(page, action), **touched}
        assert (await http.post(action, data=now, headers={"origin": BASE})).status_code == 303
    topic, info = await shop.topic("orders"), await shop.recurring.get("orders", "nightly")
    assert (topic.settings.max_rate, topic.settings.max_pending) == (7.0, 77)
    assert info is not None
    assert (info.payload, info.rule.every_ms) == ({"new": 2}, 90_000)


# Only its own pages act

ACTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/schedule", {"topic": "orders", "delay": "60"}),
    ("/topics/orders/pause", {}),
    ("/topics/orders/resume", {}),
    ("/topics/orders/settings", {"max_pending": "5"}),
    ("/topics/orders/shards", {"shards": "4"}),
    ("/topics/orders/job/cancel", {"id": "order-1"}),
    ("/topics/orders/job/run", {"id": "order-1"}),
    ("/topics/orders/job/reschedule", {"id": "order-1", "delay": "5"}),
    ("/topics/orders/job/rerun", {"id": "order-1"}),
    ("/topics/orders/dead/act", {"action": "purge", "dead_id": "1-1:0"}),
    ("/topics/orders/dead/matching", {"action": "purge", "until_ms": "5"}),
    ("/topics/orders/groups/remove", {"group": "g"}),
    ("/topics/orders/bulk", {"action": "cancel", "name": "b"}),
    ("/recurring/act", {"topic": "orders", "name": "nightly", "action": "remove"}),
    ("/recurring/put", {"topic": "orders", "name": "new", "is_new": "yes", "every": "60"}),
)


def test_every_action_is_tried_here() -> None:
    from wheelq.server.dashboard.site import PLACES

    tried = {path.replace("/orders/", "/{topic}/") for path, _ in ACTIONS}
    assert {place.path for place in PLACES if place.is_action} == tried


@pytest.mark.parametrize(("path", "fields"), ACTIONS, ids=[path for path, _ in ACTIONS])
async def test_an_action_needs_the_token_and_an_origin_of_its_own(
    http: Http, shop: AsyncClient, path: str, fields: dict[str, str]
) -> None:
    token = await Browser(http).token()
    own = {"origin": BASE}
    assert (await http.post(path, data=fields, headers=own)).status_code in (403, 415), "no token"
    wrong = {**fields, "token": "0" * 32}
    assert (await http.post(path, data=wrong, headers=own)).status_code == 403, "another token"
    right = {**fields, "token": token}
    for origin in ({}, {"origin": "https://evil.example"}, {"origin": "null"}):
        assert (await http.post(path, data=right, headers=origin)).status_code == 403, origin
    assert (await http.post(path, json=right, headers=own)).status_code == 415
    assert (await http.get(path)).status_code in (200, 405, 422)
    info = await ajob_of(shop, "orders", "order-1")
    assert info.state == "waiting"
    assert not (await shop.topics())[0].settings.paused


async def test_an_open_server_refuses_names_that_are_not_this_machine_s(http: Http) -> None:
    assert (await http.get("/", headers={"host": "rebound.example"})).status_code == 403


# Questions before an action


def fields_of(page: str, path: str) -> list[dict[str, str]]:
    """The hidden fields of each form of a page that is sent to this path, without the token."""
    forms = re.findall(rf'<form method="post" action="{path}".*?</form>', page, re.DOTALL)
    found = [dict(re.findall(r'name="(\w+)" value="([^"]*)"', form)) for form in forms]
    return [{name: unescape(value) for name, value in form.items() if name != "token"} for form in found]


async def test_a_question_is_answered_on_a_page_between(
    serve: Callable[..., Any], shop: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A script asks it itself and does not send it; without one, nothing is changed before the answer."""
    browser = Browser(await serve())
    [pause] = fields_of((await browser.get("/topics/orders")).text, "/topics/orders/pause")
    with caplog.at_level("INFO", "wheelq.audit"):
        asked = await browser.send("/topics/orders/pause", **pause)
        await browser.get("/topics/orders/dead/confirm?action=purge")
        await browser.get("/topics/orders/bulk?action=cancel")
        assert caplog.records == [], "these are no changes"
        assert (asked.status_code, pause["question"] in asked.text) == (200, True)
        assert not (await shop.topics())[0].settings.paused
        [answer] = fields_of(asked.text, "/topics/orders/pause")
        assert "question" not in answer
        await browser.send("/topics/orders/pause", **answer)
        assert (await shop.topics())[0].settings.paused
        assert len(caplog.records) == 1


async def test_the_audit_log_names_the_topic_of_the_path(
    http: Http, shop: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A form may say something else."""
    with caplog.at_level("INFO", "wheelq.audit"):
        await Browser(http).send("/topics/orders/pause", topic="mails")
    [told] = [json.loads(record.message) for record in caplog.records if record.name == "wheelq.audit"]
    assert (told["path"], told["topic"]) == ("/topics/orders/pause", "orders")


async def test_notes_tell_what_is_so(http: Http, shop: AsyncClient) -> None:
    browser = Browser(http)

    async def note(path: str, **fields: str) -> str:
        answer = await browser.send(f"/topics/orders{path}", **fields)
        return unescape((await browser.get(answer.headers["location"])).text.partition('role="status">')[2]).partition(
            "<"
        )[0]

    assert await note("/shards", shards="1") == "The topic has 1 shard now; old jobs stay where they are."
    assert await note("/job/run", id="order-1") == "The job is ready for its workers."
    too_late = "Too late: the job is ready for its consumers, with them already, or waits for a retry."
    assert await note("/job/cancel", id="order-1") == too_late, "there is no consumer yet"


async def test_the_page_between_leads_back_to_where_the_form_was(http: Http, shop: AsyncClient) -> None:
    token, question = await Browser(http).token(), {"question": "Really?"}
    for referer, before in (
        (f"{BASE}/topics/orders?a=b#c", "/topics/orders?a=b"),
        ("https://evil.example/topics", "/"),
        (f"{BASE}//evil.example", "/"),
        ("", "/"),
    ):
        headers = {"origin": BASE, "referer": referer}
        page = await http.post("/topics/orders/pause", data={"token": token, **question}, headers=headers)
        assert f'<a class="button" href="{before}">Do nothing' in page.text, referer


async def test_a_purge_takes_only_the_jobs_that_the_question_has_counted(
    http: Http, shop: AsyncClient, url: str, settings: Settings
) -> None:
    """With one error, or chosen on the page, which always asks."""
    browser, path, dead = Browser(http), "/topics/orders/dead/act", "/topics/orders/dead"
    async with redis.asyncio.Redis.from_url(url) as raw:
        for n in range(3):
            await _bury(raw, settings, 1_000 + n)
        purge = next(form for form in fields_of((await browser.get(dead)).text, path) if form.get("action") == "purge")
        assert purge.pop("question") == "Purge 3 jobs with this error for good?"
        for n in range(40):
            await _bury(raw, settings, 2_000 + n)
    assert (await browser.send(path, **purge)).status_code == 303
    left = (await shop.dead.list("orders", limit=100)).jobs
    assert len(left) == 40
    chosen = {"action": "purge", "asks": "yes", "dead_id": left[0].dead_id}
    asked = await browser.send(path, **chosen)
    assert "Purge 1 job for good?" in asked.text
    [answer] = fields_of(asked.text, path)
    assert len((await shop.dead.list("orders", limit=100)).jobs) == 40
    await browser.send(path, **answer)
    assert len((await shop.dead.list("orders", limit=100)).jobs) == 39


async def _bury(raw: Any, settings: Settings, ms: int) -> None:
    entry = {"id": f"dead-{ms}", "group": "g", "reason": "failed", "error": "no answer", "attempt": 5, "due": ms}
    record = codec.encode(1, None, 10_000)
    await raw.xadd(Keys(settings.prefix).shard("orders", 0).dead, {**entry, "record": record}, id=f"{ms}-0")


@pytest.mark.parametrize("action", [{"action": "cancel"}, {"action": "reschedule", "by": "1d"}])
async def test_a_change_of_a_range_asks_again_when_more_jobs_wait_in_it(
    http: Http, shop: AsyncClient, action: dict[str, str]
) -> None:
    browser, path = Browser(http), "/topics/orders/bulk"
    [first] = fields_of((await browser.get(f"{path}?action={action['action']}")).text, path)
    assert first["count"] == "1"
    await shop.schedule_many("orders", [JobSpec(n, delay=60) for n in range(50)])
    asked = await browser.send(path, **{**first, **action})
    assert "51 jobs?" in asked.text
    assert "You were asked about 1," in asked.text
    assert await shop.count_due("orders", since=from_ms(0), until=from_ms(wall_ms() + 7_200_000)) == 51
    [second] = fields_of(asked.text, path)
    assert (await browser.send(path, **{**second, **action})).status_code == 303
    assert await shop.count_due("orders", since=from_ms(0), until=from_ms(wall_ms() + 7_200_000)) == 0


# What pages hold


async def test_a_form_with_a_mistake_is_shown_again_with_what_was_typed(http: Http, shop: AsyncClient) -> None:
    answer = await Browser(http).send("/schedule", topic="orders", delay="soon", payload='{"a": <b>}')
    assert answer.status_code == 422
    assert "payload: is not JSON" in answer.text
    assert 'value="soon"' in answer.text
    assert "&lt;b&gt;" in answer.text
    answer = await Browser(http).send(
        "/recurring/put", "/recurring/edit", topic="orders", name="new", is_new="yes", cron="61 * * * *"
    )
    assert (answer.status_code, "cron:" in answer.text) == (422, True)


async def test_an_action_concerns_the_job_that_is_shown_whatever_spaces_its_name_has(
    http: Http, shop: AsyncClient
) -> None:
    browser = Browser(http)
    for key in ("a", "a ", " a"):
        await shop.schedule("orders", key, delay=60, key=key, partition_key="p ")
        await shop.recurring.put("orders", f"{key}!", key, every=3_600)
        await shop.recurring.put("orders", key, key, every=3_600)
    page = await browser.get("/topics/orders/job?" + urlencode({"id": "a ", "partition_key": "p "}))
    same = dict(re.findall(r'name="(id|partition_key)" value="([^"]*)"', page.text))
    assert (same, "&#34;a &#34;" in page.text) == ({"id": "a ", "partition_key": "p "}, True)
    assert (await browser.send("/topics/orders/job/cancel", **same)).status_code == 303
    left = [await shop.get("orders", key, partition_key="p ") for key in ("a", "a ", " a")]
    assert [info and info.payload for info in left] == ["a", None, " a"]
    await browser.send("/recurring/act", topic="orders", name="a ", action="remove")
    await browser.send("/recurring/put", topic="orders", name=" a", every="60", payload="")
    found = {info.name: info.rule.every_ms for info in await shop.recurring.list("orders")}
    assert (found.get("a"), found.get("a "), found.get(" a")) == (3_600_000, None, 60_000)


async def test_spaces_around_what_people_type_do_not_count(http: Http, shop: AsyncClient) -> None:
    browser = Browser(http)
    await browser.send("/schedule", topic=" orders ", delay=" 1h ", id=" typed ", payload=" 7 ", expires=" ")
    assert (await ajob_of(shop, "orders", "typed")).payload == 7
    await browser.send("/recurring/put", topic=" orders", name=" weekly ", cron=" 0 0 * * MON ", is_new="yes")
    assert await shop.recurring.get("orders", "weekly") is not None
    found = await browser.get("/jobs?topic=+orders&id=typed+")
    assert found.headers["location"] == "/topics/orders/job?id=typed"


async def test_the_page_of_a_job_that_is_held_back_says_so(http: Http, shop: AsyncClient) -> None:
    await shop.configure("orders", key_concurrency=1)
    for id in ("first", "second"):
        await shop.schedule("orders", key=id, partition_key="ann", delay=3_600)
        await shop.run_now("orders", id, partition_key="ann")
    said = "held back: partition key ann is at a limit of the topic"
    browser = Browser(http)
    assert said not in (await browser.get("/topics/orders/job?id=first&partition_key=ann")).text
    assert said in (await browser.get("/topics/orders/job?id=second&partition_key=ann")).text


async def test_a_job_is_scheduled_with_limits_and_shows_them(http: Http, shop: AsyncClient) -> None:
    browser, limits = Browser(http), {"attempts": "3", "timeout": "1m"}
    await browser.send("/schedule", topic="orders", delay="1h", id="limited", payload="7", **limits)
    info = await ajob_of(shop, "orders", "limited")
    assert (info.max_attempts, info.timeout) == (3, 60)
    page = (await browser.get("/topics/orders/job?id=limited")).text
    assert "1 of at most 3" in page
    assert "60.0 s" in page
    refused = await browser.send("/schedule", topic="orders", delay="1h", attempts="0")
    assert (refused.status_code, "attempts: " in refused.text) == (422, True)


async def test_a_moment_that_no_calendar_has_is_refused(http: Http, shop: AsyncClient) -> None:
    browser, late = Browser(http), str(2**53)
    answer = await browser.send("/topics/orders/dead/matching", action="purge", until_ms=late)
    assert (answer.status_code, "until_ms" in answer.text) == (422, True)
    for at in ("9999-12-31 23:59-14:00", "0001-01-01 00:00+14:00"):
        fields = {"topic": "orders", "name": "late", "every": "60", "end": at}
        assert (await browser.send("/recurring/put", is_new="yes", **fields)).status_code == 422
        answer = await http.get("/topics/orders/jobs", params={"since": at})
        assert (answer.status_code, "since" in answer.text) == (422, True)


async def test_errors_are_pages(http: Http) -> None:
    for path, status in (("/topics/none", 404), ("/topics/none/jobs", 404), ("/future?from=x&to=1", 422)):
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path


async def test_a_page_whose_reply_was_lost_has_changed_nothing(serve: Callable[..., Any], shop: AsyncClient) -> None:
    """As in the API: there is no outcome that could be unknown. An action has one."""
    job = "/topics/orders/job?id=order-1"
    http = await serve(ReplyLost("get", times=2), ReplyLost("cancel", times=2))
    answer = await http.get(job)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert "nothing was done" in answer.text
    lost = await Browser(http).send("/topics/orders/job/cancel", id="order-1")
    assert (lost.status_code, "may or may not" in lost.text) == (504, True)


async def test_payloads_can_be_hidden(serve: Callable[..., Any], shop: AsyncClient) -> None:
    await shop.schedule("orders", {"card": "4111"}, delay=60, key="order-2", headers={"auth": "4112"})
    await shop.recurring.put("orders", "card", {"card": "4113"}, every=60, headers={"auth": "4114"})
    shown, hidden = await serve(), await serve(show_payloads=False)
    job, recurring = "/topics/orders/job?id=order-2", "/recurring/edit?topic=orders&name=card"
    assert re.findall("411[1234]", (await shown.get(job)).text) == ["4111", "4112"]
    assert re.findall("411[1234]", (await shown.get(recurring)).text) == ["4113"]
    assert re.findall("411[1234]", (await hidden.get(job)).text + (await hidden.get(recurring)).text) == []


class FormFields(HTMLParser):
    """The fields of the form of a page with this action, as a browser sends them if nobody touches them."""

    def __init__(self, action: str, page: str) -> None:
        super().__init__()
        self._action, self._is_in, self._is_text, self._name = action, False, False, ""
        self.fields: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in = told["action"] == self._action
        elif self._is_in and tag == "input":
            self.fields[told["name"]] = told.get("value", "")
        elif self._is_in and tag in ("select", "textarea"):
            self._name = told["name"]
        self._is_text = tag == "textarea" or (tag == "option" and "selected" in told)

    def handle_endtag(self, tag: str) -> None:
        self._is_in, self._is_text = self._is_in and tag != "form", False

    def handle_data(self, data: str) -> None:
        if self._is_in and self._is_text:
            self.fields[self._name] = data.replace("\n", "\r\n")


async def test_a_setting_that_may_be_empty_can_be_emptied(http: Http, shop: AsyncClient) -> None:
    await shop.configure("orders", on_dead="deaths")
    fields = FormFields("/topics/orders/settings", (await http.get("/topics/orders")).text).fields
    assert fields["on_dead"] == "deaths"
    answer = await http.post("/topics/orders/settings", data={**fields, "on_dead": ""}, headers={"origin": BASE})
    assert (answer.status_code, _note(answer)) == (303, "Changed: on_dead.")
    assert FormFields("/topics/orders/settings", (await http.get("/topics/orders")).text).fields["on_dead"] == ""


async def test_a_form_changes_only_what_is_touched(http: Http, shop: AsyncClient) -> None:
    """However large or exact a number is, and whatever the payload."""
    payload = {"long": ["x" * 1_000] * 30, "lines": "a\nb", "no JSON": float("inf")}
    rule = {"every": 1_209_600, "jitter": 864_000.5, "grace": 1_234_567.891}
    await shop.recurring.put("orders", "exact", payload, **rule)
    await shop.configure("orders", max_rate=1234.567)
    before = await shop.recurring.get("orders", "exact")
    for page, action, touched in (
        ("/recurring/edit?topic=orders&name=exact", "/recurring/put", {"tz": "Europe/Berlin"}),
        ("/topics/orders", "/topics/orders/settings", {"max_pending": "77"}),
    ):
        fields = FormFields(action, (await http.get(page)).text).fields
        unchanged = await http.post(action, data=fields, headers={"origin": BASE})
        assert (unchanged.status_code, _note(unchanged)) == (303, "Nothing was changed.")
        assert (await http.post(action, data={**fields, **touched}, headers={"origin": BASE})).status_code == 303
    after, topic = await shop.recurring.get("orders", "exact"), await shop.topic("orders")
    assert before is not None
    assert after is not None
    assert after.payload == before.payload
    assert after.rule == replace(before.rule, tz="Europe/Berlin")
    assert (topic.settings.max_rate, topic.settings.max_pending) == (1234.567, 77)


def _note(answer: httpx.Response) -> str:
    return base64.urlsafe_b64decode(answer.cookies["wheelq_note"]).decode()


async def test_an_edit_keeps_what_the_form_does_not_show(http: Http, shop: AsyncClient) -> None:
    unseen: Any = {"headers": {"h": "1"}, "expires": 30, "priority": "high", "attempts": 3, "timeout": 9}
    await shop.recurring.put("orders", "card", {"n": 1}, every=60, **unseen)
    edit = "/recurring/edit?topic=orders&name=card"
    await Browser(http).send("/recurring/put", edit, topic="orders", name="card", every="120", payload='{"n": 2}')
    info = await shop.recurring.get("orders", "card")
    assert info is not None
    assert (info.rule.every_ms, info.payload, info.headers, info.priority) == (120_000, {"n": 2}, {"h": "1"}, "high")
    again = await shop.recurring.put("orders", "card", {"n": 2}, every=120, **unseen)
    assert again.outcome == "unchanged", "so are expires, attempts and timeout"


async def test_the_environment_is_named_on_every_page(serve: Callable[..., Any], shop: AsyncClient) -> None:
    http = await serve(environment="<production>")
    for path in EVERY_PAGE:
        assert "&lt;production&gt;" in (await http.get(path)).text, path


@pytest.mark.parametrize("passes_on", [True, False])
async def test_behind_a_base_path_every_link_has_it(
    serve: Callable[..., Any], shop: AsyncClient, passes_on: bool
) -> None:
    """Whether the proxy passes the path on or strips it."""
    http, prefix = await serve(base_path="/tools/wheelq"), "/tools/wheelq" if passes_on else ""
    for path in EVERY_PAGE:
        answer = await http.get(prefix + path)
        assert answer.status_code == 200, path
        for link in re.findall(r'(?:src|href|action)="([^"#]*)"', answer.text):
            assert link.startswith("/tools/wheelq/"), link
    token = re.search(r'name="token" value="([0-9a-f]{32})"', (await http.get(f"{prefix}/schedule")).text)
    assert token is not None
    http.cookies.set("wheelq_token", token[1])
    data = {"token": token[1], "topic": "orders", "delay": "60", "id": "order-9"}
    answer = await http.post(f"{prefix}/schedule", data=data, headers={"origin": BASE})
    assert answer.headers["location"] == "/tools/wheelq/topics/orders/job?id=order-9"
    assert (await http.get(f"{prefix}/v1/topics/orders/jobs/order-9")).status_code == 200
    assert (await http.get("/tools/wheelqx/")).status_code == 404
    problem = await http.get(f"{prefix}/v1/topics/orders/jobs/nothing")
    assert problem.json()["type"] == "/tools/wheelq/docs#job-not-found"
    many = {"jobs": [{"delay": 60, "id": "order-9"}], "on_duplicate": "raise"}
    [outcome] = (await http.post(f"{prefix}/v1/topics/orders/bulk", json=many)).json()["outcomes"]
    assert outcome["problem"]["type"] == "/tools/wheelq/docs#duplicate"


async def test_behind_a_proxy_that_ends_tls_cookies_are_for_https_alone(serve: Callable[..., Any], give: Give) -> None:
    _, key = await give("*:*")
    http = await serve(access="keys")
    plain = await http.get("/sign-in")
    assert "Secure" not in plain.headers["set-cookie"]
    http.cookies.clear()
    page = await http.get("/sign-in", headers={"x-forwarded-proto": "https"})
    assert "Secure" in page.headers["set-cookie"]
    token = re.search(r'name="token" value="([0-9a-f]{32})"', page.text)
    assert token is not None
    headers = {"origin": BASE.replace("http:", "https:"), "cookie": f"wheelq_token={token[1]}"}
    signed_in = await http.post("/sign-in", data={"token": token[1], "key": key}, headers=headers)
    assert signed_in.status_code == 303
    assert all("Secure" in cookie for cookie in signed_in.headers.get_list("set-cookie"))


async def test_a_viewer_with_all_streams_gives_one_up_to_another(
    serve: Callable[..., Any], give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "STREAMS", 3)
    greedy, other = [(await give("read:*"))[1] for _ in range(2)]
    http = await serve(access="keys")

    def listen(token: str) -> asyncio.Task[httpx.Response]:
        headers = {"authorization": f"Bearer {token}"}
        return asyncio.create_task(http.get("/events", headers=headers, timeout=PATIENCE))  # until the stream ends

    first = listen(greedy)
    await until(lambda: http.service.stream.open == 1)
    later = [listen(greedy) for _ in range(2)]
    await until(lambda: http.service.stream.open == 3)
    later.append(listen(other))
    assert (await first).status_code == 200
    await until(lambda: http.service.stream.open == 3)
    assert (await listen(greedy)).status_code == 503
    http.service.drain()
    assert [(await one).status_code for one in later] == [200] * 3


async def test_totals_are_those_of_all_shards_from_the_first_look_on(
    http: Http, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later looks count some shards again, in turn; one of a new topic is counted at once."""
    monkeypatch.setattr(snapshot, "SHARDS", 3)
    monkeypatch.setattr(topics, "MOST_SHARDS", 3)
    for n in range(5):
        await aclient.schedule_many(f"topic-{n}", [JobSpec(n, delay=60) for _ in range(10)])
    assert _tile((await http.get("/")).text, "Waiting") == "50"
    assert "5 topics" in (await http.get("/topics")).text
    await aclient.set_shards("topic-0", 8)
    await aclient.schedule("new", 1, delay=60)
    http.service.snapshot.forget()
    assert _tile((await http.get("/")).text, "Waiting") == "51"
    await aclient.schedule_many("topic-0", [JobSpec(n, delay=60) for n in range(50)])
    page = (await http.get("/topics/topic-0")).text
    assert (_tile(page, "Waiting"), "5 more shards are not shown" in page) == ("60", True)


async def test_a_count_that_is_a_minute_old_is_renewed_by_any_look(
    http: Http, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SHARDS", 1)

    async def waiting() -> int:
        http.service.snapshot.forget()  # type: ignore[attr-defined]
        return int(_tile((await http.get("/")).text, "Waiting"))

    seen = []
    for _ in range(2):
        for n in range(3):
            await aclient.schedule(f"topic-{n}", delay=60)
        seen.append(await waiting())
    assert seen[0] == 3
    assert seen[1] < 6, "most counts are those of the first look"
    monkeypatch.setattr(snapshot, "STALE_S", 0.0)
    assert await waiting() == 6


async def test_a_topic_that_is_new_since_the_last_look_has_its_pages(http: Http, aclient: AsyncClient) -> None:
    assert (await http.get("/")).status_code == 200
    await aclient.schedule("brand-new", delay=60)
    assert (await http.get("/future", params={"topic": "brand-new"})).status_code == 200
    assert (await http.get("/topics/brand-new")).status_code == 200
    assert (await http.get("/future", params={"topic": "no-such"})).status_code == 404
