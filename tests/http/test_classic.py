"""The classic API: tasks are added and pulled as by callers of the service that wheelq takes the place of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.found import ajob_of
from tests.http.conftest import Http
from tests.transports import Refusing, ReplyLost, Unreachable
from tests.waiting import PATIENCE
from wheelq import AsyncClient
from wheelq.callbacks.target import Target
from wheelq.protocol.calls import notes
from wheelq.server import leases
from wheelq.server.classic import Callback, callback_of
from wheelq.server.leases import PREFIX

ADD, PULL = "/delay/task/add", "/delay/task/pull"


async def add(http: Http, **said: Any) -> dict[str, Any]:
    task = {"topic": "orders", "timing_moment": int(time.time()) - 1, "content": '{"id": 42}'} | said
    found: dict[str, Any] = (await http.post(ADD, json=task)).json()
    return found


async def pull(http: Http, **said: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await http.post(PULL, json={"topic": "orders"} | said)).json()
    return found


async def test_a_task_is_added_and_pulled(http: Http) -> None:
    added = await add(http)
    assert added | {"task_id": 0} == {"dm_error": 0, "error_msg": "操作成功", "task_id": 0}
    assert added["task_id"] // 10_000 == pytest.approx(time.time(), abs=60)
    assert await pull(http) == {
        "dm_error": 0,
        "error_msg": "操作成功",
        "task_id": added["task_id"],
        "content": '{"id": 42}',
    }
    assert (await pull(http))["dm_error"] == 1201


async def test_forms_do_as_well(http: Http) -> None:
    answer = await http.post(ADD, data={"topic": "orders", "timing_moment": "1500000000", "content": '{"名": "订单"}'})
    assert answer.json()["dm_error"] == 0
    pulled = await http.post(PULL, data={"topic": "orders"})
    assert pulled.json()["content"] == '{"名": "订单"}'


async def test_tasks_come_in_the_order_of_their_time(serve: Callable[..., Any]) -> None:
    http = await serve()
    first, second = await add(http, topic="o", content="1"), await add(http, topic="o", content="2")
    found = {(await pull(http, topic="o"))["task_id"] for _ in range(2)}
    assert found == {first["task_id"], second["task_id"]}


async def test_a_task_can_be_pulled_by_its_id_once_it_is_due(http: Http) -> None:
    later = await add(http, timing_moment=int(time.time()) + 3600)
    assert (await pull(http, task_id=later["task_id"]))["dm_error"] == 1202
    due, other = await add(http, content="due"), await add(http, content="other")
    assert (await pull(http, task_id=due["task_id"]))["content"] == "due"
    assert (await pull(http))["task_id"] == other["task_id"]
    assert (await pull(http))["dm_error"] == 1201
    assert (await pull(http, task_id=1))["dm_error"] == 1203


@pytest.mark.parametrize("terms", ["paused", "grace"])
async def test_a_task_that_the_queue_does_not_give_is_not_pulled_by_its_id_either(
    http: Http, aclient: AsyncClient, terms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "TOPICS_S", 0.0)  # new terms are known at once
    task = await add(http, timing_moment=int(time.time()) - 100)
    if terms == "paused":
        await aclient.pause("orders")
    else:
        await aclient.configure("orders", misfire="skip", grace_ms=1_000)

    refused = await pull(http, task_id=task["task_id"])
    assert refused["dm_error"] == {"paused": 1202, "grace": 1203}[terms]
    assert (await pull(http))["dm_error"] == 1201
    if terms == "paused":
        await aclient.resume("orders")
        assert (await pull(http, task_id=task["task_id"]))["content"] == '{"id": 42}'


@pytest.mark.parametrize("terms", ["paused", "grace"])
async def test_a_task_that_was_pulled_by_id_is_given_again(
    http: Http, aclient: AsyncClient, terms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer may have been lost, and another group still has the job."""
    monkeypatch.setattr(leases, "TOPICS_S", 0.0)
    task = await add(http, timing_moment=int(time.time()) - 100)
    await aclient.make_group("orders", "other")
    assert (await pull(http, task_id=task["task_id"]))["content"] == '{"id": 42}'
    if terms == "paused":
        await aclient.pause("orders")
    else:
        await aclient.configure("orders", misfire="skip", grace_ms=1_000)
    assert (await pull(http, task_id=task["task_id"]))["content"] == '{"id": 42}'


async def test_a_full_topic_takes_tasks_later(http: Http, aclient: AsyncClient) -> None:
    """It is no fault of the server."""
    await aclient.configure("orders", max_pending=1)
    later = int(time.time()) + 3_600
    assert (await add(http, timing_moment=later))["dm_error"] == 0
    answer = await http.post(ADD, json={"topic": "orders", "timing_moment": later, "content": ""})
    assert (answer.status_code, answer.json()["dm_error"]) == (429, 1301)
    assert "retry-after" in answer.headers


async def test_a_task_whose_pull_was_refused_is_pulled_next(serve: Callable[..., Any]) -> None:
    """Redis may be full for as long as it likes."""
    http = await serve(Refusing("remember", times=3))
    added = await add(http)
    for _ in range(3):
        assert (await pull(http))["dm_error"] == 1302
    assert (await pull(http))["task_id"] == added["task_id"]


async def test_a_job_that_another_group_has_finished_is_not_shown(http: Http, aclient: AsyncClient) -> None:
    await aclient.configure("t", keep_done_ms=60_000)
    await aclient.schedule("t", "secret", key="42", delay=0)
    [job] = (await http.post("/v1/topics/t/groups/g/lease", json={})).json()["jobs"]
    await http.post("/v1/topics/t/groups/g/ack", json={"handles": [job["handle"]]})
    assert (await pull(http, topic="t", task_id=42))["dm_error"] == 1203


async def test_a_pulled_task_can_be_looked_up_for_days(http: Http, url: str) -> None:
    """By default three; kept in Redis with that time to live."""
    added = await add(http)
    await pull(http)
    for _ in range(2):
        assert (await pull(http, task_id=str(added["task_id"])))["content"] == '{"id": 42}'
    with redis.Redis.from_url(url) as client:
        prefix = http.service.settings.prefix  # type: ignore[attr-defined]
        (key,) = client.keys(f"{prefix}:note:task:*")
        assert 2.9 * 86_400 < client.ttl(key) <= 3 * 86_400


async def test_tasks_that_are_only_pulled_by_id_leave_nothing_behind(http: Http, aclient: AsyncClient) -> None:
    tasks = [await add(http) for _ in range(5)]
    for task in tasks:
        await pull(http, task_id=task["task_id"])
    (topic,) = await aclient.topics()
    assert (topic.waiting, topic.ready) == (0, 0)


async def test_ids_are_unique_above_ten_thousand_a_second_and_over_several_servers(serve: Callable[..., Any]) -> None:
    """The counter goes on in the numbers of later seconds."""
    one, other = await serve(), await serve()
    blocks = await asyncio.gather(
        *(
            http.service.transport.send(notes.take_ids(http.service.keys, 7_000))
            for http in (one, other)
            for _ in range(10)
        )
    )
    taken = [id for first in blocks for id in range(first, first + 7_000)]
    assert len(set(taken)) == 140_000
    assert max(taken) - min(taken) < 200_000


async def test_a_task_with_service_and_path_is_called_back_where_receivers_are_registered(
    serve: Callable[..., Any], aclient: AsyncClient, tmp_path: Path
) -> None:
    """v2: the job has a target, and the other fields for its payload; its content can be looked up all the same."""
    content = '{"sn": "shop", "url": "/close", "id": 42}'
    plain = await serve()
    kept = await add(plain, topic="kept", content=content)
    assert (await pull(plain, topic="kept"))["task_id"] == kept["task_id"]
    register = tmp_path / "services.toml"
    register.write_text(
        '[services.shop]\nurl = "https://shop.example"\nsecrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"]\n'
    )
    http = await serve(services=str(register), calls=False)
    task = await add(http, content=content)
    job = await ajob_of(aclient, "orders", str(task["task_id"]))
    assert (job.payload, Target.of(job.headers)) == ({"id": 42}, Target("shop", "/close"))
    assert (await pull(http, task_id=task["task_id"]))["content"] == content
    unknown = await add(http, content='{"sn": "nobody", "url": "/close"}')
    assert (unknown["dm_error"], "nobody" in unknown["error_msg"]) == (1001, True)
    refused = await add(
        http, topic="new", task_id=7, content='{"sn": "shop", "url": "/close", "n": 18446744073709551616}'
    )
    assert refused["dm_error"] == 1001
    assert (await pull(http, topic="new", task_id=7))["dm_error"] == 1203
    assert "new" not in [info.name for info in await aclient.topics()]
    await aclient.configure("full", max_pending=1)
    await aclient.set_shards("full", 1)
    await aclient.schedule("full", delay=3_600)
    later = int(time.time()) + 3_600
    assert (await add(http, topic="full", task_id=7, content=content, timing_moment=later))["dm_error"] == 1301
    assert (await pull(http, topic="full", task_id=7))["dm_error"] == 1203


async def test_tasks_added_at_once_through_several_servers_have_ids_of_their_own(serve: Callable[..., Any]) -> None:
    servers = [await serve(), await serve()]
    tasks = await asyncio.gather(*(add(server) for _ in range(150) for server in servers))
    assert len({task["task_id"] for task in tasks}) == 300


async def test_simultaneous_pulls_get_different_tasks(http: Http) -> None:
    for n in range(20):
        await add(http, content=str(n))
    found = await asyncio.gather(*(pull(http) for _ in range(25)))
    assert sorted(task["content"] for task in found if task["dm_error"] == 0) == sorted(map(str, range(20)))


def test_a_content_with_service_and_path_asks_to_be_called_back() -> None:
    """v2: the other fields are what it is called back with; anything else is kept (v1)."""
    assert callback_of(' {"sn": "shop", "url": "/close", "id": 42}') == Callback("shop", "/close", {"id": 42})
    for kept in ('{"id": 42}', "[]", "text", "", "NaN", '"{"', "[" * 9_999, "x{"):
        assert callback_of(kept) is None


BAD_CONTENTS = (
    '{"sn": "shop", "url": "/close", "id": 42,}',
    "{'sn': 'shop', 'url': '/close'}",
    '{"sn": "shop", "url": "/close", "id": NaN}',
    '{"sn": "shop", "url": "/close", "id": 1e400}',
    '{"sn": "shop"}',
    '{"url": "/close"}',
    '{"sn": 1, "url": "/close"}',
    '{"sn": "shop", "url": null}',
    '{"sn": "", "url": "/close"}',
    "{text",
    '{"a":' * 50_000,
)


@pytest.mark.parametrize("content", BAD_CONTENTS, ids=range(len(BAD_CONTENTS)))
async def test_a_content_that_looks_like_v2_and_is_not_is_refused(http: Http, content: str) -> None:
    """It would be kept in silence, and nobody would call."""
    answer = await add(http, content=content)
    assert (answer["dm_error"], "content" in answer["error_msg"]) == (1001, True)
    assert (await pull(http))["dm_error"] == 1201


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "APPLICATION/X-WWW-FORM-URLENCODED; charset=utf-8"]
)
async def test_json_that_calls_itself_a_form_is_json(http: Http, kind: str) -> None:
    """As `curl -d` sends it."""
    task = ' {"topic": "orders", "timing_moment": 1500000000, "content": "a&b=c"}'
    answer = await http.post(ADD, content=task.encode(), headers={"content-type": kind})
    assert answer.json()["dm_error"] == 0
    pulled = await http.post(PULL, content=b'{"topic": "orders"}', headers={"content-type": kind})
    assert pulled.json()["content"] == "a&b=c"


@pytest.mark.parametrize("charset", ["gbk", "GB18030", "utf-8", "big5"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
async def test_a_body_is_read_in_the_charset_that_it_names(http: Http, kind: str, charset: str) -> None:
    if kind == "application/json":
        body = '{"topic": "orders", "timing_moment": 1500000000, "content": "中文"}'.encode(charset)
    else:
        body = b"topic=orders&timing_moment=1500000000&content=" + quote("中文", encoding=charset).encode()
    answer = await http.post(ADD, content=body, headers={"content-type": f"{kind}; charset={charset}"})
    assert answer.json()["dm_error"] == 0
    assert (await pull(http))["content"] == "中文"


@pytest.mark.parametrize("charset", ["nonsense", "punycode", "utf-16", "rot13", "hex"])
async def test_a_body_in_an_unknown_charset_is_refused(http: Http, charset: str) -> None:
    kind = {"content-type": f"application/x-www-form-urlencoded; charset={charset}"}
    answer = (await http.post(ADD, content=b"topic=orders&timing_moment=1500000000&content=a", headers=kind)).json()
    assert (answer["dm_error"], "charset" in answer["error_msg"]) == (1002, True)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"topic": None}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"timing_moment": None}, "timing_moment"),
        ({"timing_moment": "soon"}, "timing_moment"),
        ({"timing_moment": 1.5}, "timing_moment"),
        ({"timing_moment": True}, "timing_moment"),
        ({"timing_moment": 10**30}, "timing_moment"),
        ({"timing_moment": 250_000_000_000}, "at"),
        ({"content": None}, "content"),
        ({"content": 5}, "content"),
        ({"content": "x" * 70_000}, "payload"),
        ({"task_id": -1}, "task_id"),
    ],
)
async def test_a_wrong_parameter_has_a_code_and_is_named(http: Http, said: dict[str, Any], field: str) -> None:
    answer = await add(http, **said)
    assert answer["dm_error"] in (1001, 1003)
    assert field in answer["error_msg"]


async def test_a_lost_reply_names_the_task_so_that_adding_can_be_repeated(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    http = await serve(ReplyLost("schedule", times=2))
    later = int(time.time()) + 3600
    lost = await http.post(ADD, json={"topic": "orders", "timing_moment": later, "content": "x"})
    assert (lost.status_code, lost.json()["dm_error"]) == (504, 1303)
    again = await add(http, timing_moment=later, content="x", task_id=lost.json()["task_id"])
    assert again["task_id"] == lost.json()["task_id"]
    assert (await aclient.topics())[0].waiting == 1


async def test_a_task_that_was_pulled_is_not_made_again_by_a_repeated_add(http: Http) -> None:
    task = {"timing_moment": int(time.time()), "content": "once", "task_id": 17}
    assert (await add(http, **task))["task_id"] == 17
    assert (await pull(http))["content"] == "once"
    assert (await add(http, **task))["task_id"] == 17
    assert (await pull(http))["dm_error"] == 1201


async def test_while_redis_is_away_nothing_is_done(serve: Callable[..., Any]) -> None:
    http = await serve(Unreachable("take_ids"))
    answer = await http.post(ADD, json={"topic": "orders", "timing_moment": 1, "content": "x"})
    assert (answer.status_code, answer.json()["dm_error"]) == (503, 1302)
    assert "retry-after" in answer.headers


async def test_a_pull_whose_answer_was_lost_in_between_is_repeated(
    serve: Callable[..., Any], aclient: AsyncClient, url: str
) -> None:
    """The server dies between writing the content down and acknowledging: the lease ends and the task comes again."""
    http = await serve(Unreachable("ack_leased"))
    added = await add(http)
    assert (await pull(http))["dm_error"] == 1302
    info = await ajob_of(aclient, "orders", str(added["task_id"]))
    keys = http.service.keys.shard("orders", info.shard)
    with redis.Redis.from_url(url) as client:  # the lease ends: nobody waits for thirty seconds here
        (pending,) = client.xpending_range(keys.ready, f"{PREFIX}classic", "-", "+", 1)
        client.xclaim(
            keys.ready, f"{PREFIX}classic", "http", 0, [pending["message_id"]], idle=13 * 3_600_000, justid=True
        )
    assert (await pull(http))["task_id"] == added["task_id"]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["orders", "1", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELD = st.sampled_from(["topic", "timing_moment", "content", "task_id", "", "x"])
BODIES = (
    st.binary(max_size=200)
    | st.dictionaries(FIELD, JUNK, max_size=5).map(lambda said: json.dumps(said).encode())
    | st.dictionaries(FIELD, JUNK, max_size=5).map(lambda said: json.dumps(said, ensure_ascii=False).encode("utf-16"))
    | st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b'{"topic": "\\ud800"}', b"\xff\xfe", b"", b"x" * 3_000_000])
)
KINDS = st.sampled_from(
    [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data",
        "",
        "application/json; charset=x",
    ]
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(path=st.sampled_from([ADD, PULL]), body=BODIES, kind=KINDS)
async def test_no_body_causes_a_500_or_hangs(http: Http, path: str, body: bytes, kind: str) -> None:
    async with asyncio.timeout(PATIENCE):
        answer = await http.post(path, content=body, headers={"content-type": kind})
    assert answer.status_code < 500
    assert isinstance(answer.json()["dm_error"], int)
