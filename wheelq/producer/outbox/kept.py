"""What an outbox keeps: the values that its parts pass to each other."""

from __future__ import annotations

from typing import NamedTuple, Self

from wheelq.base.clock import Clock
from wheelq.model.job import OnDuplicate

PackedJob = tuple[str, str, bytes]
"""A checked and packed job: id, due ("+ms" from the call, or "ms" since the epoch, and its priority), record."""

PRIORITIES = "hl"


class Asked(NamedTuple):
    """When a job was scheduled."""

    wall_ms: int
    """By this machine's clock, which may be wrong, and may be stepped."""
    uptime: float

    @classmethod
    def now(cls, clock: Clock) -> Self:
        """Now."""
        return cls(clock.wall_ms(), clock.uptime())


class Kept(NamedTuple):
    """One job in the outbox."""

    seq: int
    topic: str
    id: str
    due_ms: int
    priority: str
    """The suffix of its due time in the schedule call: "h", "l", or nothing."""
    record: bytes
    """The record as sent to the server: see `protocol.codec`."""
    partition_key: str | None
    on_duplicate: OnDuplicate

    @property
    def due(self) -> str:
        """Its due time, in the form of the schedule script."""
        return f"{self.due_ms}{self.priority}"


class Rejected(NamedTuple):
    """A job that the server refused for good."""

    topic: str
    id: str
    due_ms: int
    error: str
    rejected_ms: int


class Parcel(NamedTuple):
    """The next jobs of one topic, in order, all with the same `on_duplicate`."""

    topic: str
    on_duplicate: OnDuplicate
    jobs: list[Kept]


def due_at(due: str, asked_ms: int) -> tuple[int, str]:
    """Returns the due time of a job scheduled at the server's time `asked_ms`, and its priority."""
    digits = due.rstrip(PRIORITIES)
    since_ms = asked_ms if due.startswith("+") else 0
    return since_ms + int(digits), due[len(digits) :]
