"""Plain functions in threads that can be abandoned."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import PATIENCE, in_time, until
from wheelq import Retry
from wheelq.worker.handlers import threads as module
from wheelq.worker.handlers.handler import Handler
from wheelq.worker.handlers.threads import OneThread, Threads, time_limit


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Functions wait for it; at the end it is open."""
    gate = threading.Event()
    yield gate
    gate.set()


async def abandon(threads: Threads, runner: Threads | OneThread, gate: threading.Event) -> None:
    """Let a function exceed its timeout; again, if its thread had not even begun then."""
    before = threads.abandoned
    while threads.abandoned == before:
        with pytest.raises(TimeoutError, match=r"timeout of 0\.02 s"):
            await runner.run(lambda _: gate.wait(), None, 0.02)


async def test_what_a_plain_function_returns_to_be_awaited_has_the_rest_of_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It had as long again."""
    loop, slept = asyncio.get_running_loop(), list[float]()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + sum(slept))

    async def plain(function: Callable[[Any], Any], given: Any, timeout: float | None) -> Any:
        slept.append(3_600.0)  # in which it waits for a thread: that does not count
        return function(given)

    async def rest() -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return "done"

    def at_length(job: Any) -> Any:
        slept.append(3_600.0)
        return rest()

    job = SimpleNamespace(timeout=None)
    assert await Handler("orders", lambda job: rest(), Retry(), timeout=3_600.0).bind(plain)(job) == "done"
    with pytest.raises(TimeoutError, match="timeout of 3600 s"):
        await Handler("orders", at_length, Retry(), timeout=3_600.0).bind(plain)(job)


def test_a_result_and_an_error_come_back() -> None:
    async def main() -> None:
        threads = Threads(1)
        assert await threads.run(lambda n: n + 1, 41, None) == 42
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda n: 1 // n, 0, None)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(next, iter(()), None)
        with pytest.raises(RuntimeError, match="GeneratorExit"):
            await threads.run(leave, None, None)
        await asyncio.sleep(0)  # the caller can go on waiting
        threads.close()

    def leave(_: None) -> None:
        raise GeneratorExit

    asyncio.run(main())


async def test_no_more_run_than_there_are_places(gate: threading.Event) -> None:
    threads, running = Threads(2), []

    def wait(n: int) -> None:
        running.append(n)
        gate.wait()

    calls = [asyncio.create_task(threads.run(wait, n, None)) for n in range(4)]
    await until(lambda: len(running) == 2)
    await asyncio.sleep(0.02)
    assert sorted(running) == [0, 1]
    gate.set()
    await asyncio.gather(*calls)
    assert sorted(running) == [0, 1, 2, 3]


async def test_a_thread_that_takes_too_long_is_abandoned_and_its_place_is_free(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    threads = Threads(1)
    await abandon(threads, threads, gate)
    assert "cannot be stopped in its thread" in caplog.text
    assert threads.abandoned == 1
    assert await threads.run(lambda n: n, 7, PATIENCE) == 7
    gate.set()
    await until(lambda: threads.abandoned == 0)


async def test_waiting_for_a_place_is_not_the_functions_time(gate: threading.Event) -> None:
    threads = Threads(1)
    first = asyncio.create_task(threads.run(lambda _: gate.wait(), None, None))
    await asyncio.sleep(0)
    limit_s = 3.0  # far more than a thread needs for the function, on a busy machine as well
    second = asyncio.create_task(threads.run(lambda n: n, 7, limit_s))
    await asyncio.sleep(limit_s + 0.2)
    assert not second.done()
    gate.set()
    assert await second == 7
    await first


async def test_beyond_a_limit_abandoned_threads_keep_their_places(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ABANDONED_LIMIT", 1)
    threads = Threads(1)
    for _ in range(2):
        await abandon(threads, threads, gate)
    third = asyncio.create_task(threads.run(lambda n: n, 7, None))
    await asyncio.sleep(0.03)
    assert not third.done()
    gate.set()
    assert await third == 7


@pytest.mark.parametrize("has_another", [False, True])
async def test_a_thread_that_cannot_be_started_is_tried_again_and_costs_no_place(
    monkeypatch: pytest.MonkeyPatch, has_another: bool
) -> None:
    """The machine, or a limit of the process, allows no more for a while. Nothing runs twice, and nothing is lost."""
    threads, ran, start, refused = Threads(2), [], threading.Thread.start, 0

    def run_out(thread: threading.Thread) -> None:
        nonlocal refused
        refused += 1
        if refused <= 3:
            raise RuntimeError("can't start new thread")
        start(thread)

    if has_another:
        gate, began = threading.Event(), threading.Event()
        first = asyncio.create_task(threads.run(lambda _: began.set() or gate.wait(), None, None))
        await until(began.is_set)
    monkeypatch.setattr(threading.Thread, "start", run_out)
    await threads.run(ran.append, 1, None)
    if has_another:
        gate.set()
        await first
    await asyncio.gather(*(threads.run(ran.append, n, None) for n in range(2, 6)))
    assert refused >= 4
    assert sorted(ran) == [1, 2, 3, 4, 5]
    threads.close()


async def test_a_task_cancelled_while_no_thread_can_start_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, start = Threads(1), threading.Thread.start

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    waiting = asyncio.create_task(threads.run(lambda n: n, 1, None))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    monkeypatch.setattr(threading.Thread, "start", start)
    assert await in_time(threads.run(lambda n: n, 2, None)) == 2
    threads.close()


async def test_a_functions_own_timeout_error_is_left_as_it_is() -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        async with time_limit(5):
            raise TimeoutError("theirs")


def test_a_process_does_not_wait_for_an_abandoned_thread() -> None:
    code = """
import asyncio, threading
from wheelq.worker.handlers.threads import Threads
async def main():
    try:
        await Threads(1).run(lambda _: threading.Event().wait(), None, 0.01)
    except TimeoutError:
        print("abandoned")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "abandoned\n"


async def test_one_thread_runs_several_functions_and_is_used_again_by_the_next(gate: threading.Event) -> None:
    threads, used = Threads(2), set()

    def note(_: None) -> None:
        used.add(threading.current_thread())

    for _ in range(50):
        async with threads.one() as thread:
            await thread.run(note, None, None)
            await thread.run(note, None, None)
        await threads.run(note, None, None)
    assert len(used) == 1
    threads.close()
    await until(lambda: not next(iter(used)).is_alive())


async def test_one_thread_keeps_its_place_until_it_is_given_back() -> None:
    threads = Threads(1)
    async with threads.one() as thread:
        await thread.run(lambda _: None, None, None)
        other = asyncio.create_task(threads.run(lambda n: n, 7, None))
        await asyncio.sleep(0.02)
        assert not other.done()
        await thread.run(lambda _: None, None, None)
    assert await other == 7


async def test_calls_after_an_abandoned_one_run_in_another_thread_although_no_place_is_free(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ABANDONED_LIMIT", 0)
    threads = Threads(1)
    async with threads.one() as thread:
        first = await thread.run(lambda _: threading.current_thread(), None, None)
        await abandon(threads, thread, gate)
        second = await thread.run(lambda _: threading.current_thread(), None, None)
        assert second is not first
        await abandon(threads, thread, gate)
    assert threads.abandoned == 2
    waiting = asyncio.create_task(threads.run(lambda n: n, 7, None))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    gate.set()
    assert await waiting == 7
    await until(lambda: threads.abandoned == 0)
    async with threads.one() as thread:  # there is one place again, and not two
        await thread.run(lambda _: None, None, None)
        assert threads._places.locked()
