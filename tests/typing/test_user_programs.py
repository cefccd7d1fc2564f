"""Programs of users, as mypy (strict) and pyright see them: errors stand on the marked lines, and nowhere else.

A program in `programs/` marks each line that is wrong with `# error`; those named `right_…` have none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # type checkers take long on a busy machine

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
ROOT = Path(__file__).parents[2]


def expected(program: Path) -> set[int]:
    """The lines marked as wrong."""
    lines = program.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def check(found: Iterable[tuple[str, int, str]]) -> None:
    """`found`: program, line, and what is wrong there."""
    names = {program.name for program in PROGRAMS}
    errors = {(name, line): text for name, line, text in found if name in names}  # not those of wheelq's own files
    marked = {(program.name, line) for program in PROGRAMS for line in expected(program)}
    assert {place: text for place, text in errors.items() if place not in marked} == {}
    assert marked - errors.keys() == set()


@pytest.mark.long
def test_mypy_finds_errors_on_the_marked_lines_only() -> None:
    cache_less = ["--strict", "--config-file=", f"--cache-dir={os.devnull}", "--no-error-summary", "--no-pretty"]
    command = [sys.executable, "-m", "mypy", *cache_less, *map(str, PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\S+):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    check((Path(path).name, int(line), text) for path, line, text in found)


@pytest.mark.long
def test_pyright_finds_errors_on_the_marked_lines_only() -> None:
    """It needs node, which its package may have to download."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, PROGRAMS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    except (ValueError, KeyError):
        pytest.skip(f"pyright does not run here: {(done.stderr or done.stdout)[-300:]}")
    errors = [one for one in found if one["severity"] == "error"]
    check((Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"]) for one in errors)


@pytest.mark.long
def test_right_programs_mark_nothing_and_wrong_ones_do() -> None:
    assert {program.stem for program in PROGRAMS if not expected(program)} == {"right_handlers", "right_tasks"}
