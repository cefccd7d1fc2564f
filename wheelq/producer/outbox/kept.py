"""What an outbox keeps: the values that its parts pass to each other."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.topic import Topic
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import Fixed, Placed

PackedJob = tuple[str, str, bytes]
"""A checked and packed job: id, due ("+ms" from the call, or "ms" since the epoch, and its priority), record."""

PRIORITIES = "hl"
TAKEN = "a live job had this id when it was delivered"


class Asked(NamedTuple):
    """When a job was scheduled."""

    at_ms: int
    """By this machine's clock, which may be wrong, and may be stepped; by the server's, if that was roughly known."""
    uptime: float
    boot_id: str | None = None
    """The boot of the machine to which `uptime` belongs; None if that is not known."""

    @classmethod
    def now(cls, clock: Clock) -> Self:
        """Now."""
        return cls(clock.wall_ms(), clock.uptime(), clock.boot_id())

    def server_ms(self, server: ServerClock) -> int:
        """Returns the latest possible server time of the call, so that no job is early. `server` must have a sample."""
        return math.ceil(server.latest_at(self.uptime))


PARCELS_MS = 43_200_000
"""How long the answer to a parcel is kept at least: half a day, and a day at most."""
ToKeep = tuple[PackedJob, str | None, Fixed | None]
"""A job to keep, its partition key, and the call that took it to the server, if the outcome of that is unknown."""


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
    asked: Asked | None = None
    """The call from which `due_ms` counts, until the server's clock is well known; else None."""
    place: Fixed | None = None
    """Where it is being sent; None: not yet."""

    def dated_by(self, server: ServerClock) -> Kept:
        """Returns the job with its due time by the server's clock; unchanged if `server` has no sample yet."""
        if self.asked is None or not server.is_set:
            return self
        correction_ms = self.asked.server_ms(server) - self.asked.at_ms
        record = codec.asked_at(self.record, self.asked.server_ms(server))
        return self._replace(due_ms=self.due_ms + correction_ms, record=record, asked=None)

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
    """Jobs that one call takes to one shard, in order, all with the same `on_duplicate`."""

    topic: str
    on_duplicate: OnDuplicate
    jobs: list[Kept]
    place: Fixed
    is_repeated: bool = False
    """Whether it may have been sent before."""
    done: bytes = b""
    """The tag of the shard's last parcel, which will not be sent again."""


@dataclass(slots=True)
class Sending:
    """The parcels of a topic that are in flight, one for each shard, and their answers."""

    placed: Topic
    """The topic that placed the new ones."""
    parcels: list[Parcel]
    answers: list[Placed | None] = field(default_factory=list)
    """In order, as far as they are known; None: the call was refused."""
    is_answered: bool = False
    """Whether any was answered, also if the answers are of no use, because the topic could not be looked after."""


class JobsOfAnswer(NamedTuple):
    """What the answer to a parcel says of its jobs."""

    taken: list[tuple[Kept, Receipt]]
    full: list[Kept]
    """The topic has no room for them."""
    elsewhere: list[Kept]
    """They have to be sent to another shard."""
    refused: dict[int, str]
    """By `seq`, the taken ones that the server has refused for good, and why."""


def answered(parcel: Parcel, answer: Placed) -> JobsOfAnswer:
    """Sorts the jobs of a parcel by the server's answer."""
    found = JobsOfAnswer([], [], [], {})
    receipts = answer.receipts or [None] * len(parcel.jobs)
    for n, (job, receipt) in enumerate(zip(parcel.jobs, receipts, strict=True)):
        if receipt is None:
            (found.full if n in answer.full else found.elsewhere).append(job)
            continue
        found.taken.append((job, receipt))
        if parcel.on_duplicate == "raise" and not receipt.created:
            found.refused[job.seq] = TAKEN
    return found


def next_place(key: str, placed: Topic, asked: Collection[tuple[str, int]] = ()) -> tuple[int, str]:
    """Returns the shard to ask next for the job with this partition key, else id, and the terms to send.

    Those come first where former numbers of shards may have placed a job with its id, unless they were `asked` (terms,
    shard).
    """
    *former, last = placed.places(key)[::-1]
    left = [shard for shard in former if (placed.known_terms, shard) not in asked]
    return (left[0], "") if left else (last, placed.known_terms)


class Settled(NamedTuple):
    """What became of the parcels in flight."""

    delivered: int
    full: dict[int, str]
    """The ids of jobs for which the topic has no room."""
    is_moved: bool
    """Whether jobs have to be sent to another shard."""


def is_relative(due: str) -> bool:
    """Whether a due time counts from the call."""
    return due.startswith("+")


def due_at(due: str, asked_ms: int) -> tuple[int, str]:
    """Returns the due time of a job scheduled at the server's time `asked_ms`, and its priority."""
    digits = due.rstrip(PRIORITIES)
    since_ms = asked_ms if is_relative(due) else 0
    return since_ms + int(digits), due[len(digits) :]
