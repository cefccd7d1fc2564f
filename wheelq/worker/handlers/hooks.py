"""Hooks: functions that run around handlers, and around a worker's life.

    lifespan        start-up ─────────────── the worker runs ─────────────── shut-down
    middleware          the first one added is the outermost ┐
    before                                                   │ in the order they were added
    handler, or batch handler, within its timeout            │
    after, on_error                                          ┘ the other way round

All are middleware: functions that take the jobs of one run (one job, or all of a batch) and a function that runs them.
A worker without middleware calls its handlers directly.

    handler     async hooks, middleware     plain hooks
    async       event loop                  event loop
    plain       event loop                  the thread that runs the handler
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from wheelq.errors import ConfigurationError
from wheelq.model.checks import check_runs
from wheelq.model.job import Job
from wheelq.model.retry import RetryAfter
from wheelq.worker.handlers.batch import outcomes, outcomes_of_failure
from wheelq.worker.handlers.handler import Handler, Handlers, Run, is_async
from wheelq.worker.handlers.threads import RunPlain, Threads
from wheelq.worker.outcome import as_failure

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")

Proceed = Callable[[], Awaitable[Any]]
Middleware = Callable[[Sequence[Job], Proceed], Awaitable[Any]]
Managed = (
    AsyncIterator[T]
    | Iterator[T]
    | AbstractAsyncContextManager[T, bool | None]
    | AbstractContextManager[T, bool | None]
)


@dataclass(frozen=True, slots=True)
class OutcomeReading:
    """Reads the outcome of each job from what its run returned or raised."""

    returned: Callable[[object, Sequence[Job]], list[BaseException | None]]
    raised: Callable[[BaseException, Sequence[Job]], list[BaseException | None]]


OF_A_BATCH = OutcomeReading(outcomes, outcomes_of_failure)
OF_ONE = OutcomeReading(lambda result, jobs: [None], lambda error, jobs: [error])
"""A single handler may return any value, even a list of errors."""


@dataclass(frozen=True, slots=True)
class Hook:
    """Built-in middleware that calls a user's function with each job."""

    call: Callable[[Sequence[Job], Proceed, OutcomeReading, RunPlain], Awaitable[Any]]
    """The last argument runs the function: if it is plain, in the handler's thread if that has one."""
    is_plain: bool
    """Whether the function is not async."""


class Lifespan(Generic[T]):
    """A resource that a worker has while it runs, such as a pool of database connections."""

    def __init__(self, function: Callable[[], Managed[T]]) -> None:
        self._function = function
        self._values: dict[object, T] = {}  # by run of a worker
        self._run: ContextVar[object] = ContextVar("the run of a worker", default=None)

    @property
    def value(self) -> T:
        """What the start-up yielded: of the worker that runs the caller, because a router may be part of several.

        A thread of your own gets the latest one. Raises: ConfigurationError while no worker runs.
        """
        if not self._values:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise ConfigurationError(f"the lifespan {name} has a value only while its worker runs")
        run = self._run.get()
        return self._values[run if run in self._values else next(reversed(self._values))]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the resource from start-up to shut-down."""
        async with AsyncExitStack() as stack:
            value, run = await self._enter(stack), object()
            self._values[run] = value
            self._run.set(run)
            try:
                yield
            finally:
                del self._values[run]

    async def _enter(self, stack: AsyncExitStack) -> T:
        function: Any = self._function
        if inspect.isasyncgenfunction(function):
            function = asynccontextmanager(function)
        elif inspect.isgeneratorfunction(function):
            function = contextmanager(function)
        manager = function()
        if hasattr(manager, "__aenter__"):
            value: T = await stack.enter_async_context(manager)
            return value
        return stack.enter_context(manager)  # type: ignore[no-any-return]  # what it yields is what it says it yields


class Hooks:
    """The middleware and lifespans of one worker, and those of the routers that it includes."""

    def __init__(self) -> None:
        self.middleware: list[Middleware | Hook] = []
        self.lifespans: list[Lifespan[Any]] = []
        self.of_routers: list[tuple[Handlers, Hooks]] = []
        """The handlers and hooks of each router."""

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Keeps all lifespans from start-up to shut-down, the worker's own outermost."""
        async with AsyncExitStack() as stack:
            for hooks in (self, *(hooks for _, hooks in self.of_routers)):
                for lifespan in hooks.lifespans:
                    await stack.enter_async_context(lifespan.running())
            yield

    def around(self, handler: Handler, threads: Threads) -> Run:
        """Returns the call of a handler, single or batch, with all middleware around it, the worker's own outermost."""
        run = handler.bind(threads.run)
        of_router = [hook for theirs, inner in self.of_routers if handler.topic in theirs for hook in inner.middleware]
        hooks = [*self.middleware, *of_router]
        if not hooks:
            return run

        async def on_the_loop(work: Job | Sequence[Job]) -> Any:
            return await _run_within(hooks, run, work, _on_the_loop)

        async def in_one_thread(work: Job | Sequence[Job]) -> Any:
            async with threads.one() as thread:
                return await _run_within(hooks, handler.bind(thread.run), work, thread.run)

        has_plain_hooks = any(isinstance(hook, Hook) and hook.is_plain for hook in hooks)
        return in_one_thread if handler.has_thread and has_plain_hooks else on_the_loop


async def _run_within(hooks: Sequence[Middleware | Hook], run: Run, work: Job | Sequence[Job], plain: RunPlain) -> Any:
    jobs, reading = ((work,), OF_ONE) if isinstance(work, Job) else (work, OF_A_BATCH)
    proceed: Proceed = partial(_failing, run, work)
    for middleware in reversed(hooks):
        if isinstance(middleware, Hook):
            runner = plain if middleware.is_plain else _on_the_loop
            proceed = partial(middleware.call, jobs, proceed, reading, runner)
        else:
            proceed = partial(middleware, jobs, proceed)
    return await proceed()


async def _failing(run: Run, work: Job | Sequence[Job]) -> Any:
    """Runs a handler. Besides cancellation it raises only Exceptions, which middleware can catch."""
    task = asyncio.current_task()
    try:
        return await run(work)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise as_failure(error, task) from error


async def _on_the_loop(function: Callable[[Any], Any], given: Any, timeout: float | None) -> Any:
    """Runs a plain function on the event loop."""
    return function(given)


def before_each(function: Callable[[Job], object]) -> Hook:
    """Calls `function` with each job before the handler."""

    async def call(jobs: Sequence[Job], proceed: Proceed, reading: OutcomeReading, runner: RunPlain) -> Any:
        await _call_each(function, jobs, runner)
        return await proceed()

    return _hook(function, call)


def after_each(function: Callable[[Job], object]) -> Hook:
    """Calls `function` with each job that has not failed, after the handler."""

    async def call(jobs: Sequence[Job], proceed: Proceed, reading: OutcomeReading, runner: RunPlain) -> Any:
        result = await proceed()
        errors = reading.returned(result, jobs)
        done = [job for job, error in zip(jobs, errors, strict=True) if error is None]
        await _call_each(function, done, runner)
        return result

    return _hook(function, call)


def on_each_error(function: Callable[[Job, Exception], object]) -> Hook:
    """Calls `function` with each job that has failed and its error; what that raises is logged."""

    def say(failure: tuple[Job, Exception]) -> object:
        result: object = None
        with _logged(function, failure[0]):
            result = function(*failure)
        return finish(result, failure[0]) if inspect.isawaitable(result) else None

    async def finish(result: Awaitable[object], job: Job) -> None:
        with _logged(function, job):
            await result

    async def call(jobs: Sequence[Job], proceed: Proceed, reading: OutcomeReading, runner: RunPlain) -> Any:
        try:
            result = await proceed()
        except Exception as error:
            await _call_each(say, _failures(jobs, reading.raised(error, jobs)), runner)
            raise
        await _call_each(say, _failures(jobs, reading.returned(result, jobs)), runner)
        return result

    return _hook(function, call)


def _hook(function: Callable[..., object], call: Callable[..., Awaitable[Any]]) -> Hook:
    check_runs(function)
    return Hook(call, not is_async(function))


def _failures(jobs: Sequence[Job], errors: Sequence[BaseException | None]) -> list[tuple[Job, Exception]]:
    """Returns the failed jobs with their errors. A `RetryAfter` is not a failure."""
    return [
        (job, error)
        for job, error in zip(jobs, errors, strict=True)
        if isinstance(error, Exception) and not (isinstance(error, RetryAfter) and not error.counts)
    ]


@contextmanager
def _logged(function: Callable[[Job, Exception], object], job: Job) -> Iterator[None]:
    try:
        yield
    except Exception:
        logger.exception("the error hook %r failed for job %s", function, job.id)


async def _call_each(function: Callable[[Any], object], given: Sequence[Any], runner: RunPlain) -> None:
    """Call `function` with each item in turn, with as few changes of thread as possible."""
    items = iter(given)
    while given and (awaitable := await runner(partial(_until_awaitable, function), items, None)) is not None:
        await awaitable


def _until_awaitable(function: Callable[[Any], object], items: Iterable[Any]) -> Awaitable[object] | None:
    """Call `function` with the items until a result must be awaited, and return that result; None: all are done."""
    for item in items:
        result = function(item)
        if inspect.isawaitable(result):
            return result
    return None
