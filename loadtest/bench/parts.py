"""The parts of wheelq that are measured, each as a process of its own with its default settings.

    this process ── pipe ──▶ scheduler process          asked for its processor time; SIGTERM stops it cleanly
                 ── pipe ──▶ worker process             also asked how many handlers have started; at its end it
                 ◀── Runs ──                            returns all starts

The worker's handler only appends to lists in memory, so that measuring costs very little, and every job can be judged
by its id afterwards. A part stops when its pipe ends because the process that started it is gone.
"""

import asyncio
import os
import signal
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from operator import sub
from pathlib import Path
from typing import Any, Self

from wheelq import Job, Scheduler, Settings, Worker

SPAWN = get_context("spawn")
START_S = 30.0  # longest wait for a process to answer for the first time, or to end
LOOK_S = 0.02  # between two questions for the number of starts


@dataclass(frozen=True, slots=True)
class Runs:
    """Every start of a handler, in order, as columns: rows would cost the worker processor time that is measured."""

    ids: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    due_ms: "array[int]" = field(default_factory=lambda: array("q"))
    started_ms: "array[float]" = field(default_factory=lambda: array("d"))
    """By the worker's estimate of the server's clock."""

    @classmethod
    def joined(cls, parts: "Iterable[Runs]") -> Self:
        """The starts of several workers."""
        found = cls()
        for part in parts:
            found.ids.extend(part.ids)
            found.entry_ids.extend(part.entry_ids)
            found.due_ms.extend(part.due_ms)
            found.started_ms.extend(part.started_ms)
        return found

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Iterator[tuple[str, str, int, float]]:
        """Id, entry id, due_ms and started_ms of every start."""
        return zip(self.ids, self.entry_ids, self.due_ms, self.started_ms, strict=True)

    def lateness_since(self, start: int) -> "array[float]":
        """From the due time to the start of the handler, of every start but the first `start`, in order."""
        return array("d", map(sub, self.started_ms[start:], self.due_ms[start:]))

    def lateness_ms(self, ids: set[str]) -> list[float]:
        """From the due time to the start of the handler, of these jobs, sorted."""
        return sorted(started_ms - due_ms for id, _, due_ms, started_ms in self.rows() if id in ids)

    def starts_ms(self, ids: set[str]) -> list[float]:
        """When the handlers of these jobs started, sorted."""
        return sorted(started_ms for id, _, _, started_ms in self.rows() if id in ids)


class Part:
    """A scheduler or worker process, from here."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        self._pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=main, args=(there, *arguments), daemon=True)
        self._process.start()
        there.close()

    def cpu_s(self) -> float:
        """Seconds of processor time since it began to run, without the time to load Python."""
        return float(self._ask("cpu_s"))

    def peak_mb(self) -> float:
        """The most memory that it has held so far."""
        return float(self._ask("peak_mb"))

    def started(self) -> int:
        """How many handlers have started (a worker's answer)."""
        return int(self._ask("started"))

    def lateness_since(self, start: int) -> "array[float]":
        """The lateness of every start but the first `start`, in ms, in order (a worker's answer)."""
        found: array[float] = self._ask("lateness_since", start)
        return found

    def wait_for(self, starts: int, timeout_s: float) -> bool:
        """Wait until `starts` handlers have started; False if that takes longer than `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while self.started() < starts:
            if time.monotonic() > give_up:
                return False
            time.sleep(LOOK_S)
        return True

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()

    def stop(self) -> Any:
        """Stop it cleanly; returns its result (a worker: its `Runs`)."""
        self._process.terminate()
        result = self._receive()
        self._process.join(START_S)
        self._pipe.close()
        return result

    def _ask(self, what: str, *arguments: Any) -> Any:
        with suppress(BrokenPipeError):  # reading then raises the error
            self._pipe.send((what, arguments))
        return self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(START_S):
            raise TimeoutError(f"{self._process.name} does not answer")
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"{self._process.name} ended by itself: see what it printed") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it still runs."""
        self.kill()


@contextmanager
def scheduler_and_workers(
    url: str, settings: Settings, topics: Sequence[str], loop: str, workers: int = 1
) -> Iterator[tuple[Part, list[Part]]]:
    """Start a scheduler and workers, which need a moment until they work. `loop` is "asyncio" or "uvloop"."""
    with ExitStack() as running:
        scheduler = running.enter_context(Part(run_scheduler, url, settings, loop))
        yield (
            scheduler,
            [running.enter_context(Part(run_worker, url, settings, topics, loop)) for _ in range(workers)],
        )


# --- in the other process ----------------------------------------------------------------------------------------


def run_scheduler(pipe: Connection, url: str, settings: Settings, loop: str) -> None:
    """The scheduler's process."""
    _run(loop, pipe, lambda: Scheduler.connect(url, settings), {}, lambda: None)


def run_stuck_worker(pipe: Connection, url: str, settings: Settings, topics: Sequence[str], loop: str) -> None:
    """The process of a worker whose jobs do not end."""

    async def never_end(job: Job) -> None:
        await asyncio.Event().wait()

    run_worker(pipe, url, settings, topics, loop, never_end)


def run_chaining_worker(pipe: Connection, url: str, settings: Settings, topics: Sequence[str], loop: str) -> None:
    """The process of a worker whose jobs are followed by as many others as their payload, a number, says."""

    async def follow(job: Job) -> None:
        if isinstance(job.payload, int) and job.payload > 0:
            job.then(job.topic, job.payload - 1, key=f"{job.id}+")

    run_worker(pipe, url, settings, topics, loop, follow)


def run_worker(
    pipe: Connection,
    url: str,
    settings: Settings,
    topics: Sequence[str],
    loop: str,
    then: Callable[[Job], Awaitable[None]] | None = None,
) -> None:
    """The worker's process. `then` is what its handler does after it has noted the start."""
    runs = Runs()
    add_id, add_entry_id = runs.ids.append, runs.entry_ids.append
    add_due, add_start = runs.due_ms.append, runs.started_ms.append

    async def handle(job: Job) -> None:
        add_id(job.id)
        add_entry_id(job.entry_id)
        add_due(job.due_ms)
        add_start(job.started_ms)
        if then:
            await then(job)

    def make() -> Worker:
        worker = Worker.connect(url, settings=settings)
        for topic in topics:
            worker.handler(topic)(handle)
        return worker

    answers: dict[str, Callable[..., Any]] = {"started": lambda: len(runs), "lateness_since": runs.lateness_since}
    _run(loop, pipe, make, answers, lambda: runs)


def _run(
    loop: str,
    pipe: Connection,
    make: Callable[[], Scheduler | Worker],
    answers: Mapping[str, Callable[..., Any]],
    result: Callable[[], Any],
) -> None:
    loop_factory = None
    if loop == "uvloop":
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(pipe, make, answers))
    with suppress(BrokenPipeError):
        pipe.send(result())


def _peak_mb() -> float:
    """Reads /proc, because getrusage includes the memory of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _serve(
    pipe: Connection, make: Callable[[], Scheduler | Worker], answers: Mapping[str, Callable[..., Any]]
) -> None:
    began = time.process_time()
    loop, part = asyncio.get_running_loop(), make()
    known: dict[str, Callable[..., Any]] = {
        "cpu_s": lambda: time.process_time() - began,
        "peak_mb": _peak_mb,
        **answers,
    }

    def answer() -> None:
        try:
            what, arguments = pipe.recv()
            pipe.send(known[what](*arguments))
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            part.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, part.stop)
    loop.add_reader(pipe.fileno(), answer)
    os.set_blocking(pipe.fileno(), True)  # uvloop changes that, and a long answer would fail
    await part.run()
    loop.remove_reader(pipe.fileno())
