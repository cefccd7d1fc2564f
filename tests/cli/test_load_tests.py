"""Load tests with Locust: a locustfile of a user, against real processes; each test runs Locust for some calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import Running
from tests.waiting import PATIENCE
from wheelq import Client

SHOP = """
from wheelq import Job, Worker

worker = Worker.connect()


@worker.handler("orders")
async def close(job: Job) -> None: ...
"""
BEFORE = """
import gevent
from locust import constant_throughput, events, task
from locust.runners import WorkerRunner

from wheelq.testing.locust import WheelqUser

"""
LOAD = """

class Shop(WheelqUser):
    wait_time = constant_throughput(10)

    @task
    def order(self) -> None:
        self.client.schedule("orders", {"id": 7}, delay=0.2)

    @task
    def look(self) -> None:
        self.client.dead.list("orders")
"""
AFTER = """

@events.test_start.add_listener
def end_after_some_calls(environment, **_):
    def watch():
        while environment.stats.total.num_requests < 150:
            gevent.sleep(0.1)
        environment.runner.quit()

    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(watch)
"""
SLOW = """
import time

ends = time.monotonic() + 4
while time.monotonic() < ends:
    pass
"""
REFUSED = """

class Careless(WheelqUser):
    wait_time = constant_throughput(10)

    @task
    def order(self) -> None:
        self.client.schedule("orders")  # neither delay nor at
"""


@pytest.fixture
def fleet(start: Callable[..., Running], url: str, tmp_path: Path) -> str:
    """The URL of a server with a scheduler and a worker for `orders`."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "load.py").write_text(BEFORE + LOAD + AFTER)
    (tmp_path / "refused.py").write_text(BEFORE + REFUSED + AFTER)
    start(tmp_path, "scheduler", url=url).wait_for("runs on")
    start(tmp_path, "worker", "shop:worker", url=url).wait_for("runs, group")
    with Client.connect(url) as client:
        client.schedule("orders", delay=0)  # the topic exists, and the worker reads it
    return url


class Row(NamedTuple):
    """A row of Locust's table."""

    requests: int
    failures: int


def load(directory: Path, url: str, *options: str, file: str = "load.py") -> tuple[int, str, dict[str, Row]]:
    """Run Locust for some calls: its exit code, what it said, and its rows by kind and name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
    command = [sys.executable, "-m", "locust", "-f", file, "--headless", "-u", "5", "-r", "5"]
    done = subprocess.run(
        [*command, "--host", url, "--only-summary", *options],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )
    said = done.stdout + done.stderr
    found = re.findall(r"^ *(\S.*?) +(\d+) +(\d+)\([\d.]+%\)", said, re.MULTILINE)
    return done.returncode, said, {" ".join(name.split()): Row(int(made), int(bad)) for name, made, bad in found}


@pytest.mark.long
def test_a_load_test_times_the_calls_and_tells_how_late_the_jobs_started(fleet: str, tmp_path: Path) -> None:
    code, said, rows = load(
        tmp_path, fleet, "--limit", "lateness p99 60000", "--limit", "schedule failures 0", "--html", "load.html"
    )
    assert code == 0, said
    assert min(rows[name].requests for name in ("schedule orders", "dead.list orders", "lateness orders")) > 20
    calls = rows["schedule orders"].requests + rows["dead.list orders"].requests
    assert rows["Aggregated"].requests == calls, "lateness is no call"
    assert "lateness" in (tmp_path / "load.html").read_text()


@pytest.mark.long
def test_the_run_time_begins_with_the_test_however_long_the_file_takes_to_load(fleet: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(BEFORE + SLOW + LOAD)
    code, said, rows = load(tmp_path, fleet, "-t", "3s", "--lateness-wait", "0", file="slow.py")
    assert code == 0, said
    assert rows["schedule orders"].requests > 0, said


@pytest.mark.long
def test_a_limit_that_is_broken_makes_the_exit_code_1(fleet: str, tmp_path: Path) -> None:
    limits = ("--limit", "schedule mean 0.001", "--limit", "dead.list failures 0")
    code, said, _ = load(tmp_path, fleet, "--lateness-wait", "0", *limits)
    assert code == 1, said
    assert "limit broken: schedule mean at most 0.001" in said
    assert "limit broken: dead.list" not in said


@pytest.mark.long
def test_the_master_of_several_processes_reads_lateness_and_judges(fleet: str, tmp_path: Path) -> None:
    code, said, rows = load(tmp_path, fleet, "--processes", "2", "--limit", "lateness/orders max 0.001")
    assert code == 1, said
    assert "limit broken: lateness/orders max at most 0.001" in said
    assert rows["lateness orders"].requests > 20
    assert rows["Aggregated"].requests < 500, "none are made while lateness is read, which takes ten seconds"


def test_a_call_that_fails_is_counted_and_the_limit_for_failures_decides(fleet: str, tmp_path: Path) -> None:
    wait = ("--lateness-wait", "0")
    code, said, rows = load(tmp_path, fleet, *wait, file="refused.py")
    assert code == 1, said
    assert rows["schedule orders"].failures == rows["schedule orders"].requests > 0
    assert "Traceback" not in said
    assert "InvalidInput: delay" in said
    assert load(tmp_path, fleet, *wait, "--limit", "schedule failures 100", file="refused.py")[0] == 0


def test_a_limit_that_cannot_be_read_is_refused_before_the_test(url: str, tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(BEFORE + LOAD + AFTER)
    code, said, rows = load(tmp_path, url, "--limit", "fast")
    assert code == 1
    assert "--limit: 'fast' is not a limit" in said
    assert rows == {}
