"""The threads of a simulated process: real threads. Only one runs at a time, and only during a turn of its process.

    loop ──go_on──▶ thread ──pause──▶ loop          the thread waits for a timer or for `go_on`

So a blocking call waits in virtual time, and the seed decides which thread runs next. `Threading` replaces the module
`threading` where the product makes threads, locks and events.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from loadtest.simulation.process import Process, current

LOOK_S = 0.001
"""How often a thread looks whether a lock is free."""
_here = threading.local()


def this_thread() -> SimThread | None:
    """Returns the simulated thread that runs now; None in an event loop."""
    return getattr(_here, "thread", None)


class SimThread:
    """One thread."""

    def __init__(self, target: Callable[[], object], name: str = "", daemon: bool = True) -> None:
        self.process: Process = current[-1]
        self.is_over = False
        self._target, self._name = target, name
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = SimEvent()

    def start(self) -> None:
        """Start the thread soon. Raises: RuntimeError, while its process can start no thread."""
        if self.process.has_no_threads:
            raise RuntimeError("can't start new thread")
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self.process.loop.call_later(self.process.thread_delay(), self.go_on)

    def go_on(self) -> None:
        """Called in the loop: run the thread until it waits again."""
        if not self.is_over:
            self._turn.release()
            self._back.acquire()

    def pause(self, seconds: float | None = None) -> None:
        """Called in the thread: let others run until `go_on` is called, or for this long."""
        timer = None if seconds is None else self.process.loop.call_later(seconds, self.go_on)
        self._back.release()
        self._turn.acquire()
        if timer is not None:
            timer.cancel()

    def sleep(self, seconds: float) -> None:
        """Called in the thread: wait this long."""
        until = self.process.monotonic() + seconds
        while (left := until - self.process.monotonic()) > 0:
            self.pause(left)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._ended.wait(timeout)

    def _run(self) -> None:
        self._turn.acquire()
        _here.thread = self
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001  # reported by the oracle
            self.process.complaints.append(f"thread {self._name}: {type(error).__name__}: {error}")
        self.is_over = True
        self._ended.set()
        self._back.release()


class SimEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake the threads that wait for it."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.process.deliver(thread.go_on)

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set. Returns whether it was set within the time."""
        thread = this_thread()
        assert thread is not None, "a loop waits for a thread"
        until = None if timeout is None else thread.process.monotonic() + timeout
        while not self._is_set:
            left = None if until is None else until - thread.process.monotonic()
            if left is not None and left <= 0:
                break
            self._waiting.append(thread)
            thread.pause(left)
            if thread in self._waiting:
                self._waiting.remove(thread)
        return self._is_set


class SimLock:
    """`threading.Lock` and `RLock`."""

    def __init__(self, is_reentrant: bool = False) -> None:
        self._is_reentrant = is_reentrant
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Returns whether it was free in time."""
        thread = this_thread()
        me = thread or "loop"
        waited = 0.0
        while self._owner is not None and not (self._is_reentrant and self._owner is me):
            if not blocking or 0 <= timeout <= waited:
                return False
            assert thread is not None, "a loop waits for a lock"
            thread.pause(LOOK_S)
            waited += LOOK_S
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        """Release the lock."""
        self._count -= 1
        if self._count == 0:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimSemaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._left = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a place. Returns whether one was free in time."""
        thread = this_thread()
        waited = 0.0
        while not self._left:
            if not blocking or (timeout is not None and timeout <= waited):
                return False
            assert thread is not None, "a loop waits for a place"
            thread.pause(LOOK_S)
            waited += LOOK_S
        self._left -= 1
        return True

    def release(self) -> None:
        """Give a place back."""
        self._left += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Threading:
    """The part of the module `threading` that producers use."""

    Thread, Event, Lock, Semaphore = SimThread, SimEvent, SimLock, SimSemaphore
    RLock = functools.partial(SimLock, is_reentrant=True)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run a blocking function in a thread. Returns its result."""
    process = current[-1]
    future = process.loop.create_future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # goes to the caller
            process.loop.call_soon(_finish, future.set_exception, error)
        else:
            process.loop.call_soon(_finish, future.set_result, result)

    def _finish(finish: Callable[[Any], None], what: Any) -> None:
        if not future.done():
            finish(what)

    SimThread(run, "caller").start()
    return await future
