"""33. Limits per key: how many jobs of one partition key are promoted at a time, and how many in a second."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from tests.spec.conftest import Inbox, Run, counts, known, nothing_is_left
from tests.waiting import until
from wheelq import AsyncClient, CancelOutcome, Job, JobSpec, JobState, Retry, RunNowOutcome, Scheduler, Settings, Worker
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings

HOUR = timedelta(hours=1)


class Gate:
    """A handler whose jobs end when the test lets them, and how many of each key have run at the same time."""

    def __init__(self, worker: Worker, topic: str, **options: object) -> None:
        self.started: list[str] = []
        self.most: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._may_end: dict[str, asyncio.Event] = {}

        @worker.handler(topic, **options)  # type: ignore[arg-type]
        async def run(job: Job) -> None:
            key = str(job.partition_key)
            self.started.append(job.id)
            self._running[key] += 1
            self.most[key] = max(self.most[key], self._running[key])
            try:
                await self._of(job.id).wait()
            finally:
                self._running[key] -= 1

    def _of(self, id: str) -> asyncio.Event:
        return self._may_end.setdefault(id, asyncio.Event())

    def end(self, *ids: str) -> None:
        for id in ids:
            self._of(id).set()


def of_key(key: str, *ids: str, delay: float = 0.0) -> list[JobSpec]:
    return [JobSpec({"id": id}, delay=delay, key=id, partition_key=key) for id in ids]


async def have_started(gate: Gate, *ids: str) -> None:
    """Wait until exactly these jobs have started, in whatever order."""
    await until(lambda: len(gate.started) >= len(ids))
    assert sorted(gate.started) == sorted(ids)


async def are_held(client: AsyncClient, topic: str, count: int) -> None:
    async def is_so() -> bool:
        return (await client.topic(topic)).held_back == count

    await until(is_so)


def limit_keys(url: str, topic: str) -> list[str]:
    """The keys in Redis, by their last part, that limits per key have left."""
    found = [key.decode() for key in Redis.from_url(url).keys(f"*{topic}:*")]
    return sorted({key.rpartition(":")[2] for key in found} & {"held", "permits", "permitted", "paces"})


@pytest.fixture
def gate(worker: Worker, topic: str) -> Gate:
    return Gate(worker, topic)


async def test_jobs_of_a_key_run_one_after_the_other_in_due_order_and_others_pass(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2", "a3") + of_key("bob", "b1"))
    await aclient.schedule(topic, key="free", delay=0)
    run(worker)
    await have_started(gate, "a1", "b1", "free")
    await are_held(aclient, topic, 2)
    assert known(await aclient.get(topic, "a2", partition_key="ann")).state is JobState.WAITING
    gate.end("a1")
    await have_started(gate, "a1", "b1", "free", "a2")
    gate.end("a2", "b1", "free")
    await have_started(gate, "a1", "b1", "free", "a2", "a3")
    gate.end("a3")
    await nothing_is_left(aclient, topic)
    assert gate.started.index("a2") < gate.started.index("a3")
    assert gate.most == {"ann": 1, "bob": 1, "None": 1}


async def test_many_of_a_key_run_at_a_time_and_each_end_starts_one_more(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=3)
    run(worker)
    ids = [f"a{n:02}" for n in range(40)]
    await aclient.schedule_many(topic, of_key("ann", *ids))
    await until(lambda: len(gate.started) == 3)
    for n in range(40):
        gate.end(gate.started[n])
        await until(lambda: len(gate.started) >= min(n + 4, 40))  # noqa: B023
    await nothing_is_left(aclient, topic)
    assert gate.started == ids
    assert gate.most == {"ann": 3}


async def test_a_job_that_is_held_back_waits_and_can_be_cancelled_moved_replaced_and_listed(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2", "a3", "a4", "a5", "a6"))
    await have_started(gate, "a1")
    await are_held(aclient, topic, 5)
    info = await aclient.topic(topic)
    assert (info.waiting, info.keys_at_limit, info.overdue_ms, info.first_due_ms) == (5, 1, 0, None)
    spans = await aclient.forecast(topic)
    assert (spans[0].until_ms, spans[0].jobs, sum(span.jobs for span in spans)) == (0, 5, 5)
    assert [job.id for job in (await aclient.waiting(topic)).jobs] == ["a2", "a3", "a4", "a5", "a6"]
    assert [job.id for job in (await aclient.jobs(topic, state="waiting", limit=2)).jobs] == ["a2", "a3"]
    running, held = [known(await aclient.get(topic, id, partition_key="ann")) for id in ("a1", "a2")]
    assert (running.partition_key, running.is_held_back) == ("ann", False)
    assert (held.partition_key, held.is_held_back) == ("ann", True)
    assert await aclient.cancel(topic, "a2", partition_key="ann") is CancelOutcome.CANCELLED
    await aclient.reschedule(topic, "a3", delay=3_600, partition_key="ann")
    moved = known(await aclient.get(topic, "a3", partition_key="ann"))
    assert (moved.state, moved.is_held_back) == (JobState.WAITING, False)
    assert moved.due_ms > info.longest_held_ms
    again = await aclient.schedule(
        topic, {"id": "new"}, key="a4", delay=3_600, partition_key="ann", on_duplicate="replace"
    )
    assert again.replaced
    assert (await aclient.topic(topic)).held_back == 2
    gate.end("a1")
    await have_started(gate, "a1", "a5")
    gate.end("a5")
    await have_started(gate, "a1", "a5", "a6")
    assert (await aclient.topic(topic)).held_back == 0


async def test_a_job_that_is_run_now_goes_before_the_others_of_its_key_but_obeys_the_limit(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2", "a3") + of_key("ann", "later", delay=3_600))
    await have_started(gate, "a1")
    await are_held(aclient, topic, 2)
    assert await aclient.run_now(topic, "a3", partition_key="ann") is RunNowOutcome.HELD_BACK
    assert await aclient.run_now(topic, "later", partition_key="ann") is RunNowOutcome.HELD_BACK
    assert (await aclient.topic(topic)).held_back == 3
    for n, id in enumerate(("a1", "a3", "later", "a2")):
        await until(lambda: len(gate.started) > n)  # noqa: B023
        gate.end(id)
    await nothing_is_left(aclient, topic)
    assert gate.started == ["a1", "a3", "later", "a2"]
    await aclient.schedule_many(topic, of_key("ann", "alone", delay=3_600))
    assert await aclient.run_now(topic, "alone", partition_key="ann") is RunNowOutcome.PROMOTED
    await until(lambda: "alone" in gate.started)
    gate.end("alone")
    await nothing_is_left(aclient, topic)


async def test_jobs_in_a_range_are_cancelled_and_moved_also_if_they_are_held_back(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    begin = (await aclient.schedule(topic, key="a0", delay=0, partition_key="ann")).due
    await have_started(gate, "a0")
    await aclient.schedule_many(topic, of_key("ann", *(f"a{n}" for n in range(1, 9))))
    await aclient.schedule_many(topic, of_key("ann", "b1", "b2", delay=1_800))
    await are_held(aclient, topic, 8)
    for since, until_, count in ((begin, None, 10), (begin, begin + HOUR, 10), (begin - HOUR, begin - HOUR / 2, 0)):
        assert await aclient.count_due(topic, since=since, until=until_) == count
    moved = await aclient.reschedule_due(topic, since=begin, until=begin + HOUR, by=7_200)
    assert (moved.jobs, moved.is_done) == (10, True)
    assert (await aclient.topic(topic)).held_back == 0
    await aclient.reschedule_due(topic, since=begin, delay=0)
    await are_held(aclient, topic, 10)
    cancelled = await aclient.cancel_due(topic, since=begin)
    assert (cancelled.jobs, cancelled.is_done) == (10, True)
    assert (await aclient.topic(topic)).waiting == 0


@pytest.mark.parametrize("change", ["cancel", "move"])
async def test_a_range_without_a_beginning_has_an_end_although_jobs_are_held_back(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run, change: str
) -> None:
    """Its place among those that are held back was taken for one before them, again and again."""
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    begin = (await aclient.schedule(topic, key="a0", delay=0, partition_key="ann")).due
    await have_started(gate, "a0")
    await aclient.schedule_many(topic, of_key("ann", *(f"a{n}" for n in range(1, 6))))
    await are_held(aclient, topic, 5)
    if change == "cancel":
        changed = await aclient.cancel_due(topic, until=begin + HOUR, rounds=5)
    else:
        changed = await aclient.reschedule_due(topic, until=begin + HOUR, delay=7_200, rounds=5)
    assert (changed.jobs, changed.is_done) == (5, True)
    assert (await aclient.topic(topic)).held_back == 0


async def test_jobs_that_are_held_back_are_listed_in_due_order_with_all_others(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    await aclient.schedule(topic, key="a0", delay=0, partition_key="ann")
    await have_started(gate, "a0")
    for n, id in enumerate(("a1", "a2", "a3")):
        priority = "low" if id == "a2" else "normal"
        await aclient.schedule(topic, key=id, delay=0.005 * n, partition_key="ann", priority=priority)
    await aclient.schedule(topic, key="later", delay=1_800, partition_key="ann")
    await are_held(aclient, topic, 3)
    expected = ["a1", "a2", "a3", "later"]
    for limit in (1, 2, 3):
        found, cursor = [], None
        while page := await aclient.waiting(topic, limit=limit, cursor=cursor):
            found += [job.id for job in page.jobs]
            if (cursor := page.cursor) is None:
                break
        assert found == expected
    listed, cursor = [], None
    while page := await aclient.jobs(topic, state="waiting", limit=2, cursor=cursor):
        listed += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert listed == expected


async def test_a_retry_in_its_pause_has_no_permit_and_asks_for_one_when_it_is_due(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    runs: list[tuple[str, int]] = []
    others, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic, retry=Retry(max_attempts=3, base=0.3, jitter=0))
    async def handle(job: Job) -> None:
        runs.append((job.id, job.attempt))
        if job.id == "fails" and job.attempt == 1:
            raise ValueError("once")
        if job.id == "other":
            others.set()
            await may_end.wait()

    run(worker)
    await aclient.schedule_many(topic, of_key("ann", "fails", "other"))
    await others.wait()

    async def is_retrying() -> bool:
        return known(await aclient.get(topic, "fails", partition_key="ann")).state is JobState.RETRYING

    await until(is_retrying)
    await are_held(aclient, topic, 1)
    assert runs == [("fails", 1), ("other", 1)]
    assert known(await aclient.get(topic, "fails", partition_key="ann")).is_held_back
    may_end.set()
    await nothing_is_left(aclient, topic)
    assert runs == [("fails", 1), ("other", 1), ("fails", 2)]


async def test_a_job_has_its_permit_until_each_group_has_ended_it(
    aclient: AsyncClient, scheduler: Scheduler, url: str, settings: Settings, topic: str, run: Run
) -> None:
    one, two = (Worker.connect(url, group=group, settings=settings) for group in ("one", "two"))
    first, second = Gate(one, topic), Gate(two, topic)
    await aclient.configure(topic, key_concurrency=1)
    run(one, two)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2"))
    await have_started(first, "a1")
    await have_started(second, "a1")
    first.end("a1", "a2")
    await are_held(aclient, topic, 1)
    assert first.started == ["a1"]
    second.end("a1", "a2")
    await nothing_is_left(aclient, topic)
    assert first.started == second.started == ["a1", "a2"]


async def test_a_rate_per_key_spaces_its_jobs_and_lets_others_pass(
    aclient: AsyncClient, scheduler: Scheduler, topic: str, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    await aclient.configure(topic, key_rate=20.0, keep_done_ms=60_000)
    run(make_worker())
    await aclient.schedule_many(topic, of_key("ann", *(f"a{n:02}" for n in range(20))) + of_key("bob", "b1"))
    jobs = await inbox.wait_for(21)
    assert [job.id for job in jobs if job.partition_key == "ann"] == [f"a{n:02}" for n in range(20)]
    assert "b1" in [job.id for job in jobs[:3]]
    promoted = [job.promoted_ms for job in jobs if job.partition_key == "ann"]
    for at in promoted:
        assert sum(at <= other <= at + 1_000 for other in promoted) <= 21
    assert promoted[-1] - promoted[0] >= 19 * 50 - 46


async def test_limits_are_changed_live_and_without_them_all_go(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run, url: str
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    ids = [f"a{n}" for n in range(9)]
    await aclient.schedule_many(topic, of_key("ann", *ids))
    await have_started(gate, "a0")
    await aclient.configure(topic, key_concurrency=4)
    await have_started(gate, "a0", "a1", "a2", "a3")
    await aclient.configure(topic, key_concurrency=0)
    await have_started(gate, *ids)
    gate.end(*ids)
    await nothing_is_left(aclient, topic)
    assert limit_keys(url, topic) == []


async def test_permits_that_nobody_gave_back_are_found(
    aclient: AsyncClient,
    scheduler: Scheduler,
    worker: Worker,
    gate: Gate,
    topic: str,
    run: Run,
    url: str,
    settings: Settings,
) -> None:
    """Another program acknowledged one delivery, deleted the entry of another, and destroyed a group that read none."""
    await aclient.configure(topic, key_concurrency=1)
    keys = Keys(settings.prefix).shard(topic, 0)
    raw = Redis.from_url(url)
    await aclient.make_group(topic, "idle")
    run(worker)
    await aclient.schedule_many(
        topic, of_key("ann", "a1", "a2") + of_key("bob", "b1", "b2") + of_key("carl", "c1", "c2")
    )
    await have_started(gate, "a1", "b1", "c1")
    await are_held(aclient, topic, 3)
    entries = {fields[b"id"].decode(): entry for entry, fields in raw.xrange(keys.ready)}
    gate.end("c1")
    await until(lambda: raw.xpending(keys.ready, "default")["pending"] == 2)
    assert (await aclient.topic(topic)).held_back == 3
    raw.xgroup_destroy(keys.ready, "idle")
    await have_started(gate, "a1", "b1", "c1", "c2")
    raw.xack(keys.ready, "default", entries["a1"])
    await have_started(gate, "a1", "b1", "c1", "c2", "a2")
    raw.xdel(keys.ready, entries["b1"])
    gate.end("b1")
    await have_started(gate, "a1", "b1", "c1", "c2", "a2", "b2")
    gate.end("a1", "a2", "b2", "c2")
    await until(lambda: not raw.exists(keys.permits, keys.permitted, keys.held))


async def test_a_killed_workers_job_keeps_its_permit_until_it_has_run_again(
    aclient: AsyncClient,
    scheduler: Scheduler,
    url: str,
    settings: Settings,
    topic: str,
    run: Run,
    make_worker: Callable[..., Worker],
    inbox: Inbox,
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    await aclient.make_group(topic, "g")
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2"))
    raw, keys = Redis.from_url(url), Keys(settings.prefix).shard(topic, 0)
    await until(lambda: raw.zcard(keys.permits) == 1)
    taken = raw.xreadgroup("g", "dead", {keys.ready: ">"}, count=10)
    assert [fields[b"id"] for _, fields in taken[0][1]] == [b"a1"]
    await are_held(aclient, topic, 1)
    run(make_worker())
    jobs = await inbox.wait_for(2)
    assert [job.id for job in jobs] == ["a1", "a2"]
    await until(lambda: not raw.exists(keys.permits))


@pytest.mark.parametrize("how", ["expires", "misfire", "buried", "cancelled while it runs"])
async def test_a_job_that_ends_in_another_way_gives_its_permit_back(
    aclient: AsyncClient,
    scheduler: Scheduler,
    worker: Worker,
    url: str,
    settings: Settings,
    topic: str,
    run: Run,
    how: str,
) -> None:
    misfire = "skip" if how == "misfire" else "run"
    await aclient.configure(topic, key_concurrency=1, misfire=misfire, grace_ms=60_000)
    begun, may_end, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @worker.handler(topic, retry=Retry(max_attempts=1))
    async def handle(job: Job) -> None:
        ran.append(job.id)
        begun.set()
        if job.id == "a1":
            await may_end.wait()
            if how == "buried":
                raise ValueError("for good")

    await aclient.schedule(topic, key="a1", delay=0.5, partition_key="ann")
    run(worker)
    await begun.wait()
    expires = 0.001 if how == "expires" else None
    await aclient.schedule(topic, key="a2", delay=0, partition_key="ann", expires=expires)
    await aclient.schedule(topic, key="a3", delay=0, partition_key="ann")
    await are_held(aclient, topic, 2)
    if how == "misfire":  # they have been held back for an hour
        for id in ("a2", "a3"):
            Redis.from_url(url).zincrby(Keys(settings.prefix).shard(topic, 0).delayed, -3_600_000, id)
    if how == "cancelled while it runs":
        await aclient.cancel(topic, "a1", partition_key="ann", running=True)
    may_end.set()
    await nothing_is_left(aclient, topic)
    assert ran == {"expires": ["a1", "a3"], "misfire": ["a1"]}.get(how, ["a1", "a2", "a3"])


async def test_replayed_and_rerun_jobs_ask_for_permits_too(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1, retention_ms=3_600_000)
    running, most, fails = Counter[str](), 0, True

    @worker.handler(topic, retry=Retry(max_attempts=1))
    async def handle(job: Job) -> None:
        nonlocal most
        running["now"] += 1
        running[job.id] += 1
        most = max(most, running["now"])
        await asyncio.sleep(0.01)
        running["now"] -= 1
        if fails and job.id.startswith("f"):
            raise ValueError("not yet")

    run(worker)
    ids = [f"{kind}{n}" for kind in "fg" for n in range(10)]
    await aclient.schedule_many(topic, of_key("ann", *ids))

    async def are_dead() -> bool:
        return await counts(aclient, topic) == (0, 0, 10)

    await until(are_dead)
    fails = False
    await aclient.dead.replay(topic, all=True)
    await nothing_is_left(aclient, topic)
    await aclient.rerun(topic, group="default", since=datetime.now(UTC) - HOUR)

    async def have_run_again() -> bool:
        return sum(running[id] for id in ids) >= 20 + 10 + 20

    await until(have_run_again)
    await nothing_is_left(aclient, topic)
    assert most == 1


async def test_a_rerun_leaves_out_what_an_earlier_one_still_holds_back(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    """It counted them as run again, and once more as retries that wait."""
    await aclient.configure(topic, key_concurrency=1, retention_ms=3_600_000)
    run(worker)
    gate.end("a1", "a2")
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2"))
    await nothing_is_left(aclient, topic)
    await aclient.schedule_many(topic, of_key("ann", "a3"))
    await have_started(gate, "a1", "a2", "a3")
    reruns = [await aclient.rerun(topic, group="default", since=datetime.now(UTC) - HOUR) for _ in range(2)]
    assert [(one.jobs, one.left_out) for one in reruns] == [(2, 1), (0, 3)]
    gate.end("a3")
    await have_started(gate, "a1", "a2", "a3", "a1", "a2")
    await aclient.schedule(topic, key="later", delay=1)
    assert (await aclient.topic(topic)).retrying == 0


async def test_a_topic_that_is_removed_leaves_nothing_of_its_limits(
    aclient: AsyncClient, scheduler: Scheduler, topic: str, run: Run, url: str
) -> None:
    await aclient.configure(topic, key_concurrency=1, key_rate=1.0)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2", "a3"))
    await are_held(aclient, topic, 2)
    assert limit_keys(url, topic) == ["held", "paces", "permits", "permitted"]
    await aclient.remove_topic(topic, force=True)
    assert limit_keys(url, topic) == []


async def test_a_paused_topic_keeps_what_is_held_back(
    aclient: AsyncClient, scheduler: Scheduler, worker: Worker, gate: Gate, topic: str, run: Run
) -> None:
    await aclient.configure(topic, key_concurrency=1)
    run(worker)
    await aclient.schedule_many(topic, of_key("ann", "a1", "a2", "a3"))
    await have_started(gate, "a1")
    await aclient.pause(topic)
    assert await aclient.run_now(topic, "a3", partition_key="ann") is RunNowOutcome.PAUSED
    gate.end("a1", "a2", "a3")

    async def has_ended() -> bool:
        info = await aclient.topic(topic)
        return (info.ready, info.running) == (0, 0)

    await until(has_ended)
    await aclient.set_shards(topic, 2)
    assert (await aclient.topic(topic)).waiting == 2
    await aclient.resume(topic)
    await nothing_is_left(aclient, topic)
    assert sorted(gate.started) == ["a1", "a2", "a3"]


async def test_a_topic_that_was_made_with_limits_obeys_them_also_before_any_change(
    url: str, settings: Settings, scheduler: Scheduler, topic: str
) -> None:
    """Its shards have no terms of their own yet."""
    limited = replace(settings, topic=TopicSettings(key_concurrency=1, retention_ms=3_600_000))
    async with AsyncClient.connect(url, limited) as client:
        await client.schedule(topic, key="other", delay=3_600)
        await client.make_group(topic, "g")
        await client.schedule_many(topic, of_key("ann", "a1", "a2", "a3"))
        await are_held(client, topic, 2)
        assert await client.run_now(topic, "a3", partition_key="ann") is RunNowOutcome.HELD_BACK
    raw, keys = Redis.from_url(url), Keys(settings.prefix).shard(topic, 0)
    [(_, entries)] = raw.xreadgroup("g", "w", {keys.ready: ">"})
    raw.xack(keys.ready, "g", *(entry for entry, _ in entries))
    async with AsyncClient.connect(url, limited) as another:
        assert await another.run_now(topic, "a2", partition_key="ann") in ("held_back", "promoted", "running")
        await another.rerun(topic, group="g", since=datetime.now(UTC) - HOUR)
        assert raw.zcard(keys.permits) == 1
