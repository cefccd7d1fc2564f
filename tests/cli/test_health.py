"""health: whether a process answers that it is healthy, as an exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, wheelq
from tests.waiting import PATIENCE, eventually


def test_a_server_is_healthy_and_ready_until_it_stops(url: str, tmp_path: Path, start: Callable[..., Running]) -> None:
    port = free_port()
    server = start(tmp_path, "server", "--port", port, url=url)
    assert eventually(lambda: wheelq("health", "--port", port).code == 0), server.said
    said = f"127.0.0.1:{port} is healthy\n"
    assert eventually(lambda: wheelq("health", "--port", port).out == said)
    assert eventually(lambda: wheelq("health", "--port", port, "--ready").code == 0)
    server.signal(signal.SIGTERM)
    server.end()
    assert wheelq("health", "--port", port).code == 1


def test_a_server_without_redis_is_healthy_but_not_ready(tmp_path: Path, start: Callable[..., Running]) -> None:
    port = free_port()
    server = start(tmp_path, "server", "--port", port, url=f"redis://127.0.0.1:{free_port()}")
    assert eventually(lambda: wheelq("health", "--port", port).code == 0), server.said
    answer = wheelq("health", "--port", port, "--ready", "--timeout", PATIENCE)
    assert answer.code == 1
    assert f"127.0.0.1:{port}/readyz answered 503" in answer.err


def test_what_is_no_name_of_a_host_does_not_answer() -> None:
    answer = wheelq("health", "--host", "bad..host")
    assert (answer.code, "bad..host:7380 does not answer" in answer.err) == (1, True)


def test_an_unanswered_port_is_reported() -> None:
    port = free_port()
    answer = wheelq("health", "--port", port)
    assert answer.code == 1
    assert f"127.0.0.1:{port} does not answer" in answer.err
