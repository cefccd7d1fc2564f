"""24. Many jobs at once: cancel or move all that are due in a range."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.spec.conftest import Inbox, Run, counts, known, state_is
from tests.waiting import until
from wheelq import AsyncClient, BulkProgress, JobSpec, JobState, Retry, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.model.job import from_ms
from wheelq.settings import TopicSettings

MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics have three shards."""
    return replace(settings, topic=TopicSettings(shards=3))


def at(seconds: float) -> datetime:
    """So long after the moment."""
    return MOMENT + timedelta(seconds=seconds)


async def fill(client: AsyncClient, topic: str, jobs: int) -> None:
    """A job for each second after the moment."""
    await client.schedule_many(topic, [JobSpec(n, at=at(n), key=f"j{n}") for n in range(jobs)])


async def due_times(client: AsyncClient, topic: str) -> dict[str, float]:
    """When the jobs are due, in seconds after the moment."""
    found: dict[str, float] = {}
    cursor = None
    while True:
        page = await client.waiting(topic, limit=500, cursor=cursor)
        found |= {job.id: (from_ms(job.due_ms) - MOMENT).total_seconds() for job in page.jobs}
        cursor = page.cursor
        if cursor is None:
            return found


async def test_the_jobs_of_a_range_are_counted_and_cancelled(aclient: AsyncClient, topic: str) -> None:
    """From its beginning to before its end."""
    await fill(aclient, topic, 20)
    assert await aclient.count_due(topic, since=at(5), until=at(15)) == 10
    done = await aclient.cancel_due(topic, since=at(5), until=at(15))
    assert (done.jobs, done.is_done) == (10, True)
    assert sorted((await due_times(aclient, topic)).values()) == [*range(5), *range(15, 20)]
    assert await aclient.get(topic, "j7") is None
    assert (await aclient.cancel_due(topic, since=at(5), until=at(15))).jobs == 0
    assert await aclient.count_due(topic) == 10
    assert (await aclient.cancel_due(topic, until=at(100))).jobs == 10


@pytest.mark.parametrize("by", [1, 7, 3_600, -1, -7, timedelta(days=1)])
async def test_each_job_of_a_range_moves_once_also_where_it_is_moved_within_the_range(
    aclient: AsyncClient, topic: str, by: float | timedelta
) -> None:
    await fill(aclient, topic, 1_700)
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    done = await aclient.reschedule_due(topic, since=at(10), until=at(1_690), by=by)
    assert (done.jobs, done.is_done) == (1_680, True)
    assert await due_times(aclient, topic) == {f"j{n}": n + seconds if 10 <= n < 1_690 else n for n in range(1_700)}


@pytest.mark.parametrize("target", [-5, 600, 5_000])
async def test_all_jobs_of_a_range_get_one_due_time(aclient: AsyncClient, topic: str, target: int) -> None:
    await fill(aclient, topic, 1_700)
    done = await aclient.reschedule_due(topic, since=at(0), until=at(1_700), at=at(target))
    assert done.jobs == 1_700 - (target == 600), "a job that is due then already stays"
    assert set((await due_times(aclient, topic)).values()) == {target}


async def test_a_moved_job_runs_when_it_is_due_and_not_before(
    scheduler: Scheduler, make_worker: Callable[..., Worker], run: Run, aclient: AsyncClient, topic: str, inbox: Inbox
) -> None:
    run(make_worker())
    await fill(aclient, topic, 9)
    await aclient.reschedule_due(topic, since=MOMENT, delay=0.2)
    jobs = await inbox.wait_for(9)
    assert sorted(job.id for job in jobs) == [f"j{n}" for n in range(9)]
    assert all(job.started_ms >= job.due_ms for job in jobs)
    assert all(job.lateness < 30 for job in jobs)


async def test_no_job_moves_to_before_the_call(aclient: AsyncClient, topic: str) -> None:
    """One that is moved far back is due at once."""
    receipt = await aclient.schedule(topic, delay=60, key="a")
    before = receipt.due_ms - 60_001
    await aclient.reschedule_due(topic, until=receipt.due + timedelta(seconds=1), by=-3_600)
    info = known(await aclient.get(topic, "a"))
    assert before <= info.due_ms < receipt.due_ms


async def test_overdue_jobs_are_not_moved_later_on_their_way_to_earlier(aclient: AsyncClient, topic: str) -> None:
    await aclient.schedule(topic, delay=0, key="first")
    await aclient.pause(topic)
    for place, key in enumerate("dcba"):
        await aclient.schedule(topic, delay=place * 0.01, key=key)
    later = await aclient.schedule(topic, delay=60, key="later")
    before = {job.id: job.due_ms for job in (await aclient.waiting(topic)).jobs}
    await until(lambda: time.time() * 1000 > max(due for id, due in before.items() if id != "later"))
    moved = await aclient.reschedule_due(topic, since=from_ms(1), by=-30)
    assert moved.jobs == 1
    assert {job.id: job.due_ms for job in (await aclient.waiting(topic)).jobs} == {
        **before,
        "later": later.due_ms - 30_000,
    }


async def test_a_retry_is_neither_cancelled_nor_moved(
    scheduler: Scheduler, url: str, settings: Settings, run: Run, aclient: AsyncClient, topic: str
) -> None:
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, retry=Retry(max_attempts=2, base=300, cap=300, jitter=0))
    async def handle(job: object) -> None:
        raise RuntimeError("it broke")

    run(worker)
    await aclient.schedule(topic, delay=0, key="a")

    await state_is(aclient, topic, "a", JobState.RETRYING)
    before = await aclient.get(topic, "a")
    assert (await aclient.cancel_due(topic, until=at(0))).jobs == 0
    assert (await aclient.reschedule_due(topic, until=at(0), by=60)).jobs == 0
    assert await aclient.get(topic, "a") == before


@pytest.mark.parametrize("rounds", [0, -1, True, 1.5])
async def test_a_number_of_rounds_that_is_none_changes_nothing(aclient: AsyncClient, topic: str, rounds: Any) -> None:
    await aclient.schedule(topic, delay=60, key="a")
    with pytest.raises(InvalidInput, match="rounds: must be a whole number from 1 on"):
        await aclient.cancel_due(topic, since=MOMENT, rounds=rounds)
    assert (await aclient.topic(topic)).waiting == 1


async def test_a_change_in_rounds_continues_by_its_name_and_adds_up(aclient: AsyncClient, topic: str) -> None:
    await fill(aclient, topic, 4_000)
    told: list[BulkProgress] = []
    part = await aclient.cancel_due(topic, since=MOMENT, rounds=1, progress=told.append)
    assert not part.is_done
    assert 0 < part.jobs <= 1_500, "500 in each shard"
    assert told == [part]
    done = await aclient.cancel_due(topic, since=MOMENT, name=part.name, progress=told.append)
    assert (done.jobs, done.is_done, done.name) == (4_000, True, part.name)
    assert [one.jobs for one in told] == sorted(one.jobs for one in told)
    assert await aclient.cancel_due(topic, since=MOMENT, name=part.name) == done
    assert await counts(aclient, topic) == (0, 0, 0)


async def test_invalid_arguments_are_refused(aclient: AsyncClient, topic: str) -> None:
    """Among it a range without any end: a forgotten filter must not mean all jobs."""
    with pytest.raises(TopicNotFound):
        await aclient.cancel_due(topic, since=MOMENT)
    await aclient.schedule(topic, delay=60)
    with pytest.raises(InvalidInput, match="until"):
        await aclient.cancel_due(topic)
    with pytest.raises(InvalidInput, match="until"):
        await aclient.cancel_due(topic, since=at(2), until=at(1))
    with pytest.raises(InvalidInput, match="until"):
        await aclient.count_due(topic, since=at(2), until=at(1))
    with pytest.raises(InvalidInput, match="delay"):
        await aclient.reschedule_due(topic, since=MOMENT)
    for both in ({"by": 1, "delay": 1}, {"by": 1, "at": MOMENT}, {"by": 0}, {"by": float("nan")}):
        with pytest.raises(InvalidInput, match=r"^by: (give one of|must be seconds other than 0)"):
            await aclient.reschedule_due(topic, since=MOMENT, **both)  # type: ignore[arg-type]
    assert await counts(aclient, topic) == (1, 0, 0)
