"""The decorators of `Worker`, which register functions as handlers and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_topic
from wheelq.model.job import Job
from wheelq.model.retry import Retry
from wheelq.model.task import Task, TaskDecorator
from wheelq.settings import OnMismatch
from wheelq.worker.handlers.batch import BatchTerms
from wheelq.worker.handlers.handler import BatchFunction, Find, Function, Handler, Handlers, Ordered
from wheelq.worker.handlers.hooks import Hooks, Lifespan, Managed, Middleware, after_each, before_each, on_each_error
from wheelq.worker.handlers.typed import run_task, typed, typed_batch

F = TypeVar("F", bound=Function)
B = TypeVar("B", bound=BatchFunction)
T = TypeVar("T")
M = TypeVar("M", bound=Middleware)
JobHook = TypeVar("JobHook", bound=Callable[[Job], object])
ErrorHook = TypeVar("ErrorHook", bound=Callable[[Job, Exception], object])


class Decorators:
    """The handlers of a worker or a router, and the hooks around them."""

    def __init__(self) -> None:
        self._handlers = Handlers()
        self._hooks = Hooks()

    def handler(
        self,
        topic: str,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
        ordered: Ordered = False,
        inline: bool = False,
        on_mismatch: OnMismatch | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of `topic`: `async def`, or a plain one, which runs in a thread.

        With a parameter annotated `Job[Order]`, for a dataclass, TypedDict or model, `job.payload` is an `Order`. A job
        whose payload does not fit waits for a worker that it fits, and is buried after `mismatch_ms` of the topic;
        with `on_mismatch="bury"` it is buried at once. Its error names the field. None: what the topic says.

        When it returns, the job is done. When it raises or takes more than `timeout` seconds, the job is retried as
        `retry` says (by default 5 attempts with growing pauses), and then buried. A job that was scheduled with
        `attempts` or `timeout` of its own has these instead, but never more than is stated here.

        With `concurrency`, at most so many of its jobs run at the same time in this worker, besides the worker's own
        limit, which holds for all its handlers together. While so many run, its other jobs stay in Redis, for other
        workers, and no other handler waits for them.

        `ordered=True` runs the jobs of each shard one at a time and in due order, over all workers of the group;
        `ordered="key"` does so for each partition key. A job that waits for a retry holds back later ones until it is
        done or buried.

        `inline=True` runs a plain function on the event loop instead of in a thread. For functions that take well below
        a millisecond and never block: it costs less than a thread, but nothing else of the worker runs meanwhile, and
        there can be no `timeout`. Raises: InvalidInput for an `async def`, which runs on the event loop anyway.
        """
        check_topic(topic)  # at once: `@worker.handler` without its topic would take the function for one

        def register(function: F) -> F:
            run = typed(function)
            self._handlers.add(
                Handler(
                    topic,
                    run,
                    retry or Retry(),
                    timeout,
                    ordered=ordered,
                    inline=inline,
                    on_mismatch=on_mismatch,
                    concurrency=concurrency,
                )
            )
            return function

        return register

    def task(
        self,
        topic: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        concurrency: int | None = None,
        ordered: Ordered = False,
        inline: bool = False,
        on_mismatch: OnMismatch | None = None,
    ) -> TaskDecorator:
        """Decorate a function whose signature is the payload of its jobs; `topic` None is the function's name.

            @worker.task("orders", retry=Retry(max_attempts=5), timeout=30)
            async def close_order(order_id: int, reason: str = "unpaid") -> bool: ...

            client.schedule(close_order.job(42, reason="late"), delay=1800, key="order-42")

        The function becomes a `Task`, which can still be called directly. Type checkers check the arguments of `.job`.
        The worker converts them to the annotated types, and fills in defaults; a job whose arguments do not fit, are
        missing or unknown waits for another worker or is buried, as `on_mismatch` says. A first parameter annotated
        `Job` gets the job.
        The other options are those of `handler`.

        Raises: InvalidInput, if arguments cannot be sent by name (`*args`, `**kwargs`) or their types cannot be sent.
        """
        if callable(topic):
            raise InvalidInput("topic", "is a function: write @worker.task() with parentheses")
        if topic is not None:
            check_topic(topic)

        def register(function: Callable[..., Any]) -> Task[..., Any, ..., Any]:
            made: Task[..., Any, ..., Any] = Task(topic, function)
            run = run_task(made)
            self._handlers.add(
                Handler(
                    made.topic,
                    run,
                    retry or Retry(),
                    timeout,
                    ordered=ordered,
                    inline=inline,
                    on_mismatch=on_mismatch,
                    concurrency=concurrency,
                )
            )
            return made

        return cast("TaskDecorator", register)  # mypy cannot tell that its overloads only differ in types

    def handler_for_each(
        self,
        find: Find,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
        on_mismatch: OnMismatch | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of every topic that `find` returns; `find` is called regularly.

        For services whose topics come and go. A topic with its own handler keeps it; a topic that `find` no longer
        returns is still served until this worker ends.
        """

        def register(function: F) -> F:
            run = typed(function)
            self._handlers.add_for_each(
                find, lambda topic: Handler(topic, run, retry or Retry(), timeout, on_mismatch=on_mismatch)
            )
            return function

        return register

    def batch_handler(
        self,
        topic: str,
        *,
        max_size: int = 100,
        max_wait: float = 0.05,
        concurrency: int = 1,
        retry: Retry | None = None,
        timeout: float | None = None,
        inline: bool = False,
        on_mismatch: OnMismatch | None = None,
    ) -> Callable[[B], B]:
        """Decorate the function that takes the jobs of `topic` as lists of up to `max_size`.

        It is called when the list is full, or when its first job has waited `max_wait` seconds; `concurrency` calls run
        at the same time, besides the worker's single handlers. When it returns, the jobs are done; when it raises or
        takes more than `timeout` seconds, each is retried or buried as `retry` says. If only some jobs failed, it
        returns a list with an error in the place of each failed job (like `asyncio.gather` with
        `return_exceptions=True`), or raises `wheelq.errors.BatchFailed`. `inline` and `on_mismatch` are as for
        `handler`.
        """
        check_topic(topic)
        terms = BatchTerms(max_size, max_wait, concurrency)

        def register(function: B) -> B:
            run = typed_batch(function)
            self._handlers.add(
                Handler(topic, run, retry or Retry(), timeout, terms, inline=inline, on_mismatch=on_mismatch)
            )
            return function

        return register

    def middleware(self, function: M) -> M:
        """Decorate a function that runs around every handler.

            @worker.middleware
            async def timed(jobs, proceed):
                began = monotonic()
                try:
                    return await proceed()
                finally:
                    seconds.observe(monotonic() - began)

        `jobs` is one job, or all jobs of a batch. An error raised here counts as raised by the handler. An error of
        `proceed()`, including the handler's timeout, may be swallowed here: then the jobs are done.
        """
        self._hooks.middleware.append(function)
        return function

    def before(self, function: JobHook) -> JobHook:
        """Decorate a function, async or not, that is called with each job before its handler.

        If it raises, the run fails: for a batch, that of all its jobs.
        A plain function runs in the thread of a plain handler, and on the event loop with an async one. Context
        variables set in it are the handler's too.
        """
        self._hooks.middleware.append(before_each(function))
        return function

    def after(self, function: JobHook) -> JobHook:
        """Decorate a function that is called with each job after its handler has returned; if it raises, the run fails.

        For a batch it is called only with jobs that did not fail. A plain function runs where the handler ran, as with
        `before`.
        """
        self._hooks.middleware.append(after_each(function))
        return function

    def on_error(self, function: ErrorHook) -> ErrorHook:
        """Decorate a function that is called with each job and its exception when its handler raises or times out.

        It is not called for `RetryAfter`, which is not a failure; it is called each time that a payload does not fit.
        The exception alone decides the job's outcome: an error of the hook itself is only logged. A plain function runs
        where the handler ran, as with `before`; after a timeout it runs in another thread, because the handler's own
        thread goes on.
        """
        self._hooks.middleware.append(on_each_error(function))
        return function

    def lifespan(self, function: Callable[[], Managed[T]]) -> Lifespan[T]:
        """Decorate a resource that starts before the first job and stops after the last; `.value` is what it yields.

            @worker.lifespan
            async def database() -> AsyncIterator[Pool]:
                async with create_pool() as pool:
                    yield pool

            @worker.handler("orders")
            async def close_order(job: Job) -> None:
                await database.value.execute(...)

        The function is an async or plain generator, or returns a context manager; put clean-up that must also run after
        an error in a `finally`. Several start in the order they were added, and stop in reverse. If a start-up raises,
        `run` raises the same error.
        """
        lifespan = Lifespan(function)
        self._hooks.lifespans.append(lifespan)
        return lifespan


class Router(Decorators):
    """Handlers and hooks of one module, for workers that include them.

        router = Router()

        @router.handler("mail")
        async def send(job: Job) -> None: ...

        worker.include(router)

    It has the decorators of `Worker`, and needs no server. Its middleware, `before`, `after` and `on_error` run around
    its own handlers only, inside those of the worker; its lifespans start after the worker's own.
    """


class WorkerDecorators(Decorators):
    """The handlers and hooks of a worker, and those of the routers that it includes."""

    def include(self, *routers: Router) -> None:
        """Run the handlers of these routers too, including those that they get later.

        Raises: ConfigurationError, if a topic already has a handler here.
        """
        for router in routers:
            if not isinstance(router, Router):
                raise InvalidInput("routers", f"must be Router objects, not {type(router).__name__}")
            self._handlers.include(router._handlers)
            self._hooks.of_routers.append((router._handlers, router._hooks))
