"""The machine and the versions that figures were measured with, so that readers can compare them with others."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("wheelq", "redis", "hiredis", "msgpack", "uvloop")


def machine() -> dict[str, Any]:
    """Processors, memory and system, as names and numbers."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_mb": int((_line("/proc/meminfo", "MemTotal") or "0").split()[0]) // 1024,
        "system": f"{platform.system()} {platform.release()}",
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """The versions of Python, and of the measured packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _line(path: str, name: str) -> str | None:
    """The value of a name in a file of lines "name: value"."""
    file = Path(path)
    for line in file.read_text().splitlines() if file.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
