"""Directories that take long to make: one for all test processes of a run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a directory that `make` has filled: called by the first process that asks, the others wait for it."""
    own = factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # without xdist, the parent outlives the run
    directory, done = run / name, run / f"{name}.done"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            make(directory)
            done.touch()
    return directory
