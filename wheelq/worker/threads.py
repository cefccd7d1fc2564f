"""`Threads`: runs plain functions, at most so many at a time, each in a thread that can be abandoned.

Nothing can stop a thread. One whose function takes longer than its timeout is abandoned: it goes on in the background,
nobody waits for what it returns, and its place is another's. Of those there may be `ABANDONED_LIMIT`; beyond that an
abandoned thread keeps its place until it ends, so that a worker whose handlers all hang does not drown in threads.

The threads are daemons, and the standard library's pool is not used: it would keep a process from ending until the
last abandoned thread has returned, which may be never.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger("wheelq.worker")

P = ParamSpec("P")
T = TypeVar("T")

ABANDONED_LIMIT = 64

_Work = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """Belongs to the event loop it was made in."""

    def __init__(self, places: int, executor: Executor | None = None) -> None:
        """`executor` runs the functions in place of daemon threads: for tests."""
        self.abandoned = 0
        """Threads that go on although nobody waits for them."""
        self._places = asyncio.Semaphore(places)
        self._executor = executor or _Daemons()

    async def run(self, function: Callable[[Any], Any], given: Any, timeout: float | None) -> Any:
        """What `function(given)` returns, in a copy of the caller's context. Waiting for a place is not its time.

        Raises: TimeoutError, and what the function raises.
        """
        await self._places.acquire()
        call = self._executor.submit(contextvars.copy_context().run, function, given)
        try:
            async with time_limit(timeout):
                return await asyncio.wrap_future(call)
        finally:
            if call.done():
                self._places.release()
            else:
                self._abandon(call, function)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self._executor.shutdown(wait=False)

    def _abandon(self, call: Future[Any], function: Callable[[Any], Any]) -> None:
        self.abandoned += 1
        keeps_place = self.abandoned > ABANDONED_LIMIT
        if not keeps_place:
            self._places.release()
        name = getattr(function, "__qualname__", repr(function))
        logger.warning("%s cannot be stopped in its thread, where it goes on; %d do", name, self.abandoned)
        loop = asyncio.get_running_loop()

        def ended(call: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended before
                loop.call_soon_threadsafe(self._take_back, keeps_place)

        call.add_done_callback(ended)

    def _take_back(self, kept_place: bool) -> None:
        self.abandoned -= 1
        if kept_place:
            self._places.release()


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Cancels its body after so many seconds. Raises: TimeoutError, which says so."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"took longer than its timeout of {seconds:g} s") from error
        raise


class _Daemons(Executor):
    """Daemon threads, made when none is idle."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, partial(fn, *args, **kwargs)))
        with self._lock:
            if self._idle:
                self._idle -= 1
                return future
            self._threads += 1
        Thread(target=self._run, name=f"wheelq-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let each thread end when it has nothing more to do; waits for none."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                _finish(future, call)
            del work, future, call  # an idle thread keeps no job alive
            with self._lock:
                self._idle += 1


def _finish(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except StopIteration as error:  # no future can hold it
        problem = RuntimeError("the handler raised StopIteration")
        problem.__cause__ = error
        future.set_exception(problem)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
