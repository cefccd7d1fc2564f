"""20. Reruns: a group runs again what was promoted before, also a group that comes later."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
import redis

from tests.running import age
from tests.spec.conftest import Run
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.protocol.keys import Keys
from wheelq.scheduler import leader
from wheelq.settings import SchedulerSettings, TopicSettings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics keep what was fired for an hour, and have two shards."""
    return replace(settings, topic=TopicSettings(retention_ms=3_600_000, shards=2))


@pytest.fixture
def got() -> dict[str, list[object]]:
    """Payloads, by group."""
    return defaultdict(list)


@pytest.fixture
def serve(url: str, settings: Settings, topic: str, run: Run, got: dict[str, list[object]]) -> Callable[..., Worker]:
    def start(group: str, start: Literal["beginning", "now"] = "beginning") -> Worker:
        worker = Worker.connect(url, group=group, start=start, settings=settings)

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            got[group].append(job.payload)

        run(worker)
        return worker

    return start


async def finished(client: AsyncClient, topic: str, got: list[object], *payloads: object) -> None:
    """Schedule jobs, and wait until they have run and are finished."""
    wanted = len(got) + len(payloads)
    receipts = await client.schedule_many(topic, [JobSpec(payload, delay=0) for payload in payloads])

    async def are_done() -> bool:
        return len(got) >= wanted and not any([await client.get(topic, receipt.id) for receipt in receipts])

    await until(are_done)


async def test_a_group_added_later_starts_at_the_beginning_of_what_is_kept(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    serve("first")
    await finished(aclient, topic, got["first"], *range(10))
    serve("later")
    await until(lambda: len(got["later"]) == 10)
    assert sorted(got["later"]) == list(range(10))  # type: ignore[type-var]


async def test_a_rerun_job_that_fails_costs_nothing_of_a_new_one_with_its_id(
    aclient: AsyncClient, topic: str, url: str, settings: Settings, scheduler: Scheduler, run: Run
) -> None:
    """The new one waits while the old one runs again, fails, and is retried; then it runs."""
    runs: list[tuple[object, int]] = []
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, retry=Retry(base=0.01))
    async def handle(job: Job) -> None:
        runs.append((job.payload, job.attempt))
        if runs == [("old", 1)] * 2:
            raise RuntimeError("not this time")

    run(worker)
    await aclient.schedule(topic, "old", key="a", delay=0)

    async def is_finished() -> bool:
        return len(runs) == 1 and await aclient.get(topic, "a") is None

    await until(is_finished)
    await aclient.schedule(topic, "new", key="a", delay=60)
    await aclient.rerun(topic, group="g", since=datetime.now(UTC) - timedelta(hours=1))
    await until(lambda: len(runs) == 3)
    await aclient.run_now(topic, "a")
    await until(lambda: len(runs) == 4)
    assert runs == [("old", 1), ("old", 1), ("old", 2), ("new", 1)]


async def test_a_group_added_later_can_start_now(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    serve("first")
    await finished(aclient, topic, got["first"], *range(10))
    serve("later", start="now")

    async def is_there() -> bool:
        await finished(aclient, topic, got["first"], "primer", "primer")
        return "primer" in got["later"]

    await until(is_there)
    assert set(got["later"]) == {"primer"}


async def test_jobs_fired_before_any_group_exists_wait_for_the_first(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    """Wherever it asks to start: nothing is lost."""
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    serve("first", start="now")
    await until(lambda: len(got["first"]) == 10)


async def test_rerun_runs_again_what_was_promoted_between_two_times_in_one_group(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    serve("g")
    serve("other")
    await finished(aclient, topic, got["g"], *range(20))
    await until(lambda: len(got["other"]) == 20)
    await asyncio.sleep(0.01)
    now = datetime.now(UTC)
    await asyncio.sleep(0.01)
    await finished(aclient, topic, got["g"], "later")
    done = await aclient.rerun(topic, group="g", since=now - timedelta(minutes=5), until=now)
    assert (done.jobs, done.left_out) == (20, 0)
    await until(lambda: len(got["g"]) == 41)
    assert sorted(n for n in got["g"] if n != "later") == sorted([*range(20)] * 2)  # type: ignore[type-var]
    await until(lambda: len(got["other"]) == 21)


async def test_a_rerun_that_is_repeated_with_its_name_runs_nothing_twice(
    client: Client, aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    serve("g")
    await finished(aclient, topic, got["g"], *range(10))
    since = datetime.now(UTC) - timedelta(minutes=5)
    first = await asyncio.to_thread(client.rerun, topic, group="g", since=since, name="mend")
    again = await aclient.rerun(topic, group="g", since=since, name="mend")
    assert first == again == (10, 0, "mend")
    await until(lambda: len(got["g"]) == 20)


async def test_a_rerun_keeps_to_its_rate(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    serve("g")
    await finished(aclient, topic, got["g"], *range(30))
    began = asyncio.get_running_loop().time()
    await aclient.rerun(topic, group="g", since=datetime.now(UTC) - timedelta(minutes=5), rate=20)
    assert asyncio.get_running_loop().time() - began > 0.4


async def test_a_rerun_needs_a_topic_that_keeps_what_it_fired_and_a_group_that_is_there(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    since = datetime.now(UTC)
    with pytest.raises(TopicNotFound):
        await aclient.rerun(topic, group="g", since=since)
    await aclient.schedule(topic, delay=60)
    with pytest.raises(InvalidInput, match="group"):
        await aclient.rerun(topic, group="g", since=since)
    with pytest.raises(InvalidInput, match="since"):
        await aclient.rerun(topic, group="g", since=datetime.now())  # noqa: DTZ005  # that is what is refused
    with pytest.raises(InvalidInput, match="rate"):
        await aclient.rerun(topic, group="g", since=since, rate=0)
    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings())) as other:
        await other.schedule(f"{topic}-other", delay=60)
        with pytest.raises(InvalidInput, match="retention_ms"):
            await other.rerun(f"{topic}-other", group="g", since=since)


async def test_entries_past_their_retention_go_although_nothing_follows(
    url: str, settings: Settings, topic: str, run: Run, serve: Callable[..., Worker], got: dict[str, list[object]]
) -> None:
    """The scheduler tidies shards at rest, once in `idle_ms`."""
    short = replace(settings, topic=TopicSettings(retention_ms=1), scheduler=SchedulerSettings(idle_ms=200))
    async with AsyncClient.connect(url, short) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
        await client.schedule(topic, "last", delay=0)
        serve("g")
        await until(lambda: len(got["g"]) == 11)
        age(url, settings.prefix)
        run(Scheduler.connect(url, short))
        with redis.Redis.from_url(url) as raw:
            await until(lambda: raw.xlen(Keys(settings.prefix).shard(topic, 0).ready) == 0)


async def test_of_very_many_finished_jobs_some_are_forgotten_with_each_window(
    url: str, settings: Settings, topic: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only once in `idle_ms`, which is an hour here."""
    monkeypatch.setattr(leader, "TIDY_CALLS", 1)
    soon = replace(
        settings,
        topic=TopicSettings(keep_done_ms=1),
        scheduler=SchedulerSettings(idle_ms=3_600_000, window_ms=200),
    )
    keys = Keys(settings.prefix).shard(topic, 0)
    async with AsyncClient.connect(url, soon) as client:
        await client.schedule_many(topic, [JobSpec(n, delay=n / 10) for n in range(600)])
        with redis.Redis.from_url(url) as raw:
            raw.zadd(keys.ended, {f"ended-{n}": n for n in range(3_500)})
            raw.hset(keys.done, mapping={f"ended-{n}": b"" for n in range(3_500)})
            run(Scheduler.connect(url, soon))
            await until(lambda: raw.hlen(keys.done) == raw.zcard(keys.ended) == 0)


async def test_a_rerun_of_an_earlier_job_leaves_the_result_of_the_present_one_alone(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """One group has finished the present job with this id, another one still runs it."""
    may_end, ran = asyncio.Event(), list[object]()
    await aclient.configure(topic, keep_done_ms=3_600_000)
    quick, slow = (
        Worker.connect(url, group="quick", settings=settings),
        Worker.connect(url, group="slow", settings=settings),
    )

    @quick.handler(topic)
    async def at_once(job: Job) -> str:
        ran.append(job.payload)
        return f"{job.payload}"

    @slow.handler(topic)
    async def later(job: Job) -> None:
        if job.payload == 2:
            await may_end.wait()

    run(quick, slow)
    begun = datetime.now(UTC) - timedelta(minutes=1)
    await aclient.wait(await aclient.schedule(topic, 1, delay=0, key="x"), timeout=PATIENCE)
    between = datetime.now(UTC)
    await asyncio.sleep(0.01)  # the present job's entry is of another millisecond
    present = await aclient.schedule(topic, 2, delay=0, key="x")
    assert await aclient.wait(present, group="quick", timeout=PATIENCE) == "2"
    await aclient.rerun(topic, group="quick", since=begun, until=between)
    await until(lambda: ran == [1, 2, 1])

    async def is_acknowledged() -> bool:
        [info] = [info for info in await aclient.topics() if info.name == topic]
        return info.running == 1

    await until(is_acknowledged)
    assert await aclient.wait(present, group="quick", timeout=PATIENCE) == "2"
    may_end.set()
    await aclient.wait(present, timeout=PATIENCE)
