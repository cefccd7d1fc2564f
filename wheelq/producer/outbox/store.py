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
from wheelq.base.ids import make_tag
from wheelq.base.plural import counted
from wheelq.errors import ConfigurationError, OutboxFull, Unavailable
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.topic import Topic
from wheelq.producer.outbox.file import File
from wheelq.producer.outbox.kept import (
    PARCELS_MS,
    TAKEN,
    Asked,
    Kept,
    Parcel,
    Rejected,
    Sending,
    Settled,
    ToKeep,
    answered,
    due_at,
    is_relative,
    next_place,
)
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import Fixed
from wheelq.reminders import REMIND_S
from wheelq.settings import OutboxSettings

log = logging.getLogger(__name__)

PARCEL = 500
"""The most jobs of a topic that are delivered at a time."""
NOWHERE = (None, None, None, None)
NO_CALL = (None, None, None)
"""In place of an `Asked`: the due time needs no correction."""


@dataclass(frozen=True, slots=True)
class OutboxInfo:
    """The contents of an outbox, in numbers."""

    jobs: int
    bytes: int
    """The size of their packed payloads."""
    rejected: int
    """Jobs put aside, because the server refuses them."""
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
        self._places: dict[int, Fixed | None] = {}  # not yet written: by `seq`, where a job is being sent, if anywhere
        self._done: dict[tuple[str, int], bytes] = {}  # by shard: the tag of its last parcel, if it was not repeated
        self._not_here: dict[int, set[tuple[str, int]]] = {}  # by `seq`: terms, a shard without a live job of the id
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

    def keep(self, topic: str, jobs: Sequence[ToKeep], how: OnDuplicate, asked: Asked) -> list[Receipt]:
        """Keep jobs, each with its partition key and the call that took it to the server, if its outcome is unknown.

        They are on disk when this returns. The jobs of such a call come one after another. One receipt each, in order.
        Their delays count from when the caller `asked`, because the server may have been tried for seconds since.
        Raises: OutboxFull, Unavailable; then none was kept.
        """
        now = self._clock.wall_ms()
        asked_ms, call = self._asked_ms(asked)
        rows = []
        for (id, due, record), partition_key, fixed in jobs:
            due_ms, priority = due_at(due, asked_ms)
            counted_from = call if is_relative(due) else NO_CALL
            if is_relative(due) or self._server.is_set:
                record = codec.asked_at(record, asked_ms)
            rows.append(
                (topic, id, due_ms, priority, record, partition_key, how, now, *counted_from, *(fixed or NOWHERE))
            )
        try:
            if self._file.follow():
                self._forget()
            with self._file.transaction() as connection:
                self._check_room(connection, rows)
                connection.executemany(
                    "INSERT INTO jobs (topic, id, due_ms, priority, record, partition_key, on_duplicate, kept_ms,"
                    " asked_ms, asked_uptime, asked_boot_id, tag, shard, terms, turn_ms)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"the outbox {self.path} cannot be written: {error}") from error
        return [Receipt(row[1], row[2], True, in_outbox=True, topic=topic, life=codec.life_of(row[4])) for row in rows]

    def _asked_ms(self, asked: Asked) -> tuple[int, tuple[Any, ...]]:
        """Returns when the call was made, and what `Kept.dated_by` needs to correct that; `NO_CALL` if it is right.

        After the server's first answer, it is by the server's clock: steps of this machine's do no harm.
        """
        if not self._server.is_set:
            return asked.at_ms, asked
        asked_ms = asked.server_ms(self._server)
        return asked_ms, NO_CALL if self._server.is_well_known else asked._replace(at_ms=asked_ms)

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

    def topics(self) -> list[str]:
        """Returns the topics of the waiting jobs; the one that has waited longest comes first."""
        with self._file.reading() as connection:
            found = connection.execute("SELECT topic FROM jobs GROUP BY topic ORDER BY min(seq)").fetchall()
            return [topic for (topic,) in found]

    def fix(self, topic: str, placed: Topic) -> list[Parcel]:
        """Returns the topic's next parcels, one for each shard, after writing down which jobs are in which.

        A parcel without an answer comes again as it was. `placed` is the topic that places new ones. If the file cannot
        be written, this object remembers them. Returns none if this object does not deliver the file's jobs any more.
        """
        with self._file.reading() as connection:
            if not self._file.is_owned:
                return []
            jobs = self._next(connection, topic)
            parcels: dict[int, Parcel] = {}
            for job in jobs:
                if (place := job.place) is not None:
                    parcel = parcels.setdefault(
                        place.shard, Parcel(topic, job.on_duplicate, [], place, is_repeated=True)
                    )
                    if parcel.place.tag == place.tag:
                        parcel.jobs.append(job)
            in_flight, sent = frozenset(parcels), {job.id for job in jobs if job.place is not None}
            ids = set(sent)
            waiting = [job for job in jobs if job.place is None]
            for job in waiting:
                is_next = job.id in ids and (job.id in sent or not codec.is_debounced(job.record))
                if is_next or job.on_duplicate != waiting[0].on_duplicate:
                    break  # the second job of an id gets an answer of its own, after the first, unless it replaces it
                ids.add(job.id)
                shard, terms = next_place(job.partition_key or job.id, placed, self._not_here.get(job.seq, ()))
                if shard in in_flight or (shard in parcels and parcels[shard].place.terms != terms):
                    continue
                if shard not in parcels:
                    place, done = Fixed(make_tag(), shard, terms, PARCELS_MS), self._done.get((topic, shard), b"")
                    parcels[shard] = Parcel(topic, job.on_duplicate, [], place, done=done)
                parcels[shard].jobs.append(job)
                self._places[job.seq] = parcels[shard].place
            self.write()
        return list(parcels.values())

    def _next(self, connection: sqlite3.Connection, topic: str) -> list[Kept]:
        """Returns the first jobs of a topic, with all jobs of each call among them: a part would be another call."""
        found: list[Kept] = []
        tags: set[bytes] = set()
        for job in self._waiting(connection, "topic = ? ORDER BY seq", topic):
            tag = b"" if job.place is None else job.place.tag
            if len(found) >= PARCEL and tag not in tags:
                break
            found.append(job)
            tags.add(tag or b"none")
        return found

    def take_answers(self, sending: Sending) -> Settled:
        """Settle the parcels that were answered. The others stay as they are, to be sent again.

        All jobs of a parcel change in one transaction: a part of it would be another call under the same tag. Nothing
        is settled if this object was closed meanwhile: whoever delivers next repeats the parcels, and gets the answers.
        """
        delivered, is_moved, full = 0, False, dict[int, str]()
        done: dict[tuple[str, int], bytes] = {}
        with self._file.reading():
            if not self._file.is_owned:
                return Settled(0, {}, is_moved=False)
            for parcel, answer in zip(sending.parcels, sending.answers, strict=False):
                if answer is None:
                    continue
                shard = parcel.place.shard
                if not parcel.is_repeated:  # else its first call may still be on its way
                    done[parcel.topic, shard] = parcel.place.tag
                found = answered(parcel, answer)
                self._places.update((job.seq, None) for job in (*found.full, *found.elsewhere))
                full |= {job.seq: job.id for job in found.full}
                is_moved |= bool(found.elsewhere)
                if answer.terms_in_force is None and not parcel.is_repeated:  # else other terms may have been asked
                    for job in found.elsewhere:
                        self._not_here.setdefault(job.seq, set()).add((sending.placed.known_terms, shard))
                if found.refused:
                    log.warning("%s of topic %s put aside: %s", counted(len(found.refused), "job"), parcel.topic, TAKEN)
                self._settle((job for job, _ in found.taken), found.refused)
                delivered += len(found.taken)
            if self.write():
                self._done |= done
        return Settled(delivered, full, is_moved)

    def _settle(self, jobs: Iterable[Kept], refused: Mapping[int, str]) -> None:
        """Forget jobs that the server has, and set aside those whose `seq` is in `refused`, with the reason."""
        now = self._clock.wall_ms()
        for job in jobs:
            self._places.pop(job.seq, None)
            self._not_here.pop(job.seq, None)
            due_ms = job.dated_by(self._server).due_ms
            aside = (job.seq, job.topic, job.id, due_ms, job.record, refused.get(job.seq, ""), now)
            self._settled[job.seq] = aside if job.seq in refused else None

    def write(self) -> bool:
        """Write what was settled and what is being sent to the file, together. Returns whether the file is up to date.

        What cannot be written holds nevertheless, else jobs would be delivered again and again, and is written later.
        Only the object that delivers writes it.
        """
        if not self._file.is_owned:
            return False
        settled, places = dict(self._settled), dict(self._places)
        if not (settled or places):
            return True
        try:
            with self._file.transaction() as connection:
                rows = [(*(place or NOWHERE), seq) for seq, place in places.items()]
                connection.executemany("UPDATE jobs SET tag = ?, shard = ?, terms = ?, turn_ms = ? WHERE seq = ?", rows)
                aside = [row for row in settled.values() if row is not None]
                connection.executemany("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?, ?, ?)", aside)
                connection.executemany("DELETE FROM jobs WHERE seq = ?", [(seq,) for seq in settled])
        except (sqlite3.Error, OSError) as error:
            what = f"forget {counted(len(settled), 'job')} that the server has"
            if not settled:
                what = f"write down where {counted(len(places), 'job')} are being sent"
            level = logging.WARNING if self.has_to_say("") else logging.DEBUG
            log.log(level, "the outbox %s cannot %s: %s", self.path, what, error)
            return False
        self.takes("")
        for seq in settled:
            self._settled.pop(seq, None)  # a thread that delivers and one that closes may both have written it
        for seq in places:
            self._places.pop(seq, None)
        return True

    def try_to_deliver(self) -> bool:
        """Whether this object delivers the file's jobs, from now on and until `close`.

        When it begins, only the file counts: another object may have delivered since this one, or the one from which it
        was forked, last did.
        """
        with self._file.reading():
            if not self._file.is_owned:
                if not self._file.try_to_own():
                    return False
                self._forget()
            return True

    def _forget(self) -> None:
        """Drop what is remembered of the jobs in the file."""
        for memory in (self._settled, self._places, self._done, self._not_here):
            memory.clear()
        self._first = 0

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
        self.write()
        self._file.close()

    def _waiting(self, connection: sqlite3.Connection, rest: str, *arguments: object) -> Iterator[Kept]:
        boot_id = self._clock.boot_id()
        columns = "seq, topic, id, due_ms, priority, record, partition_key, on_duplicate"
        call, place = "asked_ms, asked_uptime, asked_boot_id", "tag, shard, terms, turn_ms"
        for row in connection.execute(f"SELECT {columns}, {call}, {place} FROM jobs WHERE {rest}", arguments):
            if row[0] not in self._settled:
                asked = Asked(*row[8:11])
                is_of_this_boot = asked.boot_id is not None and asked.boot_id == boot_id  # else its uptime says nothing
                written = None if row[11] is None else Fixed(*row[11:])
                fixed = self._places.get(row[0], written)
                yield Kept._make((*row[:8], asked if is_of_this_boot else None, fixed))
