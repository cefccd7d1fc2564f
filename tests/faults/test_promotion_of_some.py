"""One call promotes in many shards: nothing is lost, early or promoted twice, whatever becomes of it half-way."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from loadtest.servers.cluster import Cluster
from tests.faults.stages import FAULTS, Look, Meanwhile
from tests.records import RECORD
from tests.transports import AsyncWith, Fault, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import until
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.model.topic import Topic
from wheelq.protocol.call import command
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.parts import NodeParts, ShardParts
from wheelq.scheduler.shard import Shard
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, Transport

SHARDS = 6
FROM_MS, APART_MS = 400, 10


class Counting(Repeating):
    """Counts calls, and changes none."""

    def __init__(self, name: str) -> None:
        super().__init__(name, times=0)


class Node:
    """A node that leads all shards of a topic, with jobs that fall due at the same moments in all of them."""

    def __init__(
        self,
        url: str,
        topic: str,
        *faults: Fault,
        name: str = "node",
        keys: Sequence[ShardKeys] | None = None,
        lease_ms: int = 9_000,
        sweep_ms: int = 60_000,
    ) -> None:
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        # No sweep finds in time what promotions forget, and no lookout runs.
        settings = SchedulerSettings(sweep_ms=sweep_ms, gather_ms=5, lease_ms=lease_ms)
        parts = NodeParts(self.transport, Keys(), clock := SystemClock(), settings, name, "run:1")
        parts.server.observe(clock.monotonic(), self.plain.send(server_time_us()))
        self.keys = keys or [Keys().shard(topic, n) for n in range(SHARDS)]
        self.shards = [Shard(ShardParts(parts, keys, Topic(shards=SHARDS))) for keys in self.keys]
        self.promotions = parts.promotions
        self._promoter = parts.promoter
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()

    def schedule(self, moments: int) -> list[str]:
        """A job for each shard at each of the moments."""
        ids = []
        for n in range(moments):
            at = next(self._numbers)
            for number, keys in enumerate(self.keys):
                ids.append(f"job-{at:03}-{number}")
                new = [(ids[-1], f"+{FROM_MS + n * APART_MS}", RECORD)]
                [receipt] = self.plain.send(producer.schedule(keys, new, "keep", str(SHARDS))).receipts
                assert receipt is not None
                self.shards[number].hint(f"{receipt.due_ms} {ids[-1]}".encode())  # of later jobs, once it runs
        return ids

    def start(self) -> None:
        runs = [self._promoter.run(), *(shard.run() for shard in self.shards)]
        self._tasks = [asyncio.create_task(run) for run in runs]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.transport.close()
        self.plain.close()


async def run_all(node: Node, look: Look, moments: int, is_enough: Callable[[], bool] = lambda: True) -> None:
    """Schedule and run jobs until it is enough; each is promoted once, and not before its time (`Look.ready`)."""
    ids = node.schedule(moments)
    node.start()
    try:
        await until(lambda: not look.delayed())
        while not is_enough():
            assert len(ids) < 100 * moments * SHARDS, "it does not come about"
            ids += node.schedule(moments)
            await until(lambda: not look.delayed())
        assert look.ready() == sorted(ids)
        assert look.live() == set(ids)
    finally:
        await node.close()


async def test_jobs_due_together_in_many_shards_share_a_call(url: str, topic: str, raw: redis.Redis) -> None:
    together, alone, sweeps = Counting("promote_some"), Counting("promote"), Counting("sweep")
    node = Node(url, topic, together, alone, sweeps)
    await run_all(node, Look(raw, topic, SHARDS), 20)
    assert together.met + alone.met <= 3 * 20, "not one for each of 120 jobs"
    assert sweeps.met <= SHARDS, "at the beginning; afterwards the promotions say that nothing else is due"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("after", [0, 2])
async def test_each_job_is_promoted_once_although_the_call_fails(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], after: int
) -> None:
    node = Node(url, topic, struck := fault("promote_some", after=after, times=2))
    await run_all(node, Look(raw, topic, SHARDS), 10, lambda: struck.struck == 2)


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_job_is_promoted_once_although_windows_that_share_a_call_fail(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    """The first windows are opened by each shard; later ones share a call."""
    node = Node(url, topic, struck := fault("open_window", after=SHARDS, times=2))
    await run_all(node, Look(raw, topic, SHARDS), 100, lambda: struck.struck == 2)


@pytest.mark.parametrize("fault", [ReplyLost, Unreachable, Refusing])
async def test_after_a_call_that_failed_each_shard_sweeps_at_once(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    """No later job is needed to find those that were taken from the wheel."""
    struck, sweeps = fault("promote_some"), Counting("sweep")
    node = Node(url, topic, struck, sweeps)
    one_each = SHARDS  # at the beginning
    await run_all(node, Look(raw, topic, SHARDS), 1, lambda: struck.struck == 1 and sweeps.met > one_each)


async def test_a_reply_that_is_cut_in_the_middle_loses_and_doubles_nothing(
    private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    """The connection ends while replies are on their way: the server has done the call."""
    server = private_server(appendonly=False)
    with redis.Redis.from_url(server.url) as raw:

        def cut() -> None:
            asyncio.get_running_loop().call_soon(lambda: raw.client_kill_filter(_type="normal", skipme=True))

        node = Node(server.url, topic, struck := Meanwhile("promote_some", cut, after=1, times=3))
        await run_all(node, Look(raw, topic, SHARDS), 10, lambda: struck.struck == 3)


async def test_a_stream_that_refuses_holds_up_only_its_own_shard(url: str, topic: str, raw: redis.Redis) -> None:
    node, look = Node(url, topic), Look(raw, topic, SHARDS)
    ids = node.schedule(10)
    raw.set(node.keys[2].ready, "not a stream")
    node.start()
    try:
        await until(lambda: len(look.delayed()) == 10)
        assert {id[-1] for id in look.delayed()} == {"2"}
        raw.delete(node.keys[2].ready)
        await until(lambda: not look.delayed())
        assert look.ready() == sorted(ids)
    finally:
        await node.close()


@pytest.mark.parametrize("key", ["delayed", "jobs"])
async def test_a_shard_that_another_program_has_spoilt_holds_up_no_other(
    url: str, topic: str, raw: redis.Redis, key: str
) -> None:
    node, look = Node(url, topic), Look(raw, topic, SHARDS)
    ids = node.schedule(10)
    spoilt = getattr(node.keys[2], key)

    def spoil() -> None:
        raw.rename(spoilt, f"{spoilt}:aside")
        raw.set(spoilt, "not of wheelq")

    node.transport._faults = (Meanwhile("promote_some", spoil),)
    node.start()
    try:
        others = [keys for n, keys in enumerate(node.keys) if n != 2]
        await until(lambda: not any(raw.exists(keys.delayed) for keys in others))
        raw.delete(spoilt)
        raw.rename(f"{spoilt}:aside", spoilt)
        await until(lambda: not look.delayed())
        assert look.ready() == sorted(ids)
    finally:
        await node.close()


async def test_a_lease_that_is_lost_stops_only_its_own_shard(url: str, topic: str, raw: redis.Redis) -> None:
    """Another node has taken it, under way to the same call: that node promotes there, and this one elsewhere."""
    here, there, look = Node(url, topic, name="here"), Node(url, topic, name="there"), Look(raw, topic, SHARDS)
    ids = here.schedule(20)

    def take() -> None:
        raw.set(here.keys[2].lease, "there:1:run:1", px=60_000)

    here.transport._faults = (struck := Meanwhile("promote_some", take, after=1),)
    there.shards = there.shards[2:3]
    here.start()
    try:
        await until(lambda: struck.struck == 1)
        there.start()
        await until(lambda: not look.delayed())
        assert look.ready() == sorted(ids)
        assert there.promotions.lateness.jobs > 0
        assert not here.shards[2].is_leading
    finally:
        await here.close()
        await there.close()


async def test_two_nodes_that_both_believe_to_lead_promote_each_job_once(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """They take the leases from each other, again and again, while jobs fall due."""
    nodes, look = [Node(url, topic, name=name) for name in ("one", "other")], Look(raw, topic, SHARDS)
    ids = nodes[0].schedule(40)
    for node in nodes:
        node.start()
    try:
        while look.delayed():
            for keys in nodes[0].keys:
                raw.delete(keys.lease)
            await asyncio.sleep(0.02)
        assert look.ready() == sorted(ids)
        await until(lambda: sum(node.promotions.lateness.jobs for node in nodes) == len(ids))
    finally:
        for node in nodes:
            await node.close()


async def test_a_paused_shard_is_not_promoted_with_the_others(url: str, topic: str, raw: redis.Redis) -> None:
    node, look = Node(url, topic), Look(raw, topic, SHARDS)
    node.schedule(10)
    node.start()
    try:
        await until(lambda: all(shard.is_leading for shard in node.shards))
        node.shards[2].configure(Topic(shards=SHARDS, paused=True))
        await until(lambda: {id[-1] for id in look.delayed()} == {"2"})
        assert len(look.delayed()) == 10, "they were due at the same moments as the others"
    finally:
        await node.close()


async def test_a_promotion_tells_of_a_job_whose_hint_was_lost(url: str, topic: str, raw: redis.Redis) -> None:
    """Some promotions look, at half of the beat: it does not wait for the next sweep, renewal or empty wheel."""
    node, look = Node(url, topic, lease_ms=600_000, sweep_ms=200), Look(raw, topic, SHARDS)
    node.schedule(200)
    node.start()
    try:
        await until(lambda: bool(look.ready()))
        new = [("lost", "+100", RECORD)]
        node.plain.send(producer.schedule(node.keys[2], new, "keep", str(SHARDS)))
        await until(lambda: not look.delayed())
        entries = [fields[b"id"] for _, fields in raw.xrange(node.keys[2].ready)]
        assert entries.index(b"lost") < len(entries) - 50
    finally:
        await node.close()


# --- a cluster ----------------------------------------------------------------------------------------------------


def in_one_slot(topic: str, count: int) -> list[ShardKeys]:
    """Shards of topics that happen to share a slot of a cluster."""
    by_slot: dict[int, list[ShardKeys]] = {}
    for n in itertools.count():
        keys = Keys().shard(f"{topic}-{n}", 0)
        found = by_slot.setdefault(key_slot(keys.ready.encode()), [])
        found.append(keys)
        if len(found) == count:
            return found
    raise AssertionError("there are more topics than slots")


async def test_a_slot_with_many_shards_moves_while_their_jobs_fall_due(server_binary: Path, topic: str) -> None:
    """MOVED: the call was not done, and goes to the other master. TRYAGAIN: it waits for the rest of the slot."""
    with Cluster(server_binary) as cluster:
        together = Counting("promote_some")
        node = Node(cluster.url, topic, together, keys=in_one_slot(topic, 3))
        ids = node.schedule(40)
        slot = node.keys[0].ready

        def waiting() -> int:
            calls = [command("ZCARD", keys.delayed, read=int, key=keys.delayed) for keys in node.keys]
            return sum(node.plain.send(call) for call in calls)

        def move() -> None:
            for _ in range(3):
                with cluster.moving(slot, cluster.other_master(cluster.master_of(slot))):
                    pass

        node.start()
        try:
            await until(lambda: together.met > 0)
            await asyncio.to_thread(move)
            await until(lambda: not waiting())
            calls = [command("XRANGE", keys.ready, "-", "+", read=list, key=keys.ready) for keys in node.keys]
            entries = [fields for call in calls for _, fields in node.plain.send(call)]
            assert sorted(fields[fields.index(b"id") + 1].decode() for fields in entries) == ids
        finally:
            await node.close()
