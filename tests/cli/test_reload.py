"""`wheelq worker --reload` and `--log-format json` as real processes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Running, is_alive, wheelq
from tests.waiting import eventually
from wheelq import Client
from wheelq.cli.supervisor import RELOAD_GRACE_S

Start = Callable[..., Running]

MODULE = """
import asyncio, logging, time
from pathlib import Path
from wheelq import Worker

worker = Worker.connect()
log = logging.getLogger("shop")

@worker.handler("{topic}")
{handler}
"""
SLOW = """
async def handle(job):
    Path("slow").touch()
    await asyncio.sleep(60)
"""
SLOW_IN_A_THREAD = """
def handle(job):
    Path("slow").touch()
    time.sleep(60)
"""
UNTIL_TOLD = """
def handle(job):
    Path("slow").touch()
    while not Path("told").exists():
        time.sleep(0.01)
    Path("handled").write_text(f"finished {job.id}\\n")
"""
QUICK = """
def handle(job):
    log.info("charging")
    with open("handled", "a") as file:
        print("{how}", job.id, file=file)
"""


def write(directory: Path, topic: str, handler: str) -> None:
    (directory / "jobs.py").write_text(MODULE.format(topic=topic, handler=handler))


def handled(directory: Path) -> list[str]:
    file = directory / "handled"
    return file.read_text().splitlines() if file.exists() else []


def schedule(url: str, topic: str, key: str) -> None:
    with Client.connect(url) as client:
        client.schedule(topic, delay=0, key=key)


@pytest.mark.parametrize("handler", [SLOW, SLOW_IN_A_THREAD])
def test_a_changed_file_is_run_and_jobs_in_progress_are_handed_back_to_it(
    url: str, topic: str, tmp_path: Path, start: Start, handler: str
) -> None:
    """The old code would need a minute; the new code has the same job within seconds."""
    write(tmp_path, topic, handler)
    worker = start(tmp_path, "worker", "jobs:worker", "--reload", url=url)
    worker.wait_for("group default, topics")
    worker.wait_for("watching")
    schedule(url, topic, "k")
    assert eventually((tmp_path / "slow").exists)
    write(tmp_path, topic, QUICK.format(how="new code"))
    worker.wait_for("jobs.py changed: the worker restarts")
    assert eventually(lambda: handled(tmp_path) == ["new code k"]), worker.said
    [child] = worker.children("wheelq worker")
    worker.signal(signal.SIGINT)
    assert worker.end() == 0
    assert not is_alive(child)


def test_a_handler_in_a_thread_has_its_grace_when_the_command_is_stopped(
    url: str, topic: str, tmp_path: Path, start: Start
) -> None:
    """It is in the midst of its work at the signal, and is done with it before the worker ends."""
    write(tmp_path, topic, UNTIL_TOLD)
    worker = start(tmp_path, "worker", "jobs:worker", "--reload", url=url)
    worker.wait_for("group default, topics")
    schedule(url, topic, "k")
    assert eventually((tmp_path / "slow").exists)
    worker.signal(signal.SIGTERM)
    worker.wait_for("SIGTERM: stopping")
    assert not eventually(lambda: "has stopped" in worker.said, within_s=2 * RELOAD_GRACE_S)
    (tmp_path / "told").touch()
    assert worker.end() == 0
    assert handled(tmp_path) == ["finished k"]


def test_a_file_that_does_not_import_is_explained_and_waits_for_the_next_change(
    url: str, topic: str, tmp_path: Path, start: Start
) -> None:
    write(tmp_path, topic, QUICK.format(how="good"))
    worker = start(tmp_path, "worker", "jobs:worker", "--reload", url=url)
    worker.wait_for("group default, topics")
    worker.wait_for("watching")
    write(tmp_path, topic, "def (")
    worker.wait_for("SyntaxError: ")
    write(tmp_path, topic, QUICK.format(how="mended"))
    worker.wait_for("group default, topics", times=2)
    schedule(url, topic, "k")
    assert eventually(lambda: handled(tmp_path) == ["mended k"]), worker.said


def test_without_watchfiles_reload_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    answer = wheelq("worker", "jobs:worker", "--reload", url="redis://127.0.0.1:1")
    assert (answer.code, answer.err) == (2, "--reload needs watchfiles: pip install 'wheelq[reload]'\n")


def test_json_lines_have_the_job_that_a_handler_was_running(url: str, topic: str, tmp_path: Path, start: Start) -> None:
    write(tmp_path, topic, QUICK.format(how="logged"))
    worker = start(tmp_path, "worker", "jobs:worker", "--log-format", "json", url=url)
    worker.wait_for("group default, topics")
    schedule(url, topic, "k")
    worker.wait_for("charging")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    lines = [json.loads(line) for line in worker.said.splitlines()]
    [charging] = [line for line in lines if line["message"] == "charging"]
    assert (charging["topic"], charging["job_id"], charging["attempt"]) == (topic, "k", 1)


def test_an_unknown_log_format_is_refused() -> None:
    answer = wheelq("worker", "jobs:worker", "--log-format", "xml", url="redis://127.0.0.1:1")
    assert (answer.code, answer.err) == (2, "log-format: 'xml' must be text or json\n")
