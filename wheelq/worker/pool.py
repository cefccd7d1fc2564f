"""`Pool`: runs deliveries, at most `concurrency` at a time.

A task for every job would cost more than a quick handler. So a *runner* (a task) works through the queue, one delivery
after another, and another runner takes over the queue only when a delivery has to wait:

    queue  a b c d e …        runner 1   a✓ b✓ c…(waits) ─────────────▶ c✓ ends
                              runner 2         d✓ e…(waits) ──▶ e✓ ends
    a handler that never waits costs no task; a handler that waits costs one, as it would anyway

Each delivery has its own context (contextvars), as if it had its own task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SLICE = 64
"""How many deliveries a runner handles before it yields to the event loop."""


class Pool(Generic[T]):
    """A queue of deliveries, and its runners."""

    def __init__(self, concurrency: int, run: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        """`run` settles one delivery and does not raise."""
        self._concurrency = concurrency
        self._run = run
        self._queue: deque[T] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._held = 0
        self._aside = 0
        self._changed = asyncio.Event()
        self._waiting = 0  # how many wait for room

    @property
    def free(self) -> int:
        """How many more deliveries could start at once."""
        return max(0, self._concurrency - self._held)

    @property
    def patience_ms(self) -> int | None:
        """A read may wait for any time, because nothing here depends on it."""
        return None

    def add(self, deliveries: Iterable[T]) -> None:
        """Run these deliveries as soon as there is room."""
        before = len(self._queue)
        self._queue.extend(deliveries)
        self._held += len(self._queue) - before
        self._hire()

    async def room(self) -> int:
        """Wait until there are free places that are not reserved. Returns how many."""
        while self.free <= self._aside:
            await self._change()
        return self.free - self._aside

    def set_aside(self, places: int) -> None:
        """Reserve free places for a read."""
        self._aside += places

    def give_back(self, places: int) -> None:
        """Release the places reserved for a read."""
        self._aside -= places
        self._changed.set()

    async def idle(self) -> None:
        """Wait until nothing is queued or running."""
        while self._held:
            await self._change()

    async def abandon(self) -> None:
        """Cancel running deliveries and forget queued ones."""
        self._held -= len(self._queue)
        self._queue.clear()
        runners = list(self._runners)
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _change(self) -> None:
        self._changed.clear()
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    def _hire(self) -> None:
        if self._queue and len(self._runners) < self._concurrency:
            runner = asyncio.create_task(self._work())
            self._runners.add(runner)
            runner.add_done_callback(self._dismiss)

    def _dismiss(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        self._hire()

    async def _work(self) -> None:
        done = 0
        while self._queue:
            delivery = self._queue.popleft()
            try:
                await _Isolated(self._run(delivery), self._hire)
            finally:
                self._held -= 1
                if self._waiting:
                    self._changed.set()
            done += 1
            if done % SLICE == 0:
                await asyncio.sleep(0)


class _Isolated(Awaitable[None]):
    """Awaits a coroutine in its own context; calls `on_wait` when it waits for the first time."""

    __slots__ = ("_coroutine", "_on_wait")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_wait: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_wait = on_wait

    def __await__(self) -> Generator[Any, Any, None]:
        run = contextvars.copy_context().run
        coroutine = self._coroutine
        try:
            waits_for = run(coroutine.send, None)
            self._on_wait()
            while True:
                try:
                    value = yield waits_for
                except BaseException as error:  # noqa: BLE001  # cancellation too belongs to the coroutine
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(coroutine.send, value)
        except StopIteration:
            return
