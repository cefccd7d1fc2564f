"""27. Payloads that outlive their code: a job that does not fit its handler waits for a worker that it fits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.spec.conftest import Run, known, nothing_is_left, state_is
from tests.waiting import in_time, until
from wheelq import (
    AsyncClient,
    CancelOutcome,
    InvalidInput,
    Job,
    JobSpec,
    JobState,
    PayloadMismatch,
    ResultMismatch,
    Retry,
    Settings,
    Worker,
)
from wheelq.admin.metrics import FleetMetrics
from wheelq.base.clock import SystemClock
from wheelq.errors import JobFailed
from wheelq.model.dead import Reason
from wheelq.protocol.keys import Keys
from wheelq.testing import WheelqTest
from wheelq.transport import Address, AsyncTransport
from wheelq.worker import outcome

OLD = {"order_id": 42}
NEW = {"order_id": 42, "reason": "late"}
UNKNOWN = "reason: close has no such argument; it has: order_id"
DAY_S = 86_400


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of 20 to 40 ms, for tests in real time."""
    monkeypatch.setattr(outcome, "SHORTEST_MISMATCH_MS", 20)
    monkeypatch.setattr(outcome, "LONGEST_MISMATCH_MS", 40)


def takes_one(worker: Worker, topic: str, ran: list[Any], **options: Any) -> None:
    """Gives a worker the handler `close(order_id)`."""

    @worker.task(topic, **options)
    async def close(order_id: int) -> str:
        ran.append(order_id)
        return "closed"


def takes_two(worker: Worker, topic: str, ran: list[Any], **options: Any) -> None:
    """Gives a worker the handler `close(order_id, reason)`."""

    @worker.task(topic, **options)
    async def close(job: Job, order_id: int, reason: str) -> str:
        ran.append((order_id, reason, job.attempt))
        return "closed"


def starts(wheelq: WheelqTest) -> list[int]:
    """Seconds from the first due time to the start of each run."""
    return [round((run.at_ms - run.job.first_due_ms) / 1000) for run in wheelq.runs]


# In a rolling deploy

Deploy = tuple[Callable[..., None], Callable[..., None], dict[str, Any], Callable[[int], Any]]
ADDED: Deploy = (takes_one, takes_two, {"reason": "late"}, lambda n: (n, "late", 1))
REMOVED: Deploy = (takes_two, takes_one, {}, lambda n: n)


@pytest.mark.parametrize(("before", "after", "more", "as_run"), [ADDED, REMOVED], ids=["field added", "field removed"])
@pytest.mark.usefixtures("scheduler", "quick")
async def test_in_a_rolling_deploy_every_job_runs_once_in_the_new_code(
    url: str,
    settings: Settings,
    aclient: AsyncClient,
    topic: str,
    run: Run,
    before: Callable[..., None],
    after: Callable[..., None],
    more: dict[str, Any],
    as_run: Callable[[int], Any],
) -> None:
    """Workers are replaced one by one while jobs of a new producer fall due: none is buried or loses an attempt."""
    in_old: list[Any] = []
    in_new: list[Any] = []

    def begin(takes: Callable[..., None], ran: list[Any]) -> tuple[Worker, asyncio.Task[None]]:
        worker = Worker.connect(url, settings=settings)
        takes(worker, topic, ran, retry=Retry(max_attempts=1))
        return worker, run(worker)

    fleet = [begin(before, in_old) for _ in range(3)]
    specs = [JobSpec({"order_id": n, **more}, delay=n / 100, key=f"order-{n}") for n in range(40)]
    await aclient.schedule_many(topic, specs)

    async def has_met_an_old_worker() -> bool:
        found = await aclient.get(topic, "order-0")
        return found is not None and found.last_error is not None

    await until(has_met_an_old_worker)
    for worker, task in fleet:
        begin(after, in_new)
        worker.stop()
        await in_time(task)
    await nothing_is_left(aclient, topic)
    assert sorted(in_new) == [as_run(n) for n in range(40)]
    assert in_old == []
    assert (await aclient.dead.list(topic)).jobs == []


def test_an_argument_with_a_default_fits_jobs_of_both_releases(wheelq: WheelqTest) -> None:
    ran = []

    @wheelq.worker.task("orders")
    async def close(order_id: int, reason: str = "unpaid") -> None:
        ran.append(reason)

    wheelq.client.schedule_many("orders", [JobSpec(OLD, delay=0), JobSpec(NEW, delay=0)])
    wheelq.advance(0)
    assert sorted(ran) == ["late", "unpaid"]


# Until it is buried


def test_a_job_that_does_not_fit_pauses_for_1_to_30_seconds_and_is_buried_after_a_quarter_of_an_hour(
    wheelq: WheelqTest,
) -> None:
    """Each pause is as long as all before it."""
    takes_one(wheelq.worker, "orders", [])
    wheelq.client.schedule("orders", NEW, delay=60, key="a")
    wheelq.advance(60 + 899)
    assert starts(wheelq)[:9] == [0, 1, 2, 4, 8, 16, 32, 62, 92]
    assert {run.job.attempt for run in wheelq.runs} == {1}
    info = known(wheelq.client.get("orders", "a"))
    assert (info.state, info.attempt, info.last_error) == (JobState.RETRYING, 1, UNKNOWN)
    assert list(info.attempts) == []
    wheelq.advance(1)
    assert starts(wheelq)[-1] == 900
    [dead] = wheelq.client.dead.list("orders").jobs
    assert (dead.reason, dead.error, dead.attempt) == (Reason.PAYLOAD_MISMATCH, UNKNOWN, 1)
    assert str(dead.reason) == "payload-mismatch"


def test_a_topic_says_how_long_it_waits_and_whether_at_all(wheelq: WheelqTest) -> None:
    """A change holds for jobs that wait already."""
    takes_one(wheelq.worker, "orders", [])
    wheelq.client.configure("orders", mismatch_ms=5_000)
    wheelq.client.schedule("orders", NEW, delay=0, key="a")
    wheelq.advance(6)
    assert starts(wheelq) == [0, 1, 2, 4, 5]
    wheelq.client.schedule("orders", NEW, delay=0, key="b")
    wheelq.advance(0)
    wheelq.client.configure("orders", on_mismatch="bury")
    wheelq.advance(1)
    assert [job.id for job in wheelq.client.dead.list("orders").jobs] == ["b", "a"]


@pytest.mark.parametrize(("of_topic", "of_handler"), [("retry", "bury"), ("bury", "retry")])
@pytest.mark.parametrize("decorate", ["task", "handler", "batch_handler", "handler_for_each"])
def test_what_a_handler_says_comes_before_what_its_topic_says(
    wheelq: WheelqTest, of_topic: Any, of_handler: Any, decorate: str
) -> None:
    async def find() -> list[str]:
        return ["orders"]

    async def batch(jobs: list[Job[int]]) -> None: ...
    async def one(job: Job[int]) -> None: ...
    async def task(order_id: int) -> None: ...

    wheelq.client.configure("orders", on_mismatch=of_topic)
    if decorate == "handler_for_each":
        wheelq.worker.handler_for_each(find, on_mismatch=of_handler)(one)
        asyncio.run(wheelq.worker._handlers.find_more())
    else:
        function = {"task": task, "handler": one, "batch_handler": batch}[decorate]
        getattr(wheelq.worker, decorate)("orders", on_mismatch=of_handler)(function)
    wheelq.client.schedule("orders", {"no": "number"}, delay=0)
    wheelq.advance(0.1)
    assert len(wheelq.client.dead.list("orders").jobs) == (of_handler == "bury")
    assert len(wheelq.waiting("orders")) == (of_handler == "retry")


def test_another_word_is_refused(wheelq: WheelqTest) -> None:
    with pytest.raises(InvalidInput, match="on_mismatch: must be 'retry' or 'bury', not 'drop'"):
        wheelq.worker.handler("orders", on_mismatch="drop")(print)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_mismatch: must be one of retry, bury, not 'drop'"):
        wheelq.client.configure("orders", on_mismatch="drop")  # type: ignore[arg-type]


def test_a_replayed_job_may_wait_as_long_as_before(wheelq: WheelqTest) -> None:
    """Also one that expired while it waited."""
    takes_one(wheelq.worker, "orders", [])
    wheelq.client.schedule_many("orders", [JobSpec(NEW, delay=0), JobSpec(NEW, delay=0, expires=600)])
    wheelq.advance(901)
    assert {job.reason for job in wheelq.client.dead.list("orders").jobs} == {Reason.PAYLOAD_MISMATCH, Reason.EXPIRED}
    wheelq.client.dead.replay("orders", all=True)
    wheelq.advance(899)
    assert wheelq.client.dead.list("orders").jobs == []
    wheelq.advance(2)
    assert len(wheelq.client.dead.list("orders").jobs) == 2


def test_a_failure_in_between_begins_the_time_anew_and_counts(wheelq: WheelqTest) -> None:
    """The code is replaced, fails, and is taken back. Only the failure is an attempt."""
    is_new = False

    @wheelq.worker.handler("orders", retry=Retry(delays=[40]))
    async def close(job: Job) -> None:
        if is_new:
            raise ConnectionError("the database is away")
        raise PayloadMismatch("reason", "is unknown")

    wheelq.client.schedule("orders", NEW, delay=0, key="a")
    wheelq.advance(880)
    is_new = True
    wheelq.advance(30)
    is_new = False
    wheelq.advance(800)
    info = known(wheelq.client.get("orders", "a"))
    assert (info.attempt, [one.error for one in info.attempts]) == (2, ["ConnectionError: the database is away"])
    wheelq.advance(200)
    assert [job.reason for job in wheelq.client.dead.list("orders").jobs] == [Reason.PAYLOAD_MISMATCH]


def test_a_worker_logs_a_line_a_minute_for_each_handler(wheelq: WheelqTest, caplog: pytest.LogCaptureFixture) -> None:
    """It logs no line for each job. Buried jobs have a line of their own a minute."""
    takes_one(wheelq.worker, "orders", [])
    takes_one(wheelq.worker, "bills", [], on_mismatch="bury")
    for topic in ("orders", "bills"):
        wheelq.client.schedule_many(topic, [JobSpec(NEW, delay=n / 10, key=f"{topic}-{n}") for n in range(5)])
    with caplog.at_level(logging.INFO, "wheelq.worker"):
        wheelq.advance(119)
    waiting = f"job orders-0 of orders does not fit its handler, and waits for a worker that it fits: {UNKNOWN}"
    buried = f"job bills-0 of bills does not fit its handler, and is buried: {UNKNOWN}"
    said = [(one.levelname, one.getMessage()) for one in caplog.records if "fit" in one.getMessage()]
    assert set(said[:2]) == {("WARNING", waiting), ("ERROR", buried)}
    assert [level for level, text in said[2:] if "of orders" in text] == ["WARNING"]
    assert len(said) == 3


@pytest.mark.usefixtures("scheduler")
async def test_what_did_not_fit_is_counted_apart_from_failures(
    url: str, aclient: AsyncClient, settings: Settings, topic: str, run: Run, worker: Worker
) -> None:
    """So it raises no alarm about failing handlers; its own alert tells of it."""
    takes_one(worker, topic, [], retry=Retry(max_attempts=1))
    await aclient.schedule(topic, NEW, delay=0, key="a")
    run(worker)
    await state_is(aclient, topic, "a", JobState.RETRYING)
    text = await metrics_of(url, settings)
    assert f'wheelq_finished_total{{topic="{topic}",group="default",outcome="mismatched"}} 1' in text
    assert "retried" not in text
    assert (worker.handled, worker.failed) == (0, 0)


async def metrics_of(url: str, settings: Settings) -> str:
    """The page of `/metrics`."""
    transport = AsyncTransport(Address(url))
    try:
        return await FleetMetrics(transport, Keys(settings.prefix), SystemClock(), "test").text()
    finally:
        await transport.close()


# Beside everything else


def test_the_others_of_its_batch_run(wheelq: WheelqTest) -> None:
    ran: list[list[int]] = []

    @wheelq.worker.batch_handler("orders", max_size=10, max_wait=0)
    async def close(jobs: list[Job[int]]) -> None:
        ran.append([job.payload for job in jobs])

    wheelq.client.schedule_many("orders", [JobSpec(one, delay=0) for one in (1, "two", 3)])
    wheelq.advance(0)
    assert ran == [[1, 3]]
    wheelq.advance(2)
    assert ran == [[1, 3]]
    assert [job.payload for job in wheelq.waiting("orders")] == ["two"]


@pytest.mark.usefixtures("scheduler", "quick")
async def test_in_an_ordered_lane_later_jobs_wait_for_it(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """It keeps its place in the shard, also when the shard passes to a worker that it fits."""
    in_old: list[Any] = []
    in_new: list[Any] = []
    old, new = (Worker.connect(url, settings=settings) for _ in range(2))
    takes_one(old, topic, in_old, ordered=True)
    begun: list[str] = []
    old.before(lambda job: begun.append(job.id))

    @new.task(topic, ordered=True)
    async def close(order_id: int, reason: str = "unpaid") -> None:
        in_new.append(order_id)

    specs = [{"order_id": 1}, {"order_id": 2, "reason": "late"}, {"order_id": 3}]
    await aclient.schedule_many(topic, [JobSpec(one, delay=0, key=str(one["order_id"])) for one in specs])
    running = run(old)

    await until(lambda: begun.count("2") > 1)
    assert in_old == [1]
    run(new)
    old.stop()
    await in_time(running)
    await nothing_is_left(aclient, topic)
    assert (in_old, in_new) == ([1], [2, 3])


def test_it_waits_in_its_own_group_only(wheelq: WheelqTest) -> None:
    in_mail: list[Any] = []
    mail = Worker.connect(wheelq.url, group="mail")
    takes_two(mail, "orders", in_mail)
    takes_one(wheelq.worker, "orders", [])
    wheelq.add(mail)
    wheelq.client.schedule("orders", NEW, delay=0)
    wheelq.advance(3)
    assert in_mail == [(42, "late", 1)]
    assert [one.group for one in wheelq.waiting("orders")] == ["default"]


@pytest.mark.parametrize("misfire", ["run", "skip"])
def test_one_that_expires_while_it_waits_is_buried_and_says_why_it_waited(wheelq: WheelqTest, misfire: Any) -> None:
    """It is not dropped, because somebody may want to know."""
    takes_one(wheelq.worker, "orders", [])
    wheelq.client.configure("orders", misfire=misfire, grace_ms=DAY_S * 1000)
    wheelq.client.schedule("orders", NEW, delay=0, expires=10)
    wheelq.advance(60)
    [dead] = wheelq.client.dead.list("orders").jobs
    assert dead.reason == Reason.EXPIRED
    assert UNKNOWN in dead.error


def test_it_can_be_cancelled_no_more_than_one_that_waits_for_a_retry(wheelq: WheelqTest) -> None:
    """It has fallen due. Its waiting ends by itself."""
    takes_one(wheelq.worker, "orders", [])
    wheelq.client.schedule("orders", NEW, delay=0, key="a")
    wheelq.advance(3)
    assert wheelq.client.cancel("orders", "a", running=True) is CancelOutcome.RUNNING
    wheelq.advance(900)
    wheelq.assert_nothing_waits()


def test_a_result_of_another_job_that_does_not_fit_is_a_failure_of_the_handler_that_waited(wheelq: WheelqTest) -> None:
    """It counts as an attempt: the handler may have done something before."""

    @wheelq.worker.handler("orders", retry=Retry(max_attempts=2, base=1, cap=1))
    async def close(job: Job) -> None:
        raise ResultMismatch("result", "must be UUID, not 7")

    wheelq.client.schedule("orders", NEW, delay=0, key="a")
    wheelq.advance(60)
    [dead] = wheelq.client.dead.list("orders").jobs
    assert (dead.reason, dead.attempt) == (Reason.FAILED, 2)


def test_its_result_is_kept_like_that_of_any_other_job(wheelq: WheelqTest) -> None:
    """And nothing of its waiting: a rerun that does not fit may wait as long as any."""
    fits = False

    @wheelq.worker.handler("orders")
    async def close(job: Job) -> str:
        if not fits:
            raise PayloadMismatch("reason", "is unknown")
        return "closed"

    wheelq.client.configure("orders", keep_done_ms=DAY_S * 1000, retention_ms=DAY_S * 1000)
    receipt = wheelq.client.schedule("orders", NEW, delay=0, key="a")
    wheelq.advance(800)
    fits = True
    wheelq.advance(60)
    info = known(wheelq.client.get("orders", "a"))
    assert (info.state, info.attempt, [one.error for one in info.attempts]) == (JobState.DONE, 1, [None])
    assert wheelq.client.wait(receipt, timeout=0) == "closed"
    fits = False
    assert wheelq.client.rerun("orders", group="default", since=wheelq.now - timedelta(hours=1)).jobs == 1
    wheelq.advance(899)
    assert wheelq.client.dead.list("orders").jobs == []
    wheelq.advance(2)
    assert len(wheelq.client.dead.list("orders").jobs) == 1


def test_who_waits_for_its_result_hears_that_it_was_buried(wheelq: WheelqTest) -> None:
    takes_one(wheelq.worker, "orders", [], on_mismatch="bury")
    wheelq.client.configure("orders", keep_done_ms=DAY_S * 1000)
    receipt = wheelq.client.schedule("orders", NEW, delay=0)
    wheelq.advance(0)
    with pytest.raises(JobFailed, match="reason: close has no such argument"):
        wheelq.client.wait(receipt, timeout=0)


@pytest.mark.usefixtures("scheduler", "quick")
async def test_a_worker_that_stops_leaves_every_job_to_the_next(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """Also jobs that it was about to give back: they wait, or another worker takes them over."""
    old, new = (Worker.connect(url, settings=settings) for _ in range(2))
    takes_one(old, topic, [])
    ran: list[Any] = []
    takes_two(new, topic, ran)
    task = run(old)
    await aclient.schedule_many(topic, [JobSpec(NEW, delay=n / 1000, key=f"order-{n}") for n in range(100)])
    await state_is(aclient, topic, "order-0", JobState.RETRYING)
    old.stop(grace=0)
    await in_time(task)
    run(new)
    await nothing_is_left(aclient, topic)
    assert ran == [(42, "late", 1)] * 100
