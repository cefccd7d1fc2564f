"""How functions become the handlers of a worker: decorators, which are part of `Worker`, as those of `hooks` are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wheelq.arguments import check_topic
from wheelq.retry import Retry
from wheelq.worker.batching import BatchTerms
from wheelq.worker.handlers import BatchFunction, Find, Function, Handlers, Ordered
from wheelq.worker.hooks import Hooks

F = TypeVar("F", bound=Function)
B = TypeVar("B", bound=BatchFunction)


class Decorators(Hooks):
    """The handlers of a worker, and the hooks around them."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers = Handlers()

    def handler(
        self, topic: str, *, retry: Retry | None = None, timeout: float | None = None, ordered: Ordered = False
    ) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of `topic`: `async def`, or a plain one, which runs in a thread.

        When it returns the job is done; when it raises, or takes more than `timeout` seconds, it is tried again as
        `retry` says (by default 5 attempts with growing pauses), and then buried.

        `ordered=True` runs the jobs of each shard one at a time and in due order, over all workers of the group;
        `ordered="key"` those of each partition key. A job that is to be tried again holds back those behind it until
        it is done or buried.
        """
        check_topic(topic)  # at once: `@worker.handler` without its topic would take the function for one

        def register(function: F) -> F:
            self._handlers.add(topic, function, retry or Retry(), timeout, ordered=ordered)
            return function

        return register

    def handler_for_each(
        self,
        find: Find,
        *,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of every topic that `find` names, which is asked again and again.

        For services whose topics come and go. A topic that has a handler of its own keeps it; one that is no longer
        named goes on being served until this worker ends.
        """

        def register(function: F) -> F:
            self._handlers.add_for_each(find, function, retry or Retry(), timeout)
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
    ) -> Callable[[B], B]:
        """Decorate the function that takes the jobs of `topic` as lists of up to `max_size`.

        It is called when so many have come, or the first of them has waited `max_wait` seconds; `concurrency` calls
        run at the same time, besides the worker's single handlers. When it returns the jobs are done; when it raises,
        or takes more than `timeout` seconds, each is tried again or buried as `retry` says. For outcomes of their own
        it returns a list with an error in the place of each job that failed (as `asyncio.gather` with
        `return_exceptions=True` makes it), or raises `wheelq.errors.BatchFailed`.
        """
        check_topic(topic)
        terms = BatchTerms(max_size, max_wait, concurrency)

        def register(function: B) -> B:
            self._handlers.add(topic, function, retry or Retry(), timeout, terms)
            return function

        return register
