"""`WorkerParts`: the objects that all parts of a worker share.

One of them is `Ending`: whether a handler was cancelled because its worker ends, or by somebody else. A handler runs in
a task of the worker's pool, and anyone may cancel that task: the handler itself, a library, a timer that outlived an
earlier handler. Only when the worker ends does a delivery stay held, to be handed back. Any other cancellation is
dropped after it took effect, so that the delivery is settled and the task takes the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from wheelq.worker.delivery.held import Consumer
from wheelq.worker.delivery.news import News
from wheelq.worker.delivery.recovery import Recovery
from wheelq.worker.delivery.settling import Settler


class WorkerParts(Consumer):
    """The shared parts of one worker: itself as a consumer, and the settling and recovery of its deliveries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ending = Ending()
        self.news = News()
        self.settler = Settler(self)
        self.recovery = Recovery(self, self.settler)


class Ending:
    """Whether one worker ends without waiting for its handlers any longer."""

    def __init__(self) -> None:
        self._has_begun = False
        self._main: asyncio.Task[Any] | None = None
        self._cancelled_before = 0

    def follow(self, main: asyncio.Task[Any] | None) -> None:
        """From now on the worker also ends when `main`, the task that runs it, is cancelled."""
        self._main = main
        self._cancelled_before = 0 if main is None else main.cancelling()

    def begin(self) -> None:
        """Must be called before the worker cancels its handlers."""
        self._has_begun = True

    @property
    def has_begun(self) -> bool:
        """Whether handlers are cancelled by the worker itself."""
        return self._has_begun or (self._main is not None and self._main.cancelling() > self._cancelled_before)

    async def drop_others(self) -> None:
        """Drop the cancellations of this task, including one that has not taken effect, unless the worker ends.

        Raises: CancelledError, if the worker ends meanwhile.
        """
        task = asyncio.current_task()
        if task is None or self.has_begun:
            return
        while True:
            while task.cancelling():
                task.uncancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            if self.has_begun:
                raise asyncio.CancelledError
            if not task.cancelling():
                return

    async def finish(self, step: Callable[[], Awaitable[None]]) -> None:
        """Await `step()`, again after each cancellation. Raises: CancelledError, if the worker ends."""
        while True:
            try:
                await step()
            except asyncio.CancelledError:
                if self.has_begun:
                    raise
                await self.drop_others()
            else:
                return
