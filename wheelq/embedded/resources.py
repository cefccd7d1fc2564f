"""The resources of one server: its data directory, which is locked against other servers, and its port."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from wheelq.errors import ConfigurationError

HOST = "127.0.0.1"
LOCK_GRACE_S = 1.0  # a server whose parent was just killed needs a moment to leave its directory


def lock_directory(directory: Path) -> IO[str]:
    """Lock the directory for one server, which inherits the open file. Raises: ConfigurationError."""
    lock = (directory / "wheelq.lock").open("a+")
    for _ in range(round(LOCK_GRACE_S / 0.02)):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.02)
    else:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigurationError(f"{directory} is in use by the embedded server of process {holder}")
    lock.truncate(0)
    print(os.getpid(), file=lock, flush=True)
    return lock


def unlock(lock: IO[str]) -> None:
    """Release the directory."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a forked process has the file open too
    lock.close()


def free_port(wanted: int) -> int:
    """Return `wanted` if it is free (another server would answer the PING); for 0, any free port."""
    if not 0 <= wanted <= 65_535:
        raise ConfigurationError(f"{wanted} is not a port: choose one up to 65,535, or 0 for any free port")
    try:
        with socket.create_server((HOST, wanted)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {HOST}:{wanted}: {error.strerror}; choose another port, or 0 for any free port"
        ) from error
