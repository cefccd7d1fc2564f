"""The first five minutes: `wheelq init`, `wheelq up` without a module, and what the demo suggests at its end."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, wheelq
from wheelq import Client
from wheelq.cli.demo import command
from wheelq.cli.up import UP_PORT

Start = Callable[..., Running]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A directory with a module `jobs` that has a worker."""
    (tmp_path / "jobs.py").write_text(
        "from wheelq import Worker\nworker = Worker.connect()\nworker.handler('orders')(lambda job: None)\n"
    )
    return tmp_path


# init


def test_init_writes_a_starter_once(tmp_path: Path) -> None:
    answer = wheelq("init", tmp_path / "shop")
    assert answer.code == 0
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["shop.py", "test_shop.py"]
    (tmp_path / "shop" / "test_shop.py").unlink()
    again = wheelq("init", tmp_path / "shop")
    assert again.code == 2
    assert f"{tmp_path}/shop/shop.py exists already" in again.err
    assert not (tmp_path / "shop" / "test_shop.py").exists()


def test_the_tests_of_the_starter_pass(tmp_path: Path) -> None:
    wheelq("init", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout


def test_the_compose_file_runs_every_process(tmp_path: Path) -> None:
    wheelq("init", tmp_path, "--compose")
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    assert services.keys() == {"valkey", "scheduler", "worker", "http"}
    assert services["worker"]["command"].endswith('exec wheelq worker shop:worker"')


def suggested(out: str, port: int) -> list[list[str]]:
    """The commands that a text suggests, with another port."""
    lines = [line.removeprefix("next: ") for line in out.splitlines() if line.startswith("next: ")]
    return [shlex.split(line.replace(str(UP_PORT), str(port))) for line in lines]


def test_the_commands_that_init_suggests_work_as_printed(tmp_path: Path, start: Start) -> None:
    port = free_port()
    up, schedule, _ = suggested(wheelq("init", tmp_path).out.replace(f"cd {tmp_path}", "cd"), port)[1:]
    running = start(tmp_path, *up[1:], "--port", port)
    running.wait_for("runs on ")
    assert wheelq(*schedule[1:]).code == 0
    running.wait_for("order 42 is closed: unpaid")


# demo


def test_the_commands_that_the_demo_suggests_work_as_printed_and_show_the_job(tmp_path: Path, start: Start) -> None:
    port = free_port()
    up, schedule = suggested("\n".join(f"next: {each}" for each in command.NEXT), port)
    running = start(tmp_path, *up[1:], "--port", port)
    running.wait_for("prints every job that falls due")
    running.wait_for("runs on ")
    answer = wheelq(*schedule[1:], "--key", "order-42")
    assert answer.code == 0
    running.wait_for('orders/order-42 is due: {"id": 42}, ')


# up


def test_up_uses_a_server_of_ones_own(url: str, tmp_path: Path, start: Start, module: Path) -> None:
    running = start(module, "up", "jobs:worker", "--url", url)
    running.wait_for("scheduler  process")
    assert f"server     {url}" in running.said
    assert "export" not in running.said
    assert not (module / "wheelq-data").exists()
    running.wait_for("group default, topics")
    running.signal(signal.SIGINT)
    assert running.end() == 0
    with Client.connect(url) as client:
        client.topics()  # it still runs


def test_with_a_server_of_ones_own_it_takes_no_jobs_unasked(url: str, tmp_path: Path, start: Start) -> None:
    running = start(tmp_path, "up", "--url", url)
    running.wait_for("worker     none: wheelq up MODULE:NAME runs one")


def test_up_restarts_the_worker_when_its_code_changes(module: Path, start: Start) -> None:
    running = start(module, "up", "jobs:worker", "--port", free_port(), "--reload")
    running.wait_for("group default, topics")
    running.wait_for("watching ")
    (module / "jobs.py").write_text((module / "jobs.py").read_text() + "\n# changed\n")
    running.wait_for("jobs.py changed: the worker restarts")
    running.wait_for("group default, topics", times=2)


def test_a_worker_can_bring_its_scheduler(url: str, module: Path, start: Start) -> None:
    running = start(module, "worker", "jobs:worker", "--with-scheduler", url=url)
    running.wait_for("scheduler | wheelq: scheduler ")
    running.wait_for("worker | wheelq: worker ")
    running.signal(signal.SIGINT)
    assert running.end() == 0


def test_names_of_processes_have_a_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from wheelq.logs import prefix_of

    assert prefix_of("worker 1", is_terminal=False) == "worker 1 | "
    first, second = prefix_of("worker 1", is_terminal=True), prefix_of("worker 2", is_terminal=True)
    assert first.startswith("\x1b[")
    assert first.partition("m")[0] != second.partition("m")[0]
