"""What processes log: who speaks, a line per job, and who held the event loop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running
from wheelq import Client

Start = Callable[..., Running]

MODULE = """
import time
from wheelq import Job, Worker
from wheelq.settings import Settings, WorkerSettings

worker = Worker.connect({settings})

@worker.handler("{topic}")
async def resize(job: Job) -> None:
    time.sleep(job.payload)
"""


@pytest.fixture
def module(tmp_path: Path, topic: str) -> Path:
    """A directory with a module `jobs`, whose worker blocks its event loop for as many seconds as a job says."""
    (tmp_path / "jobs.py").write_text(MODULE.format(topic=topic, settings=""))
    return tmp_path


def schedule(url: str, topic: str, key: str, seconds: float) -> None:
    with Client.connect(url) as client:
        client.schedule(topic, seconds, delay=0, key=key)


def test_log_jobs_writes_a_line_for_every_job(module: Path, start: Start, url: str, topic: str) -> None:
    start(module, "scheduler", url=url)
    schedule(url, topic, "k", 0)
    worker = start(module, "worker", "jobs:worker", "--log-jobs", "--log-format", "json", url=url)
    worker.wait_for("is done: attempt 1")
    line = next(json.loads(line) for line in worker.said.splitlines() if "is done" in line)
    assert (line["logger"], line["level"], line["topic"], line["job_id"]) == ("wheelq.jobs", "info", topic, "k")
    assert line["lateness_ms"] >= 0
    assert line["duration_ms"] >= 0


def test_log_jobs_is_obeyed_by_a_worker_that_brings_settings_of_its_own(
    module: Path, start: Start, url: str, topic: str
) -> None:
    settings = "settings=Settings(worker=WorkerSettings(concurrency=5))"
    (module / "jobs.py").write_text(MODULE.format(topic=topic, settings=settings))
    start(module, "scheduler", url=url)
    schedule(url, topic, "k", 0)
    worker = start(module, "worker", "jobs:worker", "--log-jobs", "-p", "2", url=url)
    worker.wait_for(f"job k of {topic} is done: attempt 1")


def test_a_handler_that_holds_the_event_loop_is_named(module: Path, start: Start, url: str, topic: str) -> None:
    start(module, "scheduler", url=url)
    schedule(url, topic, "k", 0.7)
    worker = start(module, "worker", "jobs:worker", url=url)
    worker.wait_for(f"handler resize of {topic} held the event loop for ")
    [seconds] = re.findall(rf"handler resize of {topic} held the event loop for ([\d.]+) s", worker.said)
    assert float(seconds) >= 0.7
    assert "is done" not in worker.said, "nobody has asked for a line per job"


def test_the_lines_of_up_say_which_process_speaks(module: Path, start: Start, topic: str) -> None:
    running = start(module, "up", "jobs:worker", "--port", free_port(), "-p", "2", "--log-jobs")
    for speaker in ("scheduler", "worker 1", "worker 2"):
        running.wait_for(f"INFO    {speaker} | wheelq")
    logged = [line for line in running.said.splitlines() if re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert all(re.search(r" (up|scheduler|worker [12]) \| wheelq", line) for line in logged)
