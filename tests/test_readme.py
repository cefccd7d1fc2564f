"""The README is true: every command and every block of code in it runs, in order, as a newcomer would type it.

A comment above a block says what to do with it: `file: NAME` writes it, `background: PATTERN` starts it and waits
until it has printed that, `install` and `tests` are the two commands. Any other `sh` block is run and must succeed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PORT = "7379"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, and the comment above it."""

    note: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for match in re.finditer(r"(?:<!-- (.+?) -->\n)?```(\w*)\n(.*?)```", README, re.DOTALL):
        yield Block(match[1] or "", match[2], match[3])


def noted(word: str) -> Block:
    return next(block for block in blocks() if block.note == word)


class Terminal:
    """Runs blocks in one directory; what a block exports, the next one sees."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = str(port)
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ")}
        self._env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._env['PATH']}"
        self.background: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text)

    def run(self, text: str) -> str:
        for name, value in re.findall(r"^export (\w+)=(.+)$", text, re.MULTILINE):
            self._env[name] = value.replace(PORT, self._port)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text.replace(PORT, self._port)],
            cwd=self._directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, text: str, until: str) -> None:
        log = self._directory / "background.log"
        with log.open("w") as out:
            command = ["bash", "-c", f"exec {text.strip()} --port {self._port}"]
            child = subprocess.Popen(command, cwd=self._directory, env=self._env, stdout=out, stderr=out, text=True)
        self.background.append(child)
        self.printed(until)

    def printed(self, pattern: str) -> None:
        """Wait until the background command has printed this."""
        log = self._directory / "background.log"
        deadline = time.monotonic() + 30
        while not re.search(pattern, log.read_text()):
            assert time.monotonic() < deadline, f"{pattern!r} is not in:\n{log.read_text()}"
            time.sleep(0.05)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    terminal = Terminal(tmp_path, port)
    yield terminal
    for child in terminal.background:
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def test_the_tour_runs_from_top_to_bottom(terminal: Terminal) -> None:
    """Files are written, `wheelq up` runs beside, and what is scheduled is handled."""
    for block in blocks():
        kind, _, rest = block.note.partition(": ")
        if kind == "file":
            terminal.write(rest, block.text)
        elif kind == "background":
            terminal.start(block.text, until=rest)
        elif block.language == "sh" and not kind:
            terminal.run(block.text)
    for words in ("closing order 42", "closing order 8", "reminding 999", "closing order 101", "closing order 102"):
        terminal.printed(words)


def test_the_first_command_installs_and_runs_the_demonstration(tmp_path: Path) -> None:
    """In a copy of the checkout, with nothing installed."""
    checkout = tmp_path / "wheelq"
    kept = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "wheelq-data")
    shutil.copytree(ROOT, checkout, ignore=kept)
    text = noted("install").text
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "lost 0" in done.stdout


def test_the_second_command_is_what_ci_runs() -> None:
    """`.ci/run` runs exactly the pytest command of the README."""
    command = noted("tests").text.strip().rpartition(".venv/bin/")[2]
    assert command.removeprefix("python ") in (ROOT / ".ci" / "run").read_text()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
