"""The batches of a schedule call: up to 500 jobs of one shard each, which is what one script call takes.

The first two have 250 jobs: so the server starts early, and works on the first half of 500 jobs while the second is
packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from wheelq.model.job import JobSpec
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.producer import NewJob

FIRST_SIZE = producer.BATCH // 2
FIRST_ONES = 2


class Item(NamedTuple):
    """One job of a submission."""

    place: int
    spec: JobSpec
    job: NewJob
    shards: tuple[int, ...]
    """The shards still to ask; the last one creates the job."""


@dataclass(slots=True, eq=False)
class Batch:
    """Up to 500 jobs with the same remaining shards, in columns, which are made faster than a tuple for each job."""

    shards: tuple[int, ...]
    places: list[int] = field(default_factory=list)
    specs: list[JobSpec] = field(default_factory=list)
    jobs: list[NewJob] = field(default_factory=list)
    terms: str | None = None
    """The topic's terms that placed them; None: write only if a live job has the id."""
    sent_at: float = 0.0
    """When its call was last made, as an instant of the server clock."""
    is_repeated: bool = False
    """Whether it was sent before, with an unknown outcome."""

    def add(self, item: Item) -> None:
        """Take a job."""
        self.places.append(item.place)
        self.specs.append(item.spec)
        self.jobs.append(item.job)

    def items(self) -> Iterator[Item]:
        """Yields its jobs."""
        return map(Item, self.places, self.specs, self.jobs, repeat(self.shards))


class Filling:
    """The batches that are being filled, one for each set of shards still to ask."""

    def __init__(self) -> None:
        self._batches: dict[tuple[int, ...], Batch] = {}
        self._taken = 0

    @property
    def size(self) -> int:
        """How many jobs the next full batch has."""
        return FIRST_SIZE if self._taken < FIRST_ONES else producer.BATCH

    def batch(self, shards: tuple[int, ...]) -> Batch:
        """Returns the batch for these shards; a new one, if there is none."""
        return self._batches.get(shards) or self._batches.setdefault(shards, Batch(shards))

    def is_full_with(self, item: Item) -> bool:
        """Put a job in its batch; returns whether that is full now."""
        batch = self.batch(item.shards)
        batch.add(item)
        return len(batch.jobs) >= self.size

    def take(self, shards: tuple[int, ...]) -> Batch:
        """Returns a batch to send, which is not filled any more."""
        self._taken += 1
        return self._batches.pop(shards)

    def not_empty(self) -> list[tuple[int, ...]]:
        """Returns the shards for which there are jobs."""
        return [shards for shards, batch in self._batches.items() if batch.jobs]

    def items(self) -> Iterator[Item]:
        """Yields all jobs."""
        return (item for batch in self._batches.values() for item in batch.items())

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
