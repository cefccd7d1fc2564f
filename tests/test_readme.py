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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PORTS = {"up": "7379", "server": "7380", "receiver": "7381", "calling server": "7382"}
"""Who listens, and where if nobody says else; here each gets a port that is free."""


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

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        """`ports`: command → where it listens here."""
        self._directory = directory
        self._ports = {command: str(port) for command, port in ports.items()}
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ")}
        # A checkout need not be installed anew for pytest to find the fixtures.
        self._env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "wheelq.testing.plugin"}
        self._env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._env['PATH']}"
        self.background: list[subprocess.Popen[str]] = []

    def _here(self, text: str) -> str:
        for command, port in PORTS.items():
            text = text.replace(port, self._ports[command])
        return text

    def write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(self._here(text))

    def run(self, text: str) -> str:
        for name, value in re.findall(r"^export (\w+)=(.+)$", text, re.MULTILINE):
            self._env[name] = self._here(value)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(text)],
            cwd=self._directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, text: str, until: str) -> None:
        listening = next(name for name in PORTS if f"wheelq {name}" in text)
        with (self._directory / "background.log").open("a") as out:
            command = ["bash", "-c", f"exec {text.strip()} --port {self._ports[listening]}"]
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
    with ExitStack() as probing:
        probes = {name: probing.enter_context(socket.create_server(("127.0.0.1", 0))) for name in PORTS}
        ports = {name: probe.getsockname()[1] for name, probe in probes.items()}
    terminal = Terminal(tmp_path, ports)
    yield terminal
    for child in reversed(terminal.background):
        child.send_signal(signal.SIGTERM)
        child.wait(30)


@pytest.mark.timeout(900)  # it is long, and starts many processes
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
    closed = [f"closing order {order}" for order in (42, 8, 101, 102)]
    for words in (*closed, "reminding 999", "reminding the team"):
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
    for target in re.findall(r"\]\((?!http)([^)#\s]+)", README):
        assert (ROOT / target).exists(), target
    titles = re.findall(r"^##+ (.+)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", README)) <= anchors


def test_every_test_that_a_link_names_is_there() -> None:
    """A link's title is the name of the test that shows it."""
    named = re.findall(r"\]\((tests/[^)\s]+) \"(\w+)\"\)", README)
    assert len(named) > 30
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path}: {name}"


def test_every_row_beside_others_names_what_shows_it() -> None:
    """Whatever is said to be here; and no cell is missing."""
    table = README.partition("## Beside others")[2].partition("\n\n|")[2].partition("\n\n")[0].splitlines()
    assert len(table) > 30
    for row in table[1:]:
        what, here, *peers = (cell.strip() for cell in row.strip("|").split("|"))
        assert len(peers) == 10, row
        assert re.fullmatch(r"\[.+\]\(tests/\S+ \"\w+\"\)", what) or here in ("–", "---"), row
