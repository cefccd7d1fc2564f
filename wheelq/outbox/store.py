"""`Outbox`: the jobs in the file. Every method is one short transaction; threads, processes and forks may share it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wheelq.clock import Clock, SystemClock
from wheelq.errors import ConfigurationError, OutboxFull, Unavailable
from wheelq.job import OnDuplicate, Receipt
from wheelq.outbox.file import File
from wheelq.settings import OutboxSettings
from wheelq.words import counted

PackedJob = tuple[str, str, bytes]
"""A checked and packed job: id, due ("+ms" from the asking, or "ms" since the epoch, and its priority), record."""

PARCEL = 500
"""Most jobs delivered at a time."""
PRIORITIES = "hl"
OBSERVED_MS = 60_000  # how long what was learned of the server's clock stands against what took longer to learn


class Kept(NamedTuple):
    """One job in the outbox."""

    seq: int
    topic: str
    id: str
    due_ms: int
    priority: str
    """What stands behind its due time when it is scheduled: "h", "l", or nothing."""
    record: bytes
    """As it goes to the server: see `protocol.codec`."""
    partition_key: str | None
    on_duplicate: OnDuplicate

    @property
    def due(self) -> str:
        """Its due time, as the schedule script takes it."""
        return f"{self.due_ms}{self.priority}"


class Rejected(NamedTuple):
    """A job that the server refused for good."""

    topic: str
    id: str
    due_ms: int
    error: str
    rejected_ms: int


class Parcel(NamedTuple):
    """The jobs to deliver next: of one topic, in order, all to be treated alike when their id is taken."""

    topic: str
    on_duplicate: OnDuplicate
    jobs: list[Kept]


@dataclass(frozen=True, slots=True)
class OutboxInfo:
    """How much waits in an outbox."""

    jobs: int
    bytes: int
    """Of their packed payloads."""
    rejected: int
    oldest_kept_ms: int | None
    """When the oldest was kept, by the producer's clock; None when nothing waits."""
    topics: dict[str, int]
    """How many wait for each topic."""


class Outbox:
    """Jobs on disk, until the server has them."""

    def __init__(self, settings: OutboxSettings, clock: Clock | None = None) -> None:
        """Opens the file, and makes it where it does not exist. Raises: ConfigurationError."""
        self.path = Path(settings.path)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._file = File(self.path)
        self._offset_ms = 0  # the server's clock minus this machine's, at most
        self._took_ms = 0
        self._observed_ms = -OBSERVED_MS
        try:
            with self._file.transaction() as connection:
                connection.execute("SELECT 1 FROM jobs LIMIT 1").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"the outbox {self.path} cannot be used: {error}") from error

    # --- keeping ---------------------------------------------------------------------------------------------------

    def keep(
        self, topic: str, jobs: Sequence[tuple[PackedJob, str | None]], how: OnDuplicate, asked_ms: int
    ) -> list[Receipt]:
        """Take jobs, each with its partition key; they are on disk when this returns. One receipt each, in order.

        Their delays count from `asked_ms`, this machine's time when the caller asked: the server may have been tried
        for seconds since. Raises: OutboxFull and Unavailable, when none was taken.
        """
        now = self._clock.wall_ms()
        rows = [
            (topic, id, *self._due(due, asked_ms), record, partition_key, how, now)
            for (id, due, record), partition_key in jobs
        ]
        try:
            with self._file.transaction() as connection:
                self._check_room(connection, rows)
                connection.executemany(
                    "INSERT INTO jobs (topic, id, due_ms, priority, record, partition_key, on_duplicate, kept_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
        except sqlite3.Error as error:
            raise Unavailable(f"the server is away, and the outbox {self.path} cannot be written: {error}") from error
        return [Receipt(row[1], row[2], created=True, in_outbox=True) for row in rows]

    def observe(self, due: str, asked_ms: int, due_ms: int) -> None:
        """Learn the server's clock from a job scheduled at `asked_ms` (this machine's time) and due at `due_ms`.

        The server read its clock after it was asked, so the offset is at most what is kept here, and nothing is early
        by it. What an answer that came fast said is kept for a while: it is the more exact.
        """
        if not due.startswith("+"):
            return
        now_ms = self._clock.wall_ms()
        took_ms = now_ms - asked_ms
        if took_ms <= self._took_ms or now_ms >= self._observed_ms + OBSERVED_MS:
            self._offset_ms = due_ms - int(due.rstrip(PRIORITIES)) - asked_ms
            self._took_ms, self._observed_ms = took_ms, now_ms

    def _due(self, due: str, asked_ms: int) -> tuple[int, str]:
        """When it is due, and its priority."""
        digits = due.rstrip(PRIORITIES)
        since_ms = asked_ms + self._offset_ms if due.startswith("+") else 0
        return since_ms + int(digits), due[len(digits) :]

    def _check_room(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        jobs, size = connection.execute("SELECT jobs, bytes FROM held").fetchone()
        limits = self._settings
        if jobs + len(rows) > limits.max_jobs:
            told = f"{counted(jobs, 'job')}; its limit is {limits.max_jobs:,} (outbox.max_jobs)"
        elif size + sum(len(row[4]) for row in rows) > limits.max_bytes:
            told = f"{size:,} bytes; its limit is {limits.max_bytes:,} (outbox.max_bytes)"
        else:
            return
        raise OutboxFull(f"the server is away, and the outbox holds {told}")

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits. Costs a few microseconds."""
        with self._file.reading() as connection:
            return connection.execute("SELECT 1 FROM jobs LIMIT 1").fetchone() is None

    def holds(self, topic: str, id: str) -> bool:
        """Whether a job with this id waits here."""
        with self._file.reading() as connection:
            query = "SELECT 1 FROM jobs WHERE topic = ? AND id = ? LIMIT 1"
            return connection.execute(query, (topic, id)).fetchone() is not None

    # --- delivering ------------------------------------------------------------------------------------------------

    def parcels(self) -> list[Parcel]:
        """What to deliver next, one parcel for each topic; the topic that waits longest comes first."""
        with self._file.reading() as connection:
            topics = connection.execute("SELECT topic FROM jobs GROUP BY topic ORDER BY min(seq)").fetchall()
            return [self._parcel(connection, topic) for (topic,) in topics]

    def delivered(self, jobs: Sequence[Kept]) -> None:
        """Forget jobs that the server has."""
        with self._file.transaction() as connection:
            connection.executemany("DELETE FROM jobs WHERE seq = ?", [(job.seq,) for job in jobs])

    def reject(self, job: Kept, error: str) -> None:
        """Put a job aside that the server refuses for good."""
        row = (job.seq, job.topic, job.id, job.due_ms, job.record, error, self._clock.wall_ms())
        with self._file.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("DELETE FROM jobs WHERE seq = ?", (job.seq,))

    def try_to_deliver(self) -> bool:
        """Whether this outbox is the one from which is delivered, from now on and until `close`."""
        return self._file.try_to_own()

    @property
    def round_lock(self) -> threading.Lock:
        """Held while parcels are under way: whoever else is to deliver waits, and looks at what is left then."""
        return self._file.owners_turn

    # --- looking ---------------------------------------------------------------------------------------------------

    def info(self) -> OutboxInfo:
        """How much waits here."""
        with self._file.reading() as connection:
            jobs, size = connection.execute("SELECT jobs, bytes FROM held").fetchone()
            (rejected,) = connection.execute("SELECT count(*) FROM rejected").fetchone()
            oldest = connection.execute("SELECT kept_ms FROM jobs ORDER BY seq LIMIT 1").fetchone()
            topics = dict(connection.execute("SELECT topic, count(*) FROM jobs GROUP BY topic ORDER BY topic"))
            return OutboxInfo(jobs, size, rejected, oldest[0] if oldest else None, topics)

    def jobs(self, limit: int) -> list[Kept]:
        """The next jobs to be delivered, in order."""
        with self._file.reading() as connection:
            return self._kept(connection, "1 ORDER BY seq LIMIT ?", limit)

    def rejected(self, limit: int) -> list[Rejected]:
        """What was put aside, the latest first."""
        with self._file.reading() as connection:
            query = "SELECT topic, id, due_ms, error, rejected_ms FROM rejected ORDER BY rejected_ms DESC, seq LIMIT ?"
            return [Rejected(*row) for row in connection.execute(query, (limit,))]

    def close(self) -> None:
        """Close the file, and leave delivering to others."""
        self._file.close()

    def _parcel(self, connection: sqlite3.Connection, topic: str) -> Parcel:
        jobs = self._kept(connection, "topic = ? ORDER BY seq LIMIT ?", topic, PARCEL)
        first = jobs[0].on_duplicate
        alike = next((place for place, job in enumerate(jobs) if job.on_duplicate != first), len(jobs))
        # The same id twice in one parcel: the second comes in the next, so that each gets an answer of its own.
        seen: set[str] = set()
        for place, job in enumerate(jobs[:alike]):
            if job.id in seen:
                alike = place
                break
            seen.add(job.id)
        return Parcel(topic, first, jobs[:alike])

    def _kept(self, connection: sqlite3.Connection, rest: str, *arguments: object) -> list[Kept]:
        columns = "seq, topic, id, due_ms, priority, record, partition_key, on_duplicate"
        return [Kept(*row) for row in connection.execute(f"SELECT {columns} FROM jobs WHERE {rest}", arguments)]
