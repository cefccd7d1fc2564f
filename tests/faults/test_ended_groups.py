"""Groups and topics end under load, in the middle of everything else, and beside those who end them too."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import redis

from tests.running import collecting, running
from tests.transports import AsyncWith, Fault, Refusing, ReplyLost
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.base.clock import ManualClock
from wheelq.errors import BeingRemoved, OutcomeUnknown, Refused, ServerError, TopicNotFound
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol.keys import Keys
from wheelq.scheduler.draining import EndedGroups
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import ClientSettings, SchedulerSettings, WorkerSettings
from wheelq.transport import AsyncTransport

HOUR_MS = 3_600_000


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(
        prefix=prefix,
        scheduler=SchedulerSettings(heartbeat_ms=100),
        worker=WorkerSettings(block_ms=100),
        client=ClientSettings(topics_ttl_ms=100),
    )


class Remains:
    """What a group has left in a topic."""

    def __init__(self, url: str, settings: Settings, topic: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._keys, self._topic = Keys(settings.prefix), topic

    def of(self, group: str, shards: int = 8) -> list[str]:
        """Every key, field or entry that names it."""
        name = group.encode()
        found = []
        for n in range(shards):
            keys = self._keys.shard(self._topic, n)
            if self._redis.exists(keys.order(group)):
                found.append(keys.order(group))
            for key in (keys.jobs, keys.buried, keys.progress):
                found += [f"{key} {field!r}" for field in self._redis.hkeys(key) if name in field.split(b"\x1f")[1:]]
            found += [f"{keys.groups}"] if self._redis.hexists(keys.groups, group) else []
            found += [f"{keys.done} {id!r}" for id, kept in self._redis.hgetall(keys.done).items() if name in kept]
            found += [f"{keys.delayed} {one!r}" for one in self._redis.zrange(keys.delayed, 0, -1) if name in one]
            for key in (keys.ready, keys.dead):
                entries = self._redis.xrange(key)
                found += [f"{key} {id!r}" for id, fields in entries if fields.get(b"group") == name]
            if self._redis.exists(keys.ready):
                found += [
                    f"{keys.ready} {info['name']!r}"
                    for info in self._redis.xinfo_groups(keys.ready)
                    if info["name"] == name
                ]
        return found

    def ids(self, shards: int = 8) -> set[str]:
        """The ids that are taken."""
        taken = (self._redis.hkeys(self._keys.shard(self._topic, n).jobs) for n in range(shards))
        return {id.decode() for ids in taken for id in ids}


@pytest.fixture
def remains(url: str, settings: Settings, topic: str) -> Remains:
    return Remains(url, settings, topic)


def worker_of(url: str, settings: Settings, topic: str, group: str, got: list[str], ordered: bool = False) -> Worker:
    """Fails now and then, gives up now and then, and keeps what it did."""
    worker = Worker.connect(url, group=group, settings=settings, concurrency=20)

    @worker.handler(topic, ordered=ordered, retry=Retry(base=0.05, max_attempts=3))
    async def handle(job: Job) -> str:
        number = int(job.id[4:]) if job.id.startswith("job-") else 1
        if number % 7 == 0 or (number % 3 == 0 and job.attempt == 1):
            raise RuntimeError("no")
        got.append(job.id)
        return "done"

    return worker


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_group_is_removed_under_load_and_the_others_lose_nothing(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    scheduler: Scheduler,
    remains: Remains,
    ordered: bool,
) -> None:
    """While jobs are scheduled, run, retried, buried, kept, made by a recurring job and moved to more shards."""
    kept: list[str] = []
    gone: list[str] = []
    await aclient.configure(topic, keep_done_ms=HOUR_MS)
    await aclient.set_shards(topic, 2)
    await aclient.make_group(topic, "stays")
    await aclient.make_group(topic, "goes")
    workers = [worker_of(url, settings, topic, "stays", kept), worker_of(url, settings, topic, "goes", gone, ordered)]
    async with running(*workers):
        await aclient.recurring.put(topic, "tick", every=1)
        ids = [f"job-{n}" for n in range(600)]

        async def schedule() -> None:
            for first in range(0, 600, 50):
                await aclient.schedule_many(
                    topic, [JobSpec(n, key=id, delay=0.1) for n, id in enumerate(ids[first : first + 50])]
                )
                await asyncio.sleep(0.03)

        async def remove() -> None:
            await until(lambda: len(gone) > 20)
            await asyncio.gather(aclient.remove_group(topic, "goes", force=True), aclient.set_shards(topic, 5))
            await aclient.remove_group(topic, "goes", force=True)

        async with asyncio.timeout(4 * PATIENCE):
            await asyncio.gather(schedule(), remove())
            await aclient.recurring.remove(topic, "tick")
            wanted = {id for n, id in enumerate(ids) if n % 7}
            await until(lambda: wanted <= set(kept))
            await until(lambda: remains.ids() == set())
    assert remains.of("goes") == []
    assert [group.name for group in await aclient.groups(topic)] == ["stays"]


@pytest.mark.parametrize("call", ["put_topic", "remove_group", "purge", "release_ids", "drop_entries", "end_removal"])
@pytest.mark.parametrize("fault", [ReplyLost, Refusing])
async def test_a_removal_that_was_broken_off_is_repeated(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, remains: Remains, call: str, fault: type[Fault]
) -> None:
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0) for n in range(20)])
    async with AsyncClient(AsyncWith(url, fault(call)), Keys(settings.prefix), settings.client) as unlucky:
        with suppress(OutcomeUnknown, Refused):
            await unlucky.remove_group(topic, "g")
        await unlucky.remove_group(topic, "g")
    assert remains.of("g") == []
    assert remains.ids() == set()


@pytest.mark.parametrize("call", ["put_topic", "fence", "drop_shard", "drop_topic"])
@pytest.mark.parametrize("fault", [ReplyLost, Refusing])
async def test_a_topics_removal_that_was_broken_off_is_repeated(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, call: str, fault: type[Fault]
) -> None:
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0) for n in range(20)])
    async with AsyncClient(AsyncWith(url, fault(call)), Keys(settings.prefix), settings.client) as unlucky:
        with suppress(OutcomeUnknown, Refused):
            await unlucky.remove_topic(topic, force=True)
        with suppress(TopicNotFound):
            await unlucky.remove_topic(topic, force=True)
    with redis.Redis.from_url(url) as raw:
        assert [key for key in raw.keys(f"{settings.prefix}:*") if topic.encode() in key and b":tags:" not in key] == []
    assert topic not in {info.name for info in await aclient.topics()}


async def test_several_remove_a_topic_while_producers_make_it_again(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, scheduler: Scheduler
) -> None:
    """A job that was accepted after the last removal had begun is there; no producer meets anything but a refusal."""
    made: list[tuple[float, str]] = []
    done = asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def produce() -> None:
        async with AsyncClient.connect(url, settings) as producer:
            while not done.is_set():
                with suppress(BeingRemoved, TopicNotFound):
                    asked_at = clock()
                    receipt = await producer.schedule(topic, delay=3600)
                    made.append((asked_at, receipt.id))
                await asyncio.sleep(0.002)

    async def remove() -> float:
        await asyncio.sleep(0.05)
        with suppress(TopicNotFound, BeingRemoved):
            await aclient.remove_topic(topic, force=True)
        return clock()

    producing = [asyncio.create_task(produce()) for _ in range(3)]
    ended = max(await asyncio.gather(*(remove() for _ in range(3))))
    await until(lambda: len([at for at, _ in made if at > ended]) > 20)
    done.set()
    await asyncio.gather(*producing)
    waiting: set[str] = set()
    cursor = None
    while True:
        page = await aclient.waiting(topic, limit=500, cursor=cursor)
        waiting |= {job.id for job in page.jobs}
        cursor = page.cursor
        if cursor is None:
            break
    assert {id for at, id in made if at > ended} <= waiting


# what schedulers clean up


async def test_a_group_that_was_destroyed_from_outside_does_not_keep_ids_for_ever(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, transport: AsyncTransport, remains: Remains
) -> None:
    """At the second look: until then its worker may make it again."""
    got: list[str] = []
    await aclient.make_group(topic, "gone")
    worker = worker_of(url, settings, topic, "stays", got)
    async with running(worker):
        await aclient.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0) for n in (1, 2, 4, 5)])
        await until(lambda: len(got) == 4)
    ended = EndedGroups(NodeParts(transport, Keys(settings.prefix), ManualClock()), dict, Carrier(transport))
    ended._clock.sleep = asyncio.sleep  # type: ignore[method-assign, assignment]
    await ended.look(topic, Topic())
    with redis.Redis.from_url(url) as raw:
        raw.xgroup_destroy(Keys(settings.prefix).shard(topic, 0).ready, "gone")
    await ended.look(topic, Topic())
    assert remains.ids() == {f"job-{n}" for n in (1, 2, 4, 5)}
    await ended.look(topic, Topic())
    assert remains.ids() == set()
    assert remains.of("gone") == []


async def test_a_group_that_its_worker_made_again_is_left_alone(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, transport: AsyncTransport
) -> None:
    await aclient.make_group(topic, "g")
    await aclient.schedule(topic, key="a", delay=0)
    ended = EndedGroups(NodeParts(transport, Keys(settings.prefix), ManualClock()), dict, Carrier(transport))
    ended._clock.sleep = asyncio.sleep  # type: ignore[method-assign, assignment]
    with redis.Redis.from_url(url) as raw:
        raw.xgroup_destroy(Keys(settings.prefix).shard(topic, 0).ready, "g")
    await ended.look(topic, Topic())
    await aclient.make_group(topic, "g")
    await ended.look(topic, Topic())
    [group] = await aclient.groups(topic)
    assert (group.name, group.lag) == ("g", 1)


async def test_a_removal_whose_client_died_is_finished_by_a_scheduler(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, transport: AsyncTransport, remains: Remains
) -> None:
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0) for n in range(20)])
    async with AsyncClient(AsyncWith(url, Refusing("release_ids")), Keys(settings.prefix), settings.client) as unlucky:
        with pytest.raises(ServerError):
            await unlucky.remove_group(topic, "g")
    assert remains.ids()
    with pytest.raises(BeingRemoved):
        await aclient.make_group(topic, "g")
    ended = EndedGroups(NodeParts(transport, Keys(settings.prefix), ManualClock()), dict, Carrier(transport))
    ended._clock.sleep = asyncio.sleep  # type: ignore[method-assign, assignment]
    await ended.look(topic, Topic())
    await ended.look(topic, Topic())
    assert remains.ids() == set()
    assert remains.of("g") == []
    await aclient.make_group(topic, "g")


@pytest.mark.parametrize("call", ["remove_group", "release_ids", "end_removal"])
@pytest.mark.parametrize("after", range(4))
async def test_a_scheduler_finishes_a_removal_in_every_shard(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    transport: AsyncTransport,
    remains: Remains,
    call: str,
    after: int,
) -> None:
    """Only the shard that was begun was finished: in the others the group kept its jobs, and their ids, for ever."""
    await aclient.configure(topic, max_pending=0)
    await aclient.set_shards(topic, 3)
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0) for n in range(20)])
    died = ReplyLost(call, after=after)
    async with AsyncClient(AsyncWith(url, died), Keys(settings.prefix), settings.client) as unlucky:
        with suppress(OutcomeUnknown):
            await unlucky.remove_group(topic, "g")
    ended = EndedGroups(NodeParts(transport, Keys(settings.prefix), ManualClock()), dict, Carrier(transport))
    ended._clock.sleep = asyncio.sleep  # type: ignore[method-assign, assignment]
    for _ in range(2):
        await ended.look(topic, Topic(shards=3))
    assert remains.ids() == set()
    assert remains.of("g") == []


async def test_a_scheduler_leaves_a_group_whose_worker_has_started_again(
    url: str, settings: Settings, client: Client, aclient: AsyncClient, topic: str, transport: AsyncTransport
) -> None:
    """It finishes the removal only in the shard that was begun."""
    await aclient.configure(topic, max_pending=0)
    await aclient.set_shards(topic, 3)
    await aclient.make_group(topic, "g")
    async with AsyncClient(
        AsyncWith(url, ReplyLost("remove_group")), Keys(settings.prefix), settings.client
    ) as unlucky:
        with pytest.raises(OutcomeUnknown):
            await unlucky.remove_group(topic, "g")
    ids = {receipt.id for receipt in await aclient.schedule_many(topic, [JobSpec(delay=0) for _ in range(60)])}
    worker, ran = collecting(url, topic, settings, "g")
    async with running(worker):
        await until(lambda: not client.topic(topic).settings.removed_groups)
        ended = EndedGroups(NodeParts(transport, Keys(settings.prefix), ManualClock()), dict, Carrier(transport))
        ended._clock.sleep = asyncio.sleep  # type: ignore[method-assign, assignment]
        for _ in range(2):
            await ended.look(topic, Topic(shards=3))
        await until(lambda: ids == {*ran})


def test_the_last_group_of_a_topic_that_keeps_everything_can_be_removed(client: Client, topic: str) -> None:
    """A retention longer than the time since 1970 gave a negative entry id, and the script failed."""
    client.schedule(topic, delay=0)
    client.configure(topic, retention_ms=2_000_000_000_000)
    client.make_group(topic, "g")
    assert client.remove_group(topic, "g", force=True)
    assert [group.name for group in client.groups(topic)] == []
