"""README and guide are true: every command and block of code in them runs, in order, as a newcomer would type it.

A comment above a block says what to do with it: `file: NAME` writes it, `background: PATTERN` starts it and waits
until it has printed that, `install` and `tests` are the two commands. Any other `sh` block is run and must succeed.
`output` is what the block before has printed, and `output of the background` what the command in the background prints;
numbers may differ.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.servers.nodes import free_port
from tests.every import for_every
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDE = ROOT / "wheelq" / "guide"
INDEX = GUIDE / "README.md"
PAGES = [GUIDE / name for name in re.findall(r"^\| \[[^]]+\]\(([\w/-]+\.md)\)", INDEX.read_text(), re.MULTILINE)]
"""The pages of the guide, in the order in which the index names them."""
CHINESE = GUIDE / "zh" / "README.md"
OPTIONAL = {"node"}
"""Programs of other languages; a block that runs one in the background is left out where it is not installed."""
README_LINES = 150
PORTS = {
    "up": "7379",
    "server": "7380",
    "receiver": "7381",
    "calling server": "7382",
    "uvicorn signup": "7383",
    "uvicorn tiny": "7384",
    "gunicorn": "7385",
}
"""Who listens, and where if nobody says else; here each gets a port that is free."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, and the comment above it."""

    note: str
    language: str
    text: str


def blocks(*pages: Path) -> Iterator[Block]:
    for page in pages:
        for match in re.finditer(r"(?:<!-- (.+?) -->\n)?```(\w*)\n(.*?)```", page.read_text(), re.DOTALL):
            yield Block(match[1] or "", match[2], match[3])


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def noted(word: str) -> Block:
    return next(block for block in blocks(README) if block.note == word)


class Terminal:
    """Runs blocks in one directory; what a block exports, the next one sees."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        """`ports`: command → where it listens here."""
        self._directory = directory
        self._ports = {command: str(port) for command, port in ports.items()}
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ")}
        # A checkout need not be installed again for pytest to find the fixtures.
        self._env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "wheelq.testing.plugin"}
        self._env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._env['PATH']}"
        self.background: list[subprocess.Popen[str]] = []

    def _here(self, text: str) -> str:
        here = {port: self._ports[command] for command, port in PORTS.items()}
        return re.sub("|".join(here), lambda found: here[found[0]], text)

    def write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._here(text))

    def run(self, text: str) -> str:
        for name, value in re.findall(r"^export (\w+)=(.+)$", text, re.MULTILINE):
            self._env[name] = self._here(value)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(text)],
            cwd=self._directory,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, text: str, until: str) -> None:
        listening = next((name for name in PORTS if f"wheelq {name}" in text), None)
        port = f" --port {self._ports[listening]}" if listening else ""  # others say it themselves, if they have one
        with (self._directory / "background.log").open("a") as out:
            command = ["bash", "-c", f"exec {self._here(text).strip()}{port}"]
            child = subprocess.Popen(command, cwd=self._directory, env=self._env, stdout=out, stderr=out, text=True)
        self.background.append(child)
        self.printed(self._here(until))

    def printed(self, pattern: str) -> None:
        """Wait until the background command has printed this."""
        log = self._directory / "background.log"
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, log.read_text()):
            assert time.monotonic() < deadline, f"{pattern!r} is not in:\n{log.read_text()}"
            time.sleep(0.05)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, {name: free_port() for name in PORTS})
    yield terminal
    for child in reversed(terminal.background):
        child.send_signal(signal.SIGTERM)
        child.wait(PATIENCE)


def follow(terminal: Terminal, *pages: Path) -> None:
    """Type every block: write the files, start what runs in the background, run the rest."""
    said = ""
    for block in blocks(*pages):
        kind, _, rest = block.note.partition(": ")
        if kind == "file":
            terminal.write(rest, block.text)
        elif kind == "background":
            program = block.text.split()[0]
            if program in OPTIONAL and shutil.which(program) is None:
                continue
            terminal.start(block.text, until=rest)
        elif block.language == "sh" and not kind:
            said = terminal.run(block.text)
        elif kind == "output":
            assert re.search(pattern_of(block.text), said), f"not {block.text!r} but {said!r}"
        elif kind == "output of the background":
            terminal.printed(pattern_of(block.text))


def pattern_of(shown: str) -> str:
    """Returns a pattern for this output and others that differ in numbers."""
    return re.sub(r"\d+", r"\\d+", re.escape(shown.strip()))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_runs_from_top_to_bottom(terminal: Terminal) -> None:
    follow(terminal, README)
    terminal.printed("closing order 1")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_page_in_chinese_runs_from_top_to_bottom(terminal: Terminal) -> None:
    follow(terminal, CHINESE)


@pytest.mark.long
@pytest.mark.timeout(900)  # it is long, and starts many processes
def test_the_guide_runs_from_its_first_page_to_its_last(terminal: Terminal) -> None:
    follow(terminal, *(page for page in PAGES if page != CHINESE))  # it stands on its own, and starts its own server
    closed = [f"closing order {order}" for order in (42, 8, 101, 102)]
    for words in (*closed, "reminding 999", "reminding the team", "hello ada"):
        terminal.printed(words)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES


def test_the_index_of_the_guide_names_every_page_once() -> None:
    assert sorted([*PAGES, INDEX]) == sorted(GUIDE.rglob("*.md"))


@for_every([README, *PAGES], title)
def test_every_block_is_run_or_written(page: Path) -> None:
    """A block in another language than these would be shown and never tried."""
    for block in blocks(page):
        assert block.language == "sh" or block.note.startswith(("file: ", "output")), block.text


@pytest.mark.long
@pytest.mark.timeout(900)  # it installs a whole environment
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


@pytest.mark.parametrize("word", ["install", "tests"])
def test_ci_runs_what_the_readme_says(word: str) -> None:
    run = (ROOT / ".ci" / "run").read_text()
    [function] = re.findall(r"^block\(\) \{.*?^\}$", run, re.MULTILINE | re.DOTALL)
    found = subprocess.run(["bash", "-c", f"{function}\nblock {word}"], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == noted(word).text
    assert f'\nas_newcomer "$(block {word})"' in run


@for_every([README, INDEX, *PAGES], title)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target
    titles = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= anchors, "a link leads to no heading"


BESIDE_OTHERS = GUIDE / "beside-others.md"


def test_every_test_that_a_link_names_is_there() -> None:
    """A link's title is the name of the test that shows it."""
    named = re.findall(r"\]\((\.\./\.\./tests/[^)\s]+) \"(\w+)\"\)", BESIDE_OTHERS.read_text())
    assert len(named) > 30
    for path, name in named:
        assert re.search(rf"def {name}\(", (GUIDE / path).read_text()), f"{path}: {name}"


def test_every_row_beside_others_names_what_shows_it() -> None:
    """Each feature that the table claims for wheelq links to its test, and no cell is missing."""
    table = [line for line in BESIDE_OTHERS.read_text().splitlines() if line.startswith("|")]
    assert len(table) > 30
    for row in table[1:]:
        what, here, *peers = (cell.strip() for cell in row.strip("|").split("|"))
        assert len(peers) == 10, row
        assert re.fullmatch(r"\[.+\]\(\.\./\.\./tests/\S+ \"\w+\"\)", what) or here in ("–", "---"), row
