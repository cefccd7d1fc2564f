"""Several scheduler nodes share many shards: evenly, moving no more than must be moved, at next to no cost at rest."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from math import inf

import pytest
import redis

from tests.faults.stages import Stage
from tests.running import running
from tests.waiting import PATIENCE, until
from wheelq import Client, Job, Scheduler, Settings, Worker
from wheelq.base.clock import Clock, SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import command
from wheelq.protocol.calls import heartbeats
from wheelq.protocol.calls.server import info, server_time_us
from wheelq.protocol.keys import Keys
from wheelq.scheduler.assignment import Post
from wheelq.scheduler.membership import Membership
from wheelq.scheduler.parts import NodeParts
from wheelq.scheduler.shard import Role
from wheelq.settings import TopicSettings
from wheelq.transport import Address, AsyncTransport, Transport

TOPICS, SHARDS = 50, 4
REPORT = {"connection": "run:8"}
Posts = dict[tuple[str, int], tuple[str, str | None]]


async def until_assigned(transport: Transport, nodes: set[str], within_s: float = PATIENCE) -> Posts:
    """The assignment, once exactly these nodes lead."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        posts = transport.send(heartbeats.assignment(Keys()))
        if {leader for leader, _ in posts.values()} == nodes and len(posts) == TOPICS * SHARDS:
            return posts
        await asyncio.sleep(0.05)
    raise AssertionError(f"not shared by {nodes} within {within_s} s")


def moved(before: Posts, after: Posts) -> int:
    return sum(before[name][0] != leader for name, (leader, _) in after.items())


async def commands_a_second(transport: Transport) -> float:
    before, began = _commands(transport), time.monotonic()
    await asyncio.sleep(4.0)
    return (_commands(transport) - before) / (time.monotonic() - began)


async def test_three_nodes_share_two_hundred_shards_evenly_and_rest(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """50 topics × 4 shards: ±1 each; a node that goes or comes moves its share only; at rest all cost < 1 command a
    second and shard, standbys included."""
    server = private_server(appendonly=False)
    transport = Transport(Address(server.url))
    with Client.connect(server.url, Settings(topic=TopicSettings(shards=SHARDS))) as client:
        for n in range(TOPICS):
            client.schedule(f"topic-{n}", delay=3600)
    first, second, third, fourth = (Scheduler.connect(server.url) for _ in range(4))
    async with running(first, second):
        async with running(third):
            names = {first.node, second.node, third.node}
            three = await until_assigned(transport, names)
            assert sorted(Counter(leader for leader, _ in three.values()).values()) == [66, 67, 67]
            assert all(standby in names - {leader} for leader, standby in three.values())
            deadline = time.monotonic() + PATIENCE
            while (rate := await commands_a_second(transport)) >= TOPICS * SHARDS:  # until the last lease has lapsed
                assert time.monotonic() < deadline, rate
        two = await until_assigned(transport, {first.node, second.node})
        assert sorted(Counter(leader for leader, _ in two.values()).values()) == [100, 100]
        assert moved(three, two) == sum(leader == third.node for leader, _ in three.values())
        async with running(fourth):
            again = await until_assigned(transport, {first.node, second.node, fourth.node})
            assert moved(two, again) == 66
    transport.close()


async def test_a_standby_hands_a_shard_back_when_its_leader_has_sent_a_new_heartbeat(url: str, topic: str) -> None:
    stage, node, led_since = Stage(url, topic, role=Role.STANDBY), Scheduler.connect(url), time.monotonic()
    stage.shard._lease.granted("its token", led_since)
    stage.shard.led_since = led_since
    node._shards[stage.keys.near] = stage.shard
    node._members.posts = {(topic, 0): Post("leader", node.node)}
    for seen_at, is_handed_back in ((led_since - 1.0, False), (led_since + 0.001, True)):
        node._members.seen_at = {"leader": seen_at}
        node._return_what_was_stood_in_for()
        assert stage.shard._is_handing_over is is_handed_back
    await stage.close()


async def test_a_lease_that_is_given_back_while_it_is_asked_for_is_taken_at_once(
    url: str, topic: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message overtook the answer that another node holds it: nobody led until that lease would have ended."""
    stage = Stage(url, topic, lease_ms=3_600_000)
    stage.schedule(1, 1_000)
    raw.set(stage.keys.lease, "other:1:run:2", px=3_600_000)
    ask = stage.shard._candidate.ask

    async def ask_and_be_overtaken(over: str = "") -> object:
        answer = await ask(over)
        if raw.delete(stage.keys.lease):
            stage.shard.hint(b"")
        return answer

    monkeypatch.setattr(stage.shard._candidate, "ask", ask_and_be_overtaken)
    running = asyncio.create_task(stage.shard.run())
    await until(lambda: stage.shard.is_leading)
    running.cancel()
    await stage.close()


async def test_a_node_may_be_found_gone_by_two_at_once(private_server: Callable[..., EmbeddedServer]) -> None:
    """By a node that joins again and its own beat: whoever comes second finds it off the list."""
    server = private_server(appendonly=False)

    class Slow(AsyncTransport):
        async def is_open(self, run_id: str, connection_id: int) -> bool:
            members.seen_at.clear()
            return False

    transport = Slow(Address(server.url))
    parts = NodeParts(transport, Keys(), SystemClock(), node="b")
    await parts.server.asking(transport.send(server_time_us()))
    members = Membership(parts, lambda: REPORT)
    gone = {"seen_ms": int(parts.server.now_ms()), "connection": "run:7"}
    await transport.send(heartbeats.beat_node(Keys(), "c", gone))
    await members.join()
    assert set(await transport.send(heartbeats.alive(Keys().nodes))) == {"b"}
    await transport.close()


async def test_a_node_alone_without_topics_has_nothing_to_assign(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """Each new assignment is told to all nodes, which then look whether it fits: this one did so without an end."""
    server = private_server(appendonly=False)
    transport = AsyncTransport(Address(server.url))
    parts = NodeParts(transport, Keys(), SystemClock(), node="alone")
    await parts.server.asking(transport.send(server_time_us()))
    members = Membership(parts, lambda: REPORT)
    await members.join()
    for _ in range(2):
        await members.refresh([])
    assert await transport.send(heartbeats.assignment_version(Keys())) == 0
    await members.refresh([("orders", 0)])
    await members.refresh([])
    await members.refresh([])
    assert await transport.send(heartbeats.assignment_version(Keys())) == 2, "given, and taken away"
    await transport.close()


async def test_nodes_whose_list_is_lost_assign_the_shards_once(private_server: Callable[..., EmbeddedServer]) -> None:
    """Each missed itself in the list, and gave all shards to itself, thousands of times until its next heartbeat."""
    server = private_server(appendonly=False)
    transport = AsyncTransport(Address(server.url))
    both = [NodeParts(transport, Keys(), SystemClock(), node=name) for name in "ab"]
    for parts in both:
        await parts.server.asking(transport.send(server_time_us()))
    nodes = [Membership(parts, lambda: REPORT) for parts in both]
    for node in nodes:
        await node.join()
    await transport.send(command("FLUSHALL", read=bool))
    for node in nodes * 5:  # as each new assignment makes them do
        await node.refresh([("orders", shard) for shard in range(4)])
    assert await transport.send(heartbeats.assignment_version(Keys())) <= 2
    assert {post.leader for post in nodes[0].posts.values()} == {"a", "b"}
    await transport.close()


class Ahead(SystemClock):
    """This machine's clock, ahead by as much as a test says."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def test_news_shortly_before_a_heartbeat_does_not_delay_it(private_server: Callable[..., EmbeddedServer]) -> None:
    """A node that had looked at news slept for a whole interval, so two heartbeats were ten seconds apart."""
    server, clock = private_server(appendonly=False), Ahead()
    node = Scheduler(AsyncTransport(Address(server.url)), clock=clock)
    await node._server.asking(node._transport.send(server_time_us()))
    beat_s = node._settings.heartbeat_ms / 1000
    assert await node._look() <= beat_s
    clock.seconds += beat_s - 0.5
    assert await node._look() <= 0.5
    await node._transport.close()


async def test_nodes_take_turns_of_a_second_while_the_first_does_not_assign_shards(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    server, clock = private_server(appendonly=False), Ahead()
    transport = AsyncTransport(Address(server.url))
    nodes = {name: await _joined(transport, name, clock) for name in "abc"}
    wanted = [("orders", shard) for shard in range(6)]
    began = clock.monotonic()
    lefts = {name: await nodes[name].refresh(wanted) for name in "bc"}
    took = clock.monotonic() - began
    assert 1 - took <= lefts["b"] <= 1
    assert 2 - took <= lefts["c"] <= 2
    clock.seconds += lefts["b"]
    assert 0 < await nodes["c"].refresh(wanted) <= 1
    assert not nodes["c"].posts
    assert await nodes["b"].refresh(wanted) == inf
    assert {post.leader for post in nodes["b"].posts.values()} == {*"abc"}, "all of them live"
    clock.seconds += 1
    assert await nodes["c"].refresh(wanted) == inf
    assert await transport.send(heartbeats.assignment_version(Keys())) == 1
    clock.seconds += 1
    assert 0 < await nodes["b"].refresh([*wanted, ("mails", 0)]) <= 1, "each change starts the turns again"
    await transport.close()


async def test_jobs_of_a_new_topic_run_while_the_first_node_hangs(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """No shard of the topic had a leader until the first node counted as dead."""
    server, ran = private_server(appendonly=False), asyncio.Event()
    transport = AsyncTransport(Address(server.url))
    hanging = await _joined(transport, "0", SystemClock())

    async def beats() -> None:
        while True:
            await hanging.beat()
            await asyncio.sleep(1.0)

    beating = asyncio.create_task(beats())
    worker = Worker.connect(server.url)

    @worker.handler("orders")
    async def note(job: Job) -> None:
        ran.set()

    node = Scheduler.connect(server.url)
    async with running(node, worker):
        await until(lambda: "0" in node._members.seen_at)
        with Client.connect(server.url) as client:
            client.configure("orders")
            client.schedule("orders", delay=0.3)
        await until(ran.is_set)
    beating.cancel()
    await transport.close()


async def _joined(transport: AsyncTransport, name: str, clock: Clock) -> Membership:
    parts = NodeParts(transport, Keys(), clock, node=name)
    await parts.server.asking(transport.send(server_time_us()))
    members = Membership(parts, lambda: REPORT)
    await members.join()
    return members


def _commands(transport: Transport) -> int:
    """Commands the server has carried out, those inside scripts included."""
    return int(transport.send(info("stats"))["total_commands_processed"])
