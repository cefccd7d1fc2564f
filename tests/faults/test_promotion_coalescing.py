"""A leader promotes jobs that are due close together in one call, and one that is due after a quiet moment at once."""

from __future__ import annotations

import redis

from tests.faults.stages import Look, Stage
from tests.running import running
from tests.transports import Repeating
from tests.waiting import until
from wheelq import AsyncClient, Job, JobSpec, Scheduler, Settings, Worker
from wheelq.base.clock import SystemClock
from wheelq.protocol.calls.server import server_time_us
from wheelq.settings import SchedulerSettings

LONG_MS = 3_000
"""For a test, so that a slow machine cannot pass it."""


class Counting(Repeating):
    """Counts calls, and changes none."""

    def __init__(self, name: str) -> None:
        super().__init__(name, times=0)


async def test_jobs_that_fall_due_after_a_promotion_share_the_next(url: str, topic: str, raw: redis.Redis) -> None:
    promotions, sweeps = Counting("promote"), Counting("sweep")
    settings = {"gather_ms": LONG_MS, "hedge_ms": 4 * LONG_MS, "sweep_ms": 10 * LONG_MS}
    stage, look = Stage(url, topic, promotions, sweeps, **settings), Look(raw, topic)
    try:
        stage.schedule(20, LONG_MS // 3, apart_ms=20)
        await stage.step_until(lambda: len(look.ready()) == 20)
        assert promotions.met + sweeps.met <= 4, "one that finds nothing yet, the first job, all others"
    finally:
        await stage.close()


async def test_a_job_after_a_quiet_moment_waits_for_no_other(url: str, topic: str, raw: redis.Redis) -> None:
    an_hour_ms = 3_600_000
    stage, look = Stage(url, topic, gather_ms=an_hour_ms, hedge_ms=4 * an_hour_ms), Look(raw, topic)
    try:
        stage.schedule(1, 50)
        await stage.step_until(lambda: len(look.ready()) == 1)
    finally:
        await stage.close()


async def test_a_promotion_that_came_too_early_holds_nothing_back(url: str, topic: str, raw: redis.Redis) -> None:
    """The node's clock was a little ahead: by the server's nothing was due yet, and nothing was promoted."""
    an_hour_ms, promotions = 3_600_000, Counting("promote")
    hour = {"gather_ms": an_hour_ms, "hedge_ms": 4 * an_hour_ms, "sweep_ms": an_hour_ms}
    stage, look = Stage(url, topic, promotions, **hour), Look(raw, topic)

    def has_promoted() -> bool:
        """Until it has, the node's clock is set 90 ms ahead before each step."""
        if not promotions.met:
            server_us = stage.plain.send(server_time_us())
            stage.server.observe(SystemClock().monotonic(), server_us + 90_000)
        return promotions.met > 0

    try:
        stage.schedule(1, 500)
        await stage.step_until(has_promoted)
        await stage.step_until(lambda: len(look.ready()) == 1)
    finally:
        await stage.close()


async def test_the_next_job_of_a_key_that_is_free_again_waits_for_no_other(
    url: str, prefix: str, aclient: AsyncClient
) -> None:
    an_hour_ms, ran = 3_600_000, list[str]()
    own = SchedulerSettings(gather_ms=an_hour_ms, hedge_ms=4 * an_hour_ms, sweep_ms=an_hour_ms)
    scheduler = Scheduler.connect(url, Settings(prefix=prefix, scheduler=own))
    worker = Worker.connect(url, settings=Settings(prefix=prefix))

    @worker.handler("mail")
    async def note(job: Job) -> None:
        ran.append(job.id)

    await aclient.configure("mail", key_concurrency=1)
    keys = [str(n) for n in range(5)]
    await aclient.schedule_many("mail", [JobSpec(key=key, delay=0.2, partition_key="big") for key in keys])
    async with running(scheduler), running(worker):
        await until(lambda: ran == keys)
