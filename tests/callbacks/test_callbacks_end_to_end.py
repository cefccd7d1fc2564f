"""Callbacks over a real network, to real processes: each arrives, signed, whoever dies; a dead receiver is alone."""

from __future__ import annotations

import asyncio
import html
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.servers.nodes import free_port
from tests.callbacks.receiving import PATIENCE_S, Receiver, to, until, write_register
from tests.waiting import Stalls
from wheelq import Scheduler, Settings
from wheelq.admin import Inspector
from wheelq.admin.diagnosis import Finding
from wheelq.callbacks.services import Services
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import BreakerSettings, ServerSettings

BREAKER = BreakerSettings(failures=3, failing_ms=50, open_ms=200, open_max_ms=400)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def blackhole() -> AsyncIterator[int]:
    """A port that accepts connections and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def serve(url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(name=port, …)` runs a scheduler and a service that calls these; answers a caller of the service."""
    async with AsyncExitStack() as stack:

        async def start(**ports: int) -> httpx.AsyncClient:
            register = write_register(tmp_path, **ports)
            settings = Settings(
                prefix=f"callbacks-{secrets.token_hex(6)}",
                server=ServerSettings(services=str(register), drain_ms=500),
                callbacks=BREAKER,
            )
            scheduler = Scheduler.connect(url, settings)
            scheduling = asyncio.create_task(scheduler.run())
            service = Service.connect(url, settings)
            await stack.enter_async_context(service.running())

            async def end() -> None:
                scheduler.stop()
                await scheduling

            stack.push_async_callback(end)
            asgi = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
            http = httpx.AsyncClient(transport=asgi, base_url="http://127.0.0.1:7380")
            http.settings = settings  # type: ignore[attr-defined]  # for those that look at the same wheelq
            return await stack.enter_async_context(http)

        yield start


async def make(http: httpx.AsyncClient, jobs: list[dict[str, Any]], topic: str = "orders") -> None:
    for start in range(0, len(jobs), 500):
        answer = await http.post(f"/v1/topics/{topic}/bulk", json={"jobs": jobs[start : start + 500]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["failed"] == 0, answer.text


async def eventually_some(look: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """What `look` finds, once it finds anything."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await look()):
        assert time.monotonic() < deadline, "there is still nothing"
        await asyncio.sleep(0.05)
    return found


async def test_a_callback_arrives_signed_and_not_before_its_time(serve: Any, receiver: Receiver) -> None:
    http = await serve(shop=receiver.port)
    started_ms = time.time() * 1000
    answer = await http.post("/v1/topics/orders/jobs", json=to("shop", "/ok", "order-42", 0.3, {"id": 42}))
    assert answer.status_code == 201, answer.text
    assert await until(lambda: bool(receiver.received()))
    [line] = receiver.received()
    assert (line["job"], line["payload"], line["attempt"]) == ("order-42", {"id": 42}, 1)
    assert line["at_ms"] >= started_ms + 290


async def test_every_callback_arrives_although_the_receiver_is_killed_and_started_again(
    serve: Any, receiver: Receiver
) -> None:
    http = await serve(shop=receiver.port)
    await make(http, [to("shop", "/ok", f"job-{n}", 0.2 + n * 0.01) for n in range(150)])
    for seen in (20, 60):
        assert await until(lambda seen=seen: len(receiver.received()) >= seen)
        receiver.kill()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(receiver.start)
    assert await until(lambda: len(receiver.accepted()) == 150)


async def test_attempts_come_in_the_order_and_at_the_times_that_are_configured(serve: Any, receiver: Receiver) -> None:
    http = await serve(shop=receiver.port)
    await make(http, [to("shop", "/fail/3", "job", 0.0)])
    assert await until(lambda: bool(receiver.accepted()))
    lines = receiver.received()
    assert [line["attempt"] for line in lines] == [1, 2, 3, 4]
    assert len({line["id"] for line in lines}) == 1, "one message, whatever the attempt"
    pauses = [(after["at_ms"] - before["at_ms"]) / 1000 for before, after in pairwise(lines)]
    for pause, configured in zip(pauses, [0.2, 0.4, 0.8], strict=True):
        assert pause >= configured - 0.01


async def test_a_refusal_is_buried_with_its_reason(serve: Any, receiver: Receiver) -> None:
    http = await serve(shop=receiver.port)
    await make(http, [to("shop", "/status/410", "gone", 0.0)])
    client = http._transport.app.state.service.client

    async def dead() -> list[Any]:
        return list((await client.dead.list("orders")).jobs)

    [job] = await eventually_some(dead)
    assert job.group == "callbacks"
    assert "answered 410" in job.error


@pytest.mark.parametrize("where", ["of the topic", "of the job"])
async def test_a_service_is_told_of_a_dead_job(serve: Any, receiver: Receiver, where: str) -> None:
    """Signed and repeated as every callback."""
    http = await serve(shop=receiver.port)
    on_dead = {"on_dead": "shop:/ok"}
    if where == "of the topic":
        assert (await http.patch("/v1/topics/orders/settings", json=on_dead)).status_code == 200
    job = {"id": "a", "delay": 0, "payload": {"id": 42}, **(on_dead if where == "of the job" else {})}
    assert (await http.post("/v1/topics/orders/jobs", json=job)).status_code == 201
    group = "/v1/topics/orders/groups/billing"

    async def leased() -> list[Any]:
        return list((await http.post(f"{group}/lease", json={})).json()["jobs"])

    [lease] = await eventually_some(leased)
    failed = {"handles": [lease["handle"]], "error": "no money", "bury": True}
    assert (await http.post(f"{group}/fail", json=failed)).json() == {"done": [True]}
    assert await until(lambda: bool(receiver.accepted()))
    [line] = receiver.received()
    dead = line["payload"]
    assert (dead["id"], dead["topic"], dead["reason"], dead["payload"]) == ("a", "orders", "given_up", {"id": 42})
    assert dead["error"] == "no money"


@pytest.mark.parametrize(
    ("on_dead", "problem"),
    [
        ("shoop:/ok", "'shoop' is not registered; there are: shop"),
        ("shop:/a/../b", "must not contain //, . or .. as a part of it"),
    ],
)
async def test_a_service_that_could_never_be_told_of_a_dead_job_is_refused(
    serve: Any, receiver: Receiver, on_dead: str, problem: str
) -> None:
    http = await serve(shop=receiver.port)
    topic, job = "/v1/topics/orders", {"delay": 60, "on_dead": on_dead}
    await http.post(f"{topic}/jobs", json={"delay": 0})
    [leased] = (await http.post(f"{topic}/groups/billing/lease", json={})).json()["jobs"]
    acked = {"handles": [leased["handle"]], "then": [{"topic": "orders", **job}]}
    answers = [
        await http.post(f"{topic}/jobs", json=job),
        await http.patch(f"{topic}/settings", json={"on_dead": on_dead}),
        await http.post(f"{topic}/groups/billing/ack", json=acked),
    ]
    refused = [answer.json() for answer in answers]
    refused.append((await http.post(f"{topic}/bulk", json={"jobs": [job]})).json()["outcomes"][0]["problem"])
    told = [(one["status"], one["detail"]) for one in refused]
    assert told == [(422, f"{of}on_dead: {problem}.") for of in ("", "", "then.0.", "")]
    page = (await http.get("/topics/orders")).text
    form = {"token": page.partition('name="token" value="')[2][:32], "on_dead": on_dead}
    answer = await http.post("/topics/orders/settings", data=form, headers={"origin": "http://127.0.0.1:7380"})
    assert answer.status_code == 422
    assert problem in html.unescape(answer.text)


async def test_a_dead_receiver_does_not_delay_the_others(
    serve: Any, receiver: Receiver, blackhole: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the jobs go to a port that never answers; the other half arrive as if it were not there."""
    http = await serve(shop=receiver.port, hole=blackhole)
    alone = await _p99_late_ms(http, receiver, ["shop"])
    with Stalls() as stalls:
        beside = await _p99_late_ms(http, receiver, ["shop", "hole"])
    with capsys.disabled():
        print(f" [p99 {alone:.0f} ms alone, {beside:.0f} ms beside a dead one]", end="")
    # A bound for a busy machine; `loadtest.callbacks` has that of a quiet one. A callback that waits for the hundred
    # timeouts of the dead one would be later.
    assert beside < 3 * alone + 4_000 + 3 * stalls.percentile(100)

    async def failing() -> list[Any]:
        found: list[Any] = (await http.get("/v1/destinations")).json()["destinations"]
        return found if found[0]["failed"] else []

    destinations = await eventually_some(failing)
    assert [found["name"] for found in destinations] == ["hole", "shop"]
    assert destinations[1]["state"] == "closed"


async def test_doctor_names_a_receiver_whose_circuit_is_open(serve: Any, url: str) -> None:
    http = await serve(shop=free_port())
    await make(http, [to("shop", "/ok", f"lost-{n}", 0.0) for n in range(10)])

    async def told() -> list[Finding]:
        found = await asyncio.to_thread(inspector.doctor)
        return [finding for finding in found if finding.title == "Receiver shop is not called"]

    with Inspector.connect(url, http.settings) as inspector:
        assert await eventually_some(told)


async def _p99_late_ms(http: httpx.AsyncClient, receiver: Receiver, services: list[str]) -> float:
    """How late 100 callbacks to the shop are, 100 a second, while the other services get as many."""
    known = len(receiver.received())
    for service in services:
        await make(http, [to(service, "/ok", f"{services}-{service}-{n}", 0.5 + n * 0.01) for n in range(100)])
    assert await until(lambda: len(receiver.received()) >= known + 100)
    late_ms = sorted(line["at_ms"] - line["due_ms"] for line in receiver.received()[known:])
    return float(late_ms[int(len(late_ms) * 0.99)])


async def test_a_target_that_may_not_be_called_is_refused_when_the_job_is_made(serve: Any, receiver: Receiver) -> None:
    http = await serve(shop=receiver.port)
    for target in (
        {"service": "other"},
        {"service": "shop", "path": "//evil.example/"},
        {"service": "shop", "path": "/../x"},
        {"url": "http://169.254.169.254/latest/meta-data/"},
        {"url": "https://2130706433/"},
        {"url": "https://user@localhost/"},
    ):
        answer = await http.post("/v1/topics/orders/jobs", json={"delay": 0, "target": target})
        assert answer.status_code == 422, (target, answer.text)
        assert "target" in answer.text


async def test_a_private_address_is_refused_when_it_is_called(serve: Any, receiver: Receiver, tmp_path: Path) -> None:
    """The register names it, but not its network: it is not connected to, and the job is buried."""
    http = await serve(shop=receiver.port)
    service = http._transport.app.state.service
    strict = tmp_path / "strict.toml"
    strict.write_text(f'[services.shop]\nurl = "http://localhost:{receiver.port}"\nmay_be_plain = true\n')
    service.calling._caller._services = Services.load(strict)
    await make(http, [to("shop", "/ok", "job", 0.0)])

    async def dead() -> list[Any]:
        return list((await service.client.dead.list("orders")).jobs)

    [job] = await eventually_some(dead)
    assert "is not a public address" in job.error
    assert receiver.received() == []


async def test_a_classic_task_with_service_and_path_is_called_back_with_the_rest(
    serve: Any, receiver: Receiver
) -> None:
    """v2: no pull gets it; its content can be looked up. v1 in the same topic is pulled, as ever."""
    http = await serve(shop=receiver.port)
    soon = int(time.time()) + 1

    async def ask(verb: str, **said: Any) -> dict[str, Any]:
        return dict((await http.post(f"/delay/task/{verb}", json={"topic": "orders"} | said)).json())

    content = json.dumps({"sn": "shop", "url": "/ok", "order": 42})
    called = await ask("add", timing_moment=soon, content=content)
    kept = await ask("add", timing_moment=soon, content="kept")
    assert (called["dm_error"], kept["dm_error"]) == (0, 0)
    assert await until(lambda: bool(receiver.received()))
    [line] = receiver.received()
    assert (line["job"], line["payload"]) == (str(called["task_id"]), {"order": 42})

    async def pulled() -> list[Any]:
        return [found] if (found := await ask("pull"))["dm_error"] == 0 else []

    [found] = await eventually_some(pulled)
    assert (found["task_id"], found["content"]) == (kept["task_id"], "kept")
    assert (await ask("pull"))["dm_error"] == 1201
    assert (await ask("pull", task_id=called["task_id"]))["content"] == content


async def test_a_classic_task_for_an_unknown_service_is_refused_in_the_classic_envelope(
    serve: Any, receiver: Receiver
) -> None:
    http = await serve(shop=receiver.port)
    for content in ({"sn": "other", "url": "/x"}, {"sn": "shop", "url": "/../x"}):
        task = {"topic": "orders", "timing_moment": 1, "content": json.dumps(content)}
        answer = await http.post("/delay/task/add", json=task)
        assert (answer.status_code, answer.json()["dm_error"]) == (200, 1001)
        assert "target." in answer.json()["error_msg"]
