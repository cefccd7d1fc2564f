"""A handler that holds the event loop is named; waiting is not holding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tests.waiting import in_time
from wheelq import Job, Retry
from wheelq.base.clock import ManualClock
from wheelq.model.topic import Topic
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.pool import SLICE, Pool
from wheelq.worker.delivery.run_log import HoldWarning
from wheelq.worker.handlers.handler import Handler, Handlers

ENTRY = Entry("1-0", "picture-7", 0, 1, b"", None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def delivery(topic: str) -> Delivery:
    return Delivery(ServedShard(Keys().shard(topic, 0), Topic()), ENTRY, 0)


# The steps of a delivery


async def steps_told(
    clock: ManualClock, run: Callable[[], Awaitable[object]], times: int = 1
) -> list[tuple[int, float]]:
    """Runs it so many times in a pool. Returns what the pool reports: the delivery, and the seconds of its step."""
    told: list[tuple[int, float]] = []

    async def run_one(number: int, task: object) -> None:
        await run()

    pool: Pool[int] = Pool(3, run_one, lambda number, seconds: told.append((number, round(seconds, 3))), clock)
    pool.add(range(times))
    await in_time(pool.idle())
    return told


async def test_each_step_that_takes_long_is_reported(clock: ManualClock) -> None:
    async def resize() -> None:
        clock.advance(0.7)
        await asyncio.sleep(0)
        clock.advance(0.4)
        await asyncio.sleep(0)
        clock.advance(5.0)

    assert await steps_told(clock, resize) == [(0, 0.7), (0, 5.0)]


async def test_a_handler_that_never_waits_is_reported(clock: ManualClock) -> None:
    async def resize() -> None:
        clock.advance(0.7)

    assert await steps_told(clock, resize, 3) == [(0, 0.7), (1, 0.7), (2, 0.7)]


async def test_many_short_steps_are_not_reported(clock: ManualClock) -> None:
    async def resize() -> None:
        for _ in range(20):
            clock.advance(0.4)
            await asyncio.sleep(0)

    async def resize_at_once() -> None:
        clock.advance(0.4)

    assert await steps_told(clock, resize) == []
    assert await steps_told(clock, resize_at_once, 2 * SLICE) == []


async def test_time_that_a_handler_waits_is_not_its_own(clock: ManualClock) -> None:
    async def resize() -> None:
        asyncio.get_running_loop().call_soon(clock.advance, 30)
        await clock.sleep(30)

    assert await steps_told(clock, resize, 3) == []


# The warning


async def close_order(job: Job) -> None: ...


def close_plainly(job: Job) -> None: ...


def warning_of(clock: ManualClock) -> HoldWarning:
    handlers = Handlers()
    handlers.add(Handler("async", close_order, Retry(), None))
    handlers.add(Handler("other", close_order, Retry(), None))
    handlers.add(Handler("inline", close_plainly, Retry(), None, inline=True))
    handlers.add(Handler("thread", close_plainly, Retry(), None))
    return HoldWarning(handlers, clock)


@pytest.mark.parametrize(
    ("topic", "name", "advice"),
    [("async", "close_order", "Make it a plain function"), ("inline", "close_plainly", "Leave out inline=True")],
)
def test_the_warning_names_handler_topic_time_and_remedy(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, topic: str, name: str, advice: str
) -> None:
    warning_of(clock).held(delivery(topic), 5.0)
    [record] = caplog.records
    assert record.getMessage().startswith(f"handler {name} of {topic} held the event loop for 5.0 s: ")
    assert advice in record.getMessage()
    assert record.levelno == logging.WARNING


def test_a_handler_is_named_once_a_minute(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    warning = warning_of(clock)
    for topic in ("async", "async", "other", "other"):
        warning.held(delivery(topic), 1.0)
    assert len(caplog.records) == 2
    clock.advance(60)
    warning.held(delivery("async"), 1.0)
    assert len(caplog.records) == 3


def test_a_handler_in_a_thread_holds_no_loop(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    warning_of(clock).held(delivery("thread"), 1.0)
    assert caplog.records == []
