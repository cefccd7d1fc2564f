"""Which function runs the jobs of a topic, and how it is called."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.job import Job, check_topic
from wheelq.retry import Retry

Function = Callable[[Job], Any]
Run = Callable[[Job], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A topic's function and its terms."""

    topic: str
    function: Function
    retry: Retry
    timeout: float | None
    """Seconds after which the function is given up and counts as failed; None: it may take as long as it likes."""

    def bind(self, threads: Executor) -> Run:
        """How a job is run: plain functions in `threads`, each within the handler's timeout."""
        run: Run = self.function if _is_async(self.function) else _in_thread(self.function, threads)
        return run if self.timeout is None else _within(self.timeout, run)


class Handlers:
    """The handlers of one worker, one per topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, Handler] = {}

    def add(self, topic: str, function: Function, retry: Retry, timeout: float | None) -> None:
        """Register a handler. Raises: InvalidInput, ConfigurationError when the topic has one."""
        check_topic(topic)
        if timeout is not None and not timeout > 0:
            raise InvalidInput("timeout", f"must be more than 0 seconds, not {timeout!r}")
        if topic in self._by_topic:
            other = self._by_topic[topic].function
            raise ConfigurationError(f"topic {topic!r} has the handler {getattr(other, '__qualname__', other)} already")
        self._by_topic[topic] = Handler(topic, function, retry, timeout)

    def __getitem__(self, topic: str) -> Handler:
        return self._by_topic[topic]

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler."""
        return list(self._by_topic)


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _in_thread(function: Function, threads: Executor) -> Run:
    async def run(job: Job) -> None:
        context = contextvars.copy_context()
        result = await asyncio.get_running_loop().run_in_executor(threads, context.run, function, job)
        if inspect.isawaitable(result):  # `lambda job: close_order(job)`, and many a decorator
            await result

    return run


def _within(timeout: float, run: Run) -> Run:
    async def run_within(job: Job) -> None:
        async with asyncio.timeout(timeout):
            await run(job)

    return run_within
