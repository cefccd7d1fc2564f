"""Topics at rest: their leaders and standbys are ready in time for a job that is scheduled then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
import redis

from tests.faults.stages import Look, Stage
from tests.running import running
from tests.waiting import Stalls, until
from wheelq import AsyncClient, Scheduler, Settings
from wheelq.protocol.keys import Keys
from wheelq.scheduler.shard import Role, Shard
from wheelq.settings import SchedulerSettings

IDLE_MS = 4_000
"""A twentieth of the usual time for which a shard rests."""


async def test_a_standby_does_not_rest_past_the_horizon_of_a_leader_that_freezes(
    raw: redis.Redis, url: str, prefix: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job behind the horizon sends no hint. A standby that looked late in the leader's rest came 13 s late for it."""
    short = SchedulerSettings(idle_ms=IDLE_MS, lease_ms=1_000, lease_margin_ms=100, window_ms=400)
    settings = Settings(prefix=prefix, scheduler=short)
    nodes = [Scheduler.connect(url, settings) for _ in range(2)]
    keys = Keys(prefix).shard(topic, 0)

    def now_ms() -> float:
        seconds, micros = raw.time()
        return seconds * 1000 + micros / 1000

    def of(node: Scheduler) -> Shard:
        return node._shards[keys.near]

    may_wake = asyncio.Event()

    async def stay_frozen() -> float:
        await may_wake.wait()
        return 0.0

    def with_role(role: Role) -> list[Scheduler]:
        return [node for node in nodes if keys.near in node._shards and of(node).role is role]

    async with AsyncClient.connect(url, settings) as client:
        await client.schedule(topic, key="first", delay=0)
        async with running(*nodes):
            await until(lambda: len(with_role(Role.LEADER)) == len(with_role(Role.STANDBY)) == 1)
            [leader], [standby] = with_role(Role.LEADER), with_role(Role.STANDBY)
            await until(lambda: now_ms() + 700 < int(raw.get(keys.horizon) or 0) < now_ms() + IDLE_MS * 0.4)
            of(standby).look_again()
            await until(lambda: of(standby)._rules.look_at > now_ms())
            monkeypatch.setattr(of(leader), "step", stay_frozen)
            of(leader).look_again()  # ends its sleep
            horizon_ms = int(raw.get(keys.horizon) or 0)
            at = datetime.fromtimestamp((horizon_ms + 50) / 1000, UTC)
            with Stalls() as machine:
                receipt = await client.schedule(topic, key="late?", at=at)
                try:
                    await until(lambda: raw.xlen(keys.ready) == 2)
                finally:
                    may_wake.set()
            [(entry_id, _)] = raw.xrevrange(keys.ready, count=1)
            late_ms = int(entry_id.split(b"-")[0]) - receipt.due_ms
            assert late_ms < 1_000 + 10 * machine.percentile(100)


async def test_a_leader_at_rest_has_its_lease_before_the_job_that_rings_is_due(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """Then one call is left to do at the due time. All of 3,000 topics at rest may have one that is due."""
    stage, look = Stage(url, topic, window_ms=70_000), Look(raw, topic)
    stage.shard.look_again()  # as at its start
    try:
        await stage.step_until(lambda: bool(raw.exists(stage.keys.horizon)))
        assert not stage.shard.is_leading
        stage.schedule_and_ring("soon", 35_000)
        await stage.step_until(lambda: stage.shard.is_leading)
        assert (raw.time()[0] + 1) * 1000 < look.delayed()["soon"] - 500
    finally:
        await stage.close()
