"""12. Control: topics are changed, paused and resumed while jobs wait and run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.spec.conftest import Inbox, Run, known
from tests.waiting import PATIENCE, eventually, in_time, until
from wheelq import (
    AsyncClient,
    CancelOutcome,
    Client,
    Job,
    JobSpec,
    JobState,
    Retry,
    RunNowOutcome,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.errors import InvalidInput, TopicFull, TopicNotFound
from wheelq.model.dead import Reason
from wheelq.model.job import Priority
from wheelq.settings import Misfire, TopicSettings

# Settings of a topic


async def test_a_topics_settings_can_be_changed_and_read(client: Client, topic: str) -> None:
    """Under the names of `[topic]` in the settings file; what is not named stays. A new topic is made with them."""
    topic_now = client.configure(topic, max_pending=5_000, retention_ms=60_000)
    assert (topic_now.max_pending, topic_now.retention_ms, topic_now.shards) == (5_000, 60_000, 1)
    client.configure(topic, max_pending=0)
    settings = client.topic(topic).settings
    assert (settings.max_pending, settings.retention_ms) == (0, 60_000)


async def test_one_topic_is_looked_up_as_it_is_listed_among_all(
    client: Client, aclient: AsyncClient, topic: str
) -> None:
    """With its settings and counts of this moment, also after another client has changed them."""
    for look_up in (aclient.topic(topic), asyncio.to_thread(client.topic, topic)):
        with pytest.raises(TopicNotFound):
            await look_up
    client.schedule(topic, delay=60)
    client.set_shards(topic, 3)
    client.schedule_many(topic, [JobSpec(delay=60)] * 9)
    before = await aclient.topic(topic)
    client.configure(topic, max_rate=5.0)
    for found in (client.topic(topic), await aclient.topic(topic)):
        assert (found.waiting, found.shards, found.settings.max_rate) == (10, 3, 5.0)
        assert [found] == [info for info in client.topics() if info.name == topic]
    assert before.settings.max_rate == 0


def test_a_rate_that_was_given_as_a_whole_number_may_become_a_fraction(client: Client, topic: str) -> None:
    client.configure(topic, max_rate=0)
    assert client.configure(topic, max_rate=0.5).max_rate == 0.5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_rate": -1.0}, "max_rate"),
        ({"max_rate": "fast"}, "max_rate"),
        ({"misfire": "skip"}, "grace_ms"),
        ({"misfire": "dance"}, "misfire"),
        ({"max_rate": float("inf")}, "max_rate"),
        ({"retention_ms": 2**80}, "retention_ms"),
        ({"shards": 3}, "shards"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_and_nothing_changes(
    client: Client, topic: str, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.configure(topic, **changes)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert [info for info in client.topics() if info.name == topic] == []


# Pause and resume


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_paused_topic_promotes_nothing_and_loses_nothing(
    worker: Worker, url: str, settings: Settings, topic: str, run: Run, shards: int
) -> None:
    """Neither what is due already, nor what falls due, nor what somebody wants to run now; all of it after `resume`."""
    began: list[str] = []

    @worker.handler(topic)
    async def note(job: Job) -> None:
        began.append(job.id)

    run(worker, Scheduler.connect(url, settings), Scheduler.connect(url, settings))
    with Client.connect(url, Settings(prefix=settings.prefix, topic=TopicSettings(shards=shards))) as client:
        client.schedule(topic, key="before", delay=0)
        await until(lambda: began == ["before"])
        soon = client.schedule_many(topic, [JobSpec(key=f"soon-{n}", delay=4) for n in range(9)])
        assert client.pause(topic).paused, "before they are due"
        for n in range(9):
            client.schedule(topic, key=f"due-{n}", delay=0)
            client.schedule(topic, key=f"later-{n}", delay=60)
            assert client.run_now(topic, f"later-{n}") is RunNowOutcome.PAUSED
        await until(lambda: time.time() * 1000 > soon[0].due_ms)
        await asyncio.sleep(1.0)  # ten times the standby's patience, twice the beat of the sweep
        assert began == ["before"]
        info = next(info for info in client.topics() if info.name == topic)
        assert (info.waiting, info.ready, info.settings.paused) == (27, 0, True)
        assert not client.resume(topic).paused
        await until(lambda: len(began) == 28)
        assert len(set(began)) == 28


def test_an_overdue_job_that_is_to_run_now_keeps_its_place_in_a_paused_topic(client: Client, topic: str) -> None:
    client.schedule(topic, delay=60, key="other")
    client.pause(topic)
    overdue = [client.schedule(topic, delay=0.01 * n, key=f"k{n}") for n in range(3)]
    assert eventually(lambda: time.time() * 1000 > overdue[-1].due_ms)
    assert client.run_now(topic, "k0") is RunNowOutcome.PAUSED
    assert client.run_now(topic, "other") is RunNowOutcome.PAUSED
    assert [job.id for job in client.waiting(topic).jobs] == ["k0", "k1", "k2", "other"]
    assert client.waiting(topic).jobs[0].due_ms == overdue[0].due_ms


async def test_a_paused_topics_workers_begin_nothing_that_is_ready_and_finish_what_they_began(
    url: str, settings: Settings, client: Client, topic: str, run: Run
) -> None:
    began: list[str] = []
    may_end = asyncio.Event()
    worker = Worker.connect(url, settings=settings, concurrency=1)

    @worker.handler(topic)
    async def note(job: Job) -> None:
        began.append(job.id)
        await may_end.wait()

    for n in range(3):
        client.schedule(topic, key=f"job-{n}", delay=0)
    run(worker)
    await until(lambda: len(began) == 1)
    client.pause(topic)
    await asyncio.sleep(0.5)
    may_end.set()
    await until(lambda: client.get(topic, "job-0") is None)
    await asyncio.sleep(0.5)
    assert began == ["job-0"]
    info = known(client.get(topic, "job-2"))
    assert info.state is JobState.READY
    client.resume(topic)
    await until(lambda: len(began) == 3)


async def test_one_paused_topic_does_not_hold_another(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    began: list[str] = []
    worker.handler(topic)(lambda job: began.append(job.topic))
    worker.handler(topic + "-2")(lambda job: began.append(job.topic))
    client.configure(topic, retention_ms=1)
    client.pause(topic)
    run(worker)
    client.schedule(topic, delay=0)
    for _ in range(3):
        client.schedule(topic + "-2", delay=0.05)
    await until(lambda: began == [topic + "-2"] * 3)


async def test_the_number_of_shards_can_be_changed_while_a_topic_is_paused(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    began: list[str] = []
    worker.handler(topic)(lambda job: began.append(job.id))
    run(worker)
    client.configure(topic, retention_ms=0)
    client.pause(topic)
    for n in range(10):
        client.schedule(topic, key=f"old-{n}", delay=0)
    client.set_shards(topic, 4)
    for n in range(10):
        client.schedule(topic, key=f"new-{n}", delay=0)
    await asyncio.sleep(0.5)
    assert began == []
    client.resume(topic)
    await until(lambda: len(began) == 20)


async def test_a_topic_that_was_never_used_cannot_be_paused(aclient: AsyncClient, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await aclient.pause(topic)
    with pytest.raises(TopicNotFound):
        await aclient.resume(topic)


# Limits


def test_a_full_topic_refuses_jobs_and_says_which(client: Client, topic: str) -> None:
    """`max_pending` counts the jobs that wait. Of many, those for which there is room are scheduled."""
    client.configure(topic, max_pending=3)
    client.schedule(topic, key="a", delay=60)
    with pytest.raises(TopicFull) as caught:
        client.schedule_many(topic, [JobSpec(key=key, delay=60) for key in ("a", "b", "c", "d", "e")])
    assert caught.value.refused == {3: "d", 4: "e"}
    assert {place: receipt.id for place, receipt in caught.value.receipts.items()} == {0: "a", 1: "b", 2: "c"}
    with pytest.raises(TopicFull):
        client.schedule(topic, key="d", delay=60)
    client.cancel(topic, "b")
    assert client.schedule(topic, key="d", delay=60).created


def test_a_limit_binds_producers_that_know_the_topic_from_before(url: str, settings: Settings, topic: str) -> None:
    """The shards refuse who does not know it yet, and the client learns it and goes on."""
    with Client.connect(url, settings) as one, Client.connect(url, settings) as other:
        one.schedule(topic, key="a", delay=60)
        other.configure(topic, max_pending=2)
        one.schedule(topic, key="b", delay=60)
        with pytest.raises(TopicFull):
            one.schedule(topic, key="c", delay=60)


async def test_a_rate_spreads_a_herd_over_time_and_loses_none(
    url: str, settings: Settings, client: Client, topic: str, run: Run
) -> None:
    """`max_rate` jobs a second and a tenth of that at once, over all shards and nodes, also for what is due at once."""
    client.configure(topic, max_rate=100, retention_ms=60_000)
    client.set_shards(topic, 2)
    nodes = [Scheduler.connect(url, settings) for _ in range(2)]
    worker, started = Worker.connect(url, settings=settings), []
    worker.handler(topic)(lambda job: started.append(job.promoted_ms))
    client.schedule_many(topic, [JobSpec(delay=0.1 if n % 2 else 0) for n in range(150)])
    run(worker, *nodes)
    await until(lambda: len(started) > 50)
    nodes[0].stop()
    await until(lambda: len(started) == 150)
    moments = sorted(started)
    for n, first in enumerate(moments):
        for m in range(n, len(moments)):
            assert m - n + 1 <= (moments[m] - first + 1) / 10 + 2 * 5
    assert moments[-1] - moments[0] < 30_000, "150 jobs take 1.4 s; a busy machine may need longer"


async def test_promotion_waits_while_workers_lag(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    """At most `max_ready` jobs are unread; the others wait where they can still be cancelled and rescheduled."""
    client.configure(topic, max_ready=5)
    client.schedule_many(topic, [JobSpec(key=f"job-{n}", delay=0.1) for n in range(50)])

    def unread() -> tuple[int, int]:
        info = next(info for info in client.topics() if info.name == topic)
        return info.waiting, info.ready

    await until(lambda: unread() == (45, 5))
    await asyncio.sleep(0.7)
    assert unread() == (45, 5)
    done: list[str] = []
    worker.handler(topic)(lambda job: done.append(job.id))
    run(worker)
    await until(lambda: len(done) == 50)


# Priority and spread


async def test_high_priority_jobs_start_first_among_those_due_together(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    """Due time comes first: what was due earlier never waits for what is more important, so nothing starves."""
    done: list[str] = []
    worker.handler(topic, inline=True)(lambda job: done.append(job.id))  # threads might note them in another order
    kinds: tuple[Priority, ...] = ("low", "normal", "high")
    specs = [JobSpec(key=f"{kind}-{n}", delay=0.5, priority=kind) for n in range(3) for kind in kinds]
    client.schedule_many(topic, [*specs, JobSpec(key="sooner", delay=0.495, priority="low")])  # one call, one clock
    run(worker)
    await until(lambda: len(done) == 10)
    assert done[0] == "sooner"
    assert [id.partition("-")[0] for id in done[1:]] == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


def test_spread_moves_due_times_evenly_and_the_same_for_the_same_id(client: Client, topic: str) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    at_ms = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    specs = [JobSpec(key=f"job-{n}", at=at, spread=10) for n in range(1_000)]
    offsets = [receipt.due_ms - at_ms for receipt in client.schedule_many(topic, specs)]
    assert 0 <= min(offsets) < 200
    assert 9_800 < max(offsets) <= 10_001
    assert 4_500 < sum(offsets) / 1_000 < 5_500
    again = client.schedule_many(topic, specs, on_duplicate="replace")
    assert [receipt.due_ms - at_ms for receipt in again] == offsets


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": "urgent"}, "priority"),
        ({"spread": -1}, "spread"),
        ({"delay": 316_000_000, "spread": 300_000}, "spread"),
        ({"expires": -1}, "expires"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    client: Client, topic: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.schedule(topic, **{"delay": 1, **options})
    assert caught.value.field == field


# Too late


async def test_a_job_that_cannot_start_before_it_expires_never_runs(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    """So long after its due time, or at a moment. It is dropped; where the topic buries what is late, it is buried."""
    done: list[str] = []
    client.schedule(topic, key="short", delay=0, expires=0.2)
    client.schedule(topic, key="moment", delay=0, expires=datetime.now(UTC) + timedelta(seconds=0.2))
    client.schedule(topic, key="long", delay=0, expires=60)
    await asyncio.sleep(0.5)
    worker.handler(topic)(lambda job: done.append(job.id))
    run(worker)
    await until(lambda: done == ["long"])
    await until(lambda: client.get(topic, "short") is None and client.get(topic, "moment") is None)
    assert worker.skipped == 2
    client.configure(topic, misfire="bury", grace_ms=60_000)
    client.pause(topic)
    client.schedule(topic, key="dead", delay=0, expires=0.1)
    await asyncio.sleep(0.3)
    client.resume(topic)
    await until(lambda: bool(client.dead.list(topic).jobs))
    assert [(job.id, job.reason) for job in client.dead.list(topic).jobs] == [("dead", Reason.EXPIRED)]
    assert done == ["long"]


@pytest.mark.parametrize("misfire", ["run", "skip", "bury"])
async def test_a_topic_says_what_becomes_of_jobs_that_would_start_later_than_their_grace(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler, misfire: Misfire
) -> None:
    done: list[str] = []
    client.configure(topic, misfire=misfire, grace_ms=60_000)
    past = datetime.now(UTC) - timedelta(minutes=2)
    receipt = client.schedule(topic, key="late", at=past)
    assert receipt.created  # a time in the past stays: the job is late from the start
    assert 0 <= receipt.due_ms - past.timestamp() * 1000 < 1
    worker.handler(topic)(lambda job: done.append(job.id))
    run(worker)
    client.schedule(topic, key="punctual", delay=0)
    dead = ["late"] if misfire == "bury" else []
    await until(lambda: "punctual" in done and [job.id for job in client.dead.list(topic).jobs] == dead)
    await until(lambda: ("late" in done, worker.skipped) == ((True, 0) if misfire == "run" else (False, 1)))


@pytest.mark.parametrize(("misfire", "reason"), [("run", Reason.EXPIRED), ("skip", Reason.MISFIRED)])
async def test_a_started_job_that_is_handed_back_and_comes_too_late_is_buried(
    make_worker: Callable[..., Worker],
    worker: Worker,
    client: Client,
    topic: str,
    run: Run,
    misfire: Misfire,
    reason: Reason,
) -> None:
    """It may have done half its work, so it is neither dropped nor run late."""
    client.configure(topic, misfire=misfire, grace_ms=2_000)
    started = asyncio.Event()

    @worker.handler(topic)
    async def work(job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    running = run(worker)
    receipt = client.schedule(topic, key="a", delay=0, expires=2 if misfire == "run" else None)
    await in_time(started.wait())
    worker.stop(grace=0)
    await in_time(running)
    await until(lambda: time.time() * 1000 > receipt.due_ms + 2_100)
    inbox = Inbox()
    run(make_worker("default", inbox))
    await until(lambda: bool(client.dead.list(topic).jobs))
    [dead] = client.dead.list(topic).jobs
    assert (dead.id, dead.reason, inbox.jobs) == ("a", reason, [])
    assert client.get(topic, "a") is not None


async def test_a_failed_job_whose_next_attempt_comes_too_late_is_buried_with_its_error(
    worker: Worker, client: Client, topic: str, run: Run, scheduler: Scheduler
) -> None:
    @worker.handler(topic, retry=Retry(delays=[0.5]))
    async def work(job: Job) -> None:
        raise ValueError("no stock")

    client.schedule(topic, key="a", delay=0, expires=0.4)
    run(worker)
    await until(lambda: bool(client.dead.list(topic).jobs))
    [dead] = client.dead.list(topic).jobs
    assert (dead.id, dead.reason, dead.attempt) == ("a", Reason.EXPIRED, 2)
    assert "could start until 400 ms after its due time" in dead.error, "by its first due time, not that of its retry"
    assert "ValueError: no stock" in dead.error


# Forecast


def test_a_forecast_counts_the_waiting_jobs_by_when_they_are_due(url: str, settings: Settings, topic: str) -> None:
    with Client.connect(url, Settings(prefix=settings.prefix, topic=TopicSettings(shards=3))) as client:
        delays = [9] * 3 + [50] * 4 + [7_000] * 5 + [40 * 86_400] * 6
        client.schedule_many(topic, [JobSpec(delay=delay) for delay in delays])
        found = {span.until_ms: span.jobs for span in client.forecast(topic) if span.jobs}
        assert found == {10_000: 3, 60_000: 4, 6 * 3_600_000: 5, None: 6}
        with pytest.raises(TopicNotFound):
            client.forecast(topic + "-unused")


# A job that runs


async def test_a_running_async_job_can_be_cancelled(worker: Worker, client: Client, topic: str, run: Run) -> None:
    """Its handler gets CancelledError, it is not retried, and it is told among the dead. Others go on."""
    events: list[str] = []
    may_end = asyncio.Event()

    @worker.handler(topic)
    async def work(job: Job) -> None:
        events.append(f"begins {job.id}")
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            events.append(f"cancelled {job.id}")
            raise

    for key in ("a", "b"):
        client.schedule(topic, key=key, delay=0)
    client.schedule(topic, key="waits", delay=60)
    run(worker)
    await until(lambda: len(events) == 2)
    assert client.cancel(topic, "a") is CancelOutcome.RUNNING, "only if asked for"
    assert client.cancel(topic, "a", running=True) is CancelOutcome.CANCELLING
    assert client.cancel(topic, "waits", running=True) is CancelOutcome.CANCELLED
    assert client.cancel(topic, "none", running=True) is CancelOutcome.NOT_FOUND
    await until(lambda: [(job.id, job.reason) for job in client.dead.list(topic).jobs] == [("a", Reason.CANCELLED)])
    await until(lambda: worker.cancelled == 1)
    assert worker.failed == 0
    may_end.set()
    client.schedule(topic, key="c", delay=0)
    await until(lambda: worker.handled == 2)
    assert events == ["begins a", "begins b", "cancelled a", "begins c"]


async def test_a_handler_that_holds_out_against_being_cancelled_finishes_its_job(
    url: str, settings: Settings, client: Client, topic: str, run: Run
) -> None:
    """And its worker goes on with the next."""
    began: list[str] = []
    worker = Worker.connect(url, settings=settings, concurrency=1)

    @worker.handler(topic)
    async def work(job: Job) -> None:
        began.append(job.id)
        if job.id == "a":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    client.schedule(topic, key="a", delay=0)
    run(worker)
    await until(lambda: began == ["a"])
    assert client.cancel(topic, "a", running=True) is CancelOutcome.CANCELLING
    client.schedule(topic, key="b", delay=0)
    await until(lambda: worker.handled == 2)
    assert (worker.cancelled, client.dead.list(topic).jobs) == (0, [])


async def test_cancel_reports_plain_handlers_and_jobs_that_do_not_run(
    worker: Worker, client: Client, topic: str, run: Run
) -> None:
    began, may_end = threading.Event(), threading.Event()

    @worker.handler(topic)
    def work(job: Job) -> None:
        began.set()
        may_end.wait(PATIENCE)

    client.schedule(topic, key="a", delay=0)
    assert client.cancel(topic, "a", running=True) is CancelOutcome.RUNNING, "it is ready, and no worker has it"
    run(worker)
    await until(began.is_set)
    assert client.cancel(topic, "a", running=True) is CancelOutcome.CANCELLING
    await asyncio.sleep(0.3)
    may_end.set()
    await until(lambda: worker.handled == 1)
    assert worker.cancelled == 0
