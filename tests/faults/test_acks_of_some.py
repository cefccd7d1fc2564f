"""Acks of many shards share a call: each delivery is acknowledged, whatever becomes of that call or of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from tests.faults.stages import FAULTS, Look
from tests.records import RECORD
from tests.transports import AsyncWith, Fault, Repeating
from tests.waiting import until
from wheelq.base.clock import SystemClock
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import Address, Transport
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.parts import WorkerParts

SHARDS = 5
AN_HOUR_MS = 3_600_000


class Counting(Repeating):
    """Counts calls, and changes none."""

    def __init__(self, name: str) -> None:
        super().__init__(name, times=0)


class Place:
    """A worker's settler, and deliveries of many shards for it."""

    def __init__(self, url: str, topic: str, *faults: Fault, **settings: int) -> None:
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        self.shards = [ServedShard(Keys().shard(topic, n), Topic(shards=SHARDS)) for n in range(SHARDS)]
        in_force = WorkerSettings(**{"ack_ms": 5, **settings})
        parts = WorkerParts(self.transport, Keys(), "g", "w1", in_force, SystemClock())
        self.held, self.settler = parts.held, parts.settler
        for shard in self.shards:
            self.plain.send(calls.make_group(shard.keys, "g"))

    def deliver(self, jobs: int) -> list[Delivery]:
        """Deliveries of all shards in turn."""
        found = []
        for shard in self.shards:
            new = [(f"{shard.keys.shard}-{n}", "+0", RECORD) for n in range(jobs)]
            self.plain.send(producer.schedule(shard.keys, new, "keep", str(SHARDS)))
            [entries] = self.plain.send(calls.read([shard.keys], "g", "w1", 100, 1))
            found.append([Delivery(shard, entry, 0) for entry in entries])
        in_turn = [delivery for some in zip(*found, strict=True) for delivery in some]
        self.held.add(*in_turn)
        return in_turn

    def is_at_rest(self) -> bool:
        """Whether everything was acknowledged."""
        return not any(self.held.of(shard) for shard in self.shards)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        sending = asyncio.create_task(self.settler.run())
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            await self.transport.close()
            self.plain.close()


async def test_acks_of_many_shards_share_a_call(url: str, topic: str, raw: redis.Redis) -> None:
    together, alone = Counting("ack_some"), Counting("ack")
    at = Place(url, topic, together, alone)
    async with at.running():
        for delivery in at.deliver(10):
            at.settler.done(delivery)
        await until(at.is_at_rest)
        assert (together.met, alone.met) == (1, 0)
        assert Look(raw, topic, SHARDS).pending("g") == 0
        assert not Look(raw, topic, SHARDS).live()


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_delivery_is_acknowledged_although_the_call_fails(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = Place(url, topic, struck := fault("ack_some", times=2), ack_batch=10)
    async with at.running():
        for delivery in at.deliver(10):
            at.settler.done(delivery)
        await until(at.is_at_rest)
        assert struck.struck > 0
        assert Look(raw, topic, SHARDS).pending("g") == 0
        assert not Look(raw, topic, SHARDS).live()


def spoil(raw: redis.Redis, shard: ServedShard) -> None:
    raw.rename(shard.keys.ready, f"{shard.keys.ready}:aside")
    raw.set(shard.keys.ready, "not a stream")


def mend(raw: redis.Redis, shard: ServedShard) -> None:
    raw.delete(shard.keys.ready)
    raw.rename(f"{shard.keys.ready}:aside", shard.keys.ready)


async def test_a_shard_that_cannot_be_written_keeps_no_other_from_its_acks(
    url: str, topic: str, raw: redis.Redis
) -> None:
    at, look = Place(url, topic), Look(raw, topic, SHARDS)
    async with at.running():
        deliveries = at.deliver(4)
        spoil(raw, at.shards[2])
        for delivery in deliveries:
            at.settler.done(delivery)
        await until(lambda: [len(at.held.of(shard)) for shard in at.shards] == [0, 0, 4, 0, 0])
        mend(raw, at.shards[2])
        await until(at.is_at_rest)
        assert look.pending("g") == 0


async def test_a_shard_whose_group_is_gone_keeps_no_other_from_its_acks(url: str, topic: str, raw: redis.Redis) -> None:
    """Its deliveries belong to nobody, and are forgotten."""
    at = Place(url, topic)
    async with at.running():
        deliveries = at.deliver(2)
        raw.xgroup_destroy(at.shards[1].keys.ready, "g")
        for delivery in deliveries:
            at.settler.done(delivery)
        await until(at.is_at_rest)
        assert all(raw.xpending(shard.keys.ready, "g")["pending"] == 0 for n, shard in enumerate(at.shards) if n != 1)


async def test_a_delivery_that_another_worker_took_over_stays_that_ones(url: str, topic: str, raw: redis.Redis) -> None:
    at = Place(url, topic)
    async with at.running():
        deliveries = at.deliver(1)
        taken = deliveries[3]
        raw.xclaim(taken.shard.keys.ready, "g", "w2", 0, [taken.entry.entry_id])
        for delivery in deliveries:
            at.settler.done(delivery)
        await until(at.is_at_rest)
        assert raw.xpending(taken.shard.keys.ready, "g")["pending"] == 1


async def test_topics_that_keep_finished_jobs_are_acknowledged_beside_the_others(
    url: str, topic: str, raw: redis.Redis
) -> None:
    at = Place(url, topic)
    at.shards[0].topic = at.shards[3].topic = Topic(shards=SHARDS, keep_done_ms=60_000)
    async with at.running():
        for delivery in at.deliver(3):
            at.settler.done(delivery)
        await until(at.is_at_rest)
        assert [raw.hlen(shard.keys.done) for shard in at.shards] == [3, 0, 0, 3, 0]
        assert Look(raw, topic, SHARDS).pending("g") == 0


async def test_a_worker_that_stops_sends_the_acks_of_all_shards_also_of_one_that_failed_before(
    url: str, topic: str, raw: redis.Redis
) -> None:
    at = Place(url, topic, ack_ms=AN_HOUR_MS)
    for delivery in at.deliver(4):
        at.settler.done(delivery)
    spoil(raw, at.shards[2])
    with pytest.raises(Exception, match="WRONGTYPE"):
        await at.settler.flush()
    mend(raw, at.shards[2])
    await at.settler.flush()
    assert at.is_at_rest()
    assert Look(raw, topic, SHARDS).pending("g") == 0
    async with at.running():
        pass


class Gate(AsyncWith):
    """Holds calls of one name back until it is opened."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self._name = name
        self.opened = asyncio.Event()
        self.is_met = asyncio.Event()

    async def send(self, call: Call[Any]) -> Any:
        if call.name == self._name:
            self.is_met.set()
            await self.opened.wait()
        return await super().send(call)


async def test_a_job_that_ends_while_two_send_acks_is_acknowledged_too(url: str, topic: str, raw: redis.Redis) -> None:
    """Both have the same batch; what came behind it must not be taken for sent."""
    at = Place(url, topic, ack_ms=AN_HOUR_MS)
    gate = Gate(url, "ack_some")
    at.settler._me.transport = gate
    deliveries = at.deliver(3)
    async with at.running():
        for delivery in deliveries[:5]:
            at.settler.done(delivery)
        await gate.is_met.wait()
        flushing = asyncio.create_task(at.settler.flush())
        for _ in range(20):  # as far as it gets
            await asyncio.sleep(0)
        for delivery in deliveries[5:]:
            at.settler.done(delivery)
        gate.opened.set()
        await flushing
        await at.settler.flush()
        assert at.is_at_rest()
        await gate.close()
