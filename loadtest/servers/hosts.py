"""Faults of the machine below a server: a clock that is set, and a disk that is full.

    clock = SteppedClock.under(binary, directory)     a wrapper of the binary, to be started instead of it
    clock.step(-3600)                                 the server's wall clock is an hour slow; its monotonic one is not
    with small_disk(directory): ...                   a file system of its own (tmpfs)

The clock needs libfaketime (Debian's package `libfaketime`), and the disk the right to mount. If that is missing, the
result is None, and the faults that need it are left out.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

LIBRARIES = tuple(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
DISK = "1g"
"""Enough for the append-only file of an hour, twice."""
NOTICED_S = 1
"""A server sees a step within this time: reading the file at every look at the clock would slow it down."""


class SteppedClock:
    """The wall clock of a server, which can be set to any distance from the true time."""

    def __init__(self, library: Path, binary: Path, directory: Path) -> None:
        self._offset = directory / "clock"
        self.binary = directory / "server-with-its-own-clock"
        """Run this in place of the server's binary."""
        self.error_ms = 0
        """The furthest it has been from the true time."""
        self.step(0.0)
        variables = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": self._offset,
            "FAKETIME_CACHE_DURATION": NOTICED_S,
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
            "DONT_FAKE_MONOTONIC": 1,
        }
        exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items())
        self.binary.write_text(f'#!/bin/sh\n{exports}exec {shlex.quote(str(binary))} "$@"\n')
        self.binary.chmod(0o700)

    @classmethod
    def under(cls, binary: Path, directory: Path) -> Self | None:
        """A clock for a server, or None without libfaketime."""
        return cls(LIBRARIES[0], binary, directory) if LIBRARIES else None

    def step(self, seconds: float) -> None:
        """Set the clock this many seconds ahead of the true time, or behind it if negative."""
        changed = self._offset.with_suffix(".new")
        changed.write_text(f"{seconds:+.3f}\n")
        changed.rename(self._offset)
        self.error_ms = max(self.error_ms, round(abs(seconds) * 1000))


class SmallDisk:
    """A file system in memory that can be filled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._filler = directory / "filler"

    def fill(self) -> None:
        """Leave no room."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Leave room again."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk | None]:
    """Mount a small disk there while this lasts; None where that is not allowed."""
    directory.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)
