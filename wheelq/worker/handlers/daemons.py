"""`Daemons`: an executor of daemon threads; a caller can hold one for several calls.

With the standard library's pool, a process cannot end before its last thread has returned, which may be never. An idle
thread waits for the next call; a new one is started only when none is idle.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

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

    def hold(self) -> HeldThread:
        """Take one of the threads. Raises: RuntimeError when no thread can be started; then nothing is done."""
        held = HeldThread(self._is_idle)
        self._give(Future(), held._run)
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

    def _run(self) -> None:
        _work_off(self._work)


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
