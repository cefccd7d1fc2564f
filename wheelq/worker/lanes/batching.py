"""Batch handlers: deliveries of one topic are gathered and passed to their handler as a list.

    reader ──▶ gathered ▓▓▓▓▓░░░ ──full, or the first has waited max_wait──▶ pool ──▶ handler(jobs) ──▶ an outcome each

For readers and recovery, `Batcher` replaces the pool of single deliveries: its `free` is how many more deliveries fit
into the batch being gathered, and 0 while the maximum of batches runs. So single jobs never starve a batch, and no job
waits behind a running batch while another worker is free. A read waits in the server no longer than the batch being
gathered. Gathered deliveries are held, and so renewed, like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from wheelq import logs
from wheelq.base.clock import Clock
from wheelq.model.job import Job
from wheelq.worker.delivery.held import Delivery
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.batch import BatchTerms, outcomes, outcomes_of_failure, results_of
from wheelq.worker.outcome import as_failure, readable

SETTLED_TOGETHER = 32
"""How many failed jobs of a batch are settled at the same time; each takes a call."""


class Batcher:
    """Gathers the deliveries of one topic, and runs the batches."""

    def __init__(
        self,
        terms: BatchTerms,
        run: Callable[[list[Delivery], asyncio.Task[None]], Coroutine[Any, Any, None]],
        held_loop: Callable[[Delivery, float], None],
        clock: Clock,
    ) -> None:
        """`run` settles the deliveries of one batch; it and `held_loop` are as for `Pool`."""
        self._terms = terms
        self._clock = clock
        self._pool: Pool[list[Delivery]] = Pool(
            terms.concurrency, run, lambda batch, seconds: held_loop(batch[0], seconds), clock
        )
        self._gathered: list[Delivery] = []
        self._ends_at = 0.0
        self._cancel_timer: Callable[[], None] = lambda: None
        self.changed = self._pool.changed
        """Set whenever `free` may have grown."""

    @property
    def free(self) -> int:
        """How many more deliveries the batch being gathered can take; 0 while no batch could start."""
        return max(0, self._terms.max_size - len(self._gathered)) if self._pool.free else 0

    @property
    def patience_ms(self) -> int | None:
        """Milliseconds until the batch being gathered starts, which limits a read's wait; None: no batch is begun."""
        if not self._gathered:
            return None
        return max(1, round((self._ends_at - self._clock.monotonic()) * 1000))

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Gather deliveries; start a batch that is full."""
        for delivery in deliveries:
            if not self._gathered:
                self._ends_at = self._clock.monotonic() + self._terms.max_wait
                self._cancel_timer = self._clock.call_at(self._ends_at, self.flush)
            self._gathered.append(delivery)
            if len(self._gathered) >= self._terms.max_size:
                self.flush()

    def look_again(self) -> None:
        """Start the gathered batch if it is time; its topic may have been resumed."""
        is_full = len(self._gathered) >= self._terms.max_size
        if self._gathered and (is_full or self._clock.monotonic() >= self._ends_at):
            self.flush()

    def flush(self) -> None:
        """Start the gathered batch, unless its topic is paused: then it is held until `look_again`."""
        self._cancel_timer()
        if self._gathered and not self._gathered[0].shard.topic.paused:
            batch, self._gathered = self._gathered, []
            self._pool.add([batch])
            self.changed.set()

    async def idle(self) -> None:
        """Start the gathered batch, and wait until no batch runs."""
        self.flush()
        await self._pool.idle()

    async def quiet(self) -> None:
        """Wait until no batch runs; the gathered one waits for its time."""
        await self._pool.idle()

    async def abandon(self) -> None:
        """Cancel running batches and forget gathered deliveries."""
        self._cancel_timer()
        self._gathered.clear()
        await self._pool.abandon()


async def run_batch(running: Running, batch: list[Delivery], task: asyncio.Task[None]) -> None:
    """Run the handler once for all jobs, in this task, and settle each delivery by its own outcome."""
    deliveries, jobs = await _begin(running, batch)
    if not jobs:
        return
    logs.running(jobs)
    running.began(deliveries, jobs)
    result: object = None
    try:
        result = await running.runs[jobs[0].topic](list(jobs))
        errors = outcomes(result, jobs)
    except asyncio.CancelledError as error:
        if running.ending.has_begun:
            running.handed_back(deliveries)
            raise  # this worker is stopping: the deliveries stay held, and are handed back
        errors = outcomes_of_failure(error, jobs)
    except BaseException as error:  # noqa: BLE001  # whatever a handler raises is the outcome of its jobs
        errors = outcomes_of_failure(readable(as_failure(error, task)), jobs)
    failures = []
    for delivery, job, problem, its_result in zip(deliveries, jobs, errors, results_of(result, jobs), strict=True):
        if problem is None:
            running.succeed(delivery, its_result)
        else:
            failures.append((delivery, job, problem))
    if failures and task.cancelling():
        await running.ending.drop_others()
    for first in range(0, len(failures), SETTLED_TOGETHER):
        await _fail(running, failures[first : first + SETTLED_TOGETHER])


async def _fail(running: Running, failures: Sequence[tuple[Delivery, Job, BaseException]]) -> None:
    """Settle failed jobs at the same time, even if somebody cancels this task meanwhile."""
    tasks = [asyncio.create_task(running.fail(*failure)) for failure in failures]

    async def end() -> None:
        await asyncio.wait(tasks)  # unlike `gather`, its cancellation does not cancel them

    try:
        await running.ending.finish(end)
    finally:
        for task in tasks:
            task.cancel()


async def _begin(running: Running, batch: list[Delivery]) -> tuple[list[Delivery], list[Job]]:
    """Returns the deliveries whose jobs run, and their jobs; settles the others."""
    deliveries, jobs = [], []
    for delivery in batch:
        job = running.begin(delivery)
        if isinstance(job, Job):
            deliveries.append(delivery)
            jobs.append(job)
        else:
            await running.settle_not_run(delivery, job)
    return deliveries, jobs
