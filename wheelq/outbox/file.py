"""`File`: an SQLite file that many threads, processes and forks share, and that one of those who opened it may own.

SQLite forbids to carry a connection over a fork, so each process opens its own when it first needs one. The owner is
settled by a lock on a file beside it, which ends with its process and is given up in a fork. It is one of `flock`, and
not of `lockf`, whose locks belong to a process: two clients of one process with the same file must not both own it.
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
from functools import partial
from importlib import resources
from pathlib import Path
from typing import IO

BUSY_S = 10.0  # how long a transaction waits for another process's


class File:
    """Made with the tables of `schema.sql` when it is first used. Raises `sqlite3.Error` and `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = 0
        self._not_ours: list[sqlite3.Connection] = []  # a parent's: to be neither used nor closed here
        self._connection: sqlite3.Connection | None = None
        self._owning: IO[bytes] | None = None  # the locked file
        self._lock = threading.RLock()
        self.owners_turn = threading.Lock()
        """For the threads of the owner, to do one after the other what the owner does."""
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
        """Whether it is owned here, from now on and until `close`."""
        with self._lock:
            self._open()
            if self._owning is None:
                lock = open(f"{self._path}.lock", "ab", opener=partial(os.open, mode=0o600))  # noqa: SIM115
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    lock.close()
                    return False
                self._owning = lock
            return True

    def close(self) -> None:
        """Close it, and own it no more."""
        with self._lock:
            if self._owning is not None:  # said, because closing says so only once no fork has it open any more
                fcntl.flock(self._owning, fcntl.LOCK_UN)
            self._disown()
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def unlock_after_fork(self) -> None:
        """The threads that held the locks may not exist in this process; and if anybody owns it, it is the parent."""
        self._lock = threading.RLock()
        self.owners_turn = threading.Lock()
        self._disown()

    def _disown(self) -> None:
        if self._owning is not None:
            self._owning.close()
        self._owning = None

    def _open(self) -> sqlite3.Connection:
        pid = os.getpid()
        if self._pid != pid:
            if self._connection is not None:
                self._not_ours.append(self._connection)
            self._connection, self._pid = None, pid
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
