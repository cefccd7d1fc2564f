"""Moves the time of a memory server on, from one due time to the next, and runs at each what is due then.

    settle    occurrences are made ──▶ the leader promotes ──▶ workers run what is ready ──▶ until nothing is due
    next      the first due time ahead; where the leader holds due jobs back, when it wants to look again
    move      the clock stands there, and everything is settled anew, until the time asked for has come

Everything here lives for one call, as a scheduler and workers that are started for it, so that it does not matter on
which event loop the next one is made.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from wheelq.clock import ManualClock
from wheelq.job import Job, from_ms
from wheelq.protocol.keys import Keys
from wheelq.retry import Bury, RetryAfter
from wheelq.testing.leading import Leading
from wheelq.testing.observed import Run
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker import Worker
from wheelq.worker.batching import outcomes, outcomes_of_failure

P = ParamSpec("P")
T = TypeVar("T")

MOST_RUNS = 100_000
"""At one moment; more is taken for jobs that schedule each other without end."""
ON_PURPOSE = (RetryAfter, Bury)
"""What a handler raises to say what becomes of its job: no error of its own."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One wheelq under test."""

    url: str
    transport: Transport
    keys: Keys
    clock: ManualClock
    workers: list[Worker]
    runs: list[Run]
    """Added to by every run."""
    on_move: Callable[[datetime], object]
    """Called with the new time whenever it has moved."""
    has_threads: bool
    """Whether plain handlers run in threads, as they do in a real worker, or one after the other."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """A worker that goes step by step."""

    step: Callable[[], Awaitable[int]]
    next_ms: Callable[[], int | None]


async def run_until(stage: Stage, until_ms: int, raise_errors: bool) -> None:
    """Let everything happen that is due by then. Raises: what the first handler raised, with `raise_errors`."""
    async with _on(stage) as (leading, workers):
        while True:
            await _settle(stage, leading, [worker.step for worker in workers], raise_errors)
            due = [ms for ms in (leading.next_ms(), *(worker.next_ms() for worker in workers)) if ms is not None]
            # What is due now was settled as far as it can be, so time goes on.
            next_ms = max(min(due, default=until_ms + 1), stage.clock.wall_ms() + 1)
            if next_ms > until_ms:
                break
            _move(stage, next_ms)
        _move(stage, until_ms)


@asynccontextmanager
async def _on(stage: Stage) -> AsyncIterator[tuple[Leading, Sequence[Stepping]]]:
    executor = None if stage.has_threads else _OneAfterTheOther()
    async with AsyncExitStack() as stack:
        transport = AsyncTransport(Address(stage.url))
        stack.push_async_callback(transport.close)
        workers = []
        for worker in stage.workers:
            if worker.topics:
                own = AsyncTransport(Address(stage.url))
                twin = worker.elsewhere(own, stage.keys, stage.clock, _recorder(stage, worker.group))
                step = await stack.enter_async_context(twin.stepping(executor))
                workers.append(Stepping(step, twin.next_ms))
        leading = Leading(transport, stage.transport, stage.keys, stage.clock)
        stack.push_async_callback(leading.give_back)
        yield leading, workers


async def _settle(
    stage: Stage, leading: Leading, steps: Iterable[Callable[[], Awaitable[int]]], raise_errors: bool
) -> None:
    ran_before = len(stage.runs)
    is_busy = True
    while is_busy:
        promoted = await leading.promote()
        started = [await step() for step in steps]
        is_busy = promoted > 0 or any(started)
        for run in stage.runs[ran_before:]:
            if run.error is not None and _surfaces(run.error, raise_errors):
                raise run.error
        if len(stage.runs) - ran_before > MOST_RUNS:
            raise RuntimeError(f"more than {MOST_RUNS:,} runs at one moment: do jobs schedule each other without end?")


def _surfaces(error: BaseException, raise_errors: bool) -> bool:
    if isinstance(error, (Exception, CancelledError)):
        return raise_errors and not isinstance(error, ON_PURPOSE)
    return True  # pytest.fail() and the like: it is meant for the test and not for the worker


def _move(stage: Stage, to_ms: int) -> None:
    if to_ms > stage.clock.wall_ms():
        stage.clock.advance((to_ms - stage.clock.wall_ms()) / 1000)
        stage.on_move(from_ms(to_ms))


def _recorder(stage: Stage, group: str) -> Callable[[Sequence[Job], Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    async def record(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        runs = [Run(job, group, stage.clock.wall_ms()) for job in jobs]
        stage.runs.extend(runs)
        try:
            result = await proceed()
        except BaseException as error:
            for run, own in zip(runs, outcomes_of_failure(error, jobs), strict=True):
                run.error = own
            if isinstance(error, (Exception, CancelledError, KeyboardInterrupt, SystemExit)):
                raise
            raise RuntimeError("the test was told") from error  # so that the worker goes on, and the job is tried again
        for run, own in zip(runs, outcomes(result, jobs), strict=True):
            run.error = own
        return result

    return record


class _OneAfterTheOther(Executor):
    """Runs what it is given at once, in the thread that asks."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # it is raised where the result is asked for
            future.set_exception(error)
        return future
