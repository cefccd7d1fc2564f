"""`File`: an SQLite file that many threads, processes and forks share, and that one process at a time may own.

SQLite forbids to carry a connection over a fork, so each process opens its own when it first needs one. The owner is
settled by a lock on a file beside it, which ends with its process and is not inherited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

BUSY_S = 10.0  # how long a transaction waits for another process's


class File:
    """Made with the tables of `schema.sql` when it is first used. Raises `sqlite3.Error` and `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = 0
        self._not_ours: list[sqlite3.Connection] = []  # a parent's: to be neither used nor closed here
        self._connection: sqlite3.Connection | None = None
        self._owning: int | None = None
        self._lock = threading.RLock()
        _files.add(self)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Its connection; the other threads wait meanwhile."""
        with self._lock:
            yield self._open()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; on disk when the block has ended."""
        with self._lock:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")  # a reader that turns writer could not wait for another process
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def try_to_own(self) -> bool:
        """Whether this process owns it, from now on and until `close`."""
        with self._lock:
            self._open()
            if self._owning is None:
                lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process: a fork does not inherit it
                except OSError:
                    os.close(lock)
                    return False
                self._owning = lock
            return True

    def close(self) -> None:
        """Close it, and own it no more."""
        with self._lock:
            if self._owning is not None and self._pid == os.getpid():
                os.close(self._owning)
            self._owning = None
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def unlock_after_fork(self) -> None:
        """The thread that held the lock may not exist in this process."""
        self._lock = threading.RLock()

    def _open(self) -> sqlite3.Connection:
        pid = os.getpid()
        if self._pid != pid:
            if self._connection is not None:
                self._not_ours.append(self._connection)
            self._connection, self._owning, self._pid = None, None, pid
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))  # payloads are nobody else's business
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # in WAL mode less than that may lose the last transactions
        schema = (resources.files(__package__) / "schema.sql").read_text()
        connection.executescript(schema)
        return connection


_files: weakref.WeakSet[File] = weakref.WeakSet()


def _unlock_all() -> None:
    for file in _files:
        file.unlock_after_fork()


os.register_at_fork(after_in_child=_unlock_all)
