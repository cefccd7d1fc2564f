"""`wheelq top`: rates between two looks, as tables and as JSON, live in a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.commands import Running, wheelq
from tests.waiting import eventually
from wheelq import Client, JobSpec
from wheelq.admin.figures import NodeInfo, Stats, WorkerInfo
from wheelq.cli.top import Now
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.calls import heartbeats
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

NODE = NodeInfo("node", 10_000, 3, 2, 100, 0)
WORKER = WorkerInfo("worker", 10_000, "shop", ("orders",), 4, 50, 10, 7, 0)


@pytest.fixture
def own_url(private_server: Callable[..., EmbeddedServer]) -> str:
    return private_server(appendonly=False).url


def test_rates_are_what_grew_between_two_heartbeats() -> None:
    later_node = replace(NODE, seen_ms=15_000, promoted=600)
    later = replace(WORKER, seen_ms=20_000, handled=70, failed=15)
    now = Now.between(Stats(1, [], [NODE], [WORKER]), Stats(2, [], [later_node], [later]))
    assert now.schedulers[0]["promoted_per_s"] == 100
    assert (now.workers[0]["done_per_s"], now.workers[0]["failed_per_s"]) == (2, 0.5)


@pytest.mark.parametrize("arguments", [("top", "--interval", "0.5"), ("stats", "--watch")])
def test_looks_are_printed_one_below_the_other_where_there_is_no_terminal(
    own_url: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with Client.connect(own_url) as client:
        client.schedule("later", delay=600)
    running = Running(tmp_path, arguments, own_url)
    running.wait_for("later", times=2)
    running.signal(signal.SIGINT)
    assert running.end() == 0
    assert "\x1b" not in running.said


def test_there_is_no_rate_without_two_heartbeats() -> None:
    for before in (Stats(1, [], [], []), Stats(1, [], [NODE], [WORKER])):
        now = Now.between(before, Stats(2, [], [NODE], [WORKER]))
        assert now.schedulers[0]["promoted_per_s"] is None
        assert now.workers[0]["done_per_s"] is now.workers[0]["failed_per_s"] is None


def test_top_answers_in_json(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.schedule("later", delay=600)
        client.schedule("sooner", delay=60)
    transport = Transport(Address(own_url))
    said = {"seen_ms": transport.send(server_time_us()) // 1000, "leading": 2, "promoted": 5}
    transport.send(heartbeats.beat_node(Keys(), "node", said))
    transport.close()
    found = wheelq("top", "--once", "--interval", "0.5", "--json", url=own_url).json
    assert [(topic["name"], topic["waiting"]) for topic in found["topics"]] == [("sooner", 1), ("later", 1)]
    assert [(one["name"], one["leading"]) for one in found["schedulers"]] == [("node", 2)]
    assert found["schedulers"][0]["promoted_per_s"] is None
    assert found["workers"] == []


def test_top_shows_new_figures_in_a_terminal_until_it_is_interrupted(own_url: str, tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    environment = {**os.environ, "WHEELQ_URL": own_url, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=600)
        process = subprocess.Popen(
            [sys.executable, "-m", "wheelq", "top", "--interval", "0.5"],
            stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True, cwd=tmp_path,
        )  # fmt: skip
        os.close(inside)
        os.set_blocking(terminal, False)
        shown = bytearray()

        def is_shown(figure: bytes) -> bool:
            with contextlib.suppress(OSError):  # nothing new, or its end is closed
                shown.extend(os.read(terminal, 65_536))
            return figure in shown

        assert eventually(lambda: is_shown(b"orders"))
        client.schedule_many("orders", [JobSpec(delay=600)] * 4_320)
        assert eventually(lambda: is_shown(b"4,321") or is_shown(b"4321"))
    process.send_signal(2)
    assert eventually(lambda: is_shown(b"") and process.poll() == 0)  # it could not end while nobody read
    os.close(terminal)
