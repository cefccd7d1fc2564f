"""--metrics-port: every process answers /metrics and /healthz at a port of its own."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, wheelq
from tests.waiting import PATIENCE, eventually
from wheelq import Client, JobSpec
from wheelq.embedded import EmbeddedServer

Start = Callable[..., Running]

WORKER = """
import time
from pathlib import Path
from wheelq import Worker

worker = Worker.connect()

@worker.handler("orders")
async def handle(job):
    while job.payload == "stall" and not Path("over").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(WORKER)
    return tmp_path


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def is_healthy(port: int) -> bool:
    return wheelq("health", "--port", port).code == 0


def free_ports(count: int) -> int:
    """The first of so many ports in a row that were free a moment ago."""
    while True:
        first = free_port()
        if first + count < 65_536:
            return first


def test_a_scheduler_and_a_worker_tell_the_metrics_of_the_fleet(url: str, module: Path, start: Start) -> None:
    ports = [free_port(), free_port()]
    running = [
        start(module, "scheduler", "--metrics-port", ports[0], url=url),
        start(module, "worker", "shop:worker", "--metrics-port", ports[1], url=url),
    ]
    for port in ports:
        assert eventually(lambda port=port: is_healthy(port)), [one.said for one in running]
        assert eventually(lambda port=port: "wheelq_schedulers" in answer(port, "/metrics")[1])
        status, text = answer(port, "/metrics")
        assert status == 200
        assert "wheelq_build_info" in text
        assert answer(port, "/elsewhere")[0] == 404


def test_the_password_may_be_a_setting_of_its_own(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, start: Start
) -> None:
    """As the guide recommends: the port reports the fleet, and not a server that is down."""
    url = private_server(port=0, password="right", appendonly=False).url
    (tmp_path / "wheelq.toml").write_text('password = "right"')
    port = free_port()
    options = ("--config", "wheelq.toml", "--metrics-port", port)
    scheduler = start(tmp_path, "scheduler", *options, url=url.replace(":right@", ""))
    assert eventually(lambda: is_healthy(port)), scheduler.said
    assert eventually(lambda: "\nwheelq_redis_up 1\n" in answer(port, "/metrics")[1]), answer(port, "/metrics")[1]


def test_a_process_that_waits_for_redis_is_healthy(module: Path, start: Start) -> None:
    port = free_port()
    running = start(module, "scheduler", "--metrics-port", port, url=f"redis://127.0.0.1:{free_port()}")
    assert eventually(lambda: is_healthy(port)), running.said
    assert "wheelq_redis_up 0\n" in answer(port, "/metrics")[1]
    running.signal(signal.SIGTERM)
    assert running.end() == 0


def test_a_process_whose_event_loop_stands_still_is_not_healthy(url: str, module: Path, start: Start) -> None:
    port = free_port()
    start(module, "worker", "shop:worker", "--metrics-port", port, url=url)
    start(module, "scheduler", url=url)
    assert eventually(lambda: is_healthy(port))
    with Client.connect(url) as client:
        client.schedule("orders", "stall", delay=0)
    assert eventually(lambda: answer(port, "/healthz") == (503, "the event loop does not turn\n"))
    (module / "over").touch()
    assert eventually(lambda: is_healthy(port))


def test_callers_that_do_not_finish_lock_nobody_out_and_are_no_errors(url: str, module: Path, start: Start) -> None:
    port = free_port()
    scheduler = start(module, "scheduler", "--metrics-port", port, url=url)
    assert eventually(lambda: is_healthy(port)), scheduler.said
    opened = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(200)]
    for caller in opened:
        with suppress(OSError):  # it may be closed already
            caller.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert eventually(lambda: answer(port, "/healthz") == (200, "ok\n"))
    status = Path(f"/proc/{scheduler.process.pid}/status")
    if status.exists():  # threads of callers that it sends away may still be ending
        assert eventually(lambda: int(status.read_text().partition("Threads:")[2].split()[0]) < 100)
    for caller in opened:
        with suppress(OSError):
            caller.sendall(b"\r\n")
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
        caller.close()
    assert eventually(lambda: is_healthy(port))
    scheduler.process.send_signal(signal.SIGTERM)
    assert scheduler.process.wait(PATIENCE) == 0
    assert "Traceback" not in scheduler.said


def test_process_i_of_several_answers_at_the_port_plus_i(url: str, module: Path, start: Start) -> None:
    port = free_ports(2)
    running = start(module, "worker", "shop:worker", "-p", 2, "--metrics-port", port, url=url)
    assert eventually(lambda: is_healthy(port) and is_healthy(port + 1)), running.said


def test_a_port_in_use_is_named(url: str, module: Path, start: Start) -> None:
    port = free_port()
    first = start(module, "scheduler", "--metrics-port", port, url=url)
    assert eventually(lambda: is_healthy(port)), first.said
    second = start(module, "scheduler", "--metrics-port", port, url=url)
    assert second.end() == 2
    assert f"--metrics-port: cannot listen on 127.0.0.1:{port}" in second.said


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_scrapes_counters_that_are_true_after_workers_were_killed(
    private_server: Callable[..., EmbeddedServer], module: Path, start: Start
) -> None:
    """Two schedulers and three workers; each worker is killed and started again while jobs run."""
    url = private_server().url
    ports = [free_port() for _ in range(5)]
    for port in ports[:2]:
        start(module, "scheduler", "--metrics-port", port, url=url)
    workers = [start(module, "worker", "shop:worker", "--metrics-port", port, url=url) for port in ports[2:]]
    assert eventually(lambda: all(map(is_healthy, ports)))
    with prometheus(module, ports) as ask, Client.connect(url) as client:
        for number, worker in enumerate(workers):
            client.schedule_many("orders", [JobSpec({"n": n}, delay=0.1) for n in range(200)])
            worker.process.kill()
            worker.process.wait()
            start(module, "worker", "shop:worker", "--metrics-port", ports[2 + number], url=url)
        assert eventually(lambda: is_at_rest(client))
        for metric in ("wheelq_scheduled_total", "wheelq_promoted_total", "wheelq_finished_total"):
            assert eventually(lambda metric=metric: ask(f"sum(max without (instance) ({metric}))") == 600.0), metric


def is_at_rest(client: Client) -> bool:
    [info] = client.topics()
    return info.waiting + info.ready + info.running + info.retrying == 0


class prometheus:  # noqa: N801  # a context manager, as a word in the test
    """Prometheus, scraping these ports each second; gives a function that asks it for one number."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self._port = free_port()
        targets = [f"127.0.0.1:{port}" for port in ports]
        scrape = {"job_name": "wheelq", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
        (directory / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
        self._command = [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]

    def __enter__(self) -> Callable[[str], float | None]:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self._ask

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _ask(self, query: str) -> float | None:
        query = urllib.parse.quote(query)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/query?query={query}") as got:
                found: Any = json.load(got)["data"]["result"]
        except OSError:  # it is starting
            return None
        return float(found[0]["value"][1]) if found else None
