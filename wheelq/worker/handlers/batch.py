"""Batch handlers: how a topic's deliveries are gathered, and the outcome of each job in a batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wheelq.base.plural import counted
from wheelq.errors import BatchFailed, InvalidInput
from wheelq.model.job import Job

MAX_SIZE_LIMIT = 5_000
"""The largest batch: one worker renews all its jobs and settles them together, so more gain nothing."""


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """How a topic's deliveries are gathered."""

    max_size: int
    """The most jobs in one list."""
    max_wait: float
    """How many seconds the first job may wait for others."""
    concurrency: int
    """How many batches run at the same time."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_size <= MAX_SIZE_LIMIT:
            raise InvalidInput("max_size", f"must be 1 to {MAX_SIZE_LIMIT:,}, not {self.max_size!r}")
        if not 0 <= self.max_wait <= 3600:
            raise InvalidInput("max_wait", f"must be 0 to 3,600 seconds, not {self.max_wait!r}")
        if self.concurrency < 1:
            raise InvalidInput("concurrency", f"must be at least 1, not {self.concurrency!r}")


def outcomes(result: object, jobs: Sequence[Job]) -> list[BaseException | None]:
    """Returns for each job its error, or None, from the return value of a batch handler.

    A list or tuple as long as the batch is read like that of `asyncio.gather(..., return_exceptions=True)`: an error in
    it is the failure of the job with the same index. Any other value means that all succeeded. Raises: InvalidInput for
    a list with errors of another length, because their jobs are unknown.
    """
    if not isinstance(result, (list, tuple)) or not any(isinstance(item, BaseException) for item in result):
        return [None] * len(jobs)
    if len(result) != len(jobs):
        raise InvalidInput(
            "result", f"{counted(len(result), 'result')} with errors among them, for {counted(len(jobs), 'job')}"
        )
    return [item if isinstance(item, BaseException) else None for item in result]


def results_of(result: object, jobs: Sequence[Job]) -> Sequence[object]:
    """Returns the result to keep for each job: its item of a list or tuple as long as the batch, else None."""
    return result if isinstance(result, (list, tuple)) and len(result) == len(jobs) else [None] * len(jobs)


def outcomes_of_failure(error: BaseException, jobs: Sequence[Job]) -> list[BaseException | None]:
    """Returns for each job its error, or None, from the exception of a batch handler; by default all failed."""
    if not isinstance(error, BatchFailed):
        return [error] * len(jobs)
    failures: Mapping[str, BaseException] = error.failures
    if not failures.keys() <= {job.id for job in jobs}:
        return [error] * len(jobs)
    return [failures.get(job.id) for job in jobs]
