"""Jobs over HTTP: made, looked at, moved, cancelled and run; every answer is definite."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from tests.found import ajob_of
from tests.http.conftest import Http, calling
from tests.running import running
from tests.transports import Refusing, ReplyLost, Unreachable
from tests.waiting import PATIENCE
from wheelq import AsyncClient, JobState, Settings, Worker
from wheelq.base.clock import wall_ms
from wheelq.errors import TopicFull
from wheelq.model.job import from_ms
from wheelq.server.problems import Problem
from wheelq.server.service import Service
from wheelq.settings import DAY_MS, ClientSettings
from wheelq.transport import Address, AsyncTransport

JOBS = "/v1/topics/orders/jobs"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_job_may_be_due_as_far_away_as_in_the_library(url: str, settings: Settings, times: int) -> None:
    """By `max_delay_ms`, which is ten years if nothing else is set."""
    limit_ms = ClientSettings().max_delay_ms * times
    own = replace(settings, client=ClientSettings(max_delay_ms=limit_ms))
    async with calling(Service(AsyncTransport(Address(url)), own)) as http:
        for off_ms, status in ((-DAY_MS, 201), (DAY_MS, 422)):
            due_ms = wall_ms() + limit_ms + off_ms
            at = from_ms(due_ms).isoformat()
            for when in ({"at": at}, {"due_ms": due_ms}, {"delay": (limit_ms + off_ms) / 1000}):
                answer = await http.post(JOBS, json=when)
                assert (answer.status_code, "beyond the limit" in answer.text) == (status, status == 422), when
        assert (await http.get(JOBS, params={"due_from": at})).json()["jobs"] == []


async def test_a_job_is_made_and_found_by_everyone(http: Http, aclient: AsyncClient) -> None:
    """201 with id and due time; the library sees the same job."""
    answer = await http.post(JOBS, json={"payload": {"id": 42}, "delay": 1800, "id": "order-42", "headers": {"a": "b"}})
    assert answer.status_code == 201
    assert answer.json() | {"due": ""} == {
        "id": "order-42",
        "due_ms": answer.json()["due_ms"],
        "due": "",
        "created": True,
        "replaced": False,
        "in_outbox": False,
    }
    found = await ajob_of(aclient, "orders", "order-42")
    assert (found.payload, found.headers, found.due_ms) == ({"id": 42}, {"a": "b"}, answer.json()["due_ms"])


async def test_without_an_id_one_is_made(http: Http) -> None:
    first, second = [(await http.post(JOBS, json={"delay": 60})).json() for _ in range(2)]
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "when", [{"at": "2030-01-31T09:00:00+01:00"}, {"at": "2030-01-31T08:00:00Z"}, {"due_ms": 1_896_076_800_000}]
)
async def test_a_job_may_be_due_at_a_moment(http: Http, when: dict[str, Any]) -> None:
    answer = (await http.post(JOBS, json=when)).json()
    assert answer["due_ms"] == 1_896_076_800_000
    assert answer["due"] == "2030-01-31T08:00:00.000Z"


async def test_the_same_id_again_changes_nothing(http: Http) -> None:
    """200, not 201, and the live job's due time: so a request may be repeated."""
    first = await http.post(JOBS, json={"delay": 60, "id": "a"})
    again = await http.post(JOBS, json={"delay": 90, "id": "a"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["due_ms"] == first.json()["due_ms"]
    assert not again.json()["created"]


async def test_on_duplicate_replaces_or_refuses(http: Http) -> None:
    await http.post(JOBS, json={"delay": 60, "id": "a", "payload": 1})
    replaced = await http.post(JOBS, json={"delay": 90, "id": "a", "payload": 2, "on_duplicate": "replace"})
    assert (replaced.status_code, replaced.json()["replaced"]) == (200, True)
    refused = await http.post(JOBS, json={"delay": 90, "id": "a", "on_duplicate": "raise"})
    assert (refused.status_code, refused.json()["ids"]) == (409, ["a"])
    assert (await http.get(f"{JOBS}/a")).json()["payload"] == 2


async def test_requests_with_max_wait_debounce_and_the_answer_names_the_second_job(http: Http) -> None:
    body = {"delay": 60, "id": "a", "on_duplicate": "replace", "max_wait": 90}
    made = await http.post(JOBS, json=body | {"payload": 1})
    moved = await http.post(JOBS, json=body | {"payload": 2, "delay": 80})
    assert (made.status_code, moved.status_code, moved.json()["replaced"]) == (201, 200, True)
    assert 0 < moved.json()["due_ms"] - made.json()["due_ms"] <= 30_000
    assert (await http.post("/v1/topics/orders/run/a")).status_code == 204
    second = await http.post(JOBS, json=body | {"payload": 3})
    assert (second.status_code, second.json()["id"]) == (201, "a~second")
    shown = (await http.get(f"{JOBS}/a")).json()
    assert (shown["state"], shown["payload"], shown["second_id"]) == ("ready", 2, "a~second")
    assert (await http.get(f"{JOBS}/a~second")).json()["payload"] == 3
    for wrong in ({"max_wait": 30}, {"on_duplicate": "keep"}, {"id": None}, {"id": "a~second"}):
        refused = await http.post(JOBS, json={name: value for name, value in (body | wrong).items() if value})
        assert (refused.status_code, refused.json()["field"]) == (422, "max_wait")
    assert (await http.post(JOBS, json=body | {"max_wait": 0})).status_code == 422


async def test_infinities_and_nan_are_null_in_json(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("orders", [math.nan, math.inf, 1.5], delay=60, key="a")
    assert (await http.get(f"{JOBS}/a")).json()["payload"] == [None, None, 1.5]


async def test_bytes_travel_as_base64(http: Http, aclient: AsyncClient) -> None:
    await http.post(JOBS, json={"delay": 60, "id": "a", "payload_base64": "AP8="})
    found = await ajob_of(aclient, "orders", "a")
    assert found.payload == b"\x00\xff"
    assert (await http.get(f"{JOBS}/a")).json()["payload_base64"] == "AP8="


async def test_ids_of_any_text_are_found(http: Http) -> None:
    for id in ("a/b", "a b", "订单", "a%2Fb", "a?b#c"):
        await http.post(JOBS, json={"delay": 60, "id": id})
        assert (await http.get(f"{JOBS}/{quote(id, safe='')}")).json()["id"] == id


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"delay": -1}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": 1, "at": "2030-01-31T08:00:00Z"}, "body"),
        ({"at": "2030-01-31T08:00:00"}, "at"),
        ({"at": "2030-02-30T08:00:00Z"}, "at"),
        ({"delay": 1, "id": ""}, "id"),
        ({"delay": 1, "id": "a\n"}, "id"),
        ({"delay": 1, "payload": {"n": 2**70}}, "payload.n"),
        ({"delay": 1, "payload": 1, "payload_base64": ""}, "body"),
        ({"delay": 1, "payload_base64": "?"}, "payload_base64"),
        ({"delay": 1, "dely": 2}, "dely"),
        ({"delay": 1, "target": "shop/close"}, "target"),
        ({"delay": 1, "headers": {"Wheelq-Target": '{"url": "https://shop.example"}'}}, "headers"),
        ({"delay": 1, "headers": {"a": 1}}, "headers.a"),
        ({"delay": None}, "delay"),
        ([], "body"),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_made(http: Http, body: Any, field: str) -> None:
    answer = await http.post(JOBS, json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["field"] == field
    assert answer.json()["detail"]


@pytest.mark.parametrize("asked", [f"{JOBS}/%FF", f"{JOBS}/a?partition_key=%C3"])
async def test_a_url_that_is_not_utf_8_is_refused(http: Http, aclient: AsyncClient, asked: str) -> None:
    await aclient.schedule("orders", key="\ufffd", delay=60)
    answer = await http.get(asked)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"] == "Its path and query must be UTF-8, percent-encoded."
    assert (await http.get(f"{JOBS}/{quote(chr(0xFFFD))}")).status_code == 200


@pytest.mark.parametrize("at", ["tomorrow", "2030-01-31", "2030-01-31T08:00:00", "2030-02-30T08:00:00Z"])
async def test_a_wrong_moment_is_refused_with_an_example(http: Http, at: str) -> None:
    detail = (await http.post(JOBS, json={"at": at})).json()["detail"]
    assert "time zone" in detail
    assert "2030-01-31T09:00:00+01:00" in detail
    assert len(detail) < 200


@pytest.mark.parametrize("raw", [b"{", b'{"delay": NaN}', b'{"payload": "\\ud800", "delay": 1}', b"[" * 5_000, b"\xff"])
async def test_a_body_that_is_not_json_is_refused(http: Http, raw: bytes) -> None:
    answer = await http.post(JOBS, content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#bad-request")


async def test_another_media_type_is_refused(http: Http) -> None:
    """A page of another site can make a browser send text/plain without asking, but not application/json."""
    answer = await http.post(JOBS, content=b'{"delay": 1}', headers={"content-type": "text/plain"})
    assert answer.status_code == 415


@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"', "us-ascii"])
async def test_json_may_name_its_charset(http: Http, charset: str) -> None:
    kind = {"content-type": f"application/json; charset={charset}"}
    assert (await http.post(JOBS, content=b'{"delay": 60}', headers=kind)).status_code == 201


@pytest.mark.parametrize("path", [JOBS, f"{JOBS}/cancel"])
@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "nonsense", "rot13", "é".encode("latin-1").decode("latin-1")])
async def test_json_in_another_charset_is_refused(http: Http, path: str, charset: str) -> None:
    kind = {"content-type": f"application/json; charset={charset}".encode("latin-1")}
    answer = await http.post(path, content='{"delay": 60, "id": "é"}'.encode("latin-1"), headers=kind)
    assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type")
    assert "UTF-8" in answer.json()["detail"]


# Moving


async def test_a_waiting_job_is_moved(http: Http) -> None:
    made = await http.post(JOBS, json={"delay": 60, "id": "a"})
    moved = await http.patch(f"{JOBS}/a", json={"delay": 600})
    assert moved.status_code == 200
    assert 530_000 < moved.json()["due_ms"] - made.json()["due_ms"] < 560_000
    assert moved.headers["etag"] == f'"{moved.json()["due_ms"]}"'


async def test_with_if_match_only_the_job_that_was_seen_is_moved(http: Http) -> None:
    """412 when somebody else has moved it meanwhile."""
    seen = (await http.post(JOBS, json={"delay": 60, "id": "a"})).headers["etag"]
    first = await http.patch(f"{JOBS}/a", json={"delay": 600}, headers={"if-match": seen})
    second = await http.patch(f"{JOBS}/a", json={"delay": 900}, headers={"if-match": seen})
    assert (first.status_code, second.status_code) == (200, 412)
    assert (await http.get(f"{JOBS}/a")).headers["etag"] == first.headers["etag"]


async def test_a_job_is_cancelled_once(http: Http) -> None:
    await http.post(JOBS, json={"delay": 60, "id": "a"})
    assert [(await http.delete(f"{JOBS}/a")).status_code for _ in range(2)] == [204, 404]


async def test_a_job_is_run_now_and_then_it_is_too_late(http: Http, aclient: AsyncClient) -> None:
    await http.post(JOBS, json={"delay": 60, "id": "a"})
    assert (await http.post("/v1/topics/orders/run/a")).status_code == 204
    found = await ajob_of(aclient, "orders", "a")
    assert found.state is JobState.READY
    assert (await http.delete(f"{JOBS}/a")).status_code == 409
    assert (await http.patch(f"{JOBS}/a", json={"delay": 1})).status_code == 409
    assert (await http.post("/v1/topics/orders/run/a")).status_code == 409


@pytest.mark.parametrize(("method", "path"), [("GET", "jobs/x"), ("DELETE", "jobs/x"), ("POST", "run/x")])
async def test_a_job_that_is_not_there_is_not_found(http: Http, method: str, path: str) -> None:
    answer = await http.request(method, f"/v1/topics/orders/{path}")
    assert (answer.status_code, answer.json()["type"]) == (404, "/docs#job-not-found")


# Many at once


async def test_each_of_many_has_an_outcome_of_its_own(http: Http) -> None:
    jobs = [{"delay": 60, "id": "a"}, {"delay": -1}, {"delay": 60, "payload": 2**70}, {"delay": 60}, 5, None]
    answer = (await http.post("/v1/topics/orders/bulk", json={"jobs": jobs})).json()
    assert (answer["made"], answer["failed"]) == (2, 4)
    assert [outcome.get("problem", {}).get("field") for outcome in answer["outcomes"]] == [
        None,
        "delay",
        "payload",
        None,
        "body",
        "body",
    ]
    assert answer["outcomes"][0]["id"] == "a"


async def test_each_of_many_says_what_a_duplicate_is_or_the_request_does(http: Http) -> None:
    await http.post("/v1/topics/orders/bulk", json={"jobs": [{"delay": 60, "id": id} for id in "abcd"]})
    jobs = [
        {"delay": 90, "id": "a"},
        {"delay": 90, "id": "b", "on_duplicate": "replace"},
        {"delay": 90, "id": "c", "on_duplicate": "raise"},
        {"delay": 90, "id": "new", "on_duplicate": "raise"},
        {"delay": 90, "id": "d", "on_duplicate": "keep"},
    ]
    for by_all, told in (
        ({}, ["kept", "replaced", "/docs#duplicate", "created", "kept"]),
        ({"on_duplicate": "replace"}, ["replaced", "replaced", "/docs#duplicate", "/docs#duplicate", "kept"]),
        ({"on_duplicate": "raise"}, ["/docs#duplicate", "replaced", "/docs#duplicate", "/docs#duplicate", "kept"]),
    ):
        answer = (await http.post("/v1/topics/orders/bulk", json={"jobs": jobs, **by_all})).json()
        assert [_told(outcome) for outcome in answer["outcomes"]] == told
        assert answer["failed"] == sum(word.startswith("/") for word in told)
    [problem] = [one["problem"] for one in answer["outcomes"][3:4]]
    assert (problem["status"], problem["ids"]) == (409, ["new"])


async def test_a_duplicate_is_told_beside_a_job_that_cannot_be_sent(http: Http) -> None:
    jobs = [{"delay": 60, "id": "a"}, {"delay": 60, "id": "big", "payload": "x" * 70_000}, {"delay": 60, "id": "b"}]
    await http.post(JOBS, json=jobs[0])
    answer = (await http.post("/v1/topics/orders/bulk", json={"jobs": jobs, "on_duplicate": "raise"})).json()
    assert [_told(outcome) for outcome in answer["outcomes"]] == ["/docs#duplicate", "/docs#too-large", "created"]


def _told(outcome: dict[str, Any]) -> str:
    if "problem" in outcome:
        return str(outcome["problem"]["type"])
    return "replaced" if outcome["replaced"] else "created" if outcome["created"] else "kept"


async def test_many_are_made_in_one_round_trip(http: Http, aclient: AsyncClient) -> None:
    answer = await http.post("/v1/topics/orders/bulk", json={"jobs": [{"delay": 60, "payload": n} for n in range(500)]})
    assert answer.json()["made"] == 500
    assert (await aclient.topics())[0].waiting == 500


async def test_more_than_500_at_once_are_refused(http: Http) -> None:
    answer = await http.post("/v1/topics/orders/bulk", json={"jobs": [{"delay": 60}] * 501})
    assert (answer.status_code, answer.json()["field"]) == (422, "jobs")


async def test_jobs_made_at_once_share_few_calls_and_keep_their_outcomes(http: Http) -> None:
    bodies = [{"delay": 60, "id": f"id-{n}"} if n % 5 else {"delay": 60, "payload": 2**70} for n in range(50)]
    answers = await asyncio.gather(*(http.post(JOBS, json=body) for body in bodies))
    assert [answer.status_code for answer in answers] == [201 if n % 5 else 422 for n in range(50)]
    assert [answer.json().get("id") for answer in answers] == [f"id-{n}" if n % 5 else None for n in range(50)]


# Repeating


async def test_the_same_request_with_an_idempotency_key_gets_the_same_answer(http: Http, aclient: AsyncClient) -> None:
    """Also when the job has long run; and only one job is made."""
    key = {"idempotency-key": "k-1"}
    first = await http.post(JOBS, json={"delay": 60}, headers=key)
    await aclient.cancel("orders", first.json()["id"])
    again = await http.post(JOBS, json={"delay": 60}, headers=key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert (await aclient.topics())[0].waiting == 0


async def test_a_request_that_was_refused_may_be_corrected_under_its_idempotency_key(http: Http) -> None:
    key = {"idempotency-key": "k-1"}
    assert (await http.post(JOBS, json={"delay": 1e12}, headers=key)).status_code == 422
    assert (await http.post(JOBS, json={"delay": 60}, headers=key)).status_code == 201
    assert (await http.post(JOBS, json={"delay": 61}, headers=key)).status_code == 409


@pytest.mark.parametrize("status", [409, 429])
async def test_so_may_one_whose_job_is_there_already_and_one_whose_topic_is_full(
    http: Http, aclient: AsyncClient, status: int
) -> None:
    key = {"idempotency-key": "k-1"}
    await aclient.configure("orders", max_pending=1 if status == 429 else 0)
    await aclient.schedule("orders", delay=60, key="a")
    refused = {"delay": 60, "id": "a" if status == 409 else "b", "on_duplicate": "raise"}
    assert (await http.post(JOBS, json=refused, headers=key)).status_code == status
    await aclient.cancel("orders", "a")
    assert (await http.post(JOBS, json={"delay": 61}, headers=key)).status_code == 201


async def test_a_refused_request_leaves_the_answer_of_the_same_one_that_got_through(http: Http) -> None:
    """Else a third one would make the job again."""
    answers, made = http.service.answers, list[str | None]()  # type: ignore[attr-defined]

    async def through(id: str | None, known: Any) -> dict[str, Any]:
        made.append(id)
        return {"id": id}

    async def refused(id: str | None, known: Any) -> dict[str, Any]:
        await answers.once("caller", "key", b"request", "second", through)
        raise TopicFull("orders", {}, {})

    with pytest.raises(TopicFull):
        await answers.once("caller", "key", b"request", "first", refused)
    assert await answers.once("caller", "key", b"request", "third", through) == {"id": "first"}
    assert made == ["first"]


async def test_a_request_that_comes_again_while_it_is_refused_makes_one_job(http: Http) -> None:
    """The answer of the second, under way with the id of the first, was not kept: a third one made the job again."""
    answers, made = http.service.answers, list[str | None]()  # type: ignore[attr-defined]
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def through(id: str | None, known: Any) -> dict[str, Any]:
        has_begun.set()
        await may_end.wait()
        made.append(id)
        return {"id": id}

    async def refused(id: str | None, known: Any) -> dict[str, Any]:
        again.append(asyncio.create_task(answers.once("caller", "key", b"request", "second", through)))
        await has_begun.wait()
        raise TopicFull("orders", {}, {})

    again: list[asyncio.Task[dict[str, Any]]] = []
    with pytest.raises(TopicFull):
        await answers.once("caller", "key", b"request", "first", refused)
    may_end.set()
    assert await again[0] == {"id": "first"}
    assert await answers.once("caller", "key", b"request", "third", through) == {"id": "first"}
    assert made == ["first"]
    with pytest.raises(Problem):
        await answers.once("caller", "key", b"another", "fourth", through)


async def test_a_request_is_corrected_once(http: Http) -> None:
    key = {"idempotency-key": "k-1"}
    for wrong in (1e12, 2e12):
        assert (await http.post(JOBS, json={"delay": wrong}, headers=key)).status_code == 422
    right = await http.post(JOBS, json={"delay": 60}, headers=key)
    again = await http.post(JOBS, json={"delay": 60}, headers=key)
    assert (right.status_code, again.json()) == (201, right.json())
    assert (await http.post(JOBS, json={"delay": 61}, headers=key)).status_code == 409


@pytest.mark.parametrize("base_path", ["", "/tools/wheelq"])
async def test_ids_are_read_the_same_behind_a_base_path(
    serve: Callable[..., Any], aclient: AsyncClient, base_path: str
) -> None:
    """Also those with percent signs; bytes that are not UTF-8 name no job."""
    http = await serve(base_path=base_path)
    for id in ("50%ab", "x\ufffd"):
        await aclient.schedule("orders", delay=60, key=id)
    assert (await http.get(f"{base_path}{JOBS}/50%25ab")).json()["id"] == "50%ab"
    assert (await http.delete(f"{base_path}{JOBS}/x%ff")).status_code == 400
    assert await aclient.get("orders", "x\ufffd") is not None


async def test_a_line_break_at_the_end_of_a_path_is_no_part_of_a_name(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("orders", delay=60, key="a")
    assert (await http.delete(f"{JOBS}/a%0A")).status_code == 400
    assert await aclient.get("orders", "a") is not None


async def test_a_job_with_a_target_that_is_refused_makes_no_topic(
    serve: Callable[..., Any], aclient: AsyncClient, tmp_path: Path
) -> None:
    register = tmp_path / "services.toml"
    register.write_text(
        '[services.shop]\nurl = "https://shop.example"\nsecrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"]\n'
    )
    http = await serve(services=str(register), calls=False)
    body = {"delay": 1e12, "target": {"service": "shop", "path": "/close"}}
    assert (await http.post(JOBS, json=body)).json()["field"] == "delay"
    assert (await http.post("/v1/topics/orders/bulk", json={"jobs": [body]})).json()["failed"] == 1
    assert await aclient.topics() == []


async def test_a_bulk_request_that_found_the_topic_full_may_be_repeated_with_its_idempotency_key(
    http: Http, aclient: AsyncClient
) -> None:
    """It was told to try again, and then got the stored refusal for a day."""
    await aclient.configure("orders", max_pending=1)
    await aclient.schedule("orders", key="first", delay=60)

    async def made() -> int:
        body = {"jobs": [{"delay": 60, "id": "second"}]}
        answer = await http.post("/v1/topics/orders/bulk", json=body, headers={"idempotency-key": "k-1"})
        return int(answer.json()["made"])

    assert await made() == 0
    await aclient.cancel("orders", "first")
    assert [await made(), await made()] == [1, 1]
    assert (await aclient.topics())[0].waiting == 1


@pytest.mark.parametrize("why", ["full", "unknown"])
async def test_a_bulk_request_repeated_for_some_of_its_jobs_makes_no_other_again(
    serve: Callable[..., Any], aclient: AsyncClient, why: str
) -> None:
    """The first outcome is certain: a job that is cancelled meanwhile, or a mistake; that of the second is not."""
    http = await serve(*([ReplyLost("schedule", times=2)] if why == "unknown" else []))
    first, second = {"delay": 60, "id": "first"}, {"delay": 60, "id": "second"}
    if why == "full":
        await aclient.configure("orders", max_pending=1)
    else:
        first = {"delay": -1}  # certainly invalid

    async def made() -> list[Any]:
        body = {"jobs": [first, second]}
        answer = await http.post("/v1/topics/orders/bulk", json=body, headers={"idempotency-key": "k-1"})
        return [one.get("created", one.get("problem", {}).get("status")) for one in answer.json()["outcomes"]]

    certain, uncertain = (True, 429) if why == "full" else (422, 504)
    assert await made() == [certain, uncertain]
    if why == "full":
        assert await made() == [certain, uncertain]
        await aclient.cancel("orders", "first")
    assert [await made(), await made()] == [[certain, True]] * 2
    assert [job.id for job in (await aclient.waiting("orders")).jobs] == ["second"]


async def test_an_answer_to_some_jobs_that_cannot_be_kept_is_no_answer(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    """Its caller will repeat the request, and must know that a job that was made may have run meanwhile."""
    await aclient.configure("orders", max_pending=1)
    http = await serve(Unreachable("remember", after=1))
    body = {"jobs": [{"delay": 60}, {"delay": 60}]}
    answer = await http.post("/v1/topics/orders/bulk", json=body, headers={"idempotency-key": "k-1"})
    assert answer.status_code == 504, answer.text
    again = await http.post("/v1/topics/orders/bulk", json=body, headers={"idempotency-key": "k-1"})
    assert [one.get("created") for one in again.json()["outcomes"]] == [True, None]
    assert (await aclient.topics())[0].waiting == 1


async def test_at_the_same_time_too(http: Http, aclient: AsyncClient) -> None:
    key = {"idempotency-key": "k-1"}
    answers = await asyncio.gather(*(http.post(JOBS, json={"delay": 60}, headers=key) for _ in range(8)))
    assert len({answer.text for answer in answers}) == 1
    assert (await aclient.topics())[0].waiting == 1


async def test_an_answer_is_kept_no_longer_than_the_request_that_it_answers(
    http: Http, url: str, settings: Settings
) -> None:
    """Otherwise another request with the key of one that is forgotten would get its answer."""
    raw = redis.Redis.from_url(url)
    body, key = {"delay": 60}, {"idempotency-key": "k-1"}
    await http.post(JOBS, json=body, headers=key)
    [claim] = raw.keys(f"{settings.prefix}:note:request:*")
    [answer] = raw.keys(f"{settings.prefix}:note:answer:*")
    assert raw.pttl(answer) < raw.pttl(claim)
    raw.delete(answer)
    raw.pexpire(claim, 60_000)  # as if it had been made long before: its first answer got lost
    await http.post(JOBS, json=body, headers=key)
    assert raw.pttl(answer) < raw.pttl(claim) <= 60_000


async def test_another_request_with_the_same_idempotency_key_is_refused(http: Http) -> None:
    key = {"idempotency-key": "k-1"}
    await http.post(JOBS, json={"delay": 60}, headers=key)
    other = await http.post(JOBS, json={"delay": 61}, headers=key)
    assert (other.status_code, other.json()["type"]) == (409, "/docs#key-reused")


async def test_a_bulk_request_can_be_repeated_with_an_idempotency_key(http: Http, aclient: AsyncClient) -> None:
    key = {"idempotency-key": "k-1"}
    body = {"jobs": [{"delay": 60}, {"delay": 60, "id": "a"}]}
    first, again = [await http.post("/v1/topics/orders/bulk", json=body, headers=key) for _ in range(2)]
    assert first.json() == again.json()
    assert (await aclient.topics())[0].waiting == 2


async def test_a_job_that_is_made_is_answered_although_the_answer_cannot_be_kept(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    """503 would say that nothing was done."""
    http = await serve(Unreachable("remember", after=1))
    body, key = {"delay": 60}, {"idempotency-key": "k"}
    first, again = [await http.post(JOBS, json=body, headers=key) for _ in range(2)]
    assert [(one.status_code, one.json()) for one in (first, again)] == [(201, first.json())] * 2
    assert (await aclient.topics())[0].waiting == 1


async def test_a_job_that_is_moved_and_cannot_be_looked_up_is_not_said_to_be_unmoved(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    http = await serve(Unreachable("get"))
    await http.post(JOBS, json={"delay": 60, "id": "a"})
    moved = await http.patch(f"{JOBS}/a", json={"delay": 3600})
    assert (moved.status_code, moved.json()["type"], moved.json()["ids"]) == (504, "/docs#outcome-unknown", ["a"])
    assert moved.json()["detail"].startswith("The job was moved")
    info = await aclient.get("orders", "a")
    assert info is not None
    assert info.due_ms > wall_ms() + 1_000_000


@pytest.mark.parametrize("more", [{}, {"id": "a"}, {"id": "a", "on_duplicate": "raise"}])
async def test_a_request_repeated_after_a_lost_reply_is_answered_as_the_first_would_have_been(
    serve: Callable[..., Any], aclient: AsyncClient, more: dict[str, str]
) -> None:
    """For Redis it is the same call once more: 201, and not "a live job has this id"."""
    http = await serve(ReplyLost("schedule", times=2))
    body, key = {"delay": 60, "payload": 1, **more}, {"idempotency-key": "k"}
    assert (await http.post(JOBS, json=body, headers=key)).status_code == 504
    again = await http.post(JOBS, json=body, headers=key)
    assert (again.status_code, again.json()["created"]) == (201, True)
    assert (await aclient.topics())[0].waiting == 1


async def test_a_wrong_field_is_named_beside_an_idempotency_key_too(http: Http) -> None:
    for more in ({}, {"on_duplicate": "raise"}):
        key = {"idempotency-key": f"k-{len(more)}"}
        answer = await http.post(JOBS, json={"delay": 60, "payload": 2**70, **more}, headers=key)
        assert (answer.status_code, answer.json()["field"].startswith("payload")) == (422, True)


@pytest.mark.parametrize("path", [JOBS, "/v1/topics/orders/bulk"])
async def test_a_request_repeated_after_its_job_has_run_makes_no_other_in_a_topic_that_keeps_finished_jobs(
    serve: Callable[..., Any], aclient: AsyncClient, url: str, settings: Settings, path: str
) -> None:
    """The reply was lost, the job ran, and only then the caller comes again."""
    await aclient.configure("orders", keep_done_ms=60_000)
    http = await serve(ReplyLost("schedule", times=2))
    worker = Worker.connect(url, settings=settings)
    runs: list[str] = []
    worker.handler("orders")(lambda job: runs.append(job.id))
    async with running(worker):
        job: dict[str, Any] = {"delay": 0, "payload": 1}
        body, key = {"jobs": [job]} if path != JOBS else job, {"idempotency-key": "k"}

        lost = await http.post(path, json=body, headers=key)
        problem = lost.json() if path == JOBS else lost.json()["outcomes"][0]["problem"]
        (id,) = problem["ids"]
        await aclient.wait("orders", id, timeout=PATIENCE)
        again = await http.post(path, json=body, headers=key)
        made = again.json() if path == JOBS else again.json()["outcomes"][0]
        assert (made["id"], made["created"]) == (id, True)
        assert runs == [id]
        assert (await aclient.topics())[0].ready == 0


@pytest.mark.parametrize("id", [".", "..", "a/../b", "../a", "a/.", "./a/b", "\x9b31m"])
async def test_an_id_that_no_path_can_hold_or_that_steers_terminals_is_refused(http: Http, id: str) -> None:
    """Clients and proxies take dots between slashes out of a path: a request for a/../b would reach b."""
    answer = await http.post(JOBS, json={"delay": 60, "id": id})
    assert (answer.status_code, answer.json()["field"]) == (422, "id")
    many = await http.post("/v1/topics/orders/bulk", json={"jobs": [{"delay": 60, "id": id}, {"delay": 60, "id": "a"}]})
    assert [outcome.get("created") for outcome in many.json()["outcomes"]] == [None, True]


@pytest.mark.parametrize("id", ["...", ".a", "a..b", "a/b", "a.", "..a/.b"])
async def test_other_ids_with_dots_and_slashes_are_ids(http: Http, id: str) -> None:
    assert (await http.post(JOBS, json={"delay": 60, "id": id})).status_code == 201
    assert (await http.get(f"{JOBS}/{id}")).json()["id"] == id


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "9" * 400 + ".0", "1e0999", '[{"a": [1e309]}]'])
async def test_a_number_that_is_too_large_for_one_is_no_json(http: Http, number: str) -> None:
    """It would be infinite, and come back as null."""
    kind = {"content-type": "application/json"}
    body = f'{{"delay": 60, "payload": {number}}}'
    answer = await http.post(JOBS, content=body, headers=kind)
    assert (answer.status_code, answer.json()["type"]) == (400, "/docs#bad-request")
    fine = '{"delay": 60, "payload": [1e308, "1e400", ' + "9" * 15 + "]}"
    assert (await http.post(JOBS, content=fine, headers=kind)).status_code == 201


# When Redis fails


async def test_a_lost_reply_is_an_unknown_outcome_that_names_the_id(serve: Callable[..., Any]) -> None:
    """504 with the id that was made here, so that the request can be repeated without making a second job."""
    http = await serve(ReplyLost("schedule", times=2))
    lost = await http.post(JOBS, json={"delay": 60, "payload": 1})
    assert (lost.status_code, lost.json()["type"]) == (504, "/docs#outcome-unknown")
    assert "retry-after" in lost.headers
    (id,) = lost.json()["ids"]
    again = await http.post(JOBS, json={"delay": 60, "payload": 1, "id": id})
    assert again.status_code == 200
    assert (await http.get("/readyz")).json()["redis"]


async def test_a_look_whose_reply_was_lost_has_changed_nothing(serve: Callable[..., Any]) -> None:
    """So it is 503, to be tried again, and not 504: there is no outcome that could be unknown."""
    http = await serve(ReplyLost("get", times=2))
    await http.post(JOBS, json={"delay": 60, "id": "a"})
    lost = await http.get(f"{JOBS}/a")
    assert (lost.status_code, lost.json()["type"], "retry-after" in lost.headers) == (503, "/docs#unavailable", True)


async def test_while_redis_is_away_the_answer_is_503_with_retry_after(serve: Callable[..., Any]) -> None:
    http = await serve(Unreachable("schedule"))
    answer = await http.post(JOBS, json={"delay": 60})
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs#unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await http.post(JOBS, json={"delay": 60})).status_code == 201


async def test_a_write_that_redis_refuses_was_not_done(serve: Callable[..., Any]) -> None:
    http = await serve(Refusing("schedule"))
    answer = await http.post(JOBS, json={"delay": 60})
    assert answer.status_code in (502, 503)


async def test_a_full_topic_takes_as_many_jobs_as_fit(http: Http) -> None:
    assert (await http.patch("/v1/topics/orders/settings", json={"max_pending": 2})).is_success
    jobs = {"jobs": [{"delay": 60, "id": id} for id in "abc"]}
    outcomes = (await http.post("/v1/topics/orders/bulk", json=jobs)).json()["outcomes"]
    told = [200 if "created" in outcome else outcome["problem"]["status"] for outcome in outcomes]
    assert set(told) == {200, 429}
    there = [(await http.get(f"{JOBS}/{id}")).status_code for id in "abc"]
    assert there == [404 if status == 429 else 200 for status in told]


async def test_each_of_many_jobs_reports_its_own_outcome(serve: Callable[..., Any]) -> None:
    http = await serve(ReplyLost("schedule", times=2))
    jobs = {"jobs": [{"delay": 60, "id": "a"}, {"delay": -1}]}
    outcomes = (await http.post("/v1/topics/orders/bulk", json=jobs)).json()["outcomes"]
    assert [outcome["problem"]["status"] for outcome in outcomes] == [504, 422]
    assert outcomes[0]["problem"]["ids"] == ["a"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "dead/purge?group=billing&raeson=failed"),
        ("GET", "jobs?raeson=failed&limit=5"),
        ("DELETE", "jobs/a?raeson=failed"),
        ("POST", "groups/billing/lease?raeson=5"),
    ],
)
async def test_a_parameter_that_is_not_known_is_named_and_nothing_is_done(http: Http, method: str, path: str) -> None:
    """A filter with a slip of the pen would select more than was meant."""
    await http.post(JOBS, json={"delay": 60, "id": "a"})
    answer = await http.request(method, f"/v1/topics/orders/{path}", json={} if "lease" in path else None)
    assert (answer.status_code, answer.json()["field"]) == (422, "raeson")
    assert (await http.get(f"{JOBS}/a")).status_code == 200


@pytest.mark.parametrize("path", [JOBS, "/v1/topics/orders/bulk", "/v1/topics/orders/jobs/cancel"])
async def test_a_body_in_an_encoding_is_refused(http: Http, path: str) -> None:
    answer = await http.post(path, json={"delay": 60}, headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["field"]) == (415, "Content-Encoding")


async def test_jobs_are_listed_by_the_beginning_of_their_id_and_changed_only_without_it(
    http: Http, aclient: AsyncClient
) -> None:
    """The dashboard offers to change all jobs of a range, and knows no such range."""
    for id in ("order-41", "order-42", "bill-4", "order-5"):
        await aclient.schedule("orders", delay=3600, key=id)
    found = await http.get("/v1/topics/orders/jobs", params={"prefix": "order-4"})
    assert {job["id"] for job in found.json()["jobs"]} == {"order-41", "order-42"}
    for bad in ("", "order\x17", "x" * 257):
        assert (await http.get("/v1/topics/orders/jobs", params={"prefix": bad})).json()["field"] == "prefix"
    page = (await http.get("/topics/orders/jobs", params={"prefix": "order-4"})).text
    assert ("order-42" in page, "bill-4" in page, "Cancel all of these" in page) == (True, False, False)
    assert "Cancel all of these" in (await http.get("/topics/orders/jobs")).text
