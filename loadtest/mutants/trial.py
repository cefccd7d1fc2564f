"""One trial: a patch, a copy of the checkout with its mistake, and the finders, each in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent / "patches"
TESTS_S = 1800.0
"""How long the tests of a mutant may take; a mutant that makes them hang is found."""
SEED_S = 180.0
"""How long a seed may take."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch, and what its header says."""

    name: str
    mistake: str
    room: str
    tests: tuple[str, ...]
    """Files and folders with the tests that are supposed to find it."""
    patch: Path

    @classmethod
    def read(cls, patch: Path) -> Self:
        """Reads a patch. Raises: ValueError, if its header is not whole."""
        header = dict(
            re.findall(r"^(mistake|room|tests): (.+)$", patch.read_text().partition("\n--- ")[0], re.MULTILINE)
        )
        if missing := {"mistake", "room", "tests"} - header.keys():
            raise ValueError(f"{patch}: the header has no line for {', '.join(sorted(missing))}")
        return cls(patch.stem, header["mistake"], header["room"], tuple(header["tests"].split()), patch.resolve())


def all_patches() -> list[Path]:
    """Returns the patches that belong to the checkout, by name."""
    return sorted(PATCHES.glob("*.patch"))


@contextmanager
def copied(mutant: Mutant | None = None) -> Iterator[Path]:
    """Makes a copy of the checkout as it is, with what is not committed, and with a mutant's patch.

    Raises: ValueError, if the patch does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        copy = Path(directory)
        named = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():  # else it was deleted, and that is not committed
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        if mutant is not None:
            apply(mutant, copy)
        yield copy


def apply(mutant: Mutant, copy: Path, *, check: bool = False) -> None:
    """Apply a mutant's patch to a copy, or only `check` that it would. Raises: ValueError, if it does not apply."""
    command = ["git", "apply", *(["--check"] if check else []), str(mutant.patch)]
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}  # the copy is in no repository
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{mutant.name} does not apply any more:\n{done.stderr.strip()}")


class Finding(NamedTuple):
    """What one finder says of one copy."""

    what: str
    """The first test that failed, or the first seed with its problem; "" if there is none."""
    again: tuple[str, ...]
    """The arguments with which the finder looks at that alone."""
    took_s: float
    why_not: str = "no"

    def against(self, clean: Finding) -> Finding:
        """Returns it, unless the finder says something without the patch, too: then it has found nothing."""
        return self._replace(what="", why_not=f"no: fails without the patch, too: {self.what}") if clean.what else self


def find_by_tests(copy: Path, arguments: Sequence[str]) -> Finding:
    """Run tests until one fails. Raises: RuntimeError, if they cannot be run."""
    began = time.monotonic()
    code, output = _run(["pytest", "-x", "-p", "no:cacheprovider", *arguments], copy, TESTS_S)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 0:
        return Finding("", (), time.monotonic() - began)
    if code is None:
        return Finding(f"the tests have not ended after {TESTS_S:.0f} s", tuple(arguments), time.monotonic() - began)
    if failed is None:
        raise RuntimeError(f"these tests cannot be run: {' '.join(arguments)}\n{output[-2000:]}")
    return Finding(failed[1], (failed[1],), time.monotonic() - began)


def find_by_seeds(copy: Path, first: int, seeds: int) -> Finding:
    """Run the simulator until a seed fails. Raises: RuntimeError, if it cannot be run."""
    began = time.monotonic()
    arguments = ["--seeds", str(seeds), "--from", str(first), "--jobs", "1"]
    code, output = _run(["loadtest.simulate", *arguments], copy, SEED_S * seeds)
    if code == 0:
        return Finding("", (), time.monotonic() - began)
    if code is None:
        return Finding("a seed does not end", (str(first), str(seeds)), time.monotonic() - began)
    failed = re.search(r"^failed: seed (\d+)", output, re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"the simulator cannot be run:\n{output[-2000:]}")
    seed = int(failed[1])
    said = re.findall(rf"^seed {seed}: (.+)$", output, re.MULTILINE)  # its faults, its problems, its verdict
    what = f"seed {seed}, number {seed - first + 1}: {said[1] if len(said) > 1 else ''}"
    return Finding(what, (str(seed), "1"), time.monotonic() - began)


_children: set[subprocess.Popen[bytes]] = set()


def _run(command: Sequence[str], copy: Path, patience_s: float) -> tuple[int | None, str]:
    """Runs a module in a copy; returns its exit code, None if it has not ended in time, and its output."""
    env = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "400"}  # the copy, and not the checkout
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=copy, env=env, stdout=output, stderr=output, start_new_session=True
        )
        _children.add(child)
        try:
            code = child.wait(patience_s)
        except subprocess.TimeoutExpired:
            code = None
            _kill(child)
        finally:
            _children.remove(child)
        output.seek(0)
        return code, output.read()


def kill_all() -> None:
    """Kill what runs now."""
    for child in list(_children):
        _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # with its servers, and the forks of the simulator
    child.wait()
