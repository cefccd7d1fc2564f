"""`Fresh`: what many ask for is read once, for all of them, and again when it is old, forgotten or has failed."""

from __future__ import annotations

import asyncio

import pytest

from wheelq.base.clock import ManualClock
from wheelq.base.fresh import Fresh

FRESH_S = 5.0


class Reading:
    """A read that ends when it may, with the number of reads so far or with an error."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return self.begun


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def fresh(reading: Reading, clock: ManualClock) -> Fresh[int]:
    return Fresh(reading, FRESH_S, clock)


async def test_all_who_ask_during_a_read_share_it(fresh: Fresh[int], clock: ManualClock, reading: Reading) -> None:
    asking = [asyncio.create_task(fresh.get()) for _ in range(3)]
    await asyncio.sleep(0)
    clock.advance(2 * FRESH_S)
    asking.append(asyncio.create_task(fresh.get()))
    await asyncio.sleep(0)
    reading.may_end.set()
    assert await asyncio.gather(*asking) == [1, 1, 1, 1]


async def test_a_value_is_read_again_when_it_is_old_or_forgotten(
    fresh: Fresh[int], clock: ManualClock, reading: Reading
) -> None:
    reading.may_end.set()
    assert [await fresh.get(), await fresh.get()] == [1, 1]
    clock.advance(FRESH_S)
    assert await fresh.get() == 2
    fresh.forget()
    assert [await fresh.get(), await fresh.get()] == [3, 3]


async def test_an_error_goes_to_those_who_waited_and_is_not_kept(fresh: Fresh[int], reading: Reading) -> None:
    reading.error = ValueError("away")
    asking = [asyncio.create_task(fresh.get()) for _ in range(2)]
    await asyncio.sleep(0)
    reading.may_end.set()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert (reading.begun, outcomes) == (1, [reading.error, reading.error])
    reading.error = None
    assert await fresh.get() == 2


async def test_a_caller_that_leaves_does_not_end_the_read_of_others(fresh: Fresh[int], reading: Reading) -> None:
    leaving, staying = (asyncio.create_task(fresh.get()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    reading.may_end.set()
    assert await staying == 1


async def test_nobody_waits_longer_than_the_deadline_of_the_read(
    fresh: Fresh[int], clock: ManualClock, reading: Reading
) -> None:
    """It counts from the beginning of the read, so a caller that comes late waits no more at all."""
    with pytest.raises(TimeoutError):
        await fresh.get(within_s=0.0)
    clock.advance(60.0)
    with pytest.raises(TimeoutError):
        await fresh.get(within_s=30.0)
    reading.may_end.set()
    assert (await fresh.get(), reading.begun) == (1, 1)


async def test_a_read_ends_when_its_reader_is_closed(clock: ManualClock) -> None:
    fresh = Fresh(Reading(), FRESH_S, clock)
    fresh.close()
    asking = asyncio.create_task(fresh.get())
    await asyncio.sleep(0)
    fresh.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
