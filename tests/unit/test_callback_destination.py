"""What a receiver of callbacks bears: how many at once, how fast, and what waits for it while it is away."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.waiting import PATIENCE
from wheelq.base.clock import ManualClock
from wheelq.callbacks.destination import (
    FAILING_PATHS,
    PROBED_S,
    QUEUE_S,
    REMEMBERED_S,
    RETURNS,
    WINDOW_S,
    Destination,
    Room,
    Speed,
)
from wheelq.callbacks.services import Terms
from wheelq.producer.breaker import BreakerState
from wheelq.settings import BreakerSettings

BREAKER = BreakerSettings(failures=3, failing_ms=100, open_ms=1_000, open_max_ms=4_000)


def destination(clock: ManualClock, places: int = 1_000, **terms: Any) -> Destination:
    return Destination("shop", Terms(**terms), BREAKER, Room(places), clock)


async def asked(receiver: Destination, count: int, took: asyncio.Event | None = None) -> list[float]:
    """What so many requests were told that came at once; those that went end when `took` is set."""
    told: list[float] = []

    async def request() -> None:
        async with receiver.turn() as waiting:
            told.append(waiting)
            if not waiting and took is not None:
                await took.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(request())
        await asyncio.sleep(0.01)
        if took is not None:
            took.set()
    return told


async def test_a_receiver_gets_its_number_of_requests_at_once_and_some_queue() -> None:
    shop, done = destination(ManualClock(), places=92, concurrency=2), asyncio.Event()
    requests = asyncio.create_task(asked(shop, 14, done))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert shop.info.in_flight == 2
    told = await requests
    assert sum(not waiting for waiting in told) == 12, "two go, ten queue in an eighth of what is then free"
    assert told[2] > 0, "those who may not queue know at once"
    assert shop.info.in_flight == 0


async def test_queued_callbacks_are_put_off_when_the_receiver_is_dead() -> None:
    clock = ManualClock()
    shop = destination(clock, concurrency=1)
    first, told = asyncio.Event(), []

    async def request() -> None:
        async with shop.turn() as waiting:
            told.append(waiting)
            if not waiting:
                await first.wait()
                for _ in range(3):
                    shop.failed("no answer")
                    clock.advance(0.06)

    requests = [asyncio.create_task(request()) for _ in range(5)]
    await asyncio.sleep(0)
    first.set()
    await asyncio.gather(*requests)
    assert told[0] == 0
    assert all(waiting > 0 for waiting in told[1:])


async def test_requests_go_no_faster_than_its_rate() -> None:
    clock = ManualClock()
    shop = destination(clock, max_rate=10.0)
    went: list[float] = []
    started = clock.monotonic()

    async def request() -> None:
        async with shop.turn() as waiting:
            if not waiting:
                went.append(round(clock.monotonic() - started, 3))

    requests = [asyncio.create_task(request()) for _ in range(100)]
    for _ in range(200):
        await asyncio.sleep(0)
        clock.advance(0.1)
    await asyncio.gather(*requests)
    assert went == [round(n / 10, 3) for n in range(len(went))]
    assert len(went) == 1 + QUEUE_S * 10, "what goes within the queue's time waits here, the others come back"


@pytest.mark.parametrize("stall", ["the receiver's", "this process's"])
async def test_a_stall_does_not_end_in_a_burst(stall: str) -> None:
    """Neither when the requests that hang are answered at last, nor when this process was busy for seconds."""
    clock, answered = ManualClock(), asyncio.Event()
    shop = destination(clock, concurrency=20, max_rate=20.0)
    went: list[float] = []

    async def request() -> None:
        async with shop.turn() as waiting:
            if not waiting:
                went.append(clock.monotonic())
                await answered.wait()

    async def pass_time(seconds: float, step: float = 0.01) -> None:
        for _ in range(round(seconds / step)):
            for _ in range(10):
                await asyncio.sleep(0)
            clock.advance(step)

    requests = [asyncio.create_task(request()) for _ in range(90)]
    if stall == "the receiver's":
        await pass_time(4)
        assert len(went) == 20, "every place is taken"
        answered.set()
    else:
        answered.set()
        await pass_time(1)
        clock.advance(3)
    ended = clock.monotonic()
    await pass_time(1)
    assert 20 <= sum(ended <= moment <= ended + 0.999 for moment in went) <= 21
    await pass_time(4)
    await asyncio.gather(*requests)
    assert len(went) == 90, "the line goes on"


async def test_a_request_that_is_given_up_in_line_keeps_no_place() -> None:
    clock = ManualClock()
    shop = destination(clock, concurrency=2, max_rate=1.0)
    await asked(shop, 1)
    in_line = [asyncio.create_task(asked(shop, 1)) for _ in range(2)]
    await asyncio.sleep(0.01)
    for one in in_line:
        one.cancel()
    await asyncio.gather(*in_line, return_exceptions=True)
    clock.advance(1)
    async with asyncio.timeout(PATIENCE):
        assert await asked(shop, 1) == [0.0]


async def test_postponed_callbacks_come_back_one_by_one() -> None:
    shop = destination(ManualClock(), concurrency=1)
    shop.leave_alone(0.2)
    pauses = await asked(shop, 1_000)
    assert pauses == sorted(pauses)
    assert pauses[0] >= 0.2
    apart = [after - before for before, after in pairwise(pauses)]
    assert max(apart) - min(apart) < 1e-6
    assert apart[0] <= 1 / RETURNS


async def test_a_dead_receiver_holds_what_it_would_work_off_and_no_more() -> None:
    """Ten of them, each asked for without end, leave places for others from the first moment on."""
    clock, room = ManualClock(), Room(1_000)
    never = asyncio.Event()
    dead = [Destination(str(n), Terms(concurrency=20), BREAKER, room, clock) for n in range(10)]

    async def request(receiver: Destination) -> None:
        async with receiver.turn() as waiting:
            if not waiting:
                await never.wait()

    requests = [asyncio.create_task(request(receiver)) for receiver in dead for _ in range(1_000)]
    await asyncio.sleep(0)
    assert room.free > 150
    for one in requests:
        one.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    assert room.free == 1_000


async def test_the_backoff_of_a_receiver_that_is_well_again_starts_over() -> None:
    clock = ManualClock()
    shop = destination(clock, concurrency=1)
    for _ in range(3):
        shop.failed("no answer")
        clock.advance(0.06)
    assert (await asked(shop, 10_000))[-1] > 10_000 / RETURNS / 2
    clock.advance(BREAKER.open_max_ms / 1000)
    shop.succeeded()
    shop.leave_alone(0.2)
    assert (await asked(shop, 1))[0] < 1


async def test_a_path_that_fails_stops_no_calls_to_the_others() -> None:
    clock = ManualClock()
    shop = destination(clock, concurrency=1)
    for _ in range(10):
        shop.failed("/broken answered 500", "/broken")
        clock.advance(0.06)

    async def waiting(path: str) -> float:
        async with shop.turn(path) as told:
            return told

    assert [await waiting("/broken") for _ in range(1_000)][-1] > 1
    assert (await waiting("/fine"), shop.info.state) == (0, BreakerState.OPEN)
    clock.advance(BREAKER.open_max_ms / 1000)
    assert await waiting("/broken") == 0, "a probe"
    shop.succeeded("/broken")
    assert (await waiting("/broken"), shop.info.state) == (0, BreakerState.CLOSED)


async def test_the_others_come_back_soon_after_a_probe() -> None:
    """They were put off for as long as the circuit had been open before it, so they waited for a healthy receiver."""
    clock = ManualClock()
    breaker = BreakerSettings(failures=2, failing_ms=1, open_ms=60_000, open_max_ms=60_000)
    shop = Destination("shop", Terms(), breaker, Room(1_000), clock)
    for _ in range(3):
        shop.failed("no answer")
        clock.advance(0.06)
    assert (await asked(shop, 1))[0] > 50
    clock.advance(60)
    told = await asked(shop, 3, asyncio.Event())
    assert told[0] == 0
    assert PROBED_S <= min(told[1:]) <= max(told) < PROBED_S + 1


async def test_a_dead_receiver_is_found_by_its_failing_paths() -> None:
    """Also where each job has a path of its own; a probe that fails keeps the circuit open, whatever its path."""
    clock = ManualClock()
    shop = destination(clock)

    async def call(n: int) -> float:
        async with shop.turn(f"/orders/{n}") as told:
            if not told:
                shop.failed("no answer", f"/orders/{n}")
            return told

    for n in range(BREAKER.failures):
        assert await call(n) == 0
        clock.advance(0.06)
    assert await call(100) > 0
    clock.advance(BREAKER.open_ms / 1000)
    assert await call(0) == 0
    assert await call(101) > BREAKER.open_ms / 1000
    for n in range(1_000):
        shop.failed("no answer", f"/orders/{n}")
    assert len(shop._failing) == FAILING_PATHS


async def test_its_speed_is_the_most_that_was_seen_lately() -> None:
    clock = ManualClock()
    speed = Speed(100.0, clock)

    def work_off(per_second: int, seconds: float, others_wait: bool = True) -> float:
        for _ in range(round(per_second * seconds)):
            clock.advance(1 / per_second)
            speed.done(others_wait)
        return round(speed.per_second)

    assert work_off(20, REMEMBERED_S - WINDOW_S) == 100, "a guess holds for a while"
    assert work_off(20, 2 * WINDOW_S) == 20
    assert work_off(50, 2 * WINDOW_S) == 50
    assert work_off(5, 4 * WINDOW_S) == 50, "something else may have kept this process busy"
    assert work_off(5, 2 * REMEMBERED_S, others_wait=False) == 50, "nobody waited: it could have done more"
