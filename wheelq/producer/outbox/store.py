"""`Outbox`: the jobs in the file. Every method is one short transaction; threads, processes and forks may share it."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from wheelq.base.clock import Clock, ServerClock, SystemClock
from wheelq.base.plural import counted
from wheelq.errors import ConfigurationError, OutboxFull, Unavailable
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.producer.outbox.file import File
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
