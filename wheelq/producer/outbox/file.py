"""`File`: the SQLite file of an outbox, which one of its users may own.

SQLite forbids the use of a connection after a fork, so each process opens its own when it first needs one. The owner
holds a lock on a second file; the lock ends with its process and is released in a fork. It is a `flock`, because a
`lockf` belongs to the whole process: two clients of one process must not both own the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import IO

BUSY_S = 5.0  # how long a transaction waits for the other threads, and then for another process's
LOOK_S = 0.05  # how long a look waits: only for opening or closing the file, not for writers


class File:
    """Created with the tables of `schema.sql` at its first use. Raises `sqlite3.Error` and `OSError`.

    There are two connections: a write may have to wait for the disk or for another process, and a look must not wait
    for a write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _OfThisProcess(self._connect)
        self._looking = _OfThisProcess(self._connect_to_look)
        self._inode = 0  # of the open file
        self._owning: IO[bytes] | None = None  # the locked file
        self.unlock_after_fork()
        _files.add(self)

    def check(self) -> None:
        """Create the file if it is missing, and check that it is writable. Does not wait for writers."""
        with self._locked():
            connection = self._connection.get()
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
            connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")

    @contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """A connection for short queries, which do not wait and can run on an event loop."""
        with self._looks:
            yield self._looking.get()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for exclusive use; other threads wait meanwhile."""
        with self._locked():
            yield self._connection.get()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all or nothing, and on disk when the block ends."""
        with self._locked():
            connection = self._connection.get()
            connection.execute("BEGIN IMMEDIATE")  # a reader that becomes a writer could not wait for another process
            try:
                yield connection
                connection.execute("COMMIT")  # a full disk is often reported only here
            except BaseException:
                if connection.in_transaction:  # some errors end it themselves
                    connection.execute("ROLLBACK")
                raise

    def follow(self) -> bool:
        """Leave a file that is no longer at its path, because somebody removed or replaced it. Returns whether it did.

        The old file is gone when this process ends. Raises: sqlite3.OperationalError, while jobs wait in it, because
        only this process can still deliver them.
        """
        with self._locked():
            connection = self._connection.get()
            try:
                if os.stat(self._path).st_ino == self._inode:
                    return False
            except FileNotFoundError:
                pass
            (jobs,) = connection.execute("SELECT jobs FROM held").fetchone()
            if jobs:
                raise sqlite3.OperationalError("the file was removed or replaced while jobs waited in it")
            self.close()
            return True

    @property
    def is_owned(self) -> bool:
        """Whether this object owns the file."""
        return self._owning is not None

    def try_to_own(self) -> bool:
        """Whether this object owns the file, from now on and until `close`."""
        with self._locked():
            self._connection.get()
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
        """Close the file and give up ownership."""
        with self._lock:
            if self._owning is not None:  # explicitly, because closing unlocks only when no fork has it open
                fcntl.flock(self._owning, fcntl.LOCK_UN)
            self._disown()
            self._connection.close()
        with self._looks:
            self._looking.close()

    def unlock_after_fork(self) -> None:
        """Reset the locks, whose threads do not exist in a fork, and the ownership, which stays with the parent."""
        self._lock, self._looks = threading.RLock(), threading.Lock()
        self.owners_turn = threading.Lock()
        """Lets the owner's threads deliver one after another."""
        self._disown()

    def _disown(self) -> None:
        if self._owning is not None:
            self._owning.close()
        self._owning = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._lock  # a fork gets another one
        if not lock.acquire(timeout=BUSY_S):
            raise sqlite3.OperationalError("other threads have been writing for too long")
        try:
            yield
        finally:
            lock.release()

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))  # other users must not read payloads
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # in WAL mode a lower level may lose the last transactions
        self._inode = os.stat(self._path).st_ino
        if _is_new(connection):  # making the tables waits for writers
            connection.executescript((resources.files(__package__) / "schema.sql").read_text("utf-8"))
        with self.looking() as look:  # now, because the file may be removed later, and both must see the same one
            look.execute("SELECT seq FROM jobs LIMIT 1")
        return connection

    def _connect_to_look(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=LOOK_S, isolation_level=None, check_same_thread=False)


class _OfThisProcess:
    """A connection, opened when first needed, and again in a fork."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._pid = 0
        self._connection: sqlite3.Connection | None = None
        self._not_ours: list[sqlite3.Connection] = []  # the parent's: neither used nor closed here

    def get(self) -> sqlite3.Connection:
        """The connection. Raises what `connect` does."""
        self._leave_to_parent()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection; it is opened again when needed."""
        self._leave_to_parent()
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _leave_to_parent(self) -> None:
        if self._pid != (pid := os.getpid()):
            if self._connection is not None:
                self._not_ours.append(self._connection)
            self._connection, self._pid = None, pid


FORMAT = 2
"""The format of `schema.sql`, as the file's user_version."""


def _is_new(connection: sqlite3.Connection) -> bool:
    """Whether the file has no tables yet. Raises: sqlite3.DatabaseError, if another version of wheelq has made them."""
    connection.execute("BEGIN")  # both answers at one moment: another process may be making the tables
    [(format,)] = connection.execute("PRAGMA user_version")
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    connection.execute("COMMIT")
    if tables and format != FORMAT:
        raise sqlite3.DatabaseError(
            f"it has format {format}, and this version of wheelq reads format {FORMAT}: "
            "deliver its jobs with the version that wrote it (`wheelq outbox PATH --deliver`), then remove the file"
        )
    return not tables


_files: weakref.WeakSet[File] = weakref.WeakSet()


def _unlock_all() -> None:
    for file in _files:
        file.unlock_after_fork()


os.register_at_fork(after_in_child=_unlock_all)
