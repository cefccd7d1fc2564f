"""`Process`: one simulated process, with its own clocks and an event loop that has no thread and never waits.

The world gives it turns. One turn runs the ready callbacks, as asyncio's own loop does; then the process has used some
processor time, and its next turn comes later. A killed process never gets a turn again: nothing is cancelled or closed,
as after `kill -9`. A frozen process gets no turn until it wakes; its clocks continue, and data from the network waits
in its sockets. Functions for threads run in the loop, at a random time.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import Task, events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context
from typing import Any, TypeVarTuple

from loadtest.simulation.network import Network, ProcessEnd
from loadtest.simulation.world import EPOCH_S, World

MOST_ROUNDS = 50
"""How often tasks are cancelled after the run, and how many turns they get each time."""

PACES = (0.000005, 0.00001, 0.00004)
"""Seconds of processor time for each ready callback."""

Arguments = TypeVarTuple("Arguments")

current: list[Process] = []
"""A stack; the last process is the one whose turn it is."""


class Process:
    """One process."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.random = world.random(f"process {name}")
        self.pid = 1_000 + next(network.pids)
        self.loop = SimLoop(self)
        self.loop.set_exception_handler(self._complain)
        self.wall_offset = 0.0
        """Seconds by which its wall clock is wrong."""
        self._bits = self.random.getrandbits
        self.rate = 1.0 + self.random.uniform(-50e-6, 50e-6)
        """The speed of its clocks."""
        self.slowness = 1.0
        """How many times more processor time it needs than others."""
        self.is_alive, self.is_frozen = True, False
        self.disk_is_full = self.has_no_threads = False
        self.connections: dict[ProcessEnd, None] = {}
        self.unlocks: dict[int, Callable[[], None]] = {}
        """What unlocks the files that it owns."""
        self.complaints: list[str] = []
        self.turns = 0
        self.main: Task[Any] | None = None
        self._base = self.random.uniform(1_000, 100_000)
        self._busy_until = 0.0
        self._next_turn: float | None = None

    # --- clocks ----------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Its monotonic clock."""
        return self._base + self.world.now * self.rate

    def wall(self) -> float:
        """Its wall clock, in seconds since 1970."""
        return EPOCH_S + self.wall_offset + self.world.now * self.rate

    def drift(self, rate: float) -> None:
        """Change the speed of its clocks, from now on."""
        passed = self.world.now * (self.rate - rate)
        self._base += passed
        self.wall_offset += passed
        self.rate = rate

    # --- turns -----------------------------------------------------------------------------------------------------

    def start(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Process:
        """Start a coroutine, which is made in the process itself."""

        def begin() -> None:
            self.main = self.loop.create_task(main(), name=f"main of {self.name}")

        self.loop.call_soon(begin)
        self.poke()
        return self

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """Call something in its loop, in its next turn."""
        if self.is_alive:
            self.loop.call_soon(callback, *args)
            self.poke()

    def poke(self) -> None:
        """Give it a turn as soon as it is not busy."""
        if self.is_alive and not self.is_frozen:
            now = self.world.now
            self._turn_at(now if now > self._busy_until else self._busy_until)

    def freeze(self) -> None:
        """Give it no turns from now on."""
        self.is_frozen, self._next_turn = True, None

    def wake(self) -> None:
        """Give it turns again."""
        if self.is_alive and self.is_frozen:
            self.is_frozen = False
            self.poke()

    def kill(self) -> None:
        """Never give it a turn again; the kernel closes its connections and unlocks its files."""
        self.is_alive, self._next_turn = False, None
        for connection in list(self.connections):
            connection.vanish()
        for unlock in self.unlocks.values():
            unlock()

    def end(self) -> None:
        """After the run: cancel all tasks of its loop, so that none is left to the garbage collector."""
        self.is_alive, self._next_turn = False, None
        current.append(self)
        try:
            for _ in range(MOST_ROUNDS):
                if not (tasks := asyncio.all_tasks(self.loop)):
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(MOST_ROUNDS):
                    if self.loop.turn() == 0:
                        break
        finally:
            current.pop()

    def thread_delay(self) -> float:
        """Returns how long a thread takes to start a function."""
        return self.random.choice((0.00005, 0.0005, 0.003, self.random.uniform(0, 0.02)))

    def _turn_at(self, when: float) -> None:
        if self._next_turn is None or when < self._next_turn:
            self._next_turn = when
            self.world.at(when, lambda: self._turn(when))

    def _turn(self, when: float) -> None:
        if self._next_turn != when:
            return
        current.append(self)
        try:
            while self.is_alive and not self.is_frozen:
                self._next_turn = None
                following = self._turn_once()
                if following is None or (self._next_turn is not None and self._next_turn <= following):
                    return
                if not self.world.goes_on(following):
                    self._turn_at(following)
                    return
        finally:
            current.pop()

    def _turn_once(self) -> float | None:
        """Run one turn. Returns the time of the next one, if nothing comes from outside."""
        count = self.loop.turn()
        self.turns += 1
        while (pace := self._bits(2)) == 3:  # the same as `choice` of three, in a third of the time
            pass
        self._busy_until = self.world.now + 0.00001 + count * PACES[pace] * self.slowness
        if self.loop.is_ready:
            return self._busy_until
        timer = self.loop.next_timer
        return None if timer is None else max(self._busy_until, (timer - self._base) / self.rate)

    def _complain(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = f"{context.get('message')}: {type(error).__name__}: {error}" if error else str(context.get("message"))
        self.complaints.append(what)
        self.world.story.tell(self.name, f"COMPLAINS {what}")


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """Hashed by its number in its run, so that sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Any, *, loop: SimLoop, **options: Any) -> None:
        self._number = next(loop.process.world.numbers)
        super().__init__(coroutine, loop=loop, **options)

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
        future._number = next(self.process.world.numbers)
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


class InlineExecutor(Executor):
    """Replaces a pool of threads: runs functions in the process's loop, at a random time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._process.has_no_threads:
            raise RuntimeError("can't start new thread")
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # goes to the caller
                future.set_exception(error)

        self._process.loop.call_later(self._process.thread_delay(), run)
        return future

    def hold(self) -> InlineExecutor:
        """A thread for several calls; all calls run one after the other anyway."""
        if self._process.has_no_threads:
            raise RuntimeError("can't start new thread")
        return self

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass
