"""Advances the clock of a memory server from one due time to the next, and runs the jobs that are due at each.

    settle    make occurrences ──▶ the leader promotes ──▶ workers run ready jobs ──▶ repeat until nothing is due
    next      find the next due time; if the leader holds due jobs back, the time of its next look
    move      set the clock to it and settle again, until the target time

The scheduler and the workers live for one call only, so the next call may come from another event loop.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar

from wheelq import logs
from wheelq.base.clock import ManualClock
from wheelq.model.job import Job, from_ms
from wheelq.model.retry import Bury, RetryAfter
from wheelq.protocol.keys import Keys
from wheelq.testing.leading import Leading
from wheelq.testing.observed import Run
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker import Worker
from wheelq.worker.handlers.hooks import Hook, OutcomeReading, Proceed
from wheelq.worker.handlers.threads import Daemons, RunPlain, Threads

P = ParamSpec("P")
T = TypeVar("T")

MOST_RUNS = 100_000
"""The most runs at one moment; more means that jobs schedule each other without end."""
ON_PURPOSE = (RetryAfter, Bury)
"""Exceptions that a handler raises on purpose; they are not errors."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One wheelq under test."""

    url: str
    transport: Transport
    keys: Keys
    clock: ManualClock
    workers: list[Worker]
    runs: list[Run]
    """Every run is appended here."""
    on_move: Callable[[datetime], object]
    """Called with the new time after each move of the clock."""
    has_threads: bool
    """Whether plain handlers run in threads, as in a real worker, or one after the other."""


class SteppedWorker(Worker):
    """A worker with the handlers, hooks, group and settings of another; it runs only when it is told to.

    Its other work (renewing, claiming, heartbeats) is not needed while time stands still.
    """

    def __init__(
        self, other: Worker, transport: AsyncTransport, keys: Keys, clock: ManualClock, outermost: Hook
    ) -> None:
        """`outermost` runs around all hooks of `other`."""
        super().__init__(transport, other.group, keys, other._settings, clock, client=other._parts.client)
        self._handlers.share(other._handlers)
        self._hooks.lifespans, self._hooks.of_routers = other._hooks.lifespans, other._hooks.of_routers
        self._hooks.middleware = [outermost, *other._hooks.middleware]

    @asynccontextmanager
    async def started(self, executor: Daemons | None) -> AsyncIterator[Self]:
        """From start-up to shut-down; `executor` runs plain handlers, in place of threads."""
        with logs.serving(self.group, self.name):
            async with self._hooks.alive():
                self._context = copy_context()  # the next worker has other values of a router's lifespans
                threads = self._threads = Threads(self._settings.threads, executor, self._lanes.lack)
                try:
                    yield self
                finally:
                    await self._lanes.abandon()
                    threads.close()
                    await self._heartbeat.leave(self._shards.shards)
                    await self._close()

    async def step(self, *, is_last: bool) -> int:
        """Run and settle the ready jobs; returns the number of deliveries. The last step leaves no batch gathered."""
        return await asyncio.create_task(self._step(is_last=is_last), context=self._context)

    async def _step(self, *, is_last: bool) -> int:
        await self._follow()
        started = await self._lanes.once()
        if is_last:
            await self._lanes.idle()
        await self._parts.settler.flush()
        if (carrier := self._parts.carrier_in_use) is not None:
            await carrier.idle()
        return started

    def next_ms(self) -> int | None:
        """When a failed job of an ordered topic runs again or a gathered batch starts; None if there is neither."""
        return self._lanes.next_ms()


async def run_until(stage: Stage, until_ms: int, raise_errors: bool) -> None:
    """Run everything that is due by `until_ms`. With `raise_errors`, raises the first handler's error."""
    async with _on(stage) as (leading, workers):
        while True:
            await _settle(stage, leading, workers, raise_errors, is_last=False)
            due = [ms for ms in (leading.next_ms(), *(worker.next_ms() for worker in workers)) if ms is not None]
            # Jobs due now have been settled as far as possible, so time goes on.
            next_ms = max(min(due, default=until_ms + 1), stage.clock.wall_ms() + 1)
            if next_ms > until_ms:
                break
            _move(stage, next_ms)
        _move(stage, until_ms)
        await _settle(stage, leading, workers, raise_errors, is_last=True)


@asynccontextmanager
async def _on(stage: Stage) -> AsyncIterator[tuple[Leading, Sequence[SteppedWorker]]]:
    executor = None if stage.has_threads else _OneAfterTheOther()
    async with AsyncExitStack() as stack:
        transport = AsyncTransport(Address(stage.url))
        stack.push_async_callback(transport.close)
        workers = []
        for worker in stage.workers:
            if not worker._handlers.is_empty:
                own = AsyncTransport(Address(stage.url))
                stepped = SteppedWorker(worker, own, stage.keys, stage.clock, _recorder(stage, worker.group))
                workers.append(await stack.enter_async_context(stepped.started(executor)))
        leading = Leading(transport, stage.transport, stage.keys, stage.clock)
        stack.push_async_callback(leading.give_back)
        yield leading, workers


async def _settle(
    stage: Stage, leading: Leading, workers: Sequence[SteppedWorker], raise_errors: bool, *, is_last: bool
) -> None:
    ran_before = len(stage.runs)
    is_busy = True
    while is_busy:
        ran = len(stage.runs)
        promoted = await leading.promote()
        started = [await worker.step(is_last=is_last) for worker in workers]
        is_busy = promoted > 0 or any(started) or len(stage.runs) > ran
        for run in stage.runs[ran_before:]:
            if run.error is not None and _surfaces(run.error, raise_errors):
                raise run.error
        if len(stage.runs) - ran_before > MOST_RUNS:
            raise RuntimeError(f"more than {MOST_RUNS:,} runs at one moment: do jobs schedule each other without end?")


def _surfaces(error: BaseException, raise_errors: bool) -> bool:
    if isinstance(error, (Exception, CancelledError)):
        return raise_errors and not isinstance(error, ON_PURPOSE)
    return True  # pytest.fail() and the like: it is meant for the test and not for the worker


def _raised(error: BaseException) -> BaseException:
    """Returns the error that a handler raised: a worker wraps a BaseException that is not an Exception."""
    cause = error.__cause__
    is_outcome = cause is not None and not isinstance(cause, (Exception, SystemExit))
    return cause if cause is not None and is_outcome else error


def _move(stage: Stage, to_ms: int) -> None:
    if to_ms > stage.clock.wall_ms():
        stage.clock.advance((to_ms - stage.clock.wall_ms()) / 1000)
        stage.on_move(from_ms(to_ms))


def _recorder(stage: Stage, group: str) -> Hook:
    async def record(jobs: Sequence[Job], proceed: Proceed, reading: OutcomeReading, runner: RunPlain) -> Any:
        runs = [Run(job, group, stage.clock.wall_ms()) for job in jobs]
        stage.runs.extend(runs)
        try:
            result = await proceed()
        except BaseException as error:
            for run, own in zip(runs, reading.raised(_raised(error), jobs), strict=True):
                run.error = own
            raise
        for run, own in zip(runs, reading.returned(result, jobs), strict=True):
            run.error = own
        return result

    return Hook(record, is_plain=False)


class _OneAfterTheOther(Daemons):
    """Runs each call at once, in the calling thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # it is raised where the result is asked for
            future.set_exception(error)
        return future

    def hold(self) -> Self:
        """Returns itself, because all calls run in one thread."""
        return self
