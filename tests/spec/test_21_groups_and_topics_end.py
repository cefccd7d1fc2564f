"""21. Groups and topics end, and nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgpack
import pytest
import redis

from tests.transports import AsyncWith, Refusing
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, CancelOutcome, Client, Group, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.errors import BeingRemoved, InUse, InvalidInput, ServerError, TopicNotFound
from wheelq.producer import groups
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Producers trust what they know of a topic for a moment only: a topic's removal takes so long."""
    return replace(settings, client=ClientSettings(topics_ttl_ms=200))


@pytest.fixture
def keyspace(url: str, settings: Settings) -> Callable[[], dict[str, object]]:
    """Everything that this wheelq has in Redis, but for heartbeats, notes of nodes, counts and their history.

    Nor histograms: the next heartbeat may bring some, and they are forgotten after an hour.
    """
    connection = redis.Redis.from_url(url)

    def read(key: bytes) -> object:
        match connection.type(key):
            case b"hash":
                return connection.hgetall(key)
            case b"zset":
                return connection.zrange(key, 0, -1, withscores=True)
            case b"stream":
                groups = sorted(group["name"] for group in connection.xinfo_groups(key))
                return connection.xrange(key), groups
            case _:
                return connection.get(key)

    def look() -> dict[str, object]:
        passing = ("nodes", "workers", "assignment", "topics", "lease", "epoch", "horizon", "beats", "counts")
        passing += ("histograms", "measured")
        names = {
            key.decode().removeprefix(f"{settings.prefix}:"): key for key in connection.keys(f"{settings.prefix}:*")
        }
        # Answers to calls expire.
        lasting = {name: key for name, key in sorted(names.items()) if ":history:" not in name and ":tags:" not in name}
        return {name: read(key) for name, key in lasting.items() if not name.endswith(passing)}

    return look


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    """A worker that runs meanwhile."""
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


def worker_of(url: str, settings: Settings, topic: str, group: str, fails: bool = False) -> Worker:
    worker = Worker.connect(url, group=group, settings=settings)

    @worker.handler(topic, retry=Retry(base=300))
    async def handle(job: Job) -> None:
        if fails:
            raise RuntimeError("no")

    return worker


async def test_a_group_tells_how_far_behind_it_is_and_who_works_for_it(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    await aclient.make_group(topic, "idle")
    worker = worker_of(url, settings, topic, "busy")
    async with serving(worker):
        await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(3)])

        async def busy_is_through() -> bool:
            groups = {group.name: group for group in await aclient.groups(topic)}
            return groups.get("busy") == Group("busy", 0, 0, None, (worker.name,)) and groups["idle"].lag == 3

        await until(busy_is_through)
        [_, idle] = await aclient.groups(topic)
        assert (idle.pending, idle.workers) == (0, ())
        assert idle.oldest_ms is not None


async def test_a_removed_group_leaves_nothing_and_its_ids_are_free(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    scheduler: Scheduler,
    keyspace: Callable[[], dict[str, object]],
) -> None:
    """A group renamed in week one keeps its jobs ready, and their ids taken, until it is removed."""
    await aclient.configure(topic, keep_done_ms=0)
    await aclient.set_shards(topic, 3)
    before = keyspace()
    specs = [JobSpec(n, delay=0, key=f"order-{n}") for n in range(50)]
    async with serving(worker_of(url, settings, topic, "old", fails=True)):
        await aclient.schedule_many(topic, specs)
        await until(lambda: is_retrying(aclient, topic, 50))
    assert not (await aclient.schedule(topic, key="order-7", delay=0)).created
    assert await aclient.remove_group(topic, "old") is True
    assert await aclient.groups(topic) == []
    assert keyspace() == before
    assert (await aclient.schedule(topic, key="order-7", delay=60)).created
    assert await aclient.remove_group(topic, "old") is False


async def is_retrying(client: AsyncClient, topic: str, jobs: int) -> bool:
    [info] = [info for info in await client.topics() if info.name == topic]
    return info.retrying == jobs


async def test_a_group_with_workers_is_not_removed(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    await aclient.schedule(topic, delay=0)
    worker = worker_of(url, settings, topic, "g")
    async with serving(worker):
        await until(lambda: has_workers(aclient, topic))
        with pytest.raises(InUse, match=worker.name) as refused:
            await aclient.remove_group(topic, "g")
        assert refused.value.workers == (worker.name,)
        with pytest.raises(InUse, match=worker.name):
            await aclient.remove_topic(topic)
    assert [group.name for group in await aclient.groups(topic)] == ["g"]


async def has_workers(client: AsyncClient, topic: str) -> bool:
    return any(group.workers for group in await client.groups(topic))


STEP_MS = 3_600_000


def say(raw: redis.Redis, keys: Keys, worker: str, topic: str, ahead_ms: int) -> None:
    """Leave a word of a worker, by a clock that was stepped since."""
    now_ms = raw.time()[0] * 1000
    said = {"seen_ms": now_ms + ahead_ms, "group": "g", "topics": [topic]}
    raw.hset(keys.workers, worker, msgpack.packb(said))


@pytest.fixture
def soon_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal waits two seconds for a sign of life, not six."""
    monkeypatch.setattr(groups, "HEARD_WITHIN_S", 2.0)


@pytest.mark.usefixtures("soon_heard")
def test_a_clock_that_was_stepped_back_keeps_no_dead_worker_alive(
    url: str, settings: Settings, client: Client, topic: str
) -> None:
    raw, keys = redis.Redis.from_url(url), Keys(settings.prefix)
    client.schedule(topic, delay=0)
    client.make_group(topic, "g")
    say(raw, keys, "host-1-aaaaaa", topic, STEP_MS)
    raw.hset(keys.beats, "host-1-aaaaaa", "7 g")
    assert [group.workers for group in client.groups(topic)] == [()]
    assert client.remove_group(topic, "g") is True


@pytest.mark.usefixtures("soon_heard")
def test_a_clock_that_was_stepped_forwards_hides_no_living_worker(
    url: str, settings: Settings, client: Client, topic: str
) -> None:
    raw, keys = redis.Redis.from_url(url), Keys(settings.prefix)
    client.schedule(topic, delay=0)
    client.make_group(topic, "g")
    say(raw, keys, "host-1-aaaaaa", topic, -STEP_MS)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.2):
            raw.hincrby(keys.beats, "host-1-aaaaaa", 1)

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        with pytest.raises(InUse, match="host-1-aaaaaa"):
            client.remove_group(topic, "g")
        with pytest.raises(InUse, match="host-1-aaaaaa"):
            client.remove_topic(topic)
    finally:
        over.set()
        beats.join()


def test_a_group_that_never_was(client: Client, topic: str) -> None:
    client.schedule(topic, delay=60)
    assert client.groups(topic) == []
    assert client.remove_group(topic, "none") is False
    with pytest.raises(TopicNotFound):
        client.remove_group("no-such-topic", "g")
    with pytest.raises(InvalidInput):
        client.remove_group(topic, "")


# topics


def test_a_removed_topic_leaves_nothing(
    url: str, settings: Settings, client: Client, topic: str, keyspace: Callable[[], dict[str, object]]
) -> None:
    before = keyspace()
    client.schedule(topic, key="a", delay=0)
    client.make_group(topic, "g")
    client.set_shards(topic, 4)
    client.set_shards(topic, 2)
    client.recurring.put(topic, "nightly", every=3600)
    client.schedule(topic, key="b", delay=3600)
    client.remove_topic(topic, force=True)
    assert keyspace() == before
    assert topic not in {info.name for info in client.topics()}
    with pytest.raises(TopicNotFound):
        client.remove_topic(topic)


async def test_a_topic_that_is_half_removed_is_named_as_such_and_taken_back(
    client: Client, url: str, settings: Settings, topic: str
) -> None:
    client.schedule(topic, key="a", delay=60)
    async with AsyncClient(AsyncWith(url, Refusing("drop_shard")), Keys(settings.prefix), settings.client) as unlucky:
        with pytest.raises(ServerError):
            await unlucky.remove_topic(topic, force=True)
    with pytest.raises(BeingRemoved):
        client.schedule(topic, delay=60)
    with Inspector.connect(url, settings) as inspector:
        found = [finding for finding in inspector.doctor() if topic in finding.title]
        assert [finding.title for finding in found] == [f"Topic {topic} is half removed"]
        assert f"wheelq resume {topic}" in found[0].explanation
    client.resume(topic)
    assert client.schedule(topic, key="b", delay=60).created
    assert [job.id for job in client.waiting(topic).jobs] == ["a", "b"]


def test_a_topic_in_which_jobs_wait_or_recur_is_not_removed(client: Client, topic: str) -> None:
    client.schedule(topic, key="a", delay=3600)
    with pytest.raises(InUse, match="1 job is not finished"):
        client.remove_topic(topic)
    client.cancel(topic, "a")
    client.recurring.put(topic, "nightly", every=3600)
    with pytest.raises(InUse):
        client.remove_topic(topic)
    assert not client.pause(topic).removing
    client.resume(topic)
    client.recurring.remove(topic, "nightly")
    client.remove_topic(topic)
    assert topic not in {info.name for info in client.topics()}


async def test_a_producer_that_trusts_what_it_knew_loses_no_job(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, scheduler: Scheduler
) -> None:
    """While the topic is removed, it is refused; then its job makes the topic again."""
    await aclient.schedule(topic, key="first", delay=3600)
    removing = asyncio.create_task(aclient.remove_topic(topic, force=True))
    made, refused = [], 0
    while not removing.done() or not made:
        try:
            receipt = await aclient.schedule(topic, delay=3600)
        except (BeingRemoved, TopicNotFound):
            refused += 1
            await asyncio.sleep(0.005)
        else:
            made.append(receipt.id)
        if removing.done():
            break
    await removing
    receipt = await aclient.schedule(topic, key="last", delay=3600)
    assert receipt.created
    assert refused
    kept = {job.id for job in (await aclient.waiting(topic)).jobs}
    assert "last" in kept
    assert "first" not in kept


def test_keys_of_one_topic_are_not_anothers(client: Client, topic: str, settings: Settings) -> None:
    other = f"{topic}-2"
    client.schedule(other, key="a", delay=3600)
    client.schedule(topic, key="a", delay=3600)
    client.remove_topic(topic, force=True)
    assert client.get(other, "a") is not None
    assert Keys(settings.prefix).shard(other, 0).delayed


# workers that run nevertheless


@pytest.mark.parametrize("ordered", [False, True, "key"])
async def test_a_worker_whose_group_was_removed_says_so_and_does_not_make_it_again(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    ordered: bool,
    scheduler: Scheduler,
    keyspace: Callable[[], dict[str, object]],
) -> None:
    """Whatever it was doing; one that is started later serves the group again."""
    began, go_on = asyncio.Event(), asyncio.Event()
    got: list[object] = []

    def make() -> Worker:
        worker = Worker.connect(url, group="g", settings=settings)

        @worker.handler(topic, ordered=ordered, retry=Retry(base=0.01))  # type: ignore[call-overload]
        async def handle(job: Job) -> None:
            got.append(job.payload)
            began.set()
            if job.payload == "runs":
                await go_on.wait()
                raise RuntimeError("too late")

        return worker

    await aclient.configure(topic, grace_ms=0)
    before = keyspace()
    async with serving(make()):
        await aclient.schedule(topic, "runs", delay=0)
        await asyncio.wait_for(began.wait(), PATIENCE)
        with pytest.raises(InUse):
            await aclient.remove_group(topic, "g")
        assert await aclient.remove_group(topic, "g", force=True)
        go_on.set()
        await until(lambda: any("no longer serves it" in record.getMessage() for record in caplog.records))
        await aclient.schedule(topic, "later", delay=0)
        await asyncio.sleep(1.5)  # more than a round of everything that a worker does again and again
        assert await aclient.groups(topic) == []
        assert got == ["runs"]
        assert await aclient.remove_group(topic, "g", force=True) is False
    async with serving(make()):
        await until(lambda: got[1:] == ["later"])
    await aclient.remove_group(topic, "g", force=True)
    assert keyspace() == before


async def test_a_worker_of_a_removed_topic_serves_it_when_it_is_made_again(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, keyspace: Callable[[], dict[str, object]]
) -> None:
    got: list[object] = []
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        got.append(job.payload)

    before = keyspace()
    async with serving(worker):
        await aclient.schedule(topic, "one", delay=0)
        await until(lambda: got == ["one"])
        await aclient.remove_topic(topic, force=True)
        await asyncio.sleep(1.5)
        assert keyspace() == before
        await aclient.schedule(topic, "two", delay=0)
        await until(lambda: got == ["one", "two"])


async def test_a_running_job_is_cancelled_though_its_topic_was_removed_before_while_another_ran(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    running: list[str] = []
    first_may_end = asyncio.Event()
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        running.append(job.id)
        await first_may_end.wait()
        if job.id == "second":
            await asyncio.Event().wait()

    async with serving(worker):
        await aclient.schedule(topic, key="first", delay=0)
        await until(lambda: running == ["first"])
        await aclient.remove_topic(topic, force=True)
        await until(lambda: not worker._shards.shards)
        first_may_end.set()
        await aclient.schedule(topic, key="second", delay=0)
        await until(lambda: running == ["first", "second"])
        assert await aclient.cancel(topic, "second", running=True) is CancelOutcome.CANCELLING
        await until(lambda: worker.cancelled == 1)


@pytest.mark.parametrize("ordered", [False, "key"])
async def test_workers_and_schedulers_keep_no_task_for_a_topic_that_was_removed(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, scheduler: Scheduler, ordered: bool
) -> None:
    """A worker kept one for each shard, for as long as it ran."""
    got: list[str] = []
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, ordered=ordered)  # type: ignore[call-overload]
    async def handle(job: Job) -> None:
        got.append(job.id)

    def tasks() -> list[str]:
        return [name for task in asyncio.all_tasks() if topic in (name := task.get_name())]

    await aclient.configure(topic)
    await aclient.set_shards(topic, 8)
    async with serving(worker):
        await aclient.schedule_many(topic, [JobSpec(delay=0) for _ in range(40)])
        await until(lambda: len(got) == 40)
        assert tasks()
        await aclient.remove_topic(topic, force=True)
        await until(lambda: not tasks())


async def test_a_group_that_was_destroyed_from_outside_is_made_again_by_its_worker(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    """Unlike one that was removed: a server that lost its data looks the same."""
    got: list[object] = []
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        got.append(job.payload)

    async with serving(worker):
        await aclient.schedule(topic, "one", delay=0)
        await until(lambda: got == ["one"])
        with redis.Redis.from_url(url) as connection:
            connection.xgroup_destroy(Keys(settings.prefix).shard(topic, 0).ready, "g")
        await aclient.schedule(topic, "two", delay=0)
        await until(lambda: "two" in got)
