"""An async handler that holds the event loop is named; otherwise it runs as it would without the watch."""

from __future__ import annotations

import asyncio
import logging

import pytest

from wheelq.base.clock import ManualClock
from wheelq.worker.holding import watched


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(":")[0] for record in caplog.records]


async def test_a_step_that_takes_long_is_told_with_handler_topic_and_time(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def resize(job: object) -> str:
        clock.advance(0.4)
        await asyncio.sleep(0)
        clock.advance(5.0)
        await asyncio.sleep(0)
        return "small"

    assert await watched(resize, "images", clock)(None) == "small"
    assert len(said(caplog)) == 1
    assert said(caplog)[0].endswith("resize of images held the event loop for 5.0 s")
    assert caplog.records[0].levelno == logging.WARNING


async def test_short_steps_are_not_told_however_long_they_take_together(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def resize(job: object) -> None:
        for _ in range(20):
            clock.advance(0.4)
            await asyncio.sleep(0)

    await watched(resize, "images", clock)(None)
    assert said(caplog) == []


async def test_time_that_a_handler_waits_is_not_its_own(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async def resize(job: object) -> None:
        await clock.sleep(30)

    running = asyncio.ensure_future(_awaited(watched(resize, "images", clock)))
    await asyncio.sleep(0)
    clock.advance(30)
    await running
    assert said(caplog) == []


async def test_a_handler_is_told_again_after_a_minute(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async def resize(job: object) -> None:
        clock.advance(1)

    run = watched(resize, "images", clock)
    for _ in range(30):
        await run(None)
    assert len(said(caplog)) == 1
    clock.advance(60)
    await run(None)
    assert len(said(caplog)) == 2


async def test_a_step_that_raises_is_told_too(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    async def resize(job: object) -> None:
        clock.advance(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await watched(resize, "images", clock)(None)
    assert len(said(caplog)) == 1


async def test_a_handler_can_be_cancelled_and_can_refuse(clock: ManualClock) -> None:
    async def resize(job: object) -> str:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "not now"
        return "slept"

    running = asyncio.ensure_future(_awaited(watched(resize, "images", clock)))
    await asyncio.sleep(0)
    running.cancel()
    assert await running == "not now"


async def _awaited(run: object) -> object:
    return await run(None)  # type: ignore[operator]  # a handler
