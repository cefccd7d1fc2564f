"""`Pool`: runs deliveries, at most `concurrency` at a time.

A task for every job would cost more than a quick handler. So a *runner* (a task) works through the queue, one delivery
after another, and another runner takes over the queue only when a delivery has to wait:

    queue  a b c d e …        runner 1   a✓ b✓ c…(waits) ─────────────▶ c✓ ends
                              runner 2         d✓ e…(waits) ──▶ e✓ ends
    a handler that never waits costs no task; a handler that waits costs one, as it would anyway

A runner that was cancelled during a delivery ends with it, so that the cancellation cannot reach the next delivery.

Each delivery has its own context (contextvars), as if it had its own task.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

from wheelq.base.clock import Clock, SystemClock

T = TypeVar("T")

SLICE = 64
"""How many deliveries a runner handles before it yields to the event loop."""
LONGEST_S = 0.5
"""How many seconds a delivery may run on the event loop without a warning."""


class Pool(Generic[T]):
    """A queue of deliveries, and its runners."""

    def __init__(
        self,
        concurrency: int,
        run: Callable[[T, asyncio.Task[None]], Coroutine[Any, Any, None]],
        held_loop: Callable[[T, float], None] = lambda delivery, seconds: None,
        clock: Clock | None = None,
    ) -> None:
        """`run` settles one delivery, in the task that it is given, and does not raise.

        Calls `held_loop(delivery, seconds)` when a step of `run`, from one `await` to the next, took long.
        """
        self._concurrency = concurrency
        self._run = run
        self._held_loop = held_loop
        self._now = (clock or SystemClock()).monotonic
        self._queue: deque[T] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None  # the runner that works through the queue
        self._context: contextvars.Context | None = None  # of all runners: a delivery may add others, as a timer does
        self.held = 0
        """How many deliveries run or are queued."""
        self.changed = asyncio.Event()
        """Set whenever `free` may have grown."""

    def resize(self, concurrency: int) -> None:
        """Change how many deliveries may run at a time. If they are fewer now, none of those that run is stopped."""
        self._concurrency = concurrency
        self.changed.set()
        self._hire()

    @property
    def free(self) -> int:
        """How many more deliveries could start at once."""
        return max(0, self._concurrency - self.held)

    @property
    def patience_ms(self) -> int | None:
        """A read may wait for any time, because nothing here depends on it."""
        return None

    def add(self, deliveries: Iterable[T]) -> None:
        """Run these deliveries as soon as there is room."""
        before = len(self._queue)
        self._queue.extend(deliveries)
        self.held += len(self._queue) - before
        self._hire()

    async def idle(self) -> None:
        """Wait until nothing is queued or running."""
        while self.held:
            self.changed.clear()
            await self.changed.wait()

    quiet = idle
    """The same, because nothing is gathered here."""

    async def abandon(self) -> None:
        """Cancel running deliveries and forget queued ones."""
        self.held -= len(self._queue)
        self._queue.clear()
        runners = list(self._runners)
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    def _hire(self) -> None:
        """Let a new runner serve the queue, if there is something in it and no other runner does."""
        if self._queue and self._serving is None and len(self._runners) < self._concurrency:
            self._context = self._context or contextvars.copy_context()
            runner = self._serving = asyncio.create_task(self._work(), context=self._context)
            self._runners.add(runner)
            runner.add_done_callback(self._dismiss)

    def _dismiss(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._serving is runner:
            self._serving = None
        self._hire()

    async def _work(self) -> None:
        me, done, began = self._serving, 0, self._now()
        assert me is not None
        while self._queue and self._serving is me and not me.cancelling():
            delivery, context = self._queue.popleft(), contextvars.copy_context()
            coroutine = self._run(delivery, me)
            try:
                waits_for = context.run(coroutine.send, None)
                self._look(delivery, began)
                self._serving = None
                self._hire()
                await self._rest(delivery, coroutine, context, waits_for)
                self._serving, began = self._serving or me, self._now()
            except StopIteration:  # it did not wait
                began = self._look(delivery, began)
            finally:
                self.held -= 1
                self.changed.set()
            done += 1
            if done % SLICE == 0:
                await asyncio.sleep(0)
                began = self._now()

    @types.coroutine
    def _rest(
        self, delivery: T, coroutine: Coroutine[Any, Any, None], context: contextvars.Context, waits_for: Any
    ) -> Generator[Any, Any, None]:
        """Awaits the rest of a coroutine that waits, in its own context."""
        while True:
            try:
                step, value = coroutine.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001  # cancellation too belongs to the coroutine
                step, value = coroutine.throw, error
            began = self._now()
            try:
                waits_for = context.run(step, value)
            except StopIteration:
                return
            finally:
                self._look(delivery, began)

    def _look(self, delivery: T, began: float) -> float:
        """Report a step that took long. Returns when it ended."""
        ended = self._now()
        if ended - began > LONGEST_S:
            self._held_loop(delivery, ended - began)
        return ended
