"""34. Ids, lives and counts where two features meet: retries, replays, partition keys, debounce, shards, groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.running import age
from tests.spec.conftest import Run, known, state_is
from tests.waiting import PATIENCE, until
from wheelq import (
    AsyncClient,
    Bury,
    CancelOutcome,
    Continuation,
    Job,
    JobSpec,
    JobState,
    Retry,
    RetryAfter,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.errors import JobNotFound
from wheelq.model.dead import ReplayOutcome
from wheelq.model.topic import shard_of
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings

HOUR_MS = 3_600_000
FAR = next(f"key-{n}" for n in range(100) if shard_of(f"key-{n}", 4) == 3)
NEAR = next(f"job-{n}" for n in range(100) if shard_of(f"job-{n}", 4) == 0)
Trim = Callable[[], Awaitable[None]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics keep finished jobs for an hour."""
    return replace(settings, topic=TopicSettings(keep_done_ms=HOUR_MS))


class Serving:
    """A worker: the payload "fail" fails and is tried again in an hour, "bury" is buried, "hold" waits to be let go.
    "once" fails, and waits to be let go when it runs again, at once."""

    def __init__(self, url: str, settings: Settings, topic: str, group: str = "g") -> None:
        self.worker = Worker.connect(url, group=group, settings=settings)
        self.worker.handler(topic, retry=Retry(delays=[3_600]))(self._handle)
        self.ran: list[object] = []
        self.go_on = asyncio.Event()

    async def _handle(self, job: Job) -> str:
        self.ran.append(job.payload)
        if job.payload == "fail":
            raise RuntimeError("on purpose")
        if job.payload == "bury" and not job.replays:
            raise Bury("on purpose")
        if job.payload == "once" and self.ran.count("once") == 1:
            raise RetryAfter(0)
        if job.payload in ("hold", "once"):
            await self.go_on.wait()
        return f"result of {job.payload}"

    async def has_run(self, payload: object) -> None:
        await until(lambda: payload in self.ran)


@pytest.fixture
async def serving(url: str, settings: Settings, topic: str, scheduler: Scheduler, run: Run) -> Serving:
    """A worker that runs, beside a scheduler."""
    serving = Serving(url, settings, topic)
    run(serving.worker)
    return serving


@pytest.fixture
def trim(url: str, settings: Settings, topic: str, aclient: AsyncClient, serving: Serving) -> Trim:
    """Trims the entries of what has been acknowledged so far, also of a job that waits for a retry."""

    async def trim() -> None:
        age(url, settings.prefix)
        receipt = await aclient.schedule(topic, "to trim", delay=0)
        await aclient.wait(receipt, timeout=PATIENCE)

    return trim


async def test_a_cancelled_job_is_not_done_although_the_next_one_with_its_id_is_replayed(
    aclient: AsyncClient, topic: str, serving: Serving
) -> None:
    cancelled = await aclient.schedule(topic, 1, delay=60, key="a")
    await aclient.cancel(topic, "a")
    await aclient.schedule(topic, "bury", delay=0, key="a")
    await state_is(aclient, topic, "a", JobState.DEAD)
    await aclient.pause(topic)
    await aclient.dead.replay(topic, all=True)
    assert known(await aclient.get(topic, "a")).payload == "bury"
    assert await aclient.get(cancelled) is None
    with pytest.raises(JobNotFound):
        await aclient.wait(cancelled, timeout=PATIENCE)


async def test_a_job_that_waits_for_a_retry_is_known_although_its_first_entry_is_trimmed(
    aclient: AsyncClient, topic: str, serving: Serving, trim: Trim
) -> None:
    """Its life and its next due time; and it is not an earlier job with its id, which was cancelled."""
    cancelled = await aclient.schedule(topic, 1, delay=60, key="a")
    await aclient.cancel(topic, "a")
    alive = await aclient.schedule(topic, "fail", delay=0, key="a")
    await state_is(aclient, topic, "a", JobState.RETRYING)
    await trim()
    assert await aclient.get(cancelled) is None
    kept = await aclient.schedule(topic, 2, delay=5, key="a")
    info = known(await aclient.get(topic, "a"))
    assert (kept.created, kept.life, kept.due_ms) == (False, alive.life, info.due_ms)


async def test_an_id_is_free_when_the_only_group_that_needs_a_retry_of_it_is_removed(
    aclient: AsyncClient, topic: str, serving: Serving, trim: Trim
) -> None:
    receipts = await aclient.schedule_many(
        topic, [JobSpec("fail", delay=0, key="a")], then=Continuation(f"{topic}-next", 1)
    )
    await state_is(aclient, topic, "a", JobState.RETRYING)
    await trim()
    await aclient.make_group(topic, "late")
    serving.worker.stop()
    await aclient.remove_group(topic, "g", force=True)
    assert (await aclient.schedule(topic, 2, delay=60, key="a")).created
    assert receipts.bundle is not None
    bundle = await aclient.bundle(receipts.bundle)
    assert bundle is not None
    assert (bundle.members, bundle.cancelled, bundle.left) == (1, 1, 0)


async def test_a_retry_that_succeeds_frees_its_id_although_a_later_group_has_read_nothing_yet(
    aclient: AsyncClient, topic: str, serving: Serving, trim: Trim
) -> None:
    """The group reads from the beginning, where the first entry of the job is no more."""
    await aclient.schedule(topic, "once", delay=0, key="a")
    await until(lambda: serving.ran == ["once", "once"])
    await trim()
    await aclient.make_group(topic, "late")
    serving.go_on.set()
    await state_is(aclient, topic, "a", JobState.DONE)
    assert (await aclient.schedule(topic, 2, delay=60, key="a")).created


async def test_a_dead_job_is_not_replayed_beside_a_live_one_with_its_id_in_another_shard(
    aclient: AsyncClient, topic: str, serving: Serving
) -> None:
    await aclient.schedule(topic, "bury", delay=0, key=FAR)
    await state_is(aclient, topic, FAR, JobState.DEAD)
    await aclient.set_shards(topic, 4)
    await aclient.schedule(topic, 2, delay=3_600, key=FAR)
    [dead] = (await aclient.dead.list(topic)).jobs
    assert await aclient.dead.replay_one(topic, dead.dead_id) is ReplayOutcome.ALIVE
    replayed = await aclient.dead.replay(topic, all=True)
    assert (replayed.replayed, replayed.kept) == (0, 1)
    await aclient.cancel(topic, FAR)
    assert await aclient.dead.replay_one(topic, dead.dead_id) is ReplayOutcome.REPLAYED


async def test_an_id_means_the_latest_job_although_an_earlier_one_with_a_partition_key_is_kept_elsewhere(
    aclient: AsyncClient, topic: str, serving: Serving
) -> None:
    await aclient.schedule(topic, 1, delay=0, key=NEAR, partition_key=FAR)
    assert await aclient.wait(topic, NEAR, timeout=PATIENCE) == "result of 1"
    await aclient.set_shards(topic, 4)
    await aclient.schedule(topic, 2, delay=0.5, key=NEAR, partition_key=FAR)
    assert known(await aclient.get(topic, NEAR)).payload == 2
    assert await aclient.wait(topic, NEAR, timeout=PATIENCE) == "result of 2"


async def second(client: AsyncClient, topic: str, id: str, serving: Serving, payload: object, delay: float) -> None:
    """Only the second job of a debounced key is alive, in a shard that does not follow from the key."""
    times = {"on_duplicate": "replace", "max_wait": 60, "partition_key": FAR}
    await client.schedule(topic, "hold", delay=0, key=id, **times)
    await serving.has_run("hold")
    made = await client.schedule(topic, payload, delay=delay, key=id, **times)
    assert made.id == f"{id}~second"
    serving.go_on.set()


async def test_waiting_for_a_debounced_key_returns_the_result_of_the_second_job(
    aclient: AsyncClient, topic: str, serving: Serving
) -> None:
    await second(aclient, topic, "doc", serving, 2, 1.0)
    assert await aclient.wait(topic, "doc", partition_key=FAR, timeout=PATIENCE) == "result of 2"


async def test_cancel_finds_the_second_job_of_a_debounced_key_in_another_shard(
    aclient: AsyncClient, topic: str, serving: Serving
) -> None:
    await aclient.configure(topic, keep_done_ms=HOUR_MS)
    await aclient.set_shards(topic, 4)
    await second(aclient, topic, NEAR, serving, 2, 50)

    async def is_alone() -> bool:
        return known(await aclient.get(topic, NEAR)).id == f"{NEAR}~second"

    await until(is_alone)
    assert await aclient.cancel(topic, NEAR) is CancelOutcome.CANCELLED
    assert await aclient.get(topic, f"{NEAR}~second") is None


async def test_the_second_job_of_a_debounced_key_is_found_while_it_waits_for_a_retry(
    aclient: AsyncClient, topic: str, serving: Serving, trim: Trim
) -> None:
    await second(aclient, topic, "doc", serving, "fail", 0.1)
    await state_is(aclient, topic, "doc~second", JobState.RETRYING)
    await trim()

    async def is_alone() -> bool:
        return known(await aclient.get(topic, "doc")).id == "doc~second"

    await until(is_alone)
    assert await aclient.cancel(topic, "doc") is CancelOutcome.RUNNING


async def test_jobs_that_are_cancelled_together_are_counted(
    aclient: AsyncClient, topic: str, url: str, settings: Settings
) -> None:
    await aclient.schedule_many(topic, [JobSpec(n, delay=600) for n in range(5)])
    await aclient.cancel_due(topic, until=datetime.now(UTC) + timedelta(hours=1))
    with redis.Redis.from_url(url) as raw:
        assert raw.hget(Keys(settings.prefix).shard(topic, 0).counts, "cancelled\x1f") == b"5"
