"""Other processes that a trial needs, each running for the time of a `with` block."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from wheelq.embedded import HOST


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """Runs a server process that answers at this port during the block."""
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def beside(command: list[str]) -> Iterator[None]:
    """Runs a process during the block."""
    process: subprocess.Popen[Any] = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
