"""The stored form of a recurring job: one line of state, for scripts; then the record of its jobs; then its rule.

    k3x9f2ab 2026-11-21T01:00:00Z 2026-11-22T01:00:00Z 14\\n \\x01\\x01… {"cron": "0 2 * * *", "tz": "Europe/Berlin"}
    ▲ revision ▲ last made        ▲ next, to be made   ▲ bytes of the record, which each occurrence gets

Every change by a user draws a new revision, and within a revision `last made` only moves forward. So no state ever
recurs, and a caller that passes the state it has read learns whether it still holds. The id of an occurrence is the
name, "@" and its moment. "-" means none; `next` is also "-" while the job is paused, which the rule's map records.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Self, get_args

import msgpack

from wheelq.model.job import Priority
from wheelq.model.recurring import RecurringInfo, Rule
from wheelq.protocol import codec, registry_codec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE = "-"
_OCCURRENCE = re.compile(r"@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z$")
_PAUSED, _PRIORITY = "paused", "priority"


@dataclass(frozen=True, slots=True)
class RecurringState:
    """The line that changes with every occurrence."""

    revision: str
    last_ms: int | None
    next_ms: int | None
    record_bytes: int

    def made(self, last_ms: int | None, next_ms: int | None) -> Self:
        """The state after occurrences up to `last_ms` were made; None: no new ones."""
        return replace(self, last_ms=self.last_ms if last_ms is None else last_ms, next_ms=next_ms)

    def __str__(self) -> str:
        return f"{self.revision} {_stamp(self.last_ms)} {_stamp(self.next_ms)} {self.record_bytes}"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Parses a line of state. Raises: ValueError."""
        revision, last, following, record_bytes = line.decode().split(" ")
        return cls(revision, _moment_ms(last), _moment_ms(following), int(record_bytes))


@dataclass(frozen=True, slots=True)
class StoredRecurring:
    """A recurring job as it is stored."""

    state: RecurringState
    record: bytes
    rule: Rule
    priority: Priority = "normal"
    is_paused: bool = False

    @classmethod
    def new(
        cls,
        rule: Rule,
        record: bytes,
        last_ms: int | None,
        next_ms: int | None,
        priority: Priority = "normal",
        is_paused: bool = False,
    ) -> Self:
        """Returns a new recurring job, with a new revision."""
        return cls(
            RecurringState(secrets.token_hex(8), last_ms, next_ms, len(record)), record, rule, priority, is_paused
        )

    def changed(self, last_ms: int | None, next_ms: int | None, *, is_paused: bool) -> Self:
        """Returns it with another state and a new revision."""
        return self.new(self.rule, self.record, last_ms, next_ms, self.priority, is_paused)

    def pack(self) -> bytes:
        """Returns the bytes to store."""
        terms = self.rule.to_map()
        if self.priority != "normal":
            terms[_PRIORITY] = self.priority
        if self.is_paused:
            terms[_PAUSED] = True
        packed: bytes = msgpack.packb(terms)
        return b"".join((str(self.state).encode(), b"\n", self.record, packed))

    @classmethod
    def unpack(cls, stored: bytes) -> Self:
        """Parses what `pack` returned. Raises: ValueError."""
        line, _, rest = stored.partition(b"\n")
        state = RecurringState.read(line)
        return cls(state, rest[: state.record_bytes], *read_terms(rest[state.record_bytes :]))

    def says(self, rule: Rule, record: bytes, priority: Priority) -> bool:
        """Whether rule, record and priority are the same as these."""
        return (self.rule, self.record, self.priority) == (rule, record, priority)

    def next_due_ms(self, name: str, now_ms: int) -> int | None:
        """When the next occurrence is due: one already made that still lies ahead, or the next to make."""
        if self.is_paused:
            return None
        last_ms = self.state.last_ms
        if last_ms is not None and self.is_ahead(name, now_ms):
            return self.rule.due_ms(name, last_ms)
        return self.look_ms(name)

    def is_ahead(self, name: str, now_ms: int) -> bool:
        """Whether the last occurrence that was made is not due yet."""
        last_ms = self.state.last_ms
        return last_ms is not None and self.rule.due_ms(name, last_ms) > now_ms

    def look_ms(self, name: str) -> int | None:
        """When the next occurrence to make is due; None if there is none."""
        return None if self.state.next_ms is None else self.rule.due_ms(name, self.state.next_ms)

    def info(self, topic: str, name: str, now_ms: int) -> RecurringInfo:
        """Returns the recurring job as callers see it."""
        record, last = codec.decode(self.record), self.state.last_ms
        return RecurringInfo(
            topic,
            name,
            self.rule,
            record.payload,
            record.headers,
            self.priority,
            self.is_paused,
            self.next_due_ms(name, now_ms),
            None if last is None else self.rule.due_ms(name, last),
            record.max_attempts,
            record.timeout,
        )


def read_terms(packed: bytes) -> tuple[Rule, Priority, bool]:
    """The rule, the priority, and whether it is paused. Raises: ValueError."""
    terms = registry_codec.decode_map(packed)
    priority, is_paused = terms.get(_PRIORITY, "normal"), terms.get(_PAUSED, False)
    if priority not in get_args(Priority) or type(is_paused) is not bool:
        raise ValueError("the priority or the pause of a recurring job is not valid")
    return Rule.from_map(terms), priority, is_paused


def occurrence_id(name: str, occurrence_ms: int) -> str:
    """The job id of an occurrence."""
    return f"{name}@{_stamp(occurrence_ms)}"


def is_occurrence(id: str) -> bool:
    """Whether a job's id looks like that of an occurrence."""
    return _OCCURRENCE.search(id) is not None


def _stamp(ms: int | None) -> str:
    if ms is None:
        return _NONE
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def _moment_ms(stamp: str) -> int | None:
    if stamp == _NONE:
        return None
    moment = datetime.fromisoformat(stamp)
    if moment.tzinfo is None:
        raise ValueError(f"{stamp!r} has no time zone")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
