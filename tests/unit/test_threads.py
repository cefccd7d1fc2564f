"""Plain functions in threads that can be abandoned."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import until
from wheelq.worker import threads as module
from wheelq.worker.threads import Threads, time_limit


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Functions wait for it; at the end it is open."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_a_result_and_an_error_come_back() -> None:
    async def main() -> None:
        threads = Threads(1)
        assert await threads.run(lambda n: n + 1, 41, None) == 42
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda n: 1 // n, 0, None)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(next, iter(()), None)
        threads.close()

    asyncio.run(main())


async def test_no_more_run_than_there_are_places(gate: threading.Event) -> None:
    threads, running = Threads(2), []

    def wait(n: int) -> None:
        running.append(n)
        gate.wait()

    calls = [asyncio.create_task(threads.run(wait, n, None)) for n in range(4)]
    await until(lambda: len(running) == 2)
    await asyncio.sleep(0.02)
    assert running == [0, 1]
    gate.set()
    await asyncio.gather(*calls)
    assert sorted(running) == [0, 1, 2, 3]


async def test_one_that_takes_too_long_is_abandoned_and_its_place_is_free(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    threads = Threads(1)
    with pytest.raises(TimeoutError, match=r"timeout of 0\.02 s"):
        await threads.run(lambda _: gate.wait(), None, 0.02)
    assert "cannot be stopped in its thread" in caplog.text
    assert threads.abandoned == 1
    assert await threads.run(lambda n: n, 7, 5) == 7
    gate.set()
    await until(lambda: threads.abandoned == 0)


async def test_waiting_for_a_place_is_not_the_functions_time(gate: threading.Event) -> None:
    threads = Threads(1)
    first = asyncio.create_task(threads.run(lambda _: gate.wait(), None, None))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.run(lambda n: n, 7, 0.02))
    await asyncio.sleep(0.06)
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
        with pytest.raises(TimeoutError):
            await threads.run(lambda _: gate.wait(), None, 0.01)
    third = asyncio.create_task(threads.run(lambda n: n, 7, None))
    await asyncio.sleep(0.03)
    assert not third.done()
    gate.set()
    assert await third == 7


async def test_a_functions_own_timeout_error_is_left_as_it_is() -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        async with time_limit(5):
            raise TimeoutError("theirs")


def test_a_process_does_not_wait_for_an_abandoned_thread() -> None:
    code = """
import asyncio, threading
from wheelq.worker.threads import Threads
async def main():
    try:
        await Threads(1).run(lambda _: threading.Event().wait(), None, 0.01)
    except TimeoutError:
        print("abandoned")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "abandoned\n"
