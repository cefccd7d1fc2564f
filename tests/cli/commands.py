"""Runs wheelq commands, in this process if that is enough, otherwise as separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from tests.waiting import PATIENCE, eventually
from wheelq.cli.app import app


class Answer(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def wheelq(*arguments: object, url: str | None = None, stdin: str | None = None) -> Answer:
    """Run one command in this process; an exception that is not an answer is raised."""
    environment = {"WHEELQ_URL": url, "WHEELQ_CONFIG": None, "WHEELQ_DEBUG": None, "COLUMNS": "200"}
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Running:
    """A wheelq command that runs in a separate process in `directory`, and its output so far."""

    def __init__(self, directory: Path, arguments: Sequence[object], url: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
        self._said = directory / f"said-{time.monotonic_ns()}.txt"
        with self._said.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wheelq", *map(str, arguments)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment | ({"WHEELQ_URL": url} if url else {}),
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, words: str, times: int = 1, within_s: float = PATIENCE) -> None:
        """Wait until the output contains these words `times` times."""
        assert eventually(lambda: self.said.count(words) >= times, within_s), f"never said {words!r}:\n{self.said}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, within_s: float = PATIENCE) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(within_s)

    def children(self, name: str) -> list[int]:
        """Process ids of the children whose command line holds `name`."""
        ps = ["ps", "-ww", "-eo", "pid=,ppid=,args="]
        listed = subprocess.run(ps, capture_output=True, text=True, check=True).stdout
        rows = (line.split(None, 2) for line in listed.splitlines())
        found = [(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]
        return [pid for pid, parent, args in found if parent == self.process.pid and name in args]


def stopped_at_the_end(started: list[Running]) -> Iterator[Callable[..., Running]]:
    """The body of the fixture `start`."""

    def start(directory: Path, *arguments: object, url: str | None = None) -> Running:
        started.append(Running(directory, arguments, url))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.terminate()
    for running in started:
        try:
            running.end(within_s=15)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.end()


def is_alive(pid: int) -> bool:
    """Zombies count as dead: where process 1 does not reap, they stay in the process table."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
