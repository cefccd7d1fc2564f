"""Tasks of a Django project, run by the worker that its manage.py starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.databases import database_url
from tests.once import made_once
from tests.waiting import eventually
from wheelq.embedded import EmbeddedServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session", params=["installed", pytest.param("6", marks=pytest.mark.long)])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with Django: the one that runs the tests, and a new environment with Django 6, which needs 3.12."""
    if request.param == "installed":
        pytest.importorskip("django", reason="Django is not installed")
        return sys.executable
    base = newer_python()
    if base is None:
        pytest.skip("Django 6 needs Python 3.12, which is not installed")

    def install(environment: Path) -> None:
        subprocess.run([base, "-m", "venv", environment], check=True)
        command = [environment / "bin" / "python", "-m", "pip", "install", "-q", f"{ROOT}[cli,django,sql]", "django>=6"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr

    return str(made_once(tmp_path_factory, "django6", install) / "bin" / "python")


def newer_python() -> str | None:
    """A Python 3.12 or newer on the PATH, or of pyenv."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += sorted(map(str, Path(root).glob("versions/3.1[2-9].*/bin/python")))
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-V"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


class Project:
    """The Django project on a server of its own."""

    def __init__(self, python: str, url: str, directory: Path) -> None:
        self._python = python
        self._directory = directory
        self.log = directory / "log.txt"
        self.log.touch()
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")} | {
            "WHEELQ_URL": url,
            "TEST_LOG": str(self.log),
            "TEST_DB": str(directory / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "PYTHONPATH": str(HERE),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def ask(self, name: str, *rest: Any) -> Any:
        """What a function of the driver answers."""
        command = [self._python, HERE / "driver.py", json.dumps([name, *rest])]
        answer = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def run_cases(self, module: str, settings: str = "settings") -> None:
        """Run the tests in a module of the project. Raises: AssertionError, with what they said."""
        command = [self._python, "-m", "django", "test", f"project.{module}", f"--settings=project.{settings}"]
        answer = subprocess.run(command, env=self._env, cwd=HERE, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        assert "Ran 0 tests" not in answer.stderr

    def work(self, *options: str) -> subprocess.Popen[bytes]:
        """A worker in a process of its own, once it runs."""
        said = self._directory / f"worker-{len(self.workers)}.txt"
        command = [self._python, "-m", "django", "wheelq_worker", "--with-scheduler", *options]
        with said.open("wb") as out:
            worker = subprocess.Popen(command, env=self._env, stdout=out, stderr=out)
        self.workers.append(worker)
        assert eventually(lambda: "runs, queues" in said.read_text()), said.read_text()
        return worker

    def use(self, settings: str) -> None:
        self._env["DJANGO_SETTINGS_MODULE"] = f"project.{settings}"

    def deliver(self) -> None:
        """Run a courier until the outbox is empty."""
        database = Path(self._env["TEST_DB"])
        command = [self._python, "-m", "wheelq", "courier", "--database", f"sqlite:///{database}"]
        courier = subprocess.Popen(command, env=self._env)
        try:
            with sqlite3.connect(database) as connection:
                assert eventually(lambda: connection.execute("SELECT count(*) FROM wheelq_outbox").fetchone() == (0,))
        finally:
            courier.terminate()
            courier.wait()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                worker.wait()


@pytest.fixture
def project(python: str, private_server: Callable[..., EmbeddedServer], tmp_path: Path) -> Iterator[Project]:
    made = Project(python, private_server().url, tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def working(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a worker that tests share."""
    with EmbeddedServer(appendonly=False) as server:
        made = Project(python, server.url, tmp_path_factory.mktemp("django"))
        made.work()
        yield made
        made.stop()


def test_tasks_run_and_their_results_can_be_looked_up(working: Project) -> None:
    enqueued = working.ask("enqueue", "add", 2, 5)
    assert enqueued["status"] == "READY"
    assert enqueued["heard"] == [enqueued["id"]]
    assert enqueued["times"] == [True, False, False]
    done = working.ask("wait", "add", enqueued["id"])
    assert (done["status"], done["value"], done["attempts"]) == ("SUCCESSFUL", 7, 1)
    assert (done["args"], done["kwargs"], done["errors"]) == ([2, 5], {}, [])
    assert done["times"] == [True, True, True]


def test_djangos_own_cases_for_task_backends(working: Project) -> None:
    working.run_cases("cases")


@pytest.mark.long
def test_the_admin_site_shows_the_queues_and_runs_dead_tasks_again(working: Project) -> None:
    working.run_cases("admin_cases", "admin_settings")


@pytest.mark.long
def test_async_tasks_run_and_can_be_enqueued_from_async_code(working: Project) -> None:
    enqueued = working.ask("enqueue_async", "send", "anna")
    done = working.ask("wait", "send", enqueued["id"])
    assert (done["status"], done["value"]) == ("SUCCESSFUL", {"to": "anna"})


def test_a_task_that_raises_has_failed_with_its_error(working: Project) -> None:
    failed = working.ask("wait", "fail", working.ask("enqueue", "fail")["id"])
    assert (failed["status"], failed["attempts"]) == ("FAILED", 1)
    ((path, traceback),) = failed["errors"]
    assert path == "builtins.ValueError"
    assert "no such customer" in traceback
    assert "in fail" in traceback


def test_a_task_whose_value_is_not_json_has_failed(working: Project) -> None:
    failed = working.ask("wait", "unserialisable", working.ask("enqueue", "unserialisable")["id"])
    assert failed["status"] == "FAILED"
    assert failed["errors"][0][0] == "builtins.TypeError"


@pytest.mark.long
def test_a_backend_with_more_attempts_tries_again(project: Project) -> None:
    project.work("--backend", "patient")
    done = project.ask("wait", "fail_twice", project.ask("enqueue", "fail_twice")["id"])
    assert (done["status"], done["value"], done["attempts"]) == ("SUCCESSFUL", 3, 3)
    assert [path for path, _ in done["errors"]] == ["builtins.OSError"] * 2


def test_a_task_is_finished_once_and_its_attempts_are_those_that_it_saw(project: Project) -> None:
    project.work("--backend", "patient")
    assert project.ask("ends") == [
        [1, 1, "SUCCESSFUL"],
        [12, 12, "SUCCESSFUL"],
        [None, 12, "FAILED wheelq.model.retry.RetryAfter"],
        [None, 1, "FAILED wheelq.model.retry.Bury"],
        [None, 1, "FAILED wheelq.model.retry.RetryAfter"],
    ]


def test_a_task_with_context_knows_its_result_and_its_attempt(working: Project) -> None:
    enqueued = working.ask("enqueue", "look")
    done = working.ask("wait", "look", enqueued["id"])
    assert done["value"] == [enqueued["id"], 1]


def test_a_recurring_job_runs_a_task_that_its_payload_names(working: Project) -> None:
    done = working.ask("wait", "add", working.ask("recur"))
    assert (done["status"], done["value"], done["args"]) == ("SUCCESSFUL", 6, [5])
    assert done["times"] == [True, True, True]


def test_run_after_is_the_due_time(project: Project) -> None:
    project.work()
    later = project.ask("enqueue_later", "add", 3600, 1)
    soon = project.ask("enqueue_later", "add", 0.5, 2)
    assert project.ask("wait", "add", soon["id"])["status"] == "SUCCESSFUL"
    assert project.ask("look", "add", later["id"])["status"] == "READY"
    assert project.lines() == ["add 2 1"]


def test_with_on_commit_a_task_is_enqueued_when_its_transaction_commits(project: Project) -> None:
    assert project.ask("in_transaction", "commit") == {"inside": False, "after": True}
    assert project.ask("in_transaction", "rollback") == {"inside": False, "after": False}
    assert "bytes" in project.ask("refused_in_transaction")


@pytest.mark.long
def test_a_worker_serves_the_queues_that_it_is_given_of_a_backend_that_takes_any(project: Project) -> None:
    project.work("--backend", "any", "--queue", "letters")
    project.ask("enqueue_in", "any", "letters", "add", 2, 3)
    assert eventually(lambda: project.lines() == ["add 2 3"])


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_an_outbox_may_be_in_each_kind_of_database(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB and MySQL make no table inside of a transaction."""
    pytest.importorskip("django", reason="Django is not installed")
    monkeypatch.setenv("TEST_DATABASE", database_url(kind, tmp_path))
    Project(sys.executable, private_server().url, tmp_path).run_cases("outbox_cases", "outbox_settings")


def test_with_an_outbox_a_task_is_a_row_of_its_transaction(working: Project) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    working.run_cases("outbox_cases", "outbox_settings")


@pytest.mark.long
def test_a_courier_delivers_the_tasks_of_an_outbox(project: Project) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    project.use("outbox_settings")
    project.ask("migrate")
    project.work()
    enqueued = project.ask("enqueue", "add", 2, 5)
    project.deliver()
    assert project.ask("wait", "add", enqueued["id"])["value"] == 7


def test_unsupported_options_are_refused_by_djangos_own_errors(project: Project) -> None:
    names = [name for name, _ in project.ask("refusals")]
    assert names == [
        "InvalidTask",
        "InvalidTask",
        "InvalidTask",
        "TypeError",
        *["TaskResultDoesNotExist"] * 4,
        "TaskResultMismatch",
        *["ImproperlyConfigured"] * 6,
    ]


def test_an_outbox_file_may_be_named_by_a_path(project: Project, tmp_path: Path) -> None:
    assert project.ask("enqueue_to_a_path", str(tmp_path / "outbox.db"))


def test_a_misspelt_option_is_named_with_the_near_one(project: Project) -> None:
    said = [said for name, said in project.ask("refusals") if name == "ImproperlyConfigured"]
    assert "'max_attempt' is unknown; did you mean 'max_attempts'?" in said[0]


@pytest.mark.long
@pytest.mark.parametrize("task", ["use_database", "use_database_from_async"])
def test_tasks_use_the_database_with_connections_that_are_closed_when_they_are_too_old(
    project: Project, task: str
) -> None:
    project.ask("migrate")
    project.work("--concurrency", "1")
    for _ in range(3):
        done = project.ask("wait", task, project.ask("enqueue", task)["id"])
        assert (done["value"], done["errors"]) == (0, [])
    assert project.lines() == ["fresh"] * 3  # CONN_MAX_AGE is 0


@pytest.mark.long
def test_a_task_that_the_worker_does_not_find_is_buried_with_an_error_that_names_it(project: Project) -> None:
    """As when its function was renamed, or the worker runs older code; others go on."""
    project.work()
    project.ask("enqueue_renamed")
    done = project.ask("wait", "add", project.ask("enqueue", "add", 2)["id"])
    assert done["value"] == 3
    assert eventually(lambda: len(project.ask("buried")) == 1)
    assert "project.shop.tasks.remind_by_post is not a task that this process finds" in project.ask("buried")[0]


@pytest.mark.long
def test_a_killed_worker_loses_no_task(project: Project) -> None:
    first = project.work()
    enqueued = [project.ask("enqueue", "lasting", number)["id"] for number in range(3)]
    assert eventually(lambda: any(line.startswith("began") for line in project.lines()))
    first.kill()
    first.wait()
    project.work()
    assert [project.ask("wait", "lasting", id)["status"] for id in enqueued] == ["SUCCESSFUL"] * 3
    assert {"ended 0", "ended 1", "ended 2"} <= set(project.lines())


def test_a_worker_lets_its_tasks_finish_when_it_is_stopped(project: Project) -> None:
    worker = project.work()
    project.ask("enqueue", "lasting", 1)
    assert eventually(lambda: "began 1" in project.lines())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert project.lines() == ["began 1", "ended 1"]
