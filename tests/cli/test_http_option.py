"""`--http`: the dashboard beside what `wheelq up` and `wheelq demo` run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running
from tests.waiting import eventually


def answers(address: str, words: str) -> bool:
    """Whether the dashboard is there and says these words."""
    try:
        return words in httpx.get(address, timeout=5).text
    except httpx.TransportError:
        return False


def test_up_with_http_runs_the_dashboard_until_it_is_stopped(start: Callable[..., Running], tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "wheelq.toml").write_text(f'[server]\nport = {port}\nenvironment = "here"\n')
    running = start(tmp_path, "up", "--port", free_port(), "--http", "--config", tmp_path / "wheelq.toml")
    running.wait_for("export WHEELQ_URL=")
    address = re.search(r"^http +process \d+, (\S+)$", running.said, re.MULTILINE)
    assert address is not None
    assert address[1] == f"http://127.0.0.1:{port}/"
    assert eventually(lambda: answers(address[1], "here"))
    running.signal(signal.SIGINT)
    assert running.end() == 0
    assert not answers(address[1], "here")


@pytest.mark.long
def test_demo_with_http_shows_its_orders_meanwhile(url: str) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "wheelq", "demo", "--http", "--quick", "--url", url]
    environment = os.environ | {"WHEELQ_SERVER_PORT": str(port)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert eventually(lambda: answers(address, "orders.close"))
        out, _ = demo.communicate()
        assert demo.returncode == 0
    assert f"See it on the dashboard: {address}" in out
    assert not answers(address, "orders.close")
