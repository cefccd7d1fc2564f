"""A worker of many shards hears of new entries by hints, and misses none when hints are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
import redis

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import Call
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, AsyncTransport, Subscription
from wheelq.worker.delivery import news
from wheelq.worker.lanes import reader

T = TypeVar("T")
TOPICS = ["a", "b", "c"]
ONE_SHARD = Settings(topic=TopicSettings(shards=1))


class Counted(AsyncTransport):
    """Knows how often it listened to streams, and holds up subscriptions as long as a test wants."""

    listened = 0
    may_subscribe: asyncio.Event
    may_answer: asyncio.Event
    """To a reader that listens."""

    async def send(self, call: Call[T]) -> T:
        Counted.listened += call.name == "XREAD"
        answer = await super().send(call)
        if call.name == "XREAD":
            await Counted.may_answer.wait()
        return answer

    def spare(self) -> Counted:
        return Counted(self._address)

    def subscription(self) -> Subscription:
        return Held(super().subscription()._where)


class Held(Subscription):
    async def open(self, channels: Sequence[str]) -> None:
        await Counted.may_subscribe.wait()
        await super().open(channels)


class Show:
    """A worker of a few topics, which counts as one of many, and the jobs that it ran."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.url = server.url
        self.ran: list[tuple[str, str]] = []
        self.worker = Worker(Counted(Address(server.url)))
        for topic in TOPICS:
            self.worker.handler(topic, retry=Retry(base=0.05))(self._note)

    async def _note(self, job: Job) -> None:
        self.ran.append((job.topic, job.id))
        if job.payload == "fails once" and self.ran.count((job.topic, job.id)) == 1:
            raise RuntimeError("once")

    @property
    def hearing(self) -> news.Hearing:
        [one] = self.worker._lanes._default._readers.values()
        return one.hearing

    async def hears(self) -> None:
        """Wait until it relies on hints, and has looked once for what came before."""
        await until(lambda: self.worker._parts.news.era > 0 and self.hearing._era == self.worker._parts.news.era)

    async def has_run(self, topic: str, id: str, times: int = 1) -> None:
        await until(lambda: self.ran.count((topic, id)) == times)


@pytest.fixture
def show(private_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setattr(reader, "MANY", 1)
    monkeypatch.setattr(news, "CHECK_AFTER", 3_600.0)
    monkeypatch.setattr(news, "CHECK_EVERY", 3_600.0)
    Counted.listened, Counted.may_subscribe = 0, asyncio.Event()
    Counted.may_subscribe.set()
    Counted.may_answer = asyncio.Event()
    Counted.may_answer.set()
    return Show(private_server(appendonly=False))


async def at_once(client: AsyncClient) -> None:
    await client.schedule("a", delay=0, key="1")


async def later(client: AsyncClient) -> None:
    await client.schedule("a", delay=0.05, key="1")


async def now(client: AsyncClient) -> None:
    await client.schedule("a", delay=3_600, key="1")
    await client.run_now("a", "1")


async def in_all(client: AsyncClient) -> None:
    """In one call of the leader."""
    for topic in TOPICS:
        await client.schedule_many(topic, [JobSpec(delay=0.1, key=f"{n}") for n in range(20)])


@pytest.mark.parametrize("make", [at_once, later, now, in_all])
async def test_hints_alone_bring_every_kind_of_job(show: Show, make: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """It looks for entries by itself only once."""
    async with AsyncClient.connect(show.url, ONE_SHARD) as client, running(Scheduler.connect(show.url), show.worker):
        for topic in TOPICS:
            await client.configure(topic)
        await show.hears()
        before = Counted.listened
        await make(client)
        await show.has_run("a", "1")
        if make is in_all:
            await until(lambda: len(show.ran) == 20 * len(TOPICS))
        assert Counted.listened - before <= 1, "the look for what came before may still be under way"


async def test_hints_bring_retries_and_jobs_that_are_run_again(show: Show) -> None:
    async with AsyncClient.connect(show.url, ONE_SHARD) as client, running(Scheduler.connect(show.url), show.worker):
        for topic in TOPICS:
            await client.configure(topic, retention_ms=3_600_000)
        await show.hears()
        await client.schedule("b", "fails once", delay=0, key="1")
        await show.has_run("b", "1", times=2)
        await until(lambda: show.worker.handled == 1)
        await client.rerun("b", since=datetime.now(UTC) - timedelta(hours=1), group="default")
        await show.has_run("b", "1", times=3)


async def test_entries_that_come_while_no_hints_are_heard_are_found(show: Show) -> None:
    """The connection breaks, and another one is opened after the entries came."""
    with redis.Redis.from_url(show.url) as raw:
        async with AsyncClient.connect(show.url, ONE_SHARD) as client, running(show.worker):
            for topic in TOPICS:
                await client.configure(topic)
            await show.hears()
            Counted.may_subscribe.clear()
            era = show.worker._parts.news.era
            raw.client_kill_filter(_type="pubsub")
            await until(lambda: show.worker._parts.news.era == 0)
            await client.schedule("b", delay=0, key="meanwhile")
            await show.has_run("b", "meanwhile")
            Counted.may_subscribe.set()
            await until(lambda: show.worker._parts.news.era > era)
            await show.hears()
            await client.schedule("c", delay=0, key="after")
            await show.has_run("c", "after")


async def test_entries_that_came_before_hints_are_heard_are_no_reason_to_distrust_them(show: Show) -> None:
    """The answer to the listening call that found them comes when hints are heard already."""
    Counted.may_subscribe.clear()
    Counted.may_answer.clear()
    async with AsyncClient.connect(show.url, ONE_SHARD) as client, running(show.worker):
        for topic in TOPICS:
            await client.configure(topic)
        await until(lambda: Counted.listened > 0)
        await client.schedule("b", delay=0, key="early")
        Counted.may_subscribe.set()
        await until(lambda: show.worker._parts.news.era > 0)
        Counted.may_answer.set()
        await show.has_run("b", "early")
        assert not show.hearing._missing


async def test_after_an_entry_without_a_hint_hints_are_not_relied_on(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of an earlier release adds entries, and sends no hints: as long as it does, not only for a minute."""
    monkeypatch.setattr(news, "CHECK_AFTER", 0.1)
    monkeypatch.setattr(news, "CHECK_EVERY", 0.1)
    monkeypatch.setattr(news, "HINT_LATE", 0.05)
    with redis.Redis.from_url(show.url) as raw:

        def add_as_before(topic: str, id: str) -> None:
            keys, copied = Keys().shard(topic, 0), Keys().shard("copied", 0)
            [record] = raw.hmget(copied.jobs, id)
            raw.xadd(keys.ready, {"id": id, "due": 1, "attempt": 1, "record": record})

        async with AsyncClient.connect(show.url, ONE_SHARD) as client, running(show.worker):
            for topic in TOPICS:
                await client.configure(topic)
            await client.schedule_many("copied", [JobSpec(delay=3_600, key=id) for id in ("first", "second")])
            await show.hears()
            add_as_before("b", "first")
            await show.has_run("b", "first")
            await until(lambda: show.hearing._trusts_from > 0)
            first = show.hearing._trusts_from
            add_as_before("c", "second")
            await show.has_run("c", "second")
            await until(lambda: show.hearing._trusts_from > first)
            assert show.hearing.patience(show.worker._clock.monotonic()) is None


async def test_a_worker_that_waits_for_hints_stops_and_takes_new_topics(show: Show) -> None:
    async with AsyncClient.connect(show.url, ONE_SHARD) as client:
        async with running(show.worker):
            await client.configure("a")
            await client.configure("b")
            await show.hears()
            await client.configure("c")
            await client.schedule("c", delay=0, key="1")
            await show.has_run("c", "1")
        assert show.worker.handled == 1
