"""Settings that cannot be read here: a newer release or another program wrote them. Every other topic is served."""

from __future__ import annotations

import asyncio

import msgpack
import pytest
import redis

from tests.running import running
from tests.waiting import until
from wheelq import Client, Job, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.errors import TopicUnreadable
from wheelq.model.topic import Topic
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

NEWER = msgpack.packb({"shards": 1, "misfire": "by moonlight"})


def change(raw: redis.Redis, settings: Settings, topic: str, stored: bytes) -> None:
    """Write the topic's settings as another release does: it notes that they have changed, and tells everyone."""
    seconds, micros = raw.time()
    noted = {topic: stored, registry.VERSION_FIELD: f"{seconds}{micros:06}"}
    keys = Keys(settings.prefix)
    raw.hset(keys.topics, mapping=noted)  # type: ignore[arg-type]  # its stub wants one kind of value
    raw.publish(keys.changes, topic)


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


async def test_a_topic_whose_settings_cannot_be_read_holds_up_no_other(
    raw: redis.Redis, client: Client, settings: Settings, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether they were there before the node, or come while it works. It is said once."""
    for n, stored in enumerate([NEWER, b"junk", msgpack.packb({"shards": "many"})]):
        raw.hset(Keys(settings.prefix).topics, f"bad-{n}", stored)
        client.schedule(f"good-{n}", delay=0.1)
        await until(lambda n=n: scheduler.promoted == n + 1)  # type: ignore[misc]
    client.schedule("good-0", delay=0.1)
    await until(lambda: scheduler.promoted == 4)
    assert logged(caplog, "by moonlight") == 1
    with pytest.raises(TopicUnreadable, match="misfire"):
        client.schedule("bad-0", delay=0)
    assert {info.name for info in client.topics()} == {f"good-{n}" for n in range(3)}


async def test_a_topic_that_was_known_before_is_served_as_it_was(
    raw: redis.Redis, client: Client, settings: Settings, scheduler: Scheduler
) -> None:
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    client.schedule("orders", delay=0.5)
    raw.hset(Keys(settings.prefix).topics, "orders", NEWER)
    client.schedule("mails", delay=0.1)  # from now on the node knows
    await until(lambda: scheduler.promoted == 3)


async def test_a_topic_that_was_changed_so_that_a_node_cannot_read_it_is_not_changed_back(
    raw: redis.Redis, url: str, client: Client, settings: Settings, scheduler: Scheduler
) -> None:
    """Its shard asks for terms that the node cannot know: the node does not lead, and leaves them alone."""
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    shard = Keys(settings.prefix).shard("orders", 0)
    raw.hset(Keys(settings.prefix).topics, "orders", NEWER)
    transport = Transport(Address(url))
    transport.send(registry.fence(shard, Topic(max_rate=5.0).terms, 1))
    transport.close()
    client.schedule("mails", delay=0.1)
    await until(lambda: scheduler.promoted == 2)
    await asyncio.sleep(1)  # longer than a change may be left half done
    assert raw.get(shard.shards) == Topic(max_rate=5.0).terms.encode()


async def test_a_worker_serves_its_other_topics(
    raw: redis.Redis, url: str, client: Client, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    change(raw, settings, "bad", NEWER)
    client.schedule("good", 1, delay=0)
    ran: list[object] = []
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler("bad")
    @worker.handler("good")
    async def note(job: Job) -> None:
        ran.append(job.payload)

    async with running(worker):
        await until(lambda: ran == [1])
        change(raw, settings, "good", NEWER)
        await until(lambda: logged(caplog, "'good' cannot be read") == 1)
        assert logged(caplog, "'bad' cannot be read") == 1
        change(raw, settings, "bad", b"\x80")
        client.schedule("bad", 2, delay=0)
        await until(lambda: ran == [1, 2])


def test_doctor_names_the_topics_that_cannot_be_read(
    raw: redis.Redis, url: str, client: Client, settings: Settings
) -> None:
    client.schedule("good", delay=60)
    raw.hset(Keys(settings.prefix).topics, "bad", NEWER)
    with Inspector.connect(url, settings) as inspector:
        titles = [finding.title for finding in inspector.doctor()]
    assert any("topic bad cannot be read" in title and "moonlight" in title for title in titles)


@pytest.mark.parametrize("field", ["nodes", "workers", "assignment"])
async def test_foreign_data_in_the_registries_end_no_node(
    raw: redis.Redis, client: Client, settings: Settings, scheduler: Scheduler, field: str
) -> None:
    client.schedule("orders", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    key = getattr(Keys(settings.prefix), field)
    for n, junk in enumerate([b"\xc1", b"junk", msgpack.packb(7), msgpack.packb({}), msgpack.packb({"seen_ms": "x"})]):
        if field == "assignment":
            raw.hset(key, "posts", junk)
            raw.hset(key, "version", "soon" if n else "99")
        else:
            raw.hset(key, f"somebody-{n}", junk)
        client.schedule(f"more-{n}", delay=0.1)
        await until(lambda n=n: scheduler.promoted == n + 2)  # type: ignore[misc]
