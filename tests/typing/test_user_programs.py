"""Programs of users, as mypy (strict) and pyright see them: errors stand on the marked lines, and nowhere else.

A program in `programs/` marks each line that is wrong with `# error`; those named `right_…` have none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # type checkers take long on a busy machine

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
ROOT = Path(__file__).parents[2]
Lines = dict[tuple[str, int], list[str]]
"""Program and line → what is wrong there."""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """What mypy says of all programs."""
    cache = tmp_path_factory.mktemp("mypy")
    flags = ["--strict", "--config-file=", f"--cache-dir={cache}", "--no-error-summary", "--no-pretty"]
    command = [sys.executable, "-m", "mypy", *flags, *map(str, PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Lines = {}
    for path, line, text in re.findall(r"^(\S+):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault((Path(path).name, int(line)), []).append(text)
    return found


@pytest.fixture(scope="module")
def pyright() -> Lines:
    """What pyright says of all programs; it needs node, which its package may have to download."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        told = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    except (ValueError, KeyError):
        pytest.skip(f"pyright does not run here: {(done.stderr or done.stdout)[-300:]}")
    found: Lines = {}
    for one in told:
        if one["severity"] == "error":
            place = Path(one["file"]).name, one["range"]["start"]["line"] + 1
            found.setdefault(place, []).append(one["message"])
    return found


def expected(program: Path) -> set[int]:
    """The lines marked as wrong."""
    lines = program.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def check(program: Path, told: Lines) -> None:
    found = {line: texts for (name, line), texts in told.items() if name == program.name}
    assert {line: texts for line, texts in found.items() if line not in expected(program)} == {}
    assert expected(program) - found.keys() == set()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_mypy_finds_errors_on_the_marked_lines_only(program: Path, mypy: Lines) -> None:
    check(program, mypy)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_pyright_finds_errors_on_the_marked_lines_only(program: Path, pyright: Lines) -> None:
    check(program, pyright)


def test_right_programs_mark_nothing_and_wrong_ones_do() -> None:
    assert {program.stem for program in PROGRAMS if not expected(program)} == {"right_handlers", "right_tasks"}
