"""What tests of faults stand on: a shard on one node, a worker's settler, and a look at all that a topic holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis

from tests.records import RECORD
from tests.transports import AsyncWith, Fault, Forgetful, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import PATIENCE
from wheelq.base.clock import SystemClock
from wheelq.errors import ServerError
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.scheduler.parts import NodeParts, ShardParts
from wheelq.scheduler.shard import Role, Shard
from wheelq.settings import SchedulerSettings, WorkerSettings
from wheelq.transport import Address, Transport
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.parts import WorkerParts

FAULTS: list[type[Fault]] = [ReplyLost, Unreachable, Refusing, Repeating, Forgetful]
HARMLESS: list[type[Fault]] = [Repeating, Forgetful]


class Meanwhile(Fault):
    """Something else happens just before the call, or while it takes its time."""

    def __init__(self, name: str, what: Callable[[], object], **when: int) -> None:
        super().__init__(name, **when)
        self._what = what

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self._what()
        return [call]


class Look:
    """What all shards of a topic hold."""

    def __init__(self, raw: redis.Redis, topic: str, shards: int = 1, prefix: str = "wheelq") -> None:
        self._raw = raw
        self._keys = [Keys(prefix).shard(topic, n) for n in range(shards)]

    def delayed(self) -> dict[str, int]:
        pairs = [pair for keys in self._keys for pair in self._raw.zrange(keys.delayed, 0, -1, withscores=True)]
        assert len(dict(pairs)) == len(pairs)
        return {member.decode(): int(score) for member, score in pairs}

    def ready(self) -> list[str]:
        """Ids of the entries, sorted."""
        entries = [entry for keys in self._keys for entry in self._raw.xrange(keys.ready)]
        for entry_id, fields in entries:
            assert int(entry_id.split(b"-")[0]) >= int(fields[b"due"]), "promoted before its due time"
        return sorted(fields[b"id"].decode() for _, fields in entries)

    def live(self) -> set[str]:
        return {member.decode() for keys in self._keys for member in self._raw.hkeys(keys.jobs)}

    def dead(self) -> list[str]:
        return sorted(f[b"id"].decode() for keys in self._keys for _, f in self._raw.xrange(keys.dead))

    def pending(self, group: str) -> int:
        return sum(self._raw.xpending(keys.ready, group)["pending"] for keys in self._keys)


class Stage:
    """A shard on one node, with faults, and jobs for it."""

    def __init__(
        self, url: str, topic: str, *faults: Fault, role: Role = Role.LEADER, node: str = "node", **settings: int
    ) -> None:
        self.keys = Keys().shard(topic, 0)
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        clock = SystemClock()
        of_node = NodeParts(self.transport, Keys(), clock, SchedulerSettings(**settings), node, "run:1")
        of_node.server.observe(clock.monotonic(), self.plain.send(server_time_us()))
        parts = ShardParts(of_node, self.keys, Topic())
        self.server = parts.server
        self.promotions = of_node.promotions
        self.shard = Shard(parts, role)
        self._of_node = [asyncio.create_task(part.run()) for part in (of_node.promoter, of_node.lookout)]

    def schedule(self, jobs: int, first_ms: int, apart_ms: int = 0) -> list[str]:
        """Jobs that wait, also those that are due."""
        now = self.plain.send(server_time_us()) // 1000
        ids = [f"job-{n:04}" for n in range(jobs)]
        for start in range(0, jobs, 500):
            batch = [(id, str(now + 3_600_000), RECORD) for id in ids[start : start + 500]]
            self.plain.send(producer.schedule(self.keys, batch, "keep", "1"))
        for n, id in enumerate(ids):
            self.plain.send(producer.reschedule(self.keys, id, str(now + first_ms + n * apart_ms)))
        return ids

    def schedule_and_ring(self, id: str, delay_ms: int) -> None:
        """One job, as a producer does it while the node listens."""
        call = producer.schedule(self.keys, [(id, f"+{delay_ms}", RECORD)], "keep", "1")
        [receipt] = self.plain.send(call).receipts
        assert receipt is not None
        self.shard.hint(f"{receipt.due_ms} {id}".encode())

    async def step_until(self, fact: Callable[[], bool], within_s: float = PATIENCE) -> None:
        deadline = time.monotonic() + within_s
        while not fact():
            assert time.monotonic() < deadline, "it does not come about"
            await asyncio.sleep(min(await self.shard.step(), 0.01))

    async def close(self) -> None:
        for task in self._of_node:
            task.cancel()
        await asyncio.wait(self._of_node)
        await self.transport.close()
        self.plain.close()


class Bench:
    """A worker's settler and recovery, with faults, and deliveries for them."""

    def __init__(self, url: str, topic: str, *faults: Fault, **settings_of_acks: int) -> None:
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        self.shard = ServedShard(Keys().shard(topic, 0), Topic())
        clock = SystemClock()
        settings = WorkerSettings(renew_ms=10, abandoned_ms=20, max_deliveries=3, **settings_of_acks)
        parts = WorkerParts(self.transport, Keys(), "g", "w1", settings, clock)
        parts.server.observe(clock.monotonic(), self.plain.send(server_time_us()))
        parts.peers.heard(clock.monotonic(), {"dead": "left g"})
        self.peers = parts.peers
        self.held, self.settler, self.recovery = parts.held, parts.settler, parts.recovery

    def deliver(self, *ids: str, consumer: str = "w1") -> list[Delivery]:
        keys = self.shard.keys
        self.plain.send(worker_calls.make_group(keys, "g"))
        self.plain.send(producer.schedule(keys, [(id, "+0", RECORD) for id in ids], "keep", "1"))
        entries = self.plain.send(worker_calls.read([keys], "g", consumer, 100, 1))[0]
        assert [entry.id for entry in entries] == list(ids)
        deliveries = [Delivery(self.shard, entry, 0) for entry in entries]
        if consumer == "w1":
            for delivery in deliveries:
                self.held.add(delivery)
        return deliveries

    async def until_done(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do it as the component does: again after an error."""
        while True:
            try:
                return await act()
            except ServerError:
                pass

    async def close(self) -> None:
        await self.transport.close()
        self.plain.close()
