"""`Threads`: runs plain functions, a limited number at a time, each in a thread that can be abandoned.

Nothing can stop a thread. A thread whose function exceeds its timeout is abandoned: it runs on in the background, its
result is dropped, and its place is free again. Only `ABANDONED_LIMIT` threads give their places back; after that an
abandoned thread keeps its place until it ends, so that hanging handlers cannot fill a worker with threads.

If plain hooks run around a plain handler, `OneThread` holds one thread for all of them, so that they share thread-local
values, such as a database connection. Context variables are copied to that thread and back, so that hooks on the event
loop see the same values.

`Daemons` is the executor beneath them. With the standard library's pool, a process cannot end before its last thread
has returned, which may be never. An idle thread waits for the next call; a new one starts only when none is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

from wheelq.base.clock import SystemClock
from wheelq.reminders import Loop

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")

ABANDONED_LIMIT = 64

_UNSET: Any = object()


RunPlain = Callable[[Callable[[Any], Any], Any, float | None], Awaitable[Any]]
"""Returns `function(given)` of a plain function, within a timeout in seconds: `run` of `Threads` or a `OneThread`."""


class Threads:
    """Threads for plain functions. Belongs to the event loop it was made in."""

    def __init__(
        self, places: int, executor: Daemons | None = None, on_kept: Callable[[int], None] = lambda kept: None
    ) -> None:
        """`executor` replaces the daemon threads in tests.

        Calls `on_kept(kept)` whenever abandoned threads keep more places, or fewer.
        """
        self.abandoned = 0
        """The number of abandoned threads that still run."""
        self._kept = 0
        self._on_kept = on_kept
        self._places = asyncio.Semaphore(places)
        self._executor = executor or Daemons()

    def add(self, places: int) -> None:
        """Let so many more functions run at a time."""
        for _ in range(places):
            self._places.release()

    async def run(self, function: Callable[[Any], Any], given: Any, timeout: float | None) -> Any:
        """Returns `function(given)`, called in a copy of the caller's context.

        `timeout` is in seconds, and counts from when a place is free. Raises: TimeoutError, and the function's errors.
        """
        await self._places.acquire()
        try:
            work = partial(contextvars.copy_context().run, function, given)
            call = await self._in_time(lambda: self._executor.submit(work))
        except BaseException:
            self._places.release()
            raise
        try:
            async with time_limit(timeout):
                return await asyncio.wrap_future(call)
        finally:
            if call.done():
                self._places.release()
            else:
                self._abandon(call, function)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[OneThread]:
        """Yields one thread for several functions. The first call takes the thread, and a place."""
        thread = OneThread(self)
        try:
            yield thread
        finally:
            thread._give_back()

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self._executor.shutdown(wait=False)

    async def _in_time(self, begin: Callable[[], T]) -> T:
        """Returns `begin()`. While the machine has no spare thread, the job waits instead of failing."""

        async def step() -> T:
            return begin()

        what = "a plain handler waits for a thread, until the machine allows one more"
        return await Loop(SystemClock(), logger, what, errors=RuntimeError).insist(step)

    def _abandon(self, call: Future[Any], function: Callable[[Any], Any], has_place: bool = True) -> None:
        self.abandoned += 1
        keeps_place = has_place and self.abandoned > ABANDONED_LIMIT
        if keeps_place:
            self._keep(1)
        elif has_place:
            self._places.release()
        name = getattr(function, "__qualname__", repr(function))
        logger.warning("%s cannot be stopped in its thread, and goes on; abandoned threads: %d", name, self.abandoned)
        loop = asyncio.get_running_loop()

        def ended(call: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
                loop.call_soon_threadsafe(self._take_back, keeps_place)

        call.add_done_callback(ended)

    def _take_back(self, kept_place: bool) -> None:
        self.abandoned -= 1
        if kept_place:
            self._places.release()
            self._keep(-1)

    def _keep(self, more: int) -> None:
        self._kept += more
        self._on_kept(self._kept)


class OneThread:
    """Runs several plain functions, one after another, in the same thread and the same context.

    If one of them is abandoned, later ones run in another thread, which takes no place: the worker must be able to
    settle a job even while hanging functions take every place.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._thread: Executor | None = None
        self._has_place = False
        self._may_take_place = True
        self._context = contextvars.copy_context()

    async def run(self, function: Callable[[Any], Any], given: Any, timeout: float | None) -> Any:
        """Returns `function(given)`; see `Threads.run`."""
        thread = self._thread or await self._take()
        work = partial(self._context.run, _called_in, contextvars.copy_context(), function, given)
        call = thread.submit(work)
        try:
            async with time_limit(timeout):
                return await asyncio.wrap_future(call)
        finally:
            if call.done():
                _adopt(self._context)
            else:
                self._abandon(call, function)

    async def _take(self) -> Executor:
        if self._may_take_place:
            await self._threads._places.acquire()
            self._has_place = True
            self._may_take_place = False
        self._thread = await self._threads._in_time(self._threads._executor.hold)
        return self._thread

    def _abandon(self, call: Future[Any], function: Callable[[Any], Any]) -> None:
        self._threads._abandon(call, function, self._has_place)
        self._has_place = False
        self._context = contextvars.copy_context()  # the abandoned function still uses the other one
        self._give_back()

    def _give_back(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._has_place:
            self._threads._places.release()
            self._has_place = False


def _called_in(context: contextvars.Context, function: Callable[[Any], Any], given: Any) -> Any:
    """Returns `function(given)`, called with the context variables of another context."""
    _adopt(context)
    return function(given)


def _adopt(context: contextvars.Context) -> None:
    """Set the context variables that have another value in `context`."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


@asynccontextmanager
async def time_limit(seconds: float | None, spent: float = 0.0) -> AsyncIterator[None]:
    """Cancels its body after `seconds`, of which some may be `spent`. Raises: TimeoutError."""
    limit = asyncio.timeout(None if seconds is None else max(0.0, seconds - spent))
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"took longer than its timeout of {seconds:g} s") from error
        raise


P = ParamSpec("P")

_Work = tuple["Future[Any]", Callable[[], Any]]
_Queue = SimpleQueue[_Work | None]


class Daemons(Executor):
    """Daemon threads, made when none is idle."""

    def __init__(self) -> None:
        self._work: _Queue = SimpleQueue()
        self._lock = Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a thread. Raises: RuntimeError when no thread can be started; then nothing is done."""
        future: Future[T] = Future()
        future.add_done_callback(lambda _: self._is_idle())  # before a caller gets the result and submits the next call
        self._give(future, partial(fn, *args, **kwargs))
        return future

    def hold(self) -> Executor:
        """Take one of the threads. Raises: RuntimeError when no thread can be started; then nothing is done."""
        held = HeldThread(self._is_idle)
        self._give(Future(), partial(_work_off, held._work))
        return held

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let each thread end when it is idle, without waiting for any."""
        for _ in range(self._threads):
            self._work.put(None)

    def _give(self, future: Future[Any], call: Callable[[], Any]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:  # first, because it may fail: a queued call would run later although no caller waits
                name = f"wheelq-{self._threads + 1}"
                Thread(target=partial(_work_off, self._work), name=name, daemon=True).start()
                self._threads += 1
        self._work.put((future, call))

    def _is_idle(self) -> None:
        """Record that one more thread is idle, or will be at once."""
        with self._lock:
            self._idle += 1


class HeldThread(Executor):
    """One thread, which makes the calls submitted here until `shutdown` gives it back."""

    def __init__(self, is_idle: Callable[[], None]) -> None:
        """`is_idle` is called once the thread is free for others."""
        self._work: _Queue = SimpleQueue()
        self._last: Future[Any] | None = None
        self._is_idle = is_idle

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._last = future
        self._work.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give the thread back after the submitted calls, without waiting for them."""
        if self._last is None:
            self._end()
        else:
            self._last.add_done_callback(self._end)

    def _end(self, last: Future[Any] | None = None) -> None:
        self._is_idle()
        self._work.put(None)


def _work_off(queue: _Queue) -> None:
    """Make the calls in the queue until it yields None."""
    while (work := queue.get()) is not None:
        future, call = work
        if future.set_running_or_notify_cancel():
            _finish(future, call)
        del work, future, call  # an idle thread must keep no job alive


def _finish(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except (StopIteration, GeneratorExit) as error:  # no future can carry these out of the thread
        problem = RuntimeError(f"the function raised {type(error).__name__}")
        problem.__cause__ = error
        future.set_exception(problem)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
