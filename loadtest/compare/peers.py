"""The queues that are compared: how to start the programs of each, and the processes it needs.

A queue in Python may be installed for another interpreter than this one (`--python`), because its dependencies may not
fit wheelq's. A queue in Node is looked up in the directory where npm has installed it (`--node-modules`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ADAPTERS = Path(__file__).parent / "adapters"
REPOSITORY = Path(__file__).parents[2]
IN_NODE = {"bullmq": ("bullmq", "ioredis")}
"""By queue in Node: the packages that it needs, itself first."""


class Absent(Exception):
    """A queue cannot be run here; the message says why, and what to install."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue that can be run here."""

    name: str
    version: str
    command: tuple[str, ...]
    """Starts the adapter; its arguments follow."""
    directory: Path
    """The directory in which it is started."""
    before: tuple[str, ...] = ()
    """Processes that run besides the worker, and are started before it."""


def find(name: str, python: str = sys.executable, node_modules: Path = Path()) -> Peer:
    """Returns the queue with this name, ready to run.

    Raises:
        Absent: it is not installed.
    """
    if name in IN_NODE:
        return _in_node(name, node_modules)
    own = name == "wheelq"
    return _in_python(name, sys.executable if own else python, ("schedule",) if own else ())


NAMES: Sequence[str] = ("wheelq", "bullmq", "streaq")


def _in_python(name: str, python: str, before: tuple[str, ...]) -> Peer:
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    try:
        found = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Absent(f"{name}: {python} cannot be started: {error.strerror}") from error
    if found.returncode:
        raise Absent(
            f"{name} is not installed for {python}: run `{python} -m pip install {name} uvloop`, "
            "or name an interpreter that has it with --python"
        )
    command = (python, "-m", f"loadtest.compare.adapters.{name}")
    return Peer(name, found.stdout.strip(), command, REPOSITORY, before)


def _in_node(name: str, directory: Path) -> Peer:
    node = shutil.which("node")
    if node is None:
        raise Absent(f"{name} needs node, which is not installed")
    packages = [directory / "node_modules" / package / "package.json" for package in IN_NODE[name]]
    for package in packages:
        if not package.exists():
            raise Absent(
                f"{package.parent.name} is not installed in {directory.resolve()}: run `npm install "
                f"{' '.join(IN_NODE[name])}` in some directory, and name it with --node-modules"
            )
    return Peer(name, json.loads(packages[0].read_text())["version"], (node, str(ADAPTERS / f"{name}.mjs")), directory)
