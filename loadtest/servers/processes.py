"""Other processes that a load test needs, each running for the time of a `with` block."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wheelq.embedded import HOST

PATIENCE_S = 30.0
"""The longest start of a server, and the longest end of a process."""
Process = subprocess.Popen[bytes]


@contextmanager
def beside(command: list[str], env: Mapping[str, str] | None = None, output: int | None = None) -> Iterator[Process]:
    """Runs a process during the block."""
    process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@contextmanager
def running(
    command: list[str], port: int, env: Mapping[str, str] | None = None, output: int | None = None
) -> Iterator[Process]:
    """Runs a server process that answers at this port during the block."""
    with beside(command, env, output) as process:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.05)
        yield process
