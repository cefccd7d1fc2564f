"""`wheelq callbacks` and `wheelq secret` as commands: what is called arrives, also when its caller is killed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.callbacks.receiving import PATIENCE_S, Receiver, to, until, write_register
from tests.cli.commands import Running, stopped_at_the_end, wheelq
from tests.http.conftest import BASE
from wheelq import Client, Settings
from wheelq.callbacks.services import Services
from wheelq.embedded import EmbeddedServer
from wheelq.server.app import make_app
from wheelq.server.service import Service

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    yield from stopped_at_the_end([])


def test_a_secret_is_one_that_the_register_takes(tmp_path: Path) -> None:
    secret = wheelq("secret").out.strip()
    assert secret != wheelq("secret").out.strip()
    register = tmp_path / "services.toml"
    register.write_text(f'[services.shop]\nurl = "https://shop.example"\nsecrets = ["{secret}"]\n')
    assert Services.load(register).by_name["shop"].terms.secrets == (secret,)


def test_the_command_without_a_register_says_what_is_missing() -> None:
    answer = wheelq("callbacks", url="redis://127.0.0.1:1")
    assert answer.code != 0
    assert "no register of receivers" in answer.err
    assert "WHEELQ_SERVER_SERVICES" in answer.err


async def test_callbacks_in_flight_when_their_caller_is_killed_arrive_at_least_once(
    private_server: Callable[..., EmbeddedServer], receiver: Receiver, start: Callable[..., Running], tmp_path: Path
) -> None:
    """The receiver has them and has not answered; the next process asks it again, with the same message ids."""
    url = private_server(appendonly=False).url
    (tmp_path / "wheelq.toml").write_text(
        f'[server]\nservices = "{write_register(tmp_path, shop=receiver.port)}"\ncalls = false\n'
        "[worker]\nrenew_ms = 300\nabandoned_ms = 1000\n"
    )
    settings = Settings.load(tmp_path / "wheelq.toml")
    start(tmp_path, "scheduler", url=url)
    service = Service.connect(url, settings)
    jobs = [to("shop", "/gate", f"job-{n}", 0.0) for n in range(40)]
    async with (
        service.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(make_app(service)), base_url=BASE) as http,
    ):
        answer = await http.post("/v1/topics/orders/bulk", json={"jobs": jobs})
    assert answer.json()["made"] == 40
    caller = start(tmp_path, "callbacks", "--config", tmp_path / "wheelq.toml", url=url)
    assert await until(lambda: len(receiver.received()) >= 10)
    caller.signal(signal.SIGKILL)
    caller.end()
    asked = {line["job"] for line in receiver.received()}
    receiver.open()
    follower = start(tmp_path, "callbacks", "--config", tmp_path / "wheelq.toml", url=url)
    follower.wait_for("callbacks are made", within_s=PATIENCE_S)

    def is_done() -> bool:
        with Client.connect(url, settings) as client:
            [topic] = client.topics()
        return not any((topic.waiting, topic.ready, topic.running, topic.retrying, topic.dead))

    assert await until(is_done)
    received = receiver.received()
    by_job = Counter(line["job"] for line in received)
    assert set(by_job) == {f"job-{n}" for n in range(40)}
    assert any(by_job[job] > 1 for job in asked), "some were asked by both"
    assert len({line["id"] for line in received}) == 40, "each message has one id, whoever sends it"
    follower.signal(signal.SIGTERM)
    assert follower.end() == 0
    assert "callbacks have stopped" in follower.said
