"""The lookout finds jobs of which no hint came, renews the lease, and tells the leader of a lost one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from tests.faults.stages import Look, Stage
from tests.records import RECORD
from tests.transports import Fault, Refusing, Unreachable
from tests.waiting import until
from wheelq.protocol.calls import producer

HOUR_MS = 3_600_000


class Counted(Refusing):
    """Affects no call."""

    def __init__(self, name: str) -> None:
        super().__init__(name, times=0)


class Scene:
    """A shard whose leader knows of a job in half an hour, and reads no more by itself until then."""

    def __init__(self, url: str, topic: str, raw: redis.Redis, *faults: Fault) -> None:
        self.looks, self.renewals = Counted("look_some"), Counted("renew")
        settings = {"sweep_ms": 100, "window_ms": HOUR_MS}
        self.stage = Stage(url, topic, self.looks, self.renewals, *faults, **settings)
        self.look = Look(raw, topic)
        self._running: asyncio.Task[None]

    async def begin(self) -> None:
        self.stage.schedule_and_ring("known", HOUR_MS // 2)
        self._running = asyncio.create_task(self.stage.shard.run())
        await until(lambda: self.looks.met > 0)

    async def end(self) -> None:
        self.stage.shard.stop()
        await self._running
        await self.stage.close()


@pytest.fixture
async def scene(url: str, topic: str, raw: redis.Redis) -> AsyncIterator[Scene]:
    scene = Scene(url, topic, raw)
    await scene.begin()
    yield scene
    await scene.end()


def schedule_unheard(stage: Stage) -> None:
    stage.plain.send(producer.schedule(stage.keys, [("unheard", "+200", RECORD)], "keep", "1"))


async def test_a_job_of_which_no_hint_came_is_found(scene: Scene) -> None:
    schedule_unheard(scene.stage)
    await until(lambda: scene.look.ready() == ["unheard"])


@pytest.mark.parametrize("fault", [Unreachable, Refusing])
async def test_while_looks_for_many_shards_fail_each_looks_itself(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    scene = Scene(url, topic, raw, fault("look_some", times=10**9))
    await scene.begin()
    schedule_unheard(scene.stage)
    await until(lambda: scene.look.ready() == ["unheard"])
    await scene.end()


async def test_looks_renew_the_lease(scene: Scene, raw: redis.Redis) -> None:
    """Long before that would need a call of its own."""
    lease, renewals = scene.stage.keys.lease, scene.renewals.met
    token, left_ms = raw.get(lease), raw.pttl(lease)
    await until(lambda: raw.pttl(lease) > left_ms)
    assert raw.get(lease) == token
    assert scene.renewals.met == renewals
    assert scene.stage.shard.is_leading


async def test_a_lease_that_another_node_has_taken_is_noticed(scene: Scene, raw: redis.Redis) -> None:
    raw.set(scene.stage.keys.lease, "other:5:run:9", px=HOUR_MS)
    await until(lambda: not scene.stage.shard.is_leading)


async def test_a_shard_that_has_stopped_is_looked_at_no_more(scene: Scene) -> None:
    scene.stage.shard.stop()
    queue = scene.stage.shard._parts.node.lookout._queue
    await until(lambda: not queue)
