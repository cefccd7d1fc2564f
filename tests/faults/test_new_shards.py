"""A worker reads the shards that a topic gets while it waits for jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeVar

import pytest

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Job, Settings, Worker
from wheelq.model.topic import shard_of
from wheelq.protocol.call import Call
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport

T = TypeVar("T")


async def test_a_read_that_is_just_being_sent_when_a_topic_gets_a_shard_is_ended_too(
    url: str, prefix: str, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left to wait for the shards that it knew: ended before it began, because the order overtook it."""
    settings = Settings(prefix=prefix, worker=WorkerSettings(block_ms=600_000))
    worker, ran = Worker.connect(url, settings=settings), Counter[str]()
    is_held, was_ended = asyncio.Event(), asyncio.Event()
    unblock = AsyncTransport.unblock

    async def send_late(call: Call[T]) -> T:
        is_held.set()
        await was_ended.wait()
        return await AsyncTransport.send(reader.transport, call)

    async def end(self: AsyncTransport, spare: AsyncTransport) -> None:
        await unblock(self, spare)
        was_ended.set()

    async def handle(job: Job) -> None:
        ran[job.id] += 1

    worker.handler("orders")(handle)
    await aclient.configure("orders")
    await aclient.set_shards("orders", 1)
    async with running(worker):
        await until(lambda: any(reader.is_waiting for reader in worker._lanes._default._readers.values()))
        (reader,) = worker._lanes._default._readers.values()
        monkeypatch.setattr(reader.transport, "send", send_late)
        await aclient.schedule("orders", key="before", delay=0)
        await is_held.wait()
        monkeypatch.setattr(AsyncTransport, "unblock", end)
        await aclient.set_shards("orders", 2)
        in_new = next(str(n) for n in range(100) if shard_of(str(n), 2) == 1)  # another would end the read itself
        await aclient.schedule("orders", key=in_new, delay=0)
        await until(lambda: ran == {"before": 1, in_new: 1})


async def test_a_shard_that_is_added_while_a_reader_rests_before_it_listens_is_read_first(
    url: str, prefix: str, aclient: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listened to the shards that it had read to their ends: not to the new one, which it had not read yet."""
    settings = Settings(prefix=prefix, worker=WorkerSettings(block_ms=600_000, concurrency=1))
    worker, ran = Worker.connect(url, settings=settings), Counter[str]()
    rests, goes_on = asyncio.Event(), asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.set()
        await goes_on.wait()

    async def handle(job: Job) -> None:
        ran[job.id] += 1

    for topic in ("orders", "others"):
        await aclient.configure(topic)
        worker.handler(topic)(handle)
    async with running(worker):
        await until(lambda: [len(reader.shards) for reader in worker._lanes._default._readers.values()] == [2])
        (reader,) = worker._lanes._default._readers.values()
        await until(lambda: reader.is_reading and not reader._backlog.unread(1))  # it listens
        monkeypatch.setattr(reader._parts.clock, "sleep", rest)
        await aclient.schedule("orders", key="before", delay=0)
        await rests.wait()
        await aclient.set_shards("orders", 2)
        in_new = next(str(n) for n in range(100) if shard_of(str(n), 2) == 1)
        await aclient.schedule("orders", key=in_new, delay=0)
        await until(lambda: len(reader.shards) == 3)
        goes_on.set()
        await until(lambda: ran == {"before": 1, in_new: 1})
