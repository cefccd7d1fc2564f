"""Topics, pages of waiting jobs, dead letters and recurring jobs over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest

from tests.found import ajob_of
from tests.http.conftest import Http
from wheelq import AsyncClient, JobSpec
from wheelq.model.topic import TopicChanges
from wheelq.protocol.call import command
from wheelq.protocol.calls.server import server_time_us

TOPIC = "/v1/topics/orders"
FAR = datetime(2031, 1, 1, tzinfo=UTC)


# Pages


async def test_jobs_that_wait_are_listed_in_order_of_due_time_over_all_shards(http: Http, aclient: AsyncClient) -> None:
    """Page by page, each once, also those due at one instant."""
    specs = [JobSpec(n, delay=600 + n // 10, key=f"job-{n:03}") for n in range(95)]
    await aclient.schedule_many("orders", specs)
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get(f"{TOPIC}/jobs", params={"limit": "20", **cursor})).json()
        found += page["jobs"]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert sorted(job["id"] for job in found) == [f"job-{n:03}" for n in range(95)]
    assert [job["due_ms"] for job in found] == sorted(job["due_ms"] for job in found)


async def test_a_page_goes_on_where_it_was_although_jobs_come_and_go(http: Http, aclient: AsyncClient) -> None:
    at = {"at": "2030-01-31T09:00:00Z"}
    for n in range(10):
        await http.post(f"{TOPIC}/jobs", json={**at, "id": f"b{n}"})
    page = (await http.get(f"{TOPIC}/jobs", params={"limit": "5"})).json()
    await aclient.cancel("orders", page["jobs"][-1]["id"])
    await http.post(f"{TOPIC}/jobs", json={**at, "id": "a"})
    rest = (await http.get(f"{TOPIC}/jobs", params={"cursor": page["cursor"]})).json()
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == [f"b{n}" for n in range(10)]


async def test_a_range_of_due_times_is_listed(http: Http) -> None:
    """From one moment to before another."""
    for day in (1, 2, 3):
        await http.post(f"{TOPIC}/jobs", json={"at": f"2030-01-0{day}T00:00:00Z", "id": f"d{day}"})
    asked = {"due_from": "2030-01-02T00:00:00Z", "due_to": "2030-01-03T00:00:00Z"}
    found = (await http.get(f"{TOPIC}/jobs", params=asked)).json()
    assert [job["id"] for job in found["jobs"]] == ["d2"]


async def test_the_jobs_of_one_state_are_listed_in_a_range(http: Http) -> None:
    for day in (1, 2, 3):
        await http.post(f"{TOPIC}/jobs", json={"at": f"2030-01-0{day}T00:00:00Z", "id": f"d{day}"})
    asked = {"state": "waiting", "since": "2030-01-02T00:00:00Z", "limit": "1"}
    page = (await http.get(f"{TOPIC}/jobs", params=asked)).json()
    [job] = page["jobs"]
    assert (job["id"], job["state"], job["at"], job["due_ms"]) == (
        "d2",
        "waiting",
        "2030-01-02T00:00:00.000Z",
        job["at_ms"],
    )
    rest = (await http.get(f"{TOPIC}/jobs", params={**asked, "cursor": page["cursor"]})).json()
    assert ([job["id"] for job in rest["jobs"]], rest["cursor"]) == (["d3"], None)
    for state in ("ready", "running", "retrying", "done", "dead"):
        assert (await http.get(f"{TOPIC}/jobs", params={"state": state})).json() == {"jobs": [], "cursor": None}


async def test_the_jobs_of_a_range_are_moved_or_cancelled(http: Http, aclient: AsyncClient) -> None:
    """A request that is repeated with the cursor changes no job twice."""
    await aclient.schedule_many("orders", [JobSpec(key=f"j{n}", at=FAR + timedelta(seconds=n)) for n in range(300)])
    body = {"since": FAR.isoformat(), "by": 60.5}
    first = (await http.post(f"{TOPIC}/jobs/reschedule", json=body)).json()
    assert (first["jobs"], first["done"]) == (300, True)
    assert (await http.post(f"{TOPIC}/jobs/reschedule", json={**body, "cursor": first["cursor"]})).json() == first
    moved = await ajob_of(aclient, "orders", "j299")
    assert moved.due == FAR + timedelta(seconds=299 + 60.5)
    ends = {"until": (FAR + timedelta(seconds=160.5)).isoformat()}
    answer = await http.post(f"{TOPIC}/jobs/cancel", json=ends)
    assert (answer.status_code, answer.json()["jobs"], answer.json()["done"]) == (200, 100, True)


async def test_the_cursor_of_a_change_belongs_to_its_topic_range_and_target(http: Http, aclient: AsyncClient) -> None:
    """A request that uses it for another change would be answered as done, or would change other jobs."""
    for topic in ("orders", "mails"):
        await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", at=FAR + timedelta(seconds=n)) for n in range(3)])
    range_, later = {"since": FAR.isoformat()}, (FAR + timedelta(days=1)).isoformat()
    canceled = (await http.post(f"{TOPIC}/jobs/cancel", json=range_)).json()
    moved = (await http.post("/v1/topics/mails/jobs/reschedule", json={**range_, "by": 60})).json()
    assert (canceled["jobs"], moved["jobs"]) == (3, 3)
    for path, body, cursor in (
        ("mails/jobs/cancel", range_, canceled["cursor"]),
        ("orders/jobs/cancel", {"since": later}, canceled["cursor"]),
        ("orders/jobs/cancel", {"until": range_["since"]}, canceled["cursor"]),
        ("orders/jobs/reschedule", {**range_, "by": 60}, canceled["cursor"]),
        ("mails/jobs/reschedule", {**range_, "by": 61}, moved["cursor"]),
        ("mails/jobs/reschedule", {**range_, "delay": 60}, moved["cursor"]),
    ):
        answer = await http.post(f"/v1/topics/{path}", json={**body, "cursor": cursor})
        assert (answer.status_code, answer.json()["field"]) == (422, "cursor"), (path, body)
    assert await aclient.count_due("mails", since=FAR) == 3, "no job of mails was cancelled"
    same = {"since": FAR.astimezone(timezone(timedelta(hours=8))).isoformat(), "cursor": canceled["cursor"]}
    assert (await http.post(f"{TOPIC}/jobs/cancel", json=same)).json() == canceled, "the same moment, written otherwise"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("cancel", {}),
        ("cancel", {"since": "yesterday"}),
        ("cancel", {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"}),
        ("cancel", {"since": "2030-01-01T00:00:00Z", "by": 1}),
        ("reschedule", {"since": "2030-01-01T00:00:00Z"}),
        ("reschedule", {"since": "2030-01-01T00:00:00Z", "by": 0}),
        ("reschedule", {"since": "2030-01-01T00:00:00Z", "by": 1, "delay": 1}),
    ],
)
async def test_a_change_of_many_jobs_that_makes_no_sense_is_refused(
    http: Http, path: str, body: dict[str, object]
) -> None:
    await http.post(f"{TOPIC}/jobs", json={"delay": 60})
    assert (await http.post(f"{TOPIC}/jobs/{path}", json=body)).status_code == 422


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"state": "cancelled"}, "state"),
        ({"state": "dead", "cursor": "1.00~6b"}, "cursor"),
        ({"limit": "0"}, "limit"),
        ({"limit": "501"}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"due_from": "yesterday"}, "due_from"),
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(http: Http, asked: dict[str, str], field: str) -> None:
    await http.post(f"{TOPIC}/jobs", json={"delay": 60})
    answer = await http.get(f"{TOPIC}/jobs", params=asked)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_list_without_a_state_is_of_waiting_jobs_and_none_of_them_has_an_error(http: Http) -> None:
    made = (await http.post(f"{TOPIC}/jobs", json={"delay": 60})).json()["id"]

    async def listed(**asked: str) -> list[str]:
        return [job["id"] for job in (await http.get(f"{TOPIC}/jobs", params=asked)).json()["jobs"]]

    assert await listed(since="2020-01-01T00:00:00Z") == [made]
    assert await listed(state="waiting", due_from="2020-01-01T00:00:00Z") == [made]
    assert await listed(until="2020-01-01T00:00:00Z") == []
    assert await listed(error="x") == []


@pytest.mark.parametrize(
    "cursor", ["", "x", "0-0:0", "99999999999999999999-0:0", "1763000000000.00~6b", "1~6b", "٣-٣:٣"]
)
async def test_a_wrong_cursor_is_named(http: Http, cursor: str) -> None:
    """Also one of another list."""
    await http.post(f"{TOPIC}/jobs", json={"delay": 60})
    lists = [f"{TOPIC}/dead"] if "~" in cursor else [f"{TOPIC}/dead", f"{TOPIC}/jobs"]
    for path in lists:
        answer = await http.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["field"]) == (422, "cursor")


# Topics


async def test_topics_tell_what_they_hold(http: Http) -> None:
    await http.post(f"{TOPIC}/jobs", json={"delay": 60})
    await http.post(f"{TOPIC}/jobs", json={"delay": 0})
    found = (await http.get(TOPIC)).json()
    assert (found["name"], found["shards"], found["waiting"], found["ready"], found["dead"]) == ("orders", 2, 1, 1, 0)
    assert (await http.get("/v1/topics")).json()["topics"] == [found]
    assert (await http.get("/v1/topics/none")).status_code == 404


async def test_a_forecast_tells_when_jobs_are_due(http: Http) -> None:
    for delay in (0, 30, 3_000):
        assert (await http.post(f"{TOPIC}/jobs", json={"delay": delay})).status_code == 201
    spans = (await http.get(f"{TOPIC}/forecast")).json()["spans"]
    assert sum(span["jobs"] for span in spans) == 2, "the one without a delay is with its consumers"
    assert {span["until_ms"] for span in spans if span["jobs"]} == {60_000, 3_600_000}


async def test_a_job_of_a_paused_topic_is_not_run_now_but_first_later(http: Http) -> None:
    assert (await http.post(f"{TOPIC}/jobs", json={"delay": 600, "id": "a"})).status_code == 201
    await http.post(f"{TOPIC}/pause")
    refused = await http.post(f"{TOPIC}/run/a")
    assert (refused.status_code, refused.json()["type"].rpartition("#")[2]) == (409, "paused")


async def test_priority_spread_and_expiry_are_the_librarys(http: Http) -> None:
    wish = {"delay": 600, "id": "a", "priority": "high", "spread": 60, "expires": 30, "attempts": 3, "timeout": 10}
    made = await http.post(f"{TOPIC}/jobs", json=wish)
    assert made.status_code == 201
    for wrong in ({"priority": "urgent"}, {"spread": -1}, {"expires": 0}, {"attempts": 0}, {"timeout": 0}):
        refused = await http.post(f"{TOPIC}/jobs", json={"delay": 1, **wrong})
        assert refused.status_code == 422
        assert next(iter(wrong)) in refused.text


async def test_settings_are_changed_and_a_topic_is_paused_and_resumed(http: Http) -> None:
    changed = await http.patch(f"{TOPIC}/settings", json={"max_rate": 200, "retention_ms": 1_000})
    assert (changed.json()["max_rate"], changed.json()["retention_ms"]) == (200, 1_000)
    assert (await http.post(f"{TOPIC}/pause")).json()["paused"]
    assert (await http.get(f"{TOPIC}/settings")).json()["paused"]
    assert not (await http.post(f"{TOPIC}/resume")).json()["paused"]
    wrong = await http.patch(f"{TOPIC}/settings", json={"misfire": "skip"})
    assert (wrong.status_code, "grace_ms" in wrong.json()["detail"]) == (422, True)
    assert (await http.patch(f"{TOPIC}/settings", json={})).status_code == 422


async def test_every_setting_that_the_library_changes_is_changed_and_shown(http: Http) -> None:
    everything: TopicChanges = {
        "retention_ms": 1_000,
        "dead_retention_ms": 2_000,
        "dead_max": 3,
        "keep_done_ms": 4_000,
        "result_max_bytes": 5,
        "max_rate": 6.0,
        "max_pending": 7,
        "max_ready": 8,
        "key_concurrency": 11,
        "key_rate": 12.5,
        "misfire": "bury",
        "grace_ms": 9_000,
        "on_mismatch": "bury",
        "mismatch_ms": 10_000,
        "on_dead": "billing:/dead",
    }
    assert everything.keys() == TopicChanges.__annotations__.keys()
    changed = await http.patch(f"{TOPIC}/settings", json=everything)
    assert changed.status_code == 200, changed.text
    found = (await http.get(f"{TOPIC}/settings")).json()
    assert found == changed.json() == {"name": "orders", "shards": 2, "paused": False, **everything}
    assert (await http.patch(f"{TOPIC}/settings", json={"result_max_bytes": 0})).status_code == 422


# Dead letters


async def bury(http: Http, aclient: AsyncClient, *ids: str) -> None:
    """Lease each too often, with a service that gives up at once."""
    for id in ids:
        await aclient.schedule("orders", {"id": id}, delay=0, key=id)
        (job,) = (await http.post(f"{TOPIC}/groups/g/lease", json={})).json()["jobs"]
        await http.post(f"{TOPIC}/groups/g/release", json={"handles": [job["handle"]]})
        assert (await http.post(f"{TOPIC}/groups/g/lease", json={})).json()["jobs"] == []


@pytest.mark.parametrize("id", ["i" * 256, "Größe"])
async def test_a_dead_job_of_any_id_is_chosen(serve: Callable[..., Any], aclient: AsyncClient, id: str) -> None:
    http = await serve(max_deliveries=1)
    await bury(http, aclient, id, "other")
    listed = (await http.get(f"{TOPIC}/dead", params={"id": id})).json()["jobs"]
    assert [job["id"] for job in listed] == [id]
    assert (await http.post(f"{TOPIC}/dead/purge", params={"id": id})).json() == {"purged": 1}
    assert (await http.get(f"{TOPIC}/dead", params={"id": id + "i"})).status_code == (422 if len(id) == 256 else 200)


async def test_dead_jobs_are_listed_replayed_and_purged(serve: Callable[..., Any], aclient: AsyncClient) -> None:
    http = await serve(max_deliveries=1)
    await bury(http, aclient, "a", "b")
    dead = (await http.get(f"{TOPIC}/dead", params={"reason": "deliveries"})).json()["jobs"]
    assert [(job["id"], job["group"], job["payload"]) for job in dead] == [
        ("b", "http.g", {"id": "b"}),
        ("a", "http.g", {"id": "a"}),
    ]
    one = {"dead_id": dead[0]["dead_id"]}
    assert [(await http.post(f"{TOPIC}/dead/replay-one", params=one)).status_code for _ in range(2)] == [204, 404]
    assert (await http.post(f"{TOPIC}/dead/replay", params={"id": "none"})).json() == {"replayed": 0, "kept": 0}
    for refused in ({}, {"all": "false"}, {"all": "true", "id": "b"}, {"all": "yes"}):
        for action in ("replay", "purge"):
            answer = await http.post(f"{TOPIC}/dead/{action}", params=refused)
            assert (answer.status_code, answer.json()["field"]) == (422, "all")
    assert (await http.post(f"{TOPIC}/dead/purge", params={"all": "true"})).json() == {"purged": 1}
    assert (await http.get(f"{TOPIC}/dead")).json()["jobs"] == []


# History


async def test_the_history_tells_what_happened_in_each_minute(http: Http) -> None:
    """But for the current one, which is not over."""
    service = http.service  # type: ignore[attr-defined]
    topic = TOPIC.rpartition("/")[2]

    async def told(**asked: int) -> dict[int, dict[str, Any]]:
        minutes = (await http.get(f"{TOPIC}/history", params=asked)).json()["minutes"]
        return {one["at_ms"] // 60_000: one for one in minutes}

    await http.post(f"{TOPIC}/jobs", json={"payload": 1, "delay": 3600})
    before = await told()
    current = await service.transport.send(server_time_us()) // 60_000_000
    assert all(minute < current for minute in before)
    key = service.keys.shard(topic, 0).history((current - 1) // 60)
    await service.transport.send(command("HSET", key, (current - 1) % 60, b"\x02\x01", read=int, key=key))
    found = (await told(hours=1))[current - 1]
    assert (found["scheduled"], found["promoted"], found["done"]) == (2, 1, 0)
    assert (await http.get(f"{TOPIC}/history", params={"hours": 73})).status_code == 422
    assert (await http.get("/v1/topics/unknown/history")).status_code == 404


# Recurring


async def test_a_recurring_job_is_put_shown_and_removed(http: Http) -> None:
    rule = {"cron": "0 2 * * *", "tz": "Europe/Berlin", "payload": {"kind": "sales"}}
    said = [await http.put(f"{TOPIC}/recurring/nightly", json=rule) for _ in range(2)]
    assert [(answer.status_code, answer.json()["outcome"]) for answer in said] == [(201, "created"), (200, "unchanged")]
    found = (await http.get(f"{TOPIC}/recurring/nightly")).json()
    assert (found["cron"], found["tz"], found["payload"], found["paused"]) == (*rule.values(), False)
    assert (await http.get(f"{TOPIC}/recurring")).json()["recurring"] == [found]
    assert (await http.post(f"{TOPIC}/recurring/nightly/pause")).status_code == 204
    assert (await http.get(f"{TOPIC}/recurring/nightly")).json()["paused"]
    assert (await http.post(f"{TOPIC}/recurring/nightly/resume")).status_code == 204
    assert (await http.post(f"{TOPIC}/recurring/nightly/trigger")).status_code == 201
    assert [(await http.delete(f"{TOPIC}/recurring/nightly")).status_code for _ in range(2)] == [204, 404]


async def test_a_recurring_job_is_shown_with_all_its_terms(http: Http) -> None:
    terms = {
        "every": 60.0,
        "start": "2030-01-01T00:00:00Z",
        "end": "2031-01-01T00:00:00Z",
        "jitter": 1.5,
        "missed": "all",
        "grace": 30.0,
        "attempts": 3,
        "timeout": 10.0,
    }
    await http.put(f"{TOPIC}/recurring/ping", json=terms)
    found = (await http.get(f"{TOPIC}/recurring/ping")).json()
    shown = {"start": "2030-01-01T00:00:00.000Z", "end": "2031-01-01T00:00:00.000Z", "max_attempts": 3}
    same = {name: terms[name] for name in ("jitter", "missed", "grace", "timeout")}
    assert found.items() >= {"every_ms": 60_000, **shown, **same}.items()


@pytest.mark.parametrize("name", ["nächtlich", "eu/nightly", "nightly/pause", "a b?#%", "_x", "n" * 200])
async def test_a_recurring_job_of_any_name_is_reached(http: Http, aclient: AsyncClient, name: str) -> None:
    path = f"{TOPIC}/recurring/{quote(name, safe='/')}"
    assert (await http.put(path, json={"every": 60})).status_code == 201
    assert await aclient.recurring.get("orders", name) is not None
    assert (await http.get(path)).json()["name"] == name
    assert [(await http.post(f"{path}/{do}")).status_code for do in ("pause", "resume", "trigger")] == [204, 204, 201]
    assert (await http.delete(path)).status_code == 204
    for wrong in ("n" * 201, "a%00b"):
        assert (await http.put(f"{TOPIC}/recurring/{wrong}", json={"every": 60})).json()["field"] == "name"


@pytest.mark.parametrize(
    ("rule", "field"),
    [({"cron": "x"}, "cron"), ({}, "body"), ({"every": 60, "tz": "Mars/X"}, "tz"), ({"every": 0}, "every")],
)
async def test_a_wrong_rule_is_named(http: Http, rule: dict[str, Any], field: str) -> None:
    answer = await http.put(f"{TOPIC}/recurring/x", json=rule)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
