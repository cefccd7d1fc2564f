"""23. Lists of jobs: by state, page by page, in bounded steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from tests.spec.conftest import Run, counts
from tests.waiting import until
from wheelq import AsyncClient, Job, JobPage, JobSpec, JobState, ListedJob, Retry, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.model.job import from_ms
from wheelq.producer import listing
from wheelq.settings import TopicSettings

HOUR_MS = 3_600_000
MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics have three shards, and keep finished jobs for an hour."""
    return replace(settings, topic=TopicSettings(shards=3, keep_done_ms=HOUR_MS))


async def every(client: AsyncClient, topic: str, state: JobState, limit: int = 500, **where: object) -> list[ListedJob]:
    """The jobs of all pages."""
    found: list[ListedJob] = []
    page = JobPage([], "")
    while page.cursor is not None:
        page = await client.jobs(topic, state=state, limit=limit, cursor=page.cursor or None, **where)  # type: ignore[arg-type]
        found += page.jobs
    return found


@pytest.fixture
def serve(url: str, settings: Settings, topic: str, run: Run) -> Callable[..., Worker]:
    """Starts a worker whose handler is given."""

    def start(
        handler: Callable[[Job], object],
        group: str = "g",
        retry: Retry | None = None,
        ordered: bool | Literal["key"] = False,
    ) -> Worker:
        worker = Worker.connect(url, group=group, settings=settings)
        worker.handler(topic, retry=retry or Retry(max_attempts=1), ordered=ordered)(handler)
        run(worker)
        return worker

    return start


async def fails(job: Job) -> None:
    """A handler."""
    raise RuntimeError(f"no printer {job.id}")


async def test_waiting_jobs_come_in_order_of_due_time_over_all_shards(aclient: AsyncClient, topic: str) -> None:
    specs = [JobSpec(key=f"j{n}", at=MOMENT + timedelta(seconds=n // 2)) for n in range(30)]
    await aclient.schedule_many(topic, specs)
    for limit in (1, 7, 500):
        found = await every(aclient, topic, JobState.WAITING, limit)
        assert {job.id for job in found} == {spec.key for spec in specs}
        assert len(found) == 30
        assert [job.due_ms for job in found] == sorted(job.due_ms for job in found)
    job = found[0]
    assert (job.state, job.at, job.group, job.attempt) == (JobState.WAITING, MOMENT, None, 1)


async def test_a_range_takes_its_beginning_and_not_its_end(aclient: AsyncClient, topic: str) -> None:
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", at=MOMENT + timedelta(seconds=n)) for n in range(5)])
    span = {"since": MOMENT + timedelta(seconds=1), "until": MOMENT + timedelta(seconds=3)}
    assert [job.id for job in await every(aclient, topic, JobState.WAITING, **span)] == ["j1", "j2"]


async def test_ready_jobs_are_those_that_a_group_has_yet_to_be_given(
    scheduler: Scheduler, aclient: AsyncClient, topic: str
) -> None:
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", delay=0) for n in range(9)])
    await until(lambda: _has_ready(aclient, topic, 9))
    for limit in (2, 500):
        found = await every(aclient, topic, JobState.READY, limit)
        assert sorted(job.id for job in found) == [f"j{n}" for n in range(9)]
        assert [job.at_ms for job in found] == sorted(job.at_ms for job in found)
    assert all(job.at_ms >= job.due_ms for job in found)
    later = await every(aclient, topic, JobState.READY, since=datetime.now(UTC) + timedelta(days=1))
    assert later == []


async def _has_ready(client: AsyncClient, topic: str, jobs: int) -> bool:
    return (await counts(client, topic))[1] == jobs


async def test_running_jobs_tell_their_group_and_worker(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    workers = {group: serve(handler, group).name for group in ("g", "h")}
    for group in workers:
        await aclient.make_group(topic, group)
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", delay=0) for n in range(6)])
    expected = {(f"j{n}", group, name) for n in range(6) for group, name in workers.items()}

    async def are_running() -> bool:
        return {(job.id, job.group, job.worker) for job in await every(aclient, topic, JobState.RUNNING)} == expected

    await until(are_running)
    found = await every(aclient, topic, JobState.RUNNING, limit=1)
    assert len(found) == 12
    assert {(job.id, job.group, job.worker) for job in found} == expected
    assert await every(aclient, topic, JobState.READY) == []
    gate.set()


async def test_retrying_and_dead_jobs_tell_their_error_and_are_found_by_it(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    serve(fails, "g", Retry(max_attempts=2, base=3600, cap=3600))
    serve(fails, "h")
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", delay=0) for n in range(5)])
    await aclient.schedule(topic, at=MOMENT, key="waits")

    async def all_have_failed() -> bool:
        states = [await every(aclient, topic, state) for state in (JobState.RETRYING, JobState.DEAD)]
        return [len(jobs) for jobs in states] == [5, 5]

    await until(all_have_failed)
    for job in await every(aclient, topic, JobState.RETRYING, limit=2):
        assert (job.group, job.attempt, job.error) == ("g", 2, f"RuntimeError: no printer {job.id}")
    dead = await every(aclient, topic, JobState.DEAD, limit=2)
    assert [job.at_ms for job in dead] == sorted((job.at_ms for job in dead), reverse=True)
    for job in dead:
        assert (job.group, job.attempt, job.error) == ("h", 1, f"RuntimeError: no printer {job.id}")
        shown = await aclient.dead.show(topic, job.dead_id or "")
        assert shown is not None
        assert shown.id == job.id
    for state in (JobState.RETRYING, JobState.DEAD):
        assert [job.id for job in await every(aclient, topic, state, error="printer j3")] == ["j3"]
    assert [job.id for job in await every(aclient, topic, JobState.WAITING)] == ["waits"]


async def test_retries_of_ordered_and_other_groups_come_in_order_of_due_time(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    retry = Retry(delays=lambda attempt, error: 1_000.0 + 60 * int(str(error)[-1]))
    serve(fails, "g", retry, ordered="key")
    serve(fails, "h", retry)
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", delay=0) for n in range(10)])

    async def all_have_failed() -> bool:
        return len(await every(aclient, topic, JobState.RETRYING)) == 20

    await until(all_have_failed)
    found = await every(aclient, topic, JobState.RETRYING, limit=3)
    assert {(job.id, job.group) for job in found} == {(f"j{n}", group) for n in range(10) for group in "gh"}
    assert len(found) == 20
    assert [job.due_ms for job in found] == sorted(job.due_ms for job in found)
    assert await every(aclient, topic, JobState.RUNNING) == []
    middle = from_ms(found[10].due_ms)
    assert await every(aclient, topic, JobState.RETRYING, until=middle) == found[:10]
    assert await every(aclient, topic, JobState.RETRYING, since=middle) == found[10:]


async def test_finished_jobs_that_are_kept_come_the_latest_first(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    failed: set[str] = set()

    async def handler(job: Job) -> None:
        if job.id not in failed:
            failed.add(job.id)
            raise RuntimeError("once")

    name = serve(handler, "g", Retry(max_attempts=2, base=0.01)).name
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", delay=0) for n in range(9)])

    async def all_are_done() -> bool:
        return len(await every(aclient, topic, JobState.DONE)) == 9

    await until(all_are_done)
    for limit in (2, 500):
        found = await every(aclient, topic, JobState.DONE, limit)
        assert sorted(job.id for job in found) == [f"j{n}" for n in range(9)]
        assert [job.at_ms for job in found] == sorted((job.at_ms for job in found), reverse=True)
        assert {(job.attempt, job.worker) for job in found} == {(2, name)}
    newest = from_ms(found[0].at_ms)
    assert [job.at_ms for job in await every(aclient, topic, JobState.DONE, since=newest)] == [
        job.at_ms for job in found if job.at_ms >= found[0].at_ms
    ]
    assert await every(aclient, topic, JobState.DONE, until=from_ms(found[-1].at_ms)) == []


async def test_a_call_looks_at_a_bounded_number_of_jobs_and_the_cursor_leads_to_the_rest(
    aclient: AsyncClient, topic: str
) -> None:
    await aclient.schedule_many(topic, [JobSpec(key=f"j{n}", at=MOMENT) for n in range(2_000)])
    page = await aclient.jobs(topic, state="retrying")
    assert page.jobs == []
    assert page.cursor is not None
    assert await every(aclient, topic, JobState.RETRYING) == []
    assert len(await every(aclient, topic, JobState.WAITING)) == 2_000


@pytest.mark.parametrize("state", ["waiting", "ready"])
async def test_jobs_are_found_by_the_beginning_of_their_id(
    aclient: AsyncClient, topic: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looks further than others to be full, and ends early where it has looked far enough."""
    at = {"at": MOMENT} if state == "waiting" else {"delay": 0}
    keys = [f"{'order' if n % 100 == 99 else 'bill'}-{n}" for n in range(5_000)]
    await aclient.schedule_many(topic, [JobSpec(key=key, **at) for key in keys])  # type: ignore[arg-type]
    wanted = sorted(key for key in keys if key.startswith("order-4"))
    found = await aclient.jobs(topic, state=state, prefix="order-4")
    assert sorted(job.id for job in found.jobs) == wanted
    assert found.cursor is None
    first = await aclient.jobs(topic, state=state, prefix="order-", limit=30)
    assert (len(first.jobs), first.cursor is None) == (30, False)
    assert len({job.id for job in await every(aclient, topic, JobState(state), 7, prefix="order-")}) == 50
    assert (await aclient.jobs(topic, state=state, prefix="no-such")).jobs == []
    monkeypatch.setattr(listing, "ROUNDS", 2)
    early = await aclient.jobs(topic, state=state, prefix="order-")
    assert len(early.jobs) < 50
    assert early.cursor is not None
    assert len(await every(aclient, topic, JobState(state), prefix="order-")) == 50


async def test_invalid_arguments_are_refused(aclient: AsyncClient, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await aclient.jobs(topic, state="waiting")
    await aclient.schedule(topic, delay=60)
    with pytest.raises(InvalidInput, match=r"state.*waiting, ready"):
        await aclient.jobs(topic, state="cancelled")
    with pytest.raises(InvalidInput, match=r"error"):
        await aclient.jobs(topic, state="waiting", error="x")
    for state in JobState:
        with pytest.raises(InvalidInput, match=r"cursor"):
            await aclient.jobs(topic, state=state, cursor="x")
    with pytest.raises(InvalidInput, match=r"limit"):
        await aclient.jobs(topic, state="waiting", limit=501)
    with pytest.raises(InvalidInput, match=r"prefix: must be a non-empty string"):
        await aclient.jobs(topic, state="waiting", prefix="")
