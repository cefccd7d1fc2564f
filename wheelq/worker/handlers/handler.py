"""The functions that run the jobs of topics, and how they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Literal, get_args

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import check_topic
from wheelq.model.convert import Convert
from wheelq.model.job import Job
from wheelq.model.retry import Retry
from wheelq.settings import OnMismatch
from wheelq.worker.handlers.batch import BatchTerms
from wheelq.worker.handlers.threads import RunPlain, time_limit

Function = Callable[[Job], Any]
BatchFunction = Callable[[list[Job]], Any]
Find = Callable[[], Awaitable[Iterable[str]]]
"""Returns the names of the present topics."""
Ordered = Literal[False, True, "key"]
Run = Callable[[Any], Awaitable[Any]]
"""Runs a function of either kind with its argument."""
Limit = Callable[[Any], float | None]
"""How many seconds a run with this argument may take; None: any time."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A topic's function and its options."""

    topic: str
    function: Function | BatchFunction
    retry: Retry
    timeout: float | None
    """Seconds after which the function is abandoned and counts as failed; None: no limit."""
    batch: BatchTerms | None = None
    """How its jobs are gathered in lists; None: it takes one job."""
    ordered: Ordered = False
    """Whether its jobs run one at a time and in order, for each shard or each partition key."""
    inline: bool = False
    """Whether a plain function runs on the event loop instead of in a thread."""
    on_mismatch: OnMismatch | None = None
    """What happens to a job whose payload does not fit; None: what the topic says."""
    concurrency: int | None = None
    """How many of its jobs run at the same time in this worker, if not in batches; None: as many as the worker runs."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not callable(self.function):
            raise InvalidInput("function", f"must be a function that takes jobs, not {type(self.function).__name__}")
        if not isinstance(self.retry, Retry):
            raise InvalidInput("retry", f"must be a Retry, such as Retry(max_attempts=3), not {self.retry!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidInput("timeout", f"must be more than 0 seconds, not {self.timeout!r}")
        if self.ordered not in get_args(Ordered):
            raise InvalidInput("ordered", f"must be False, True or 'key', not {self.ordered!r}")
        if self.on_mismatch not in (None, *get_args(OnMismatch)):
            raise InvalidInput("on_mismatch", f"must be 'retry' or 'bury', not {self.on_mismatch!r}")
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            raise InvalidInput("concurrency", f"must be a whole number of at least 1, not {self.concurrency!r}")
        if self.inline and is_async(self.function):
            raise InvalidInput("inline", "is for plain functions: an async handler runs on the event loop anyway")
        if self.inline and self.timeout is not None:
            problem = "cannot be kept with inline=True: nothing can stop a function on the event loop"
            raise InvalidInput("timeout", problem)

    @property
    def reads(self) -> Convert | None:
        """Converts a payload to the types of the function, or raises PayloadMismatch; None: it takes any payload."""
        return getattr(self.function, "_wheelq_reads", None)

    @property
    def can_be_cancelled(self) -> bool:
        """Whether a job that it runs can be cancelled: not in a thread, and not as part of a batch."""
        return self.batch is None and is_async(self.function)

    @property
    def has_thread(self) -> bool:
        return not self.inline and not is_async(self.function)

    def bind(self, plain: RunPlain) -> Run:
        """Returns a function that runs a job within the timeout; `plain` runs plain functions, unless `inline`."""
        if self.has_thread:
            return _in_thread(self.function, plain, self.limit)
        if self.inline:
            return _on_the_loop(self.function)
        return _within(self.limit, self.function)

    def limit(self, given: Any) -> float | None:
        """Returns the seconds that a run of this job, or of these, may take: the least that it or a job states."""
        if self.batch is not None:
            stated: list[float] = [limit for limit in (self.timeout, *(job.timeout for job in given)) if limit]
            return min(stated, default=None)
        own: float | None = given.timeout
        if own is None or getattr(self.function, "_wheelq_keeps_time", False):
            return self.timeout
        return own if self.timeout is None else min(own, self.timeout)


class Handlers:
    """The handlers of one worker, one per topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Handler] = {}
        self._find_more: list[Callable[[], Awaitable[None]]] = []
        self._included: list[Handlers] = []
        self._includers: list[Handlers] = []

    def add(self, handler: Handler) -> None:
        """Register a handler, here and where these handlers are included.

        Raises: ConfigurationError if its topic has one.
        """
        topic = handler.topic
        for handlers in (self, *self._includers):
            if topic in handlers:
                function = handlers[topic].function
                name = getattr(function, "__qualname__", function)
                raise ConfigurationError(f"topic {topic!r} already has the handler {name}")
        for handlers in (self, *self._includers):
            handlers._by_topic[topic] = handler

    def include(self, others: Handlers) -> None:
        """Add the handlers of a router, including later ones. Raises: ConfigurationError if a topic has one here."""
        for topic in others.topics:
            self.add(others[topic])
        self._included.append(others)
        others._includers.append(self)

    def add_for_each(self, find: Find, make: Callable[[str], Handler]) -> None:
        """Register the handler made for every topic that `find` returns, wherever the topic has none of its own."""

        async def find_more() -> None:
            for topic in await find():
                lacking = [handlers for handlers in (self, *self._includers) if topic not in handlers]
                if lacking:
                    handler = make(topic)
                    for handlers in lacking:
                        handlers._by_topic[topic] = handler

        self._find_more.append(find_more)

    async def find_more(self) -> None:
        """Ask each `find` for the present topics, if handlers were registered with one."""
        for handlers in (self, *self._included):
            for find_more in handlers._find_more:
                await find_more()

    @property
    def may_get_more(self) -> bool:
        """Whether more topics may get a handler later."""
        return any(handlers._find_more for handlers in (self, *self._included))

    @property
    def is_empty(self) -> bool:
        """Whether there are no handlers, and never will be."""
        return not self._by_topic and not self.may_get_more

    def share(self, others: Handlers) -> None:
        """Share the handlers of another worker, including later ones."""
        self._by_topic = others._by_topic
        self._find_more, self._included = others._find_more, others._included

    def __getitem__(self, topic: str) -> Handler:
        return self._by_topic[topic]

    def __contains__(self, topic: object) -> bool:
        return topic in self._by_topic

    @property
    def topics(self) -> list[str]:
        return list(self._by_topic)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _in_thread(function: Function | BatchFunction, plain: RunPlain, limit: Limit) -> Run:
    name = getattr(function, "__qualname__", repr(function))

    async def run(given: Any) -> Any:
        timeout, now = limit(given), asyncio.get_running_loop().time
        began = now()

        def call(given: Any) -> Any:
            nonlocal began
            began = now()  # the wait for a thread does not count
            return function(given)

        call.__qualname__ = name
        result = await plain(call, given, timeout)
        if inspect.isawaitable(result):  # `lambda job: close_order(job)`, and many decorators
            async with time_limit(timeout, now() - began):
                return await result
        return _run_of(result)

    return run


def _on_the_loop(function: Function | BatchFunction) -> Callable[[Any], Awaitable[Any]]:
    @wraps(function)
    async def run(given: Any) -> Any:
        result = function(given)
        return await result if inspect.isawaitable(result) else _run_of(result)

    return run


def _run_of(result: Any) -> Any:
    """Returns what a run returned. Raises: TypeError for a generator, because nothing of it has run."""
    if isinstance(result, (GeneratorType, AsyncGeneratorType)):
        raise TypeError(f"the handler returned the generator {result.__qualname__}: it must run the job itself")
    return result


def _within(limit: Limit, run: Run) -> Run:
    async def run_within(timeout: float, given: Any) -> Any:
        async with time_limit(timeout):
            return await run(given)

    def run_it(given: Any) -> Awaitable[Any]:
        timeout = limit(given)
        return run(given) if timeout is None else run_within(timeout, given)

    return run_it
