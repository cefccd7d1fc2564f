"""What a worker does around its handlers, and around its life.

    lifespan        start-up ─────────────── the worker runs ─────────────── shut-down
    middleware          the first one added is the outermost ┐
    before                                                   │ in the order they were added
    handler, or batch handler, within its timeout            │
    after, on_error                                          ┘ the other way round

All of them are middleware: a function that is given the jobs of one run (one job; all of a batch) and what runs them.
A worker without any calls its handlers as if this module were not there.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, Generic, TypeVar

from wheelq.errors import ConfigurationError
from wheelq.job import Job
from wheelq.retry import RetryAfter
from wheelq.worker.batching import outcomes, outcomes_of_failure

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")
Work = TypeVar("Work", Job, Sequence[Job])

Proceed = Callable[[], Awaitable[Any]]
Middleware = Callable[[Sequence[Job], Proceed], Awaitable[Any]]
M = TypeVar("M", bound=Middleware)
JobHook = TypeVar("JobHook", bound=Callable[[Job], object])
ErrorHook = TypeVar("ErrorHook", bound=Callable[[Job, Exception], object])
Managed = (
    AsyncIterator[T]
    | Iterator[T]
    | AbstractAsyncContextManager[T, bool | None]
    | AbstractContextManager[T, bool | None]
)


class Lifespan(Generic[T]):
    """What a worker has while it runs, such as a pool of database connections."""

    def __init__(self, function: Callable[[], Managed[T]]) -> None:
        self._function = function
        self._values: list[T] = []

    @property
    def value(self) -> T:
        """What the start-up yielded. Raises: ConfigurationError while no worker runs."""
        if not self._values:
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise ConfigurationError(f"the lifespan {name} has a value only while its worker runs")
        return self._values[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From start-up to shut-down."""
        async with AsyncExitStack() as stack:
            self._values.append(await self._enter(stack))
            try:
                yield
            finally:
                self._values.pop()

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
    """The middleware and lifespans of a worker; its decorators are part of `Worker`."""

    def __init__(self) -> None:
        self._middleware: list[Middleware] = []
        self._lifespans: list[Lifespan[Any]] = []

    def middleware(self, function: M) -> M:
        """Decorate what runs around every handler.

            @worker.middleware
            async def timed(jobs, proceed):
                began = monotonic()
                try:
                    return await proceed()
                finally:
                    seconds.observe(monotonic() - began)

        `jobs` is one job, or all those of a batch. What is raised here counts as raised by the handler; what
        `proceed()` raises, the handler's time-out included, may be swallowed here: then the jobs are done.
        """
        self._middleware.append(function)
        return function

    def before(self, function: JobHook) -> JobHook:
        """Decorate what is called with each job before its handler, async or not; if it raises, the run has failed.

        Plain functions run on the event loop, so that context variables set there are the handler's too.
        """

        async def call(jobs: Sequence[Job], proceed: Proceed) -> Any:
            for job in jobs:
                await _result(function(job))
            return await proceed()

        self._middleware.append(call)
        return function

    def after(self, function: JobHook) -> JobHook:
        """Decorate what is called with each job when its handler has returned; if it raises, the run has failed.

        Of a batch only with the jobs that did not fail.
        """

        async def call(jobs: Sequence[Job], proceed: Proceed) -> Any:
            result = await proceed()
            for job, error in zip(jobs, outcomes(result, jobs), strict=True):
                if error is None:
                    await _result(function(job))
            return result

        self._middleware.append(call)
        return function

    def on_error(self, function: ErrorHook) -> ErrorHook:
        """Decorate what is called with each job and its exception when its handler raises or takes too long.

        Not when it asks by `RetryAfter` to run later, which is no failure. What becomes of the job is up to the
        exception alone: what the hook itself raises is logged.
        """

        async def tell(jobs: Sequence[Job], errors: Sequence[BaseException | None]) -> None:
            for job, error in zip(jobs, errors, strict=True):
                if isinstance(error, Exception) and not (isinstance(error, RetryAfter) and not error.counts):
                    try:
                        await _result(function(job, error))
                    except Exception:
                        logger.exception("the error hook %r failed for job %s", function, job.id)

        async def call(jobs: Sequence[Job], proceed: Proceed) -> Any:
            try:
                result = await proceed()
            except Exception as error:
                await tell(jobs, outcomes_of_failure(error, jobs))
                raise
            await tell(jobs, outcomes(result, jobs))
            return result

        self._middleware.append(call)
        return function

    def lifespan(self, function: Callable[[], Managed[T]]) -> Lifespan[T]:
        """Decorate what is started before the first job and shut down after the last; `.value` is what it yields.

            @worker.lifespan
            async def database() -> AsyncIterator[Pool]:
                async with create_pool() as pool:
                    yield pool

            @worker.handler("orders")
            async def close_order(job: Job) -> None:
                await database.value.execute(...)

        An async or plain generator, or a function that returns a context manager; what must be shut down when the
        worker ends with an error too stands in a `finally`. Several start in the order they were added, and stop in
        the opposite one. When a start-up raises, `run` does.
        """
        lifespan = Lifespan(function)
        self._lifespans.append(lifespan)
        return lifespan

    @asynccontextmanager
    async def _alive(self) -> AsyncIterator[None]:
        """All lifespans, from start-up to shut-down."""
        async with AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                await stack.enter_async_context(lifespan.running())
            yield

    def _around(self, run: Callable[[Work], Awaitable[Any]]) -> Callable[[Work], Awaitable[Any]]:
        """How a handler, of single jobs or of batches, is called with all middleware around it."""
        if not self._middleware:
            return run

        async def run_within(work: Work) -> Any:
            jobs: Sequence[Job] = (work,) if isinstance(work, Job) else work
            proceed: Proceed = partial(run, work)
            for middleware in reversed(self._middleware):
                proceed = partial(middleware, jobs, proceed)
            return await proceed()

        return run_within


async def _result(value: object) -> None:
    if inspect.isawaitable(value):
        await value
