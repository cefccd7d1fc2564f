"""`start="now"`: a group that several workers make at the same time, or that was made only in part."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import redis

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, JobSpec, Settings, Worker
from wheelq.protocol.call import Call
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, AsyncTransport

T = TypeVar("T")
SHARDS = 4


class Halting(AsyncTransport):
    """Halts before it makes a group for the second time, until told to go on."""

    def __init__(self, url: str) -> None:
        super().__init__(Address(url))
        self.halted, self.may_go_on = asyncio.Event(), asyncio.Event()
        self._groups = 0

    async def send(self, call: Call[T]) -> T:
        if call.name == "make_group":
            self._groups += 1
            if self._groups == 2:
                self.halted.set()
                await self.may_go_on.wait()
        return await super().send(call)


async def with_a_past(client: AsyncClient, raw: redis.Redis, prefix: str) -> list[str]:
    """A topic of four shards, each with jobs that another group has got; their streams."""
    await client.make_group("orders", "other")
    await client.schedule_many("orders", [JobSpec(n, delay=0) for n in range(100)])
    streams = [Keys(prefix).shard("orders", n).ready for n in range(SHARDS)]
    assert all(raw.xlen(stream) for stream in streams)
    return streams


def begins_at_the_end(raw: redis.Redis, stream: str) -> bool:
    positions: dict[bytes, Any] = {info["name"]: info["last-delivered-id"] for info in raw.xinfo_groups(stream)}
    return bool(positions[b"late"] == raw.xinfo_stream(stream)["last-generated-id"])


def worker(transport: AsyncTransport, prefix: str, done: list[object]) -> Worker:
    found = Worker(transport, "late", Keys(prefix), start="now")
    found.handler("orders")(lambda job: done.append(job.payload))
    return found


async def test_workers_that_start_together_replay_nothing_of_the_past(url: str, prefix: str, raw: redis.Redis) -> None:
    """One has made the group on a shard when the other looks."""
    settings = Settings(prefix=prefix, topic=TopicSettings(shards=SHARDS, retention_ms=600_000))
    done: list[object] = []
    async with AsyncClient.connect(url, settings) as client:
        streams = await with_a_past(client, raw, prefix)
        halting = Halting(url)
        first, second = worker(halting, prefix, done), worker(AsyncTransport(Address(url)), prefix, done)
        async with running(first):
            await halting.halted.wait()
            async with running(second):
                await asyncio.sleep(0.3)
                halting.may_go_on.set()
                await until(lambda: all(len(raw.xinfo_groups(stream)) == 2 for stream in streams))
                assert all(begins_at_the_end(raw, stream) for stream in streams)
                await client.schedule("orders", "new", delay=0)
                await until(lambda: "new" in done)
    assert done == ["new"]


async def test_a_shard_whose_group_is_missing_is_read_from_the_beginning(
    url: str, prefix: str, raw: redis.Redis
) -> None:
    """The group is not new to the topic, so what is on that shard is its own: nothing is lost."""
    settings = Settings(prefix=prefix, topic=TopicSettings(shards=SHARDS, retention_ms=600_000))
    done: list[object] = []
    async with AsyncClient.connect(url, settings) as client:
        streams = await with_a_past(client, raw, prefix)
        for n in range(SHARDS - 1):
            await halfway(url, prefix, n)
        one = worker(AsyncTransport(Address(url)), prefix, done)
        async with running(one):
            await until(lambda: len(done) == raw.xlen(streams[-1]))


async def halfway(url: str, prefix: str, shard: int) -> None:
    transport = AsyncTransport(Address(url))
    await transport.send(calls.make_group(Keys(prefix).shard("orders", shard), "late", "now"))
    await transport.close()
