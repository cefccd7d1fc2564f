"""Batch handlers: deliveries of one topic are gathered and given to their handler as a list.

    reader ──▶ gathered ▓▓▓▓▓░░░ ──full, or the first has waited max_wait──▶ pool ──▶ handler(jobs) ──▶ an outcome each

`Batcher` stands towards readers and recovery where the pool stands for single deliveries: it tells how many more would
fit the batch that is being gathered, and none while as many batches run as may. So a batch is never starved by single
jobs, and nothing waits here behind a running batch while another worker is free. A read that waits in the server does
so no longer than the batch begun. What waits here is held, and so renewed, like everything else.

What a handler says becomes one outcome per job in `outcomes`, which is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wheelq import logs
from wheelq.clock import Clock
from wheelq.errors import BatchFailed, InvalidInput
from wheelq.job import Job
from wheelq.words import counted
from wheelq.worker.held import Delivery
from wheelq.worker.pool import Pool

MAX_SIZE_LIMIT = 5_000
"""All jobs of a batch are renewed by one worker and settled together; more gain nothing."""

SETTLED_TOGETHER = 32
"""Failed jobs of a batch that are settled at the same time; each takes a call."""


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """How a topic's deliveries are gathered."""

    max_size: int
    """Most jobs in one list."""
    max_wait: float
    """Seconds that the first of them may wait for others."""
    concurrency: int
    """How many batches run at the same time."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_size <= MAX_SIZE_LIMIT:
            raise InvalidInput("max_size", f"must be 1 to {MAX_SIZE_LIMIT:,}, not {self.max_size!r}")
        if not 0 <= self.max_wait <= 3600:
            raise InvalidInput("max_wait", f"must be 0 to 3,600 seconds, not {self.max_wait!r}")
        if self.concurrency < 1:
            raise InvalidInput("concurrency", f"must be at least 1, not {self.concurrency!r}")


class Batcher:
    """Gathers the deliveries of one topic, and runs the batches."""

    def __init__(
        self, terms: BatchTerms, run: Callable[[list[Delivery]], Coroutine[Any, Any, None]], clock: Clock
    ) -> None:
        """`run` settles the deliveries of one batch and does not raise."""
        self._terms = terms
        self._run = run
        self._clock = clock
        self._pool: Pool[list[Delivery]] = Pool(terms.concurrency, self._run_one)
        self._gathered: list[Delivery] = []
        self._ends_at = 0.0
        self._cancel_timer: Callable[[], None] = _nothing
        self._aside = 0
        self._changed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more deliveries the batch being gathered can take; none while no batch could start."""
        return max(0, self._terms.max_size - len(self._gathered)) if self._pool.free else 0

    @property
    def patience_ms(self) -> int | None:
        """Milliseconds until the batch being gathered starts, for a read to wait no longer; None: none is begun."""
        if not self._gathered:
            return None
        return max(1, round((self._ends_at - self._clock.monotonic()) * 1000))

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Gather these; a batch that is full starts."""
        for delivery in deliveries:
            if not self._gathered:
                self._ends_at = self._clock.monotonic() + self._terms.max_wait
                self._cancel_timer = self._clock.call_at(self._ends_at, self.flush)
            self._gathered.append(delivery)
            if len(self._gathered) >= self._terms.max_size:
                self.flush()

    def flush(self) -> None:
        """Start what has been gathered."""
        self._cancel_timer()
        if self._gathered:
            batch, self._gathered = self._gathered, []
            self._pool.add([batch])
            self._changed.set()

    async def room(self) -> int:
        """Wait until anything would fit that is not set aside; how much."""
        while self.free <= self._aside:
            self._changed.clear()
            await self._changed.wait()
        return self.free - self._aside

    def set_aside(self, places: int) -> None:
        """Keep room for what is being read."""
        self._aside += places

    def give_back(self, places: int) -> None:
        """It has been read."""
        self._aside -= places
        self._changed.set()

    async def idle(self) -> None:
        """Start what has been gathered, and wait until no batch runs."""
        self.flush()
        await self._pool.idle()

    async def abandon(self) -> None:
        """Cancel what runs and forget what waits."""
        self._cancel_timer()
        self._gathered.clear()
        await self._pool.abandon()

    async def _run_one(self, batch: list[Delivery]) -> None:
        try:
            await self._run(batch)
        finally:
            # The pool frees the place when this coroutine has ended, which is before anybody who waits is woken.
            self._changed.set()


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done with the deliveries of a batch, as with any other."""

    prepare: Callable[[Delivery], Awaitable[Job | None]]
    """The job; None: there is nothing to run, and the delivery is settled."""
    run: Callable[[list[Job]], Awaitable[Any]]
    succeed: Callable[[Delivery, object], None]
    """With what the handler returned for this job."""
    fail: Callable[[Delivery, Job, BaseException], Awaitable[None]]


async def run_batch(steps: Steps, batch: list[Delivery]) -> None:
    """Run the handler once for all, and settle each delivery by its own outcome."""
    prepared = [(delivery, await steps.prepare(delivery)) for delivery in batch]
    deliveries = [delivery for delivery, job in prepared if job is not None]
    jobs = [job for _, job in prepared if job is not None]
    if not jobs:
        return
    logs.running(jobs)
    result: object = None
    try:
        result = await steps.run(list(jobs))
        errors = outcomes(result, jobs)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # this worker is stopping: the deliveries stay held, and are handed back
        errors = outcomes_of_failure(error, jobs)
    except Exception as error:  # noqa: BLE001  # whatever a handler raises is the outcome of its jobs
        errors = outcomes_of_failure(error, jobs)
    failures = []
    for delivery, job, problem, its_result in zip(deliveries, jobs, errors, results_of(result, jobs), strict=True):
        if problem is None:
            steps.succeed(delivery, its_result)
        else:
            failures.append((delivery, job, problem))
    for first in range(0, len(failures), SETTLED_TOGETHER):
        await asyncio.gather(*(steps.fail(*failure) for failure in failures[first : first + SETTLED_TOGETHER]))


def outcomes(result: object, jobs: Sequence[Job]) -> list[BaseException | None]:
    """Per job the error it failed with, or None, from what a batch handler returned.

    A list or tuple as long as the batch is read like that of `asyncio.gather(..., return_exceptions=True)`: the errors
    in it are failures of the jobs in their places. Anything else means that all succeeded. Raises: InvalidInput for a
    list with errors in it that is of another length, because then nobody knows whose they are.
    """
    if not isinstance(result, (list, tuple)) or not any(isinstance(item, BaseException) for item in result):
        return [None] * len(jobs)
    if len(result) != len(jobs):
        raise InvalidInput(
            "result", f"{counted(len(result), 'result')} with errors among them, for {counted(len(jobs), 'job')}"
        )
    return [item if isinstance(item, BaseException) else None for item in result]


def results_of(result: object, jobs: Sequence[Job]) -> Sequence[object]:
    """Per job what is to be kept as its result: its part of a list or tuple as long as the batch, or else nothing."""
    return result if isinstance(result, (list, tuple)) and len(result) == len(jobs) else [None] * len(jobs)


def outcomes_of_failure(error: BaseException, jobs: Sequence[Job]) -> list[BaseException | None]:
    """Per job the error it failed with, or None, from what a batch handler raised: all failed, if it does not say."""
    if not isinstance(error, BatchFailed):
        return [error] * len(jobs)
    failures: Mapping[str, BaseException] = error.failures
    if not failures.keys() <= {job.id for job in jobs}:
        return [error] * len(jobs)
    return [failures.get(job.id) for job in jobs]


def _nothing() -> None:
    """No timer runs."""
