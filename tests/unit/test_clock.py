"""The estimate of the server's clock is as good as it says; the clock for tests stands still until it is moved."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.waiting import PATIENCE
from wheelq.base.clock import ManualClock, ServerClock, SystemClock, Wake

SERVER_START_S = 1_800_000_000.0


class Server:
    """A server whose clock runs a little fast or slow, and can be stepped."""

    def __init__(self, clock: ManualClock, drift: float = 0.0) -> None:
        self._clock = clock
        self._drift = drift
        self._began = clock.monotonic()
        self.step_s = 0.0

    def now_s(self) -> float:
        passed = self._clock.monotonic() - self._began
        return SERVER_START_S + self.step_s + passed * (1 + self._drift)


def round_trip(clock: ManualClock, server: Server, estimate: ServerClock, there_s: float, back_s: float) -> None:
    sent_at = clock.monotonic()
    clock.advance(there_s)
    server_us = int(server.now_s() * 1e6)
    clock.advance(back_s)
    estimate.observe(sent_at, server_us)


def off_ms(server: Server, estimate: ServerClock) -> float:
    return abs(estimate.now_ms() - server.now_s() * 1000)


delays = st.floats(0, 0.2)
trips = st.lists(st.tuples(st.floats(0, 60), delays, delays), min_size=1, max_size=30)


@given(trips)
def test_the_estimate_is_never_further_off_than_it_says(trips: list[tuple[float, float, float]]) -> None:
    """However the round trip is divided between there and back."""
    clock = ManualClock()
    server, estimate = Server(clock), ServerClock(clock)
    for pause, there, back in trips:
        clock.advance(pause)
        round_trip(clock, server, estimate, there, back)
        assert off_ms(server, estimate) <= estimate.error_ms + 0.002  # the server's answer is in whole microseconds


@given(trips, st.floats(0, 100_000), st.floats(-0.0002, 0.0002))
def test_the_server_is_never_later_than_the_latest(
    trips: list[tuple[float, float, float]], then_s: float, drift: float
) -> None:
    clock = ManualClock()
    server, estimate = Server(clock, drift), ServerClock(clock)
    for pause, there, back in trips:
        clock.advance(pause)
        round_trip(clock, server, estimate, there, back)
    clock.advance(then_s)
    late_ms = estimate.latest_at(clock.monotonic()) - server.now_s() * 1000
    assert -0.002 <= late_ms <= 2 * estimate.error_ms + (then_s + 10_000) * 0.4 + 0.002


@given(trips, st.floats(-0.0001, 0.0001))
@example([(0.0, 0.0, 0.0), (0.0, 0.000_855_736_060_889_711_5, 0.0)], 0.0)
def test_a_clock_that_drifts_is_followed(trips: list[tuple[float, float, float]], drift: float) -> None:
    """At half the drift allowed for, the estimate stays within its error and what may have drifted since."""
    clock = ManualClock()
    server, estimate = Server(clock, drift), ServerClock(clock)
    best_ms, last = float("inf"), clock.monotonic()
    for pause, there, back in trips:
        clock.advance(pause)
        round_trip(clock, server, estimate, there, back)
        now = clock.monotonic()
        best_ms = min(best_ms + (now - last) * ServerClock.DRIFT * 1000, (there + back) * 500)
        last = now
        assert off_ms(server, estimate) <= 2 * best_ms + 0.1


@given(trips, st.floats(-1e5, 1e5).filter(lambda step: abs(step) > 1), delays, delays)
def test_a_step_of_the_servers_clock_is_noticed_at_the_next_reply(
    trips: list[tuple[float, float, float]], step_s: float, there: float, back: float
) -> None:
    clock = ManualClock()
    server, estimate = Server(clock), ServerClock(clock)
    for pause, a, b in trips:
        clock.advance(pause)
        round_trip(clock, server, estimate, a, b)
    server.step_s = step_s
    round_trip(clock, server, estimate, there, back)
    assert off_ms(server, estimate) <= estimate.error_ms + 0.002


def test_a_slow_reply_does_not_spoil_a_good_estimate() -> None:
    clock = ManualClock()
    server, estimate = Server(clock), ServerClock(clock)
    round_trip(clock, server, estimate, 0.0001, 0.0001)
    round_trip(clock, server, estimate, 3.0, 0.0)
    assert off_ms(server, estimate) <= 0.2


def test_a_good_reply_mends_a_bad_estimate() -> None:
    clock = ManualClock()
    server, estimate = Server(clock), ServerClock(clock)
    round_trip(clock, server, estimate, 3.0, 0.0)
    assert estimate.error_ms == pytest.approx(1_500)
    round_trip(clock, server, estimate, 0.0001, 0.0001)
    assert estimate.error_ms == pytest.approx(0.1)
    assert off_ms(server, estimate) <= 0.2


def test_without_a_sample_nothing_is_known() -> None:
    estimate = ServerClock(ManualClock())
    assert not estimate.is_set
    with pytest.raises(AssertionError):
        estimate.now_ms()


def test_both_ways_of_asking_agree() -> None:
    clock = ManualClock()
    server, estimate = Server(clock), ServerClock(clock)
    round_trip(clock, server, estimate, 0.001, 0.001)
    assert estimate.is_set
    now_ms = estimate.now_ms()
    assert estimate.at(clock.monotonic()) == now_ms
    assert estimate.monotonic_at(now_ms + 5_000) == pytest.approx(clock.monotonic() + 5)
    assert estimate.skew_ms == pytest.approx(clock.wall_ms() - now_ms)


# ManualClock


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(monotonic=5.0, wall_ms=1_000)
    assert (clock.monotonic(), clock.wall_ms()) == (5.0, 1_000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall_ms()) == (6.5, 2_500)


def test_timers_go_off_in_order_each_at_its_own_moment() -> None:
    clock = ManualClock(monotonic=0.0)
    calls: list[tuple[str, float]] = []
    for name, when in (("b", 2.0), ("a", 1.0), ("c", 2.0), ("late", 9.0), ("past", -1.0)):
        clock.call_at(when, lambda name=name: calls.append((name, clock.monotonic())))
    clock.advance(5.0)
    assert calls == [("past", 0.0), ("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert clock.monotonic() == 5.0


def test_a_timer_can_be_taken_back() -> None:
    clock = ManualClock(monotonic=0.0)
    calls: list[str] = []
    clock.call_at(1.0, lambda: calls.append("kept"))
    clock.call_at(1.0, lambda: calls.append("taken back"))()
    clock.advance(2.0)
    assert calls == ["kept"]


def test_a_timer_may_set_another() -> None:
    clock = ManualClock(monotonic=0.0)
    calls: list[float] = []

    def again() -> None:
        calls.append(clock.monotonic())
        clock.call_at(clock.monotonic() + 1, again)

    clock.call_at(1.0, again)
    clock.advance(3.5)
    assert calls == [1.0, 2.0, 3.0]


async def test_a_sleeper_wakes_when_its_time_has_come() -> None:
    clock = ManualClock(monotonic=0.0)
    sleeping = asyncio.create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    clock.advance(0.9)
    await asyncio.sleep(0)
    assert not sleeping.done()
    clock.advance(0.1)
    await sleeping


async def test_a_wake_lets_its_task_go_on_when_it_is_set_or_the_time_is_over() -> None:
    clock, wake = ManualClock(monotonic=0.0), Wake()
    waiting = asyncio.create_task(clock.wait(wake, 1.0))
    await asyncio.sleep(0)
    clock.advance(0.9)
    await asyncio.sleep(0)
    assert not waiting.done()
    wake.set()
    wake.set()
    await waiting
    await wake.wait()  # it stays set
    wake.clear()
    waiting = asyncio.create_task(clock.wait(wake, 1.0))
    await asyncio.sleep(0)
    clock.advance(1.0)
    await waiting


async def test_a_task_that_is_cancelled_while_it_waits_leaves_the_wake_to_others() -> None:
    wake = Wake()
    waiting = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    wake.set()  # before the task knows
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert wake.is_set()
    wake.clear()
    waiting = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    wake.set()
    await waiting


# SystemClock


async def test_the_machines_clock_calls_and_can_be_taken_back() -> None:
    clock = SystemClock()
    called, not_called = asyncio.Event(), asyncio.Event()
    take_back = clock.call_at(clock.monotonic() + 0.01, not_called.set)
    clock.call_at(clock.monotonic() + 0.02, called.set)
    clock.call_at(clock.monotonic() - 5, called.set)
    take_back()
    async with asyncio.timeout(PATIENCE):
        await called.wait()
        await clock.sleep(0.03)
    assert not not_called.is_set()
