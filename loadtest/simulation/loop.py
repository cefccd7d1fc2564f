"""`SimLoop`: the event loop of one simulated process. It has no thread and no socket, and never waits.

The world gives it turns. One turn runs the ready callbacks, as asyncio's own loop does; then the process has used some
processor time, and its next turn comes later. Connections go through the simulated network; functions for threads run
in the loop, at a random time.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from loadtest.simulation.process import Process

Arguments = TypeVarTuple("Arguments")
_numbers = iter(range(1 << 62))


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """Hashed by its number, so that sets of tasks have the same order in every run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(_numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future):  # type: ignore[type-arg]
    _number: int

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """The loop of one process."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        self.set_task_factory(lambda loop, coroutine, **options: _Task(coroutine, loop=loop, **options))

    def time(self) -> float:
        return self.process.monotonic()

    def create_future(self) -> Any:
        future = _Future(loop=self)
        future._number = next(_numbers)
        return future

    def turn(self) -> int:
        """Run the ready callbacks. Returns how many there were."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        ready: Any = self._ready  # type: ignore[attr-defined]
        now = self.time() + 1e-9
        while scheduled and (scheduled[0]._when <= now or scheduled[0]._cancelled):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        count = len(ready)
        events._set_running_loop(self)
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)
        return count

    @property
    def is_ready(self) -> bool:
        """Whether any callback is ready."""
        return bool(self._ready)  # type: ignore[attr-defined]

    @property
    def next_timer(self) -> float | None:
        """The time of the next timer, by this loop's clock."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else None

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = self.call_soon(callback, *args, context=context)
        self.process.poke()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run the function later, in this loop instead of a thread."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001  # goes to the caller
                future.set_exception(error)

        self.call_later(self.process.thread_delay(), run)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        transport = await self.process.network.connect(self.process, f"{host}:{port}", protocol_factory)
        return transport, transport.get_protocol()

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass
