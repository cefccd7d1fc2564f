"""`Outbox`: the jobs in the file. Every method is one short transaction; threads, processes and forks may share it.

`File` is the SQLite file beneath it, which one of its users may own. SQLite forbids the use of a connection after a
fork, so each process opens its own when it first needs one. The owner holds a lock on a second file; the lock ends with
its process and is released in a fork. It is a `flock`, because a `lockf` belongs to the whole process: two clients of
one process must not both own the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import IO, Any

from wheelq.base.clock import Clock, ServerClock, SystemClock
from wheelq.base.plural import counted
from wheelq.errors import ConfigurationError, OutboxFull, Unavailable
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.producer.outbox.kept import Asked, Kept, PackedJob, Parcel, Rejected, due_at, is_relative
from wheelq.reminders import REMIND_S
from wheelq.settings import OutboxSettings

log = logging.getLogger(__name__)

PARCEL = 500
"""The most jobs delivered at a time."""
NO_CALL = (None, None, None)
"""In place of an `Asked`: the due time needs no correction."""


@dataclass(frozen=True, slots=True)
class OutboxInfo:
    """The contents of an outbox, in numbers."""

    jobs: int
    bytes: int
    """The size of their packed payloads."""
    rejected: int
    oldest_kept_ms: int | None
    """When the oldest was kept, by the producer's clock; None if it is empty."""
    topics: dict[str, int]
    """How many jobs wait for each topic."""


class Outbox:
    """Jobs on disk, until the server has them."""

    def __init__(self, settings: OutboxSettings, clock: Clock | None = None, server: ServerClock | None = None) -> None:
        """Opens the file, creating it if it is missing. Raises: ConfigurationError.

        `server` estimates the server's clock by this machine's `uptime`, once it has an answer.
        """
        self.path = Path(settings.path)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._said: dict[str, float] = {}  # by topic: when the refusal of its jobs was last logged
        self._server = server or ServerClock(self._clock, self._clock.uptime)
        self._file = File(self.path)
        self._settled: dict[int, tuple[Any, ...] | None] = {}  # not yet written: by `seq`, the row of a refused job
        self._first = 0  # nothing waits below this `seq`
        try:
            self._file.check()
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"the outbox {self.path} cannot be used: {error}") from error

    def has_to_say(self, topic: str) -> bool:
        """Whether to log that the server refuses this topic's jobs: at first, and then once a minute.

        "" stands for the file, which cannot be written.
        """
        now = self._clock.monotonic()
        if now < self._said.get(topic, float("-inf")) + REMIND_S:
            return False
        self._said[topic] = now
        return True

    def takes(self, topic: str) -> None:
        """Record that the server accepts this topic's jobs, or that the file ("") can be written."""
        self._said.pop(topic, None)

    # --- keeping ---------------------------------------------------------------------------------------------------

    def keep(
        self, topic: str, jobs: Sequence[tuple[PackedJob, str | None]], how: OnDuplicate, asked: Asked
    ) -> list[Receipt]:
        """Keep jobs, each with its partition key; they are on disk when this returns. One receipt each, in order.

        Their delays count from when the caller `asked`, because the server may have been tried for seconds since.
        Raises: OutboxFull, Unavailable; then none was kept.
        """
        now = self._clock.wall_ms()
        asked_ms, call = self._asked_ms(asked)
        rows = []
        for (id, due, record), partition_key in jobs:
            due_ms, priority = due_at(due, asked_ms)
            counted_from = call if is_relative(due) else NO_CALL
            rows.append((topic, id, due_ms, priority, record, partition_key, how, now, *counted_from))
        try:
            if self._file.follow():
                self._first, self._settled = 0, {}
            with self._file.transaction() as connection:
                self._check_room(connection, rows)
                connection.executemany(
                    "INSERT INTO jobs (topic, id, due_ms, priority, record, partition_key, on_duplicate, kept_ms,"
                    " asked_ms, asked_uptime, asked_boot_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"the outbox {self.path} cannot be written: {error}") from error
        return [Receipt(row[1], row[2], created=True, in_outbox=True, topic=topic) for row in rows]

    def _asked_ms(self, asked: Asked) -> tuple[int, tuple[Any, ...]]:
        """Returns when the call was made, and what `Kept.dated_by` needs if that is only by this machine's clock.

        After the server's first answer, it is by the server's clock: steps of this machine's do no harm.
        """
        if self._server.is_set:
            return asked.server_ms(self._server), NO_CALL
        return asked.wall_ms, asked

    def _check_room(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        jobs, size = connection.execute("SELECT jobs, bytes FROM held").fetchone()
        limits = self._settings
        if jobs + len(rows) > limits.max_jobs:
            held = f"{counted(jobs, 'job')}; its limit is {limits.max_jobs:,} (outbox.max_jobs)"
        elif size + sum(len(row[4]) for row in rows) > limits.max_bytes:
            held = f"{size:,} bytes; its limit is {limits.max_bytes:,} (outbox.max_bytes)"
        else:
            return
        raise OutboxFull(f"the outbox holds {held}")

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits. Takes a few microseconds. A file that cannot be read counts as empty."""
        try:
            with self._file.looking() as connection:
                rows = connection.execute("SELECT seq FROM jobs WHERE seq >= ? ORDER BY seq", (self._first,))
                for (seq,) in rows:
                    if seq not in self._settled:
                        self._first = seq
                        return False
                return True
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode != sqlite3.SQLITE_BUSY  # it may not be empty
        except (sqlite3.Error, OSError):
            return True

    def holds(self, topic: str, id: str) -> bool:
        """Whether a job with this id waits here. Raises: Unavailable, if the file cannot be read."""
        try:
            with self._file.looking() as connection:
                rows = connection.execute("SELECT seq FROM jobs WHERE topic = ? AND id = ?", (topic, id))
                return any(seq not in self._settled for (seq,) in rows)
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"the outbox {self.path} cannot be read, and may hold job {id!r}: {error}") from error

    # --- delivering ------------------------------------------------------------------------------------------------

    def parcels(self) -> list[Parcel]:
        """Returns the next parcel of each topic; the topic that has waited longest comes first."""
        with self._file.reading() as connection:
            topics = connection.execute("SELECT topic FROM jobs GROUP BY topic ORDER BY min(seq)").fetchall()
            parcels = [self._parcel(connection, topic) for (topic,) in topics]
            return [parcel for parcel in parcels if parcel.jobs]

    def settle(self, jobs: Iterable[Kept], refused: Mapping[int, str]) -> None:
        """Forget jobs that the server has, and set aside those whose `seq` is in `refused`, with the reason.

        They count as settled even if the file cannot be written; else they would be delivered again and again.
        """
        now = self._clock.wall_ms()
        for job in jobs:
            due_ms = job.dated_by(self._server).due_ms
            aside = (job.seq, job.topic, job.id, due_ms, job.record, refused.get(job.seq, ""), now)
            self._settled[job.seq] = aside if job.seq in refused else None
        self.write_settled()

    def write_settled(self) -> None:
        """Write settled jobs to the file. If it cannot be written, this is repeated later."""
        if not (settled := dict(self._settled)):
            return
        try:
            with self._file.transaction() as connection:
                aside = [row for row in settled.values() if row is not None]
                connection.executemany("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?, ?, ?)", aside)
                connection.executemany("DELETE FROM jobs WHERE seq = ?", [(seq,) for seq in settled])
        except (sqlite3.Error, OSError) as error:
            jobs = counted(len(settled), "job")
            level = logging.WARNING if self.has_to_say("") else logging.DEBUG
            log.log(level, "the outbox %s cannot forget %s that the server has: %s", self.path, jobs, error)
            return
        self.takes("")
        for seq in settled:
            self._settled.pop(seq, None)  # a thread that delivers and one that closes may both have written it

    def try_to_deliver(self) -> bool:
        """Whether this object delivers the file's jobs, from now on and until `close`."""
        return self._file.try_to_own()

    @property
    def round_lock(self) -> threading.Lock:
        """Held while parcels are in flight: other deliveries wait, and then read what is left."""
        return self._file.owners_turn

    # --- looking ---------------------------------------------------------------------------------------------------

    def info(self) -> OutboxInfo:
        """Returns how many jobs wait here."""
        with self._file.reading() as connection:
            jobs, size = connection.execute("SELECT jobs, bytes FROM held").fetchone()
            (rejected,) = connection.execute("SELECT count(*) FROM rejected").fetchone()
            oldest = connection.execute("SELECT kept_ms FROM jobs ORDER BY seq LIMIT 1").fetchone()
            topics = dict(connection.execute("SELECT topic, count(*) FROM jobs GROUP BY topic ORDER BY topic"))
            return OutboxInfo(jobs, size, rejected, oldest[0] if oldest else None, topics)

    def jobs(self, limit: int) -> list[Kept]:
        """Returns the next jobs to be delivered, in order."""
        with self._file.reading() as connection:
            return list(islice(self._waiting(connection, "1 ORDER BY seq"), limit))

    def rejected(self, limit: int) -> list[Rejected]:
        """Returns the jobs that were set aside, latest first."""
        with self._file.reading() as connection:
            query = "SELECT topic, id, due_ms, error, rejected_ms FROM rejected ORDER BY rejected_ms DESC, seq LIMIT ?"
            return [Rejected(*row) for row in connection.execute(query, (limit,))]

    def close(self) -> None:
        """Close the file and leave delivery to other processes."""
        self.write_settled()
        self._file.close()

    def _parcel(self, connection: sqlite3.Connection, topic: str) -> Parcel:
        jobs = list(islice(self._waiting(connection, "topic = ? ORDER BY seq", topic), PARCEL))
        first = jobs[0].on_duplicate if jobs else "keep"
        alike = next((place for place, job in enumerate(jobs) if job.on_duplicate != first), len(jobs))
        # If an id comes twice, the second goes into the next parcel, so that each gets its own answer.
        seen: set[str] = set()
        for place, job in enumerate(jobs[:alike]):
            if job.id in seen:
                alike = place
                break
            seen.add(job.id)
        return Parcel(topic, first, jobs[:alike])

    def _waiting(self, connection: sqlite3.Connection, rest: str, *arguments: object) -> Iterator[Kept]:
        boot_id = self._clock.boot_id()
        columns = "seq, topic, id, due_ms, priority, record, partition_key, on_duplicate"
        call = "asked_ms, asked_uptime, asked_boot_id"
        for row in connection.execute(f"SELECT {columns}, {call} FROM jobs WHERE {rest}", arguments):
            if row[0] not in self._settled:
                asked = Asked(*row[8:])
                is_of_this_boot = asked.boot_id is not None and asked.boot_id == boot_id  # else its uptime says nothing
                yield Kept._make((*row[:8], asked if is_of_this_boot else None))


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
        if not _is_complete(connection):  # completing the schema waits for writers
            connection.executescript((resources.files(__package__) / "schema.sql").read_text())
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


def _is_complete(connection: sqlite3.Connection) -> bool:
    """Whether the file has the last part of the schema."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'one_less'").fetchone() is not None


_files: weakref.WeakSet[File] = weakref.WeakSet()


def _unlock_all() -> None:
    for file in _files:
        file.unlock_after_fork()


os.register_at_fork(after_in_child=_unlock_all)
