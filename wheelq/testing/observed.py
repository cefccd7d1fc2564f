"""The waiting jobs and handler runs that a test sees."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from wheelq.errors import InvalidInput
from wheelq.model.job import Job, Payload, from_ms
from wheelq.model.task import TaskJob
from wheelq.protocol import codec


class Anything:
    """Equal to every payload: stands for a payload that was not given."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


ANYTHING = Anything()


def as_sent(payload: Payload) -> Payload:
    """Returns a payload as a job holds it: models, dates and the arguments of a task's job are converted."""
    if isinstance(payload, TaskJob):
        payload = payload.arguments
    try:
        return codec.decode(codec.encode(payload, None, sys.maxsize)).payload
    except InvalidInput:  # it holds something that only compares, such as pytest.approx
        return payload


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for its due time."""

    topic: str
    id: str
    payload: Payload
    headers: Mapping[str, str]
    due_ms: int
    due_in: float
    """Seconds from now."""
    attempt: int = 1
    """The number of the run it waits for; more than 1 for a retry."""
    group: str | None = None
    """The group in which it is retried; None: it has not run yet, and will run in every group."""

    @property
    def due(self) -> datetime:
        """When it is due, as an aware datetime in UTC."""
        return from_ms(self.due_ms)

    def __str__(self) -> str:
        retry = f", attempt {self.attempt} in group {self.group}" if self.group is not None else ""
        return (
            f"{self.topic} {self.id!r} due in {self.due_in:g} s ({self.due:%Y-%m-%d %H:%M:%S}){retry}: {self.payload!r}"
        )


@dataclass(slots=True)
class Run:
    """One run of a handler for one job."""

    job: Job
    group: str
    at_ms: int
    """When it began, in milliseconds since the Unix epoch."""
    error: BaseException | None = None
    """The error of a failed run."""

    @property
    def at(self) -> datetime:
        """When it ran, as an aware datetime in UTC."""
        return from_ms(self.at_ms)

    def __str__(self) -> str:
        failed = "" if self.error is None else f", failed: {self.error!r}"
        attempt = f", attempt {self.job.attempt}" if self.job.attempt > 1 else ""
        where = f"{self.at:%Y-%m-%d %H:%M:%S} in group {self.group}"
        return f"{self.job.topic} {self.job.id!r} at {where}{attempt}{failed}: {self.job.payload!r}"
