"""`/readyz` and `/healthz`: what makes a server unready, what is only told, and what an answer costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
import redis

from tests.http.conftest import Counting, Give, Http, calling
from tests.transports import ALWAYS, Fault
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.errors import Unavailable
from wheelq.protocol.call import Call
from wheelq.protocol.keys import Keys
from wheelq.server import readiness
from wheelq.server.service import Service

JOBS = "/v1/topics/orders/jobs"


async def said(http: Http) -> tuple[int, dict[str, Any]]:
    answer = await http.get("/readyz")
    return answer.status_code, answer.json()


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_S", 0.0)


@pytest.fixture
def own(private_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    return private_server(appendonly=False)


@pytest.fixture
async def alone(own: EmbeddedServer) -> AsyncIterator[Http]:
    """A caller of a service on a server that nobody else uses."""
    async with calling(Service.connect(own.url, Settings())) as http:
        yield http


async def is_answered(http: Http, status: int) -> bool:
    return (await said(http))[0] == status


async def test_a_server_that_refuses_writes_is_not_ready(alone: Http, own: EmbeddedServer) -> None:
    """Full, a replica, or too few replicas: each is named, and over as soon as it is over."""
    assert (await said(alone))[0] == 200
    with redis.Redis.from_url(own.url) as admin:
        for does, undoes in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
            (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
        ):
            admin.execute_command(*does)
            await until(partial(is_answered, alone, 503))  # the answer before is told for a second
            _, body = await said(alone)
            no_scheduler = [problem for problem in body["problems"] if "no scheduler" in problem]
            assert (body["ready"], body["redis"], len(body["problems"])) == (False, True, 1 + len(no_scheduler)), does
            assert ("full" in body["problems"][0]) == ("maxmemory" in does)
            assert (body["schedulers"], body["overdue_ms"]) == (0, 0), "these were read"
            admin.execute_command(*undoes)
            await until(partial(is_answered, alone, 200))


async def test_all_callers_are_answered_at_once_while_redis_is_frozen(
    alone: Http, own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await said(alone))[0] == 200
    monkeypatch.setattr(readiness, "DEADLINE_S", 0.2)
    with redis.Redis.from_url(own.url) as admin:
        admin.execute_command("CLIENT", "PAUSE", "600000", "ALL")
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(said(alone) for _ in range(20)))
        answers += [await said(alone) for _ in range(3)]
    assert {(status, body["redis"]) for status, body in answers} == {(503, False)}
    assert answers[0][1]["schedulers"] is None, "it is not known"


async def test_shards_at_rest_and_paused_topics_are_no_problem(http: Http, aclient: AsyncClient) -> None:
    await aclient.schedule("resting", delay=3600)
    await aclient.schedule("paused", delay=0.01)
    await aclient.pause("paused")
    await aclient.configure("slow", max_rate=0.001)
    for _ in range(5):
        await aclient.schedule("slow", delay=0.01)
    await asyncio.sleep(0.01 + readiness.LATE_MS / 1000)
    status, body = await said(http)
    assert (status, body["overdue_ms"], body["shards"]) == (200, 0, 6)
    assert [problem.partition(":")[0] for problem in body["problems"]] == ["no scheduler node is alive"]


class MasterAway(Fault):
    """The shards of these topics cannot be reached."""

    def __init__(self, *topics: str) -> None:
        super().__init__(times=ALWAYS)
        self._topics = topics

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        if any(f"{{{topic}:" in f"{call.key}" for topic in self._topics):
            raise Unavailable("that master is away")
        return [call]


async def test_a_server_is_ready_although_a_master_of_the_cluster_is_away(
    serve: Callable[..., Any], aclient: AsyncClient
) -> None:
    """It serves the topics of the others; else all servers would leave their load balancer."""
    for topic in ("here", "away"):
        await aclient.schedule(topic, delay=60)
    http = await serve(MasterAway("away"))
    status, body = await said(http)
    assert (status, body["redis"]) == (200, True)
    assert any("not answered: is a master of the cluster away?" in problem for problem in body["problems"])
    assert (await said(await serve(MasterAway("here", "away"))))[0] == 503


async def test_a_shard_that_cannot_be_read_is_not_taken_for_one_that_is_away(
    http: Http, aclient: AsyncClient, url: str, settings: Settings
) -> None:
    for topic in ("spoilt", "whole"):
        await aclient.configure(topic)
    with redis.Redis.from_url(url) as server:
        server.set(f"{settings.prefix}:{{spoilt:0}}:delayed", "of another program")
    status, body = await said(http)
    assert status == 200
    assert "1 shard cannot be read: wheelq doctor says why" in body["problems"]


async def test_a_server_that_is_slow_is_told_after_the_time_that_it_had(
    http: Http, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "ANSWER_S", 0.0)
    await aclient.configure("orders")
    status, body = await said(http)
    assert (status, body["problems"]) == (503, ["Redis has not answered within 0 s"])


async def test_jobs_that_are_overdue_are_told(http: Http, aclient: AsyncClient) -> None:
    """Also where they are found only now and then, because there are so many shards."""
    await aclient.schedule("late", delay=0.01)

    async def is_told() -> bool:
        _, body = await said(http)
        told = body["problems"]
        return body["overdue_ms"] > readiness.LATE_MS and any("do not keep up" in problem for problem in told)

    await until(is_told)
    told = "1 topic has jobs that are due, and a shard without a leader: wheelq doctor names them"
    assert told in (await said(http))[1]["problems"], "anybody may ask, so no topic is named"


async def test_a_look_at_any_number_of_topics_is_bounded_and_shared(
    serve: Callable[..., Any], aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SHARDS", 4)
    counting = Counting()
    http = await serve(counting)
    for n in range(20):
        await aclient.configure(f"topic-{n}", grace_ms=0)
    await aclient.schedule("topic-19", delay=0.01)
    counting.met = 0
    await said(http)
    assert counting.met < 12

    async def is_found() -> bool:
        return (await said(http))[1]["overdue_ms"] > readiness.LATE_MS

    await until(is_found)
    assert await is_found(), "what was overdue is looked at each time"
    monkeypatch.setattr(readiness, "FRESH_S", 60.0)
    http = await serve(counting)
    await said(http)
    counting.met = 0
    await asyncio.gather(*(said(http) for _ in range(50)))
    assert counting.met == 0


async def test_health_is_asked_by_head_too(listen: Callable[..., Any]) -> None:
    listening = await listen()
    async with httpx.AsyncClient(base_url=listening.base, timeout=PATIENCE) as http:
        for path in ("/healthz", "/readyz", "/version"):
            answer = await http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert "head" not in (await http.get("/openapi.json")).json()["paths"]["/healthz"]


# API keys


@pytest.mark.parametrize(
    "stored", [b"\xc1", b"", b"\x90", b"\x80", b"\x85\xa4name\x01", b"\x82\xa4name\xa1a\xa6scopes\x91\x01"]
)
async def test_a_key_that_cannot_be_read_opens_nothing_and_the_others_do(
    serve: Callable[..., Any], give: Give, settings: Settings, url: str, stored: bytes, caplog: Any
) -> None:
    """And those that are revoked afterwards open nothing any more."""
    keys = Keys(settings.prefix)
    with redis.Redis.from_url(url) as admin:
        good, token = await give("*:*")
        http = await serve(access="keys", keys_ms=20, token=token)
        admin.hset(keys.access, "bad", stored)

        async def is_told() -> bool:
            return any("API key bad cannot be read" in problem for problem in (await said(http))[1]["problems"])

        with caplog.at_level(logging.ERROR, "wheelq.server"):
            await until(is_told)
            assert (await http.get(f"{JOBS}/a")).status_code == 404
            assert (await http.get(f"{JOBS}/a", headers={"authorization": "Bearer wq_bad_x"})).status_code == 401
            admin.hdel(keys.access, good.id)

            async def is_shut_out() -> bool:
                return bool((await http.get(f"{JOBS}/a")).status_code == 401)

            await until(is_shut_out)
        assert caplog.text.count("API key bad cannot be read") == 1


async def test_keys_that_cannot_be_read_again_for_any_reason_are_told(
    serve: Callable[..., Any], give: Give, settings: Settings, url: str
) -> None:
    """The reading goes on: when the reason is gone, so is the problem."""
    keys = Keys(settings.prefix)
    _, token = await give("*:*")
    http = await serve(access="keys", keys_ms=20, token=token)
    assert (await http.get(f"{JOBS}/a")).status_code == 404
    with redis.Redis.from_url(url) as admin:
        stored = admin.hgetall(keys.access)
        admin.delete(keys.access)
        admin.set(keys.access, "text")

        async def are_told() -> bool:
            return any("cannot be read" in problem for problem in (await said(http))[1]["problems"])

        await until(are_told)
        assert (await http.get(f"{JOBS}/a")).status_code == 404, "those that were read last hold"
        admin.delete(keys.access)
        admin.hset(keys.access, mapping=stored)

        async def are_well() -> bool:
            return not await are_told()

        await until(are_well)
