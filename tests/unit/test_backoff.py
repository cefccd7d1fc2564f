"""`Backoff`, and the two waits that loops share: for an event at most so long, and for a reply that tells the time."""

from __future__ import annotations

import asyncio

from wheelq.base.clock import ManualClock, ServerClock, SystemClock
from wheelq.reminders import Backoff


def test_pauses_double_from_the_first_to_the_longest_however_many_failures_follow() -> None:
    backoff = Backoff(0.05, 1.0)
    assert [backoff.pause() for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert {backoff.pause() for _ in range(2_000)} == {1.0}


def test_a_success_brings_the_first_pause_back() -> None:
    backoff = Backoff(0.05, 1.0)
    backoff.pause()
    backoff.pause()
    backoff.failures = 0
    assert backoff.pause() == 0.05


async def test_waiting_for_an_event_ends_when_the_time_is_over_and_sets_the_event() -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 5.0))
    await asyncio.sleep(0)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not event.is_set()
    clock.advance(0.1)
    await waiting
    assert event.is_set()


async def test_waiting_for_an_event_leaves_no_timer_behind_that_would_set_it_later() -> None:
    clock, event = ManualClock(), asyncio.Event()
    event.set()
    await clock.wait(event, 5.0)
    event.clear()
    clock.advance(10.0)
    assert not event.is_set()


async def test_a_reply_that_tells_the_servers_time_is_taken_as_a_sample() -> None:
    async def reply() -> int:
        return 1_750_000_000_000_000

    server = ServerClock(SystemClock())
    assert await server.asking(reply()) == 1_750_000_000_000_000
    assert abs(server.now_ms() - 1_750_000_000_000) < 60_000
