"""Connecting: a module can call `connect()` before a server is named, and a login can come from the environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wheelq import AsyncClient, Client, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.errors import AuthenticationFailed, ConfigurationError

MODULE = """
from wheelq import AsyncClient, Client, Job, Worker

client, asynchronous, worker = Client.connect(), AsyncClient.connect(), Worker.connect(group="shop")

@worker.handler("orders")
async def close(job: Job) -> None: ...
"""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "USERNAME", "PASSWORD", "PASSWORD_FILE", "CONFIG"):
        monkeypatch.delenv(f"WHEELQ_{name}", raising=False)


def test_a_module_that_connects_can_be_imported_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    subprocess.run([sys.executable, "-c", "import shop"], cwd=tmp_path, check=True)


def test_a_client_finds_the_server_that_is_named_before_its_first_call(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client.connect()
    monkeypatch.setenv("WHEELQ_URL", url)
    with client:
        assert client.schedule(topic, delay=60).created


async def test_an_asyncio_client_too(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = AsyncClient.connect()
    monkeypatch.setenv("WHEELQ_URL", url)
    async with client:
        assert (await client.schedule(topic, delay=60)).created


def test_the_settings_file_may_name_it_as_well(
    url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client.connect()
    (tmp_path / "wheelq.toml").write_text(f"url = '{url}'")
    monkeypatch.setenv("WHEELQ_CONFIG", str(tmp_path / "wheelq.toml"))
    with client:
        assert client.schedule(topic, delay=60).created


def test_a_server_that_is_never_named_is_an_error_of_the_first_call(topic: str) -> None:
    with Client.connect() as client, pytest.raises(ConfigurationError, match="no server named: give a URL"):
        client.schedule(topic, delay=60)


def worker(**options: Any) -> Worker:
    made = Worker.connect(**options)
    made.handler("orders")(lambda job: None)
    return made


@pytest.mark.parametrize("make", [worker, Scheduler.connect])
async def test_a_worker_or_scheduler_without_a_named_server_does_not_start(
    make: Callable[[], Worker | Scheduler],
) -> None:
    with pytest.raises(ConfigurationError, match="no server named: give a URL"):
        await make().run(patiently=True)


# Login


@pytest.fixture
def locked(private_server: Callable[..., EmbeddedServer]) -> str:
    """The URL, without the password, of a server that wants one."""
    return private_server(password="p@ss/1").url.replace(":p%40ss%2F1@", "")


def test_the_password_comes_from_its_variable(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_PASSWORD", "p@ss/1")
    with Client.connect(locked) as client:
        assert client.topics() == []


async def test_the_password_comes_from_a_file_without_its_last_line_end(
    locked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("p@ss/1\n")
    monkeypatch.setenv("WHEELQ_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("WHEELQ_USERNAME", "default")
    async with AsyncClient.connect(locked) as client:
        assert await client.topics() == []


def test_the_password_comes_from_settings(locked: str) -> None:
    with Client.connect(locked, Settings(password="p@ss/1")) as client:
        assert client.topics() == []


def test_a_password_in_the_url_is_used_before_them(locked: str) -> None:
    wrong = locked.replace("://", "://:wrong@")
    with Client.connect(wrong, Settings(password="p@ss/1")) as client, pytest.raises(AuthenticationFailed):
        client.topics()


def test_a_password_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"cannot read the password file .*/none: No such file or directory"):
        Client.connect("redis://localhost")


def test_a_password_and_a_file_of_it_are_too_much() -> None:
    with pytest.raises(ConfigurationError, match="password_file cannot be given together with password"):
        Settings(password="p", password_file="/run/secrets/password")


def test_settings_do_not_show_the_password() -> None:
    assert "secret" not in repr(Settings(password="secret"))
