"""Which function runs the jobs of a topic, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from wheelq.arguments import check_topic
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.job import Job
from wheelq.retry import Retry
from wheelq.worker.batching import BatchTerms
from wheelq.worker.threads import Threads, time_limit

Function = Callable[[Job], Any]
BatchFunction = Callable[[list[Job]], Any]
Find = Callable[[], Awaitable[Iterable[str]]]
"""Names topics: those that there are at the moment."""
Ordered = Literal[False, True, "key"]
Run = Callable[[Any], Awaitable[Any]]
"""Runs a function of either kind, with what it takes."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A topic's function and its terms."""

    topic: str
    function: Function | BatchFunction
    retry: Retry
    timeout: float | None
    """Seconds after which the function is given up and counts as failed; None: it may take as long as it likes."""
    batch: BatchTerms | None = None
    """How its jobs are gathered to lists; None: it takes one job."""
    ordered: Ordered = False
    """Whether its jobs run one at a time and in order: those of a shard, or of a partition key."""

    @property
    def can_be_cancelled(self) -> bool:
        """Whether one job that it runs can be: a thread cannot, and of a batch no part can."""
        return self.batch is None and _is_async(self.function)

    def bind(self, threads: Threads) -> Run:
        """How a job is run: plain functions in `threads`, each within the handler's timeout."""
        if not _is_async(self.function):
            return _surviving(_in_thread(self.function, threads, self.timeout))
        return _surviving(self.function if self.timeout is None else _within(self.timeout, self.function))


class Handlers:
    """The handlers of one worker, one per topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Handler] = {}
        self._find_more: Callable[[], Awaitable[None]] | None = None

    def add(
        self,
        topic: str,
        function: Function | BatchFunction,
        retry: Retry,
        timeout: float | None,
        batch: BatchTerms | None = None,
        ordered: Ordered = False,
    ) -> None:
        """Register a handler. Raises: InvalidInput, ConfigurationError when the topic has one."""
        check_topic(topic)
        if not callable(function):
            raise InvalidInput("function", f"must be a function that takes jobs, not {type(function).__name__}")
        if not isinstance(retry, Retry):
            raise InvalidInput("retry", f"must be a Retry, such as Retry(max_attempts=3), not {retry!r}")
        if timeout is not None and not timeout > 0:
            raise InvalidInput("timeout", f"must be more than 0 seconds, not {timeout!r}")
        if ordered not in get_args(Ordered):
            raise InvalidInput("ordered", f"must be False, True or 'key', not {ordered!r}")
        if topic in self._by_topic:
            other = self._by_topic[topic].function
            raise ConfigurationError(f"topic {topic!r} has the handler {getattr(other, '__qualname__', other)} already")
        self._by_topic[topic] = Handler(topic, function, retry, timeout, batch, ordered)

    def add_for_each(self, find: Find, function: Function, retry: Retry, timeout: float | None) -> None:
        """Let `function` run the jobs of every topic that `find` names, unless it has a handler."""

        async def find_more() -> None:
            for topic in await find():
                if topic not in self:
                    self.add(topic, function, retry, timeout)

        self._find_more = find_more

    async def find_more(self) -> None:
        """Ask which topics there are now, if there is a handler for each."""
        if self._find_more is not None:
            await self._find_more()

    @property
    def may_get_more(self) -> bool:
        """Whether topics may get their handler later."""
        return self._find_more is not None

    @property
    def is_empty(self) -> bool:
        """Whether there are none, and never will be."""
        return not self._by_topic and not self.may_get_more

    def share(self, others: Handlers) -> None:
        """Be the same as another worker's, also in what it gets later."""
        self._by_topic = others._by_topic

    def __getitem__(self, topic: str) -> Handler:
        return self._by_topic[topic]

    def __contains__(self, topic: object) -> bool:
        return topic in self._by_topic

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler."""
        return list(self._by_topic)


def _is_async(function: Function | BatchFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _surviving(run: Run) -> Run:
    """A handler that calls a program's `main()` has failed when that exits; its worker goes on."""

    async def run_on(given: Any) -> Any:
        try:
            return await run(given)
        except SystemExit as error:
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error

    return run_on


def _in_thread(function: Function | BatchFunction, threads: Threads, timeout: float | None) -> Run:
    async def run(given: Any) -> Any:
        result = await threads.run(function, given, timeout)
        if inspect.isawaitable(result):  # `lambda job: close_order(job)`, and many a decorator
            async with time_limit(timeout):
                return await result
        return result

    return run


def _within(timeout: float, run: Run) -> Run:
    async def run_within(given: Any) -> Any:
        async with time_limit(timeout):
            return await run(given)

    return run_within
