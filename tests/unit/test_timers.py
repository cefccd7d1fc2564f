"""Timers of the precise clock fire in order, never before their moment, and not when they were cancelled."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterator

import pytest

from wheelq.base.timers import MOST_CANCELLED, KernelTimer, PreciseClock


@pytest.fixture(params=["kernel", "event loop"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[PreciseClock]:
    """With and without a timer of the kernel's."""
    if request.param == "event loop":
        monkeypatch.setattr(KernelTimer, "open", lambda fire: None)
    elif sys.platform != "linux":
        pytest.skip("only Linux has these timers")
    clock = PreciseClock()
    yield clock
    clock.close()


async def fired(clock: PreciseClock, after_s: list[float]) -> list[tuple[float, float]]:
    """Sets a timer for each; when each was to fire, and when it did, in the order in which they did."""
    fires: list[tuple[float, float]] = []
    all_fired, now = asyncio.Event(), time.monotonic()

    def note(when: float) -> None:
        fires.append((when, time.monotonic()))
        if len(fires) == len(after_s):
            all_fired.set()

    for seconds in after_s:
        clock.call_at(now + seconds, lambda when=now + seconds: note(when))  # type: ignore[misc]
    await all_fired.wait()
    return fires


async def test_timers_fire_in_order_and_not_early(clock: PreciseClock) -> None:
    fires = await fired(clock, [0.03, 0.01, 0.02, 0.0, -1.0, 0.0203])
    early_s = 0.000_001 if clock._kernel else 0.002  # event loops round to whole milliseconds
    assert all(at >= when - early_s for when, at in fires)
    assert clock._kernel is None or fires == sorted(fires)


async def test_a_cancelled_timer_does_not_fire(clock: PreciseClock) -> None:
    fires: list[str] = []
    now = time.monotonic()
    cancel = clock.call_at(now + 0.005, lambda: fires.append("cancelled"))
    end = asyncio.Event()
    clock.call_at(now + 0.02, end.set)
    cancel()
    cancel()
    await end.wait()
    assert not fires


async def test_a_timer_may_cancel_another_and_set_more(clock: PreciseClock) -> None:
    fires: list[str] = []
    end = asyncio.Event()
    now = time.monotonic()

    def first() -> None:
        cancel()
        clock.call_at(now, lambda: fires.append("at once"))
        clock.call_at(now + 0.02, end.set)

    clock.call_at(now + 0.001, first)
    cancel = clock.call_at(now + 0.003, lambda: fires.append("cancelled"))
    await end.wait()
    assert fires == ["at once"]


async def test_a_wait_ends_with_its_event_or_its_time(clock: PreciseClock) -> None:
    event = asyncio.Event()
    await clock.wait(event, 0.001)
    assert event.is_set()
    await clock.wait(event, 3_600)


async def test_cancelled_timers_do_not_pile_up() -> None:
    clock = PreciseClock()
    for _ in range(20 * MOST_CANCELLED):
        clock.call_at(time.monotonic() + 3_600, lambda: None)()
    assert len(clock._timers) <= 2 * MOST_CANCELLED + 2
    assert len(await fired(clock, [0.001, 0.002])) == 2
    clock.close()


class WatchesNoFiles(asyncio.SelectorEventLoop):
    """A loop that watches no files, and refuses as asyncio's base class does."""

    add_reader = asyncio.AbstractEventLoop.add_reader


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these timers")
@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, WatchesNoFiles])
def test_a_closed_clock_leaves_nothing_behind(loop: type[asyncio.SelectorEventLoop]) -> None:
    async def use() -> None:
        clock = PreciseClock()
        assert len(await fired(clock, [0.001, 0.002])) == 2
        assert (clock._kernel is None) == (loop is WatchesNoFiles)
        clock.call_at(time.monotonic() + 0.001, lambda: None)
        clock.close()
        clock.close()

    gc.collect()  # what other tests have left open
    before = set(os.listdir("/proc/self/fd"))
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(use())
    assert set(os.listdir("/proc/self/fd")) == before
