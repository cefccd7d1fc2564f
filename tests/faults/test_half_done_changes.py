"""Whoever changes a topic dies on the way: shards were told new terms, and nobody has published them."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
import redis

from tests.faults.stages import Meanwhile
from tests.transports import AsyncWith, BlockingWith, ReplyLost
from tests.waiting import eventually, until
from wheelq import Client, JobSpec, Scheduler, Settings
from wheelq.base.clock import ManualClock
from wheelq.errors import NotLeader, OutcomeUnknown
from wheelq.model.topic import HALF_DONE_S, Topic
from wheelq.protocol.calls import draining, registry
from wheelq.protocol.calls import leader as leader_calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.scheduler.candidate import Candidate, Granted, Unpublished
from wheelq.scheduler.parts import NodeParts, ShardParts
from wheelq.transport import Address, AsyncTransport, Transport

PAUSED = replace(Topic(), paused=True).terms


async def test_a_change_that_has_just_begun_is_not_taken_for_half_done_because_of_one_before(
    url: str, topic: str
) -> None:
    """A node that asks seldom has met two changes, each before it was published, and knows of none in between."""
    clock, keys, known = ManualClock(), Keys().shard(topic, 0), Topic(version=7)
    transport = AsyncTransport(Address(url))
    node = NodeParts(transport, Keys(), clock, node="node", connection="run:1")
    await node.server.asking(transport.send(server_time_us()))
    await transport.send(registry.register_topic(Keys(), topic, known))
    candidate = Candidate(ShardParts(node, keys, known), lambda name: None)
    for version in (8, 9):
        await transport.send(registry.fence(keys, PAUSED, version))
        assert isinstance(await candidate.ask(), Unpublished)
        clock.advance(2 * HALF_DONE_S)
    assert isinstance(await candidate.ask(), Granted), "whoever made the last one has died"
    await transport.close()


async def test_a_pause_that_is_published_while_a_node_asks_for_the_lease_is_heeded(url: str, topic: str) -> None:
    """The node has met one that was left half done, and leads on with the settings that it has read before."""
    clock, keys = ManualClock(), Keys().shard(topic, 0)
    with Client.connect(url) as client:
        client.schedule(topic, delay=60)
        meanwhile = Meanwhile("acquire", lambda: client.pause(topic), after=2)
        transport = AsyncWith(url, meanwhile)
        node = NodeParts(transport, Keys(), clock, node="node", connection="run:1")
        await node.server.asking(transport.send(server_time_us()))
        candidate = Candidate(ShardParts(node, keys, Topic()), lambda name: None)
        await transport.send(registry.fence(keys, PAUSED, 8))
        assert isinstance(await candidate.ask(), Unpublished)
        clock.advance(2 * HALF_DONE_S)
        found = await candidate.ask()
        assert meanwhile.struck == 1
        assert isinstance(found, Topic)
        assert found.paused
        await transport.close()


@pytest.mark.parametrize("version", [1, 8])
async def test_a_later_change_with_the_terms_of_a_half_done_one_ends_the_lease_that_was_taken_under_these(
    url: str, topic: str, version: int
) -> None:
    """The later one may have the very version of the half-done one: its client has tried again."""
    clock, keys = ManualClock(), Keys().shard(topic, 0)
    with Client.connect(url) as client:
        client.schedule(topic, delay=60)
        transport = AsyncTransport(Address(url))
        node = NodeParts(transport, Keys(), clock, node="node", connection="run:1")
        await node.server.asking(transport.send(server_time_us()))
        candidate = Candidate(ShardParts(node, keys, Topic()), lambda name: None)
        await transport.send(registry.fence(keys, PAUSED, version))
        assert isinstance(await candidate.ask(), Unpublished)
        clock.advance(2 * HALF_DONE_S)
        leads = await candidate.ask()
        assert isinstance(leads, Granted)
        assert client.pause(topic).paused
        with pytest.raises(NotLeader):
            await transport.send(leader_calls.renew(keys, leads.token, 9_000, 0))
        await transport.close()


async def test_a_lease_that_is_taken_under_the_terms_of_a_half_done_pause_ends_with_its_repeat(
    url: str, topic: str
) -> None:
    """A node has waited for long, and gets the lease between the repeat's two steps, the terms and their publishing."""
    clock, keys, leases = ManualClock(), Keys().shard(topic, 0), list[object]()
    with Client.connect(url) as client:
        client.schedule(topic, delay=60)
    transport = AsyncTransport(Address(url))
    node = NodeParts(transport, Keys(), clock, node="node", connection="run:1")
    await node.server.asking(transport.send(server_time_us()))
    candidate = Candidate(ShardParts(node, keys, Topic()), lambda name: None)
    await transport.send(registry.fence(keys, PAUSED, 1))
    assert isinstance(await candidate.ask(), Unpublished)
    clock.advance(2 * HALF_DONE_S)
    loop = asyncio.get_running_loop()

    def lead() -> None:
        leases.append(asyncio.run_coroutine_threadsafe(candidate.ask(), loop).result())

    with Client(BlockingWith(url, Meanwhile("put_topic", lead))) as client:
        assert (await asyncio.to_thread(client.pause, topic)).paused
    [lease] = leases
    assert isinstance(lease, Granted)
    with pytest.raises(NotLeader):
        await transport.send(leader_calls.renew(keys, lease.token, 9_000, 0))
    await transport.close()


@pytest.mark.parametrize("by_a_producer", [True, False])
async def test_a_shard_gets_its_leader_back_whether_or_not_somebody_schedules(
    url: str, settings: Settings, topic: str, client: Client, scheduler: Scheduler, by_a_producer: bool
) -> None:
    """The leader, or the producer, finds out that nobody publishes the terms, and tells the shard those that stand."""
    client.schedule(topic, key="first", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    if not by_a_producer:
        client.schedule(topic, key="second", delay=0.5)
    with closing(Transport(Address(url))) as transport:
        transport.send(registry.fence(Keys(settings.prefix).shard(topic, 0), PAUSED, 1))
    if by_a_producer:
        with Client.connect(url, settings) as later:  # which waits for the terms, and then takes the change back
            await asyncio.to_thread(later.schedule, topic, key="second", delay=0.1)
    await until(lambda: scheduler.promoted == 2)


@pytest.mark.parametrize("call", ["fence", "put_topic"])
def test_a_pause_whose_reply_was_lost_can_be_repeated_and_taken_back(
    url: str, settings: Settings, topic: str, call: str
) -> None:
    with Client(BlockingWith(url, ReplyLost(call)), Keys(settings.prefix)) as client:
        client.schedule(topic, key="waits", delay=60)
        with pytest.raises(OutcomeUnknown):
            client.pause(topic)
        assert client.pause(topic).paused
        assert not client.resume(topic).paused
        assert client.schedule(topic, key="runs", delay=0).created
        info = next(info for info in client.topics() if info.name == topic)
        assert (info.waiting, info.ready) == (1, 1)


def terms_of(raw: redis.Redis, settings: Settings, topic: str, shards: int) -> set[str]:
    keys = [Keys(settings.prefix).shard(topic, n) for n in range(shards)]
    return {(raw.get(shard.shards) or b"").decode() for shard in keys}


async def test_a_slow_change_holds_when_it_returns(
    url: str, raw: redis.Redis, settings: Settings, topic: str, client: Client, scheduler: Scheduler
) -> None:
    """Leaders and producers that meet it half done do not undo it, and lead and schedule on meanwhile."""
    await asyncio.to_thread(client.schedule, topic, key="first", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    await asyncio.to_thread(client.schedule, topic, key="meanwhile", delay=0.5)

    def promoted_meanwhile() -> None:
        assert eventually(lambda: scheduler.promoted == 2)

    with Client(BlockingWith(url, Meanwhile("put_topic", promoted_meanwhile)), Keys(settings.prefix)) as slow:
        assert (await asyncio.to_thread(slow.set_shards, topic, 4)).shards == 4
    assert terms_of(raw, settings, topic, 4) == {"4"}
    for n in range(20):
        await asyncio.to_thread(client.schedule, topic, key=f"k{n}", delay=0.3)
    await until(lambda: scheduler.promoted == 22)
    [info] = [info for info in await asyncio.to_thread(client.topics) if info.name == topic]
    assert (info.shards, terms_of(raw, settings, topic, 4)) == (4, {"4"})


async def test_nothing_is_promoted_once_a_pause_that_took_long_has_returned(
    url: str, settings: Settings, topic: str, client: Client, scheduler: Scheduler
) -> None:
    await asyncio.to_thread(client.schedule, topic, key="first", delay=0.1)
    await until(lambda: scheduler.promoted == 1)
    await asyncio.to_thread(client.schedule, topic, key="meanwhile", delay=0.5)

    def promoted_meanwhile() -> None:
        assert eventually(lambda: scheduler.promoted == 2)
        client.schedule(topic, key="later", delay=0.02)

    with Client(BlockingWith(url, Meanwhile("put_topic", promoted_meanwhile)), Keys(settings.prefix)) as slow:
        assert (await asyncio.to_thread(slow.pause, topic)).paused
    promoted = scheduler.promoted
    await asyncio.to_thread(client.schedule, topic, key="held", delay=0)
    await asyncio.sleep(0.5)
    assert scheduler.promoted <= promoted + 1, "but for an answer that was under way"
    assert (await asyncio.to_thread(client.topics))[0].waiting >= 1


@pytest.mark.parametrize("former", ["1", "2"])
def test_a_shard_that_was_left_behind_catches_up(
    raw: redis.Redis, settings: Settings, topic: str, client: Client, former: str
) -> None:
    """It names the terms of a former number: a fail-over lost the change, or somebody took it for half done."""
    for shards in (2, 4):
        client.configure(topic)
        client.set_shards(topic, shards)
    for n in range(4):
        raw.set(Keys(settings.prefix).shard(topic, n).shards, former)
    for n in range(20):
        assert client.schedule(topic, key=f"k{n}", delay=60).created
    [info] = client.topics()
    assert info.shards == 4
    assert terms_of(raw, settings, topic, 4) == {"4"}


def test_a_change_that_was_left_half_done_is_completed(
    url: str, settings: Settings, topic: str, client: Client
) -> None:
    """Producers of other languages may have placed jobs by it already."""
    client.configure(topic)
    with closing(Transport(Address(url))) as transport:
        transport.send(registry.fence(Keys(settings.prefix).shard(topic, 0), "4", 2))
    client.schedule(topic, key="a", delay=60)
    [info] = client.topics()
    assert info.shards == 4


def test_a_late_client_with_outdated_terms_changes_nothing(
    url: str, settings: Settings, topic: str, client: Client
) -> None:
    shard = Keys(settings.prefix).shard(topic, 0)
    client.configure(topic)
    client.set_shards(topic, 4)
    with closing(Transport(Address(url))) as transport:
        assert transport.send(registry.fence(shard, "1", 0)).version > 0
        assert transport.send(draining.terms_in_force(shard)) == "4"


@pytest.mark.parametrize("how", ["one", "many"])
def test_a_producer_that_missed_two_changes_of_the_number_of_shards_finds_the_jobs_that_were_made_between_them(
    url: str, settings: Settings, topic: str, client: Client, how: str
) -> None:
    """It knows the terms in force: the second change took back the first. A job of each id is made once."""
    client.configure(topic)
    client.set_shards(topic, 2)
    keys = [f"k{n}" for n in range(12)]
    with Client.connect(url, settings) as late:
        assert late.schedule(topic, key="known", delay=60).created
        client.set_shards(topic, 3)
        client.schedule_many(topic, [JobSpec(key=key, delay=60) for key in keys])
        client.set_shards(topic, 2)
        specs = [JobSpec(key=key, delay=60) for key in keys]
        receipts = (
            late.schedule_many(topic, specs) if how == "many" else [late.schedule(topic, key=k, delay=60) for k in keys]
        )
        assert not [receipt.id for receipt in receipts if receipt.created]
    assert client.topic(topic).waiting == len(keys) + 1


def test_terms_in_force_of_a_version_that_was_never_published_are_published(
    url: str, settings: Settings, topic: str, client: Client
) -> None:
    """Without that, the shard would refuse all producers for ever: a fail-over has lost the change in the register."""
    client.configure(topic)
    with closing(Transport(Address(url))) as transport:
        transport.send(registry.fence(Keys(settings.prefix).shard(topic, 0), "1", 7))
    assert client.schedule(topic, key="a", delay=60).created
    assert client.topic(topic).settings.version == 8


def groups_of(raw: redis.Redis, settings: Settings, topic: str, shards: int) -> list[set[str]]:
    keys = [Keys(settings.prefix).shard(topic, n) for n in range(shards)]
    return [{info["name"].decode() for info in raw.xinfo_groups(shard.ready)} for shard in keys]


def test_a_group_that_is_made_while_the_number_of_shards_is_changed_is_made_on_all(
    url: str, raw: redis.Redis, settings: Settings, topic: str, client: Client
) -> None:
    """By a caller that read the topic before: on the new shards, others would finish jobs that it never gets."""
    client.make_group(topic, "known")
    slow = Meanwhile("put_topic", lambda: client.make_group(topic, "meanwhile"))
    with Client(BlockingWith(url, slow), Keys(settings.prefix)) as changing:
        changing.set_shards(topic, 4)
    assert groups_of(raw, settings, topic, 4) == [{"known", "meanwhile"}] * 4
    slow = Meanwhile("make_group", lambda: client.set_shards(topic, 6))
    with Client(BlockingWith(url, slow), Keys(settings.prefix)) as making:
        making.make_group(topic, "late")
    assert groups_of(raw, settings, topic, 6) == [{"known", "meanwhile", "late"}] * 6
