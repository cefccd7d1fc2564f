"""When acks are sent: at once after a quiet moment, and otherwise together with others."""

from __future__ import annotations

import asyncio

import redis

from tests.faults.stages import Bench, Look
from tests.waiting import until

AN_HOUR_MS = 3_600_000


async def test_the_first_ack_goes_at_once_and_those_after_it_wait_for_a_batch(
    url: str, topic: str, raw: redis.Redis
) -> None:
    at, look = Bench(url, topic, ack_ms=AN_HOUR_MS, ack_batch=3), Look(raw, topic)
    first, *others = at.deliver("a", "b", "c", "d")
    sending = asyncio.create_task(at.settler.run())
    try:
        at.settler.done(first)
        await until(lambda: look.pending("g") == 3 and len(at.held.of(at.shard)) == 3)
        at.settler.done(others[0])
        at.settler.done(others[1])
        assert len(at.held.of(at.shard)) == 3, "they wait"
        at.settler.done(others[2])
        await until(lambda: look.pending("g") == 0 and not at.held.of(at.shard))
    finally:
        sending.cancel()
        await at.close()


async def test_a_worker_that_stops_sends_the_acks_of_every_batch(url: str, topic: str, raw: redis.Redis) -> None:
    at, look = Bench(url, topic, ack_ms=AN_HOUR_MS, ack_batch=2), Look(raw, topic)
    try:
        for delivery in at.deliver("a", "b", "c", "d", "e"):
            at.settler.done(delivery)
        await at.settler.flush()
        assert (look.pending("g"), len(at.held.of(at.shard))) == (0, 0)
    finally:
        await at.close()
