"""17. Testing: a wheelq in memory whose time is in the test's hands.

`wheelq` is for plain tests, `async_wheelq` for those on asyncio. Time stands still until `advance`, which runs what
falls due at its own moment, with the scripts, the leader and the worker of the real thing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.waiting import PATIENCE
from wheelq import (
    CancelOutcome,
    Client,
    Job,
    JobSpec,
    JobState,
    RescheduleOutcome,
    Retry,
    RetryAfter,
    Router,
    Settings,
    Worker,
)
from wheelq.errors import InvalidInput, NotFinished
from wheelq.settings import TopicSettings
from wheelq.testing import AsyncWheelqTest, WheelqTest

START = datetime(2030, 3, 29, 9, 0, tzinfo=UTC)


def ids(kit: WheelqTest | AsyncWheelqTest) -> list[str]:
    return [run.job.id for run in kit.runs]


# time


def test_a_job_runs_at_its_due_time_and_not_before(wheelq: WheelqTest) -> None:
    """To the millisecond: one before, nothing happens."""

    @wheelq.worker.handler("orders")
    async def close_order(job: Job) -> None:
        assert job.started_ms == job.due_ms
        assert job.lateness == 0

    receipt = wheelq.client.schedule("orders", {"id": 42}, delay=1800, key="order-42")
    wheelq.assert_scheduled("orders", "order-42", payload={"id": 42}, due_in=1800, within=0)
    wheelq.advance(timedelta(minutes=30) - timedelta(milliseconds=1))
    wheelq.assert_not_ran("orders")
    [run] = wheelq.advance(0.001)
    assert (run.job.id, run.at, run.error) == ("order-42", receipt.due, None)
    wheelq.assert_ran("orders", "order-42", payload={"id": 42}, times=1)
    assert wheelq.assert_ran("orders", "order-43", times=0) == []
    wheelq.assert_nothing_waits()


def test_a_key_at_its_rate_holds_up_only_its_own_jobs_and_those_no_longer_than_it_says(wheelq: WheelqTest) -> None:
    wheelq.worker.handler("mail")(lambda job: None)
    wheelq.client.configure("mail", key_rate=0.1)
    for n in range(3):
        wheelq.client.schedule("mail", key=f"a{n}", delay=1, partition_key="ann")
    for delay in (2, 5, 12, 700):
        wheelq.client.schedule("mail", key=f"after {delay} s", delay=delay)
    start = wheelq.now.timestamp()
    ran = {run.job.id: round(run.at.timestamp() - start, 2) for run in wheelq.advance(3_600)}
    assert {n: ran[f"after {n} s"] for n in (2, 5, 12, 700)} == {n: float(n) for n in (2, 5, 12, 700)}
    assert [ran[f"a{n}"] for n in range(3)] == pytest.approx([1, 11, 21], abs=0.06)


def test_a_key_at_its_limit_holds_up_no_other_job(wheelq: WheelqTest) -> None:
    """The first job of the key stays in a group that has no worker here."""
    wheelq.worker.handler("mail")(lambda job: None)
    wheelq.client.configure("mail", key_concurrency=1)
    wheelq.client.make_group("mail", "others")
    for n in range(2):
        wheelq.client.schedule("mail", key=f"a{n}", delay=1, partition_key="ann")
    for delay in (5, 100, 1_000):
        wheelq.client.schedule("mail", key=f"after {delay} s", delay=delay)
    start = wheelq.now.timestamp()
    ran = {run.job.id: run.at.timestamp() - start for run in wheelq.advance(3_600)}
    assert ran == {"a0": 1, "after 5 s": 5, "after 100 s": 100, "after 1000 s": 1_000}


def test_the_next_job_of_a_key_runs_when_a_run_that_waited_for_its_time_has_ended(wheelq: WheelqTest) -> None:
    ran: list[tuple[object, float]] = []

    @wheelq.worker.batch_handler("mail", max_size=5, max_wait=20)
    def send(jobs: list[Job]) -> None:
        ran.extend((job.payload, wheelq.now.timestamp() - start) for job in jobs)

    wheelq.client.configure("mail", key_concurrency=1)
    for n in range(3):
        wheelq.client.schedule("mail", n, delay=0, partition_key="ann")
    start = wheelq.now.timestamp()
    wheelq.advance(1_000)
    assert ran == [(0, 20), (1, 40), (2, 60)]


def test_a_topic_that_a_handler_uses_first_is_served_at_once(wheelq: WheelqTest) -> None:
    """It is registered at the same instant as that of the handler, in which time stands still."""
    wheelq.worker.handler("orders")(lambda job: job.then("mail", delay=5))
    wheelq.worker.handler("mail")(lambda job: None)
    wheelq.client.schedule("orders", delay=0)
    start = wheelq.now.timestamp()
    runs = wheelq.advance(60)
    assert [(run.job.topic, run.at.timestamp() - start) for run in runs] == [("orders", 0), ("mail", 5)]


def test_jobs_of_many_shards_run_at_one_moment(wheelq: WheelqTest) -> None:
    """No shard waits for the questions of others, because time stands still."""
    wheelq.worker.handler("orders")(lambda job: None)
    wheelq.client.configure("orders")
    wheelq.client.set_shards("orders", 4)
    for delay in (10, 20):
        wheelq.client.schedule_many("orders", [JobSpec(n, delay=delay) for n in range(50)])
    wheelq.advance(19)
    wheelq.advance(1)
    wheelq.assert_ran("orders", times=100)


def test_what_follows_a_job_waits_and_runs_at_its_own_moment(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    def ship(job: Job) -> None:
        job.then("emails", {"order": job.payload}, delay=60)
        job.then("invoices", key="now")

    @wheelq.worker.handler("emails")
    def send(job: Job) -> None:
        assert job.lateness == 0

    wheelq.client.schedule("orders", 42, delay=10)
    wheelq.advance(10)
    wheelq.assert_scheduled("emails", payload={"order": 42}, due_in=60, within=0)
    wheelq.assert_not_ran("emails")
    assert wheelq.unread("invoices") == {"invoices": 1}
    wheelq.advance(60)
    wheelq.assert_ran("emails", payload={"order": 42}, times=1)


def test_a_follower_that_finds_its_topic_full_comes_later(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    def ship(job: Job) -> None:
        job.then("emails", 2, delay=650)

    @wheelq.worker.handler("emails")
    def send(job: Job) -> None: ...

    wheelq.client.configure("emails", max_pending=1)
    wheelq.client.schedule("emails", 1, delay=600)
    wheelq.client.schedule("orders", delay=0)
    wheelq.advance(599)
    wheelq.assert_not_ran("emails")
    wheelq.advance(60)
    assert [run.job.payload for run in wheelq.runs if run.job.topic == "emails"] == [1, 2]


def test_jobs_that_fall_due_on_the_way_run_in_order_each_at_its_own_moment(wheelq: WheelqTest) -> None:
    """Also what handlers schedule meanwhile, through the same time span."""

    @wheelq.worker.handler("chain")
    async def link(job: Job) -> None:
        if job.payload:
            wheelq.client.schedule("chain", job.payload - 1, delay=timedelta(hours=1), key=f"link-{job.payload - 1}")

    @wheelq.worker.handler("others")
    async def other(job: Job) -> None: ...

    wheelq.client.schedule("chain", 3, delay=60, key="link-3")
    wheelq.client.schedule_many("others", [JobSpec(delay=3600 * n, key=f"other-{n}") for n in (3, 1, 2)])
    started = wheelq.now
    wheelq.advance(hours=2, minutes=30)
    assert ids(wheelq) == ["link-3", "other-1", "link-2", "other-2", "link-1"]
    assert [(run.at - started).total_seconds() for run in wheelq.runs] == [60, 3600, 3660, 7200, 7260]
    assert wheelq.now == started + timedelta(hours=2, minutes=30)
    wheelq.advance_to(started + timedelta(days=1))
    assert ids(wheelq)[5:] == ["other-3", "link-0"]


def test_a_year_takes_no_time(wheelq: WheelqTest) -> None:
    """Nothing sleeps, and nothing is done at moments at which nothing is due."""

    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    wheelq.client.schedule("orders", delay=timedelta(days=360))
    began = time.monotonic()
    wheelq.advance(weeks=52)
    assert time.monotonic() - began < PATIENCE, "a fraction of a second, if nobody else needs the machine"
    wheelq.assert_ran("orders", times=1)


def test_other_clocks_can_follow() -> None:
    """Such as those of the libraries that set `datetime.now()`."""
    shown: list[datetime] = []
    with WheelqTest(START, on_move=shown.append) as wheelq:

        @wheelq.worker.handler("orders")
        async def handle(job: Job) -> None:
            assert shown[-1] == job.due == wheelq.now

        wheelq.client.schedule("orders", delay=60)
        wheelq.advance(100)
        assert [(now - START).total_seconds() for now in shown] == [60, 100]


def test_a_paused_topic_runs_nothing_until_it_is_resumed(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    wheelq.client.schedule("orders", delay=60, key="k")
    wheelq.client.pause("orders")
    wheelq.advance(days=365)
    wheelq.assert_scheduled("orders", "k")
    wheelq.client.resume("orders")
    wheelq.run_due()
    wheelq.assert_ran("orders", "k")


def test_waiting_for_a_job_ends_although_the_clock_stands_still(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> str:
        return "closed"

    wheelq.client.configure("orders", keep_done_ms=60_000)
    receipt = wheelq.client.schedule("orders", delay=60)
    with pytest.raises(NotFinished):
        wheelq.client.wait(receipt, timeout=0.1)
    wheelq.advance(60)
    assert wheelq.client.wait(receipt, timeout=0.1) == "closed"


def test_a_limited_rate_holds_jobs_back_as_it_would(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    wheelq.client.schedule_many("orders", [JobSpec(n, delay=60) for n in range(5)])
    wheelq.client.configure("orders", max_rate=2.0)
    wheelq.advance(minutes=2)
    assert [run.at_ms - run.job.due_ms for run in wheelq.runs] == [0, 500, 1000, 1500, 2000]


def test_recurring_jobs_occur_as_time_passes() -> None:
    """By the clock of their zone: on 31 March 2030 there is no 2:30 in Berlin, and the job runs once all the same."""
    with WheelqTest(START) as wheelq:

        @wheelq.worker.handler("reports")
        async def report(job: Job) -> None: ...

        wheelq.client.recurring.put("reports", "nightly", "sales", cron="30 2 * * *", tz="Europe/Berlin")
        wheelq.client.recurring.put("reports", "hourly", every=3600)
        wheelq.run_due()
        wheelq.assert_scheduled("reports", "nightly@2030-03-30T01:30:00Z", payload="sales", due_in=16.5 * 3600)
        wheelq.advance(days=4)
        nightly = wheelq.assert_ran("reports", payload="sales", times=4)
        assert [f"{run.at:%d %H:%M}" for run in nightly][0::3] == ["30 01:30", "02 00:30"]
        wheelq.assert_ran("reports", payload=None, times=4 * 24)
        wheelq.client.recurring.remove("reports", "nightly")
        wheelq.client.recurring.remove("reports", "hourly")
        wheelq.assert_nothing_waits()


def test_run_due_runs_what_is_due_now_and_time_stands_still(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    wheelq.client.schedule("orders", delay=0, key="now")
    wheelq.client.schedule("orders", delay=0.001, key="in a moment")
    before = wheelq.now
    wheelq.run_due()
    assert (ids(wheelq), wheelq.now) == (["now"], before)


def test_time_can_begin_anywhere_and_goes_forward_only() -> None:
    with WheelqTest(START) as wheelq:
        assert wheelq.now == START
        wheelq.client.schedule("notices", at=START + timedelta(days=2), key="k")
        wheelq.assert_scheduled("notices", due_at=START + timedelta(days=2), due_in=timedelta(days=2))
        with pytest.raises(InvalidInput, match="2030-03-29 08:59:59 is past: it is 2030-03-29 09:00:00"):
            wheelq.advance(-1)
        with pytest.raises(InvalidInput, match="is past"):
            wheelq.advance_to(START - timedelta(days=1))
        assert wheelq.now == START


def test_waiting_jobs_are_moved_cancelled_and_run_now_as_ever(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    client = wheelq.client
    client.schedule_many("orders", [JobSpec(delay=60, key=key) for key in ("moved", "cancelled", "now")])
    assert client.reschedule("orders", "moved", delay=7200) is RescheduleOutcome.RESCHEDULED
    assert client.cancel("orders", "cancelled") is CancelOutcome.CANCELLED
    client.run_now("orders", "now")
    assert [run.job.id for run in wheelq.run_due()] == ["now"]
    wheelq.advance(hours=1)
    wheelq.assert_not_scheduled("orders", "cancelled")
    wheelq.assert_scheduled("orders", "moved", due_in=3600)
    wheelq.advance(hours=1)
    assert ids(wheelq) == ["now", "moved"]


# failures


def test_retries_come_as_time_passes_and_then_the_job_is_buried(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("callbacks", retry=Retry(max_attempts=3, base=10.0, cap=10.0))
    async def call(job: Job) -> None:
        raise ConnectionError("nobody answers")

    wheelq.client.schedule("callbacks", "https://example.com", delay=60, key="k")
    wheelq.advance(60)
    wheelq.assert_ran("callbacks", "k", times=1)
    retry = wheelq.assert_scheduled("callbacks", "k", payload="https://example.com", due_in=5, within=5)
    assert (retry.attempt, retry.group) == (2, "default")
    wheelq.advance(minutes=1)
    wheelq.assert_ran("callbacks", "k", times=3)
    assert [run.job.attempt for run in wheelq.runs] == [1, 2, 3]
    assert {str(run.error) for run in wheelq.runs} == {"nobody answers"}
    wheelq.assert_nothing_waits()
    assert wheelq.client.topics()[0].dead == 1


def test_raise_errors_lets_the_test_see_what_a_handler_raised() -> None:
    """At the moment it was raised; the job is tried again later as ever."""
    with WheelqTest(raise_errors=True) as wheelq:

        @wheelq.worker.handler("orders")
        async def handle(job: Job) -> None:
            raise KeyError("missing")

        wheelq.client.schedule("orders", delay=60)
        before = wheelq.now
        with pytest.raises(KeyError, match="missing"):
            wheelq.advance(hours=1)
        assert wheelq.now == before + timedelta(seconds=60)
        wheelq.assert_scheduled("orders", due_in=1, within=1)


def test_a_pytest_outcome_in_a_handler_always_reaches_the_test(wheelq: WheelqTest) -> None:
    """`pytest.fail` in a handler fails the test, and is no outcome of the job."""

    @wheelq.worker.handler("orders")
    def handle(job: Job) -> None:
        pytest.fail("this one must not run")

    wheelq.client.schedule("orders", delay=60)
    with pytest.raises(pytest.fail.Exception, match="this one must not run"):
        wheelq.advance(hours=1)


def test_a_handler_that_asks_for_another_time_gets_it() -> None:
    """That is no error that `raise_errors` would raise."""
    with WheelqTest(raise_errors=True) as wheelq:

        @wheelq.worker.handler("orders")
        async def handle(job: Job) -> None:
            if len(wheelq.runs) < 3:
                raise RetryAfter(timedelta(hours=1))

        wheelq.client.schedule("orders", delay=60)
        wheelq.advance(hours=3)
        wheelq.assert_ran("orders", times=3)
        wheelq.assert_nothing_waits()


# workers


def test_every_group_gets_every_job_and_retries_its_own(wheelq: WheelqTest) -> None:
    billing, mail = (Worker.connect(group=group) for group in ("billing", "mail"))
    failures = iter([True, False])

    @billing.handler("orders")
    async def bill(job: Job) -> None:
        if next(failures):
            raise ValueError

    @mail.handler("orders")
    async def write(job: Job) -> None: ...

    wheelq.add(billing, mail)
    wheelq.client.schedule("orders", delay=1, key="k")
    wheelq.advance(hours=1)
    wheelq.assert_ran("orders", "k", group="billing", times=2)
    wheelq.assert_ran("orders", "k", group="mail", times=1)
    wheelq.assert_nothing_waits()


def test_a_worker_of_the_program_under_test_is_used_wherever_it_is_connected_to(wheelq: WheelqTest) -> None:
    """Its handlers, hooks and lifespans; nothing is sent to its own server."""
    worker = Worker.connect("redis://nowhere.invalid:1", group="shop")
    story: list[str] = []

    @worker.lifespan
    def database() -> Iterator[str]:
        story.append("connect")
        yield "database"
        story.append("disconnect")

    @worker.before
    def before(job: Job) -> None:
        story.append("before")

    @worker.handler("orders")
    async def handle(job: Job) -> None:
        story.append(f"handle, with {database.value}")

    wheelq.add(worker)
    wheelq.client.schedule("orders", delay=1)
    wheelq.advance(1)
    assert story == ["connect", "before", "handle, with database", "disconnect"]


def test_each_worker_has_its_own_resources_of_a_router(wheelq: WheelqTest) -> None:
    """As real ones have: both got those of the last one."""
    router, opened, used = Router(), list[str](), list[str]()

    @router.lifespan
    def database() -> Iterator[str]:
        opened.append(name := f"database {len(opened) + 1}")
        yield name

    @router.handler("orders")
    async def handle(job: Job) -> None:
        used.append(database.value)

    @router.handler("plain")
    def handle_in_a_thread(job: Job) -> None:
        used.append(database.value)

    workers = [Worker.connect(group=group) for group in ("billing", "mail")]
    for worker in workers:
        worker.include(router)
    wheelq.add(*workers)
    for topic in ("orders", "plain"):
        wheelq.client.schedule(topic, delay=1)
        wheelq.advance(1)
        assert sorted(used) == opened
        used.clear()
        opened.clear()


def test_a_batch_is_gathered_for_as_long_as_a_real_worker_gathers_it(wheelq: WheelqTest) -> None:
    batches: list[list[float]] = []
    start = wheelq.now

    @wheelq.worker.batch_handler("rows", max_size=3, max_wait=10)
    async def store(jobs: list[Job]) -> None:
        batches.append([(wheelq.now - start).total_seconds(), *(job.payload for job in jobs)])

    for n in range(8):
        wheelq.client.schedule("rows", n, delay=60 + n)
    wheelq.advance(66.5)
    assert batches == [[62, 0, 1, 2], [65, 3, 4, 5], [66.5, 6]]
    wheelq.advance(60)
    assert batches[3:] == [[77, 7]]


def test_batch_handlers_get_what_is_due_together(wheelq: WheelqTest) -> None:
    sizes: list[int] = []

    @wheelq.worker.batch_handler("rows", max_size=4, max_wait=3600, retry=Retry(max_attempts=2))
    async def insert(jobs: list[Job]) -> list[Exception | None]:
        sizes.append(len(jobs))
        return [ValueError("bad row") if job.payload == 9 and job.attempt == 1 else None for job in jobs]

    wheelq.client.schedule_many("rows", [JobSpec(n, delay=60) for n in range(10)])
    wheelq.advance(60)
    assert sizes == [4, 4, 2]
    assert [run.job.payload for run in wheelq.runs if run.error] == [9]
    wheelq.advance(hours=1)
    assert sizes == [4, 4, 2, 1]
    wheelq.assert_nothing_waits()


@pytest.mark.parametrize("result", [[ValueError("one of many"), 1], [ValueError("the only one")]])
def test_a_single_handler_may_return_errors_as_its_result(wheelq: WheelqTest, result: list[object]) -> None:
    """As `asyncio.gather` with `return_exceptions=True` does; in the result of a batch handler they are failures."""
    wheelq.worker.handler("orders", retry=Retry(max_attempts=1))(lambda job: result)
    wheelq.client.schedule("orders", delay=1)
    wheelq.advance(1)
    assert [run.error for run in wheelq.assert_ran("orders")] == [None]
    assert wheelq.client.dead.list("orders").jobs == []


def test_handlers_for_each_topic_are_found(wheelq: WheelqTest) -> None:
    found = ["orders"]

    async def find() -> list[str]:
        return found

    worker = Worker.connect(group="each")
    worker.handler_for_each(find)(lambda job: found.append("mails"))
    wheelq.add(worker)
    for topic in ("orders", "mails"):
        wheelq.client.schedule(topic, delay=1)
    wheelq.advance(2)
    wheelq.assert_ran("orders", times=1)
    wheelq.assert_ran("mails", times=1)


def test_in_an_ordered_topic_a_retry_keeps_its_place_and_comes_as_time_passes(wheelq: WheelqTest) -> None:
    """It holds back what is behind it."""
    ran: list[tuple[int, int]] = []

    @wheelq.worker.handler("orders", ordered=True, retry=Retry(base=60, jitter=0))
    async def handle(job: Job) -> None:
        ran.append((job.payload, job.attempt))
        if job.payload == 2 and job.attempt < 3:
            raise ConnectionError

    wheelq.client.schedule_many("orders", [JobSpec(n, delay=n) for n in (1, 2, 3)])
    wheelq.advance(seconds=30)
    assert ran == [(1, 1), (2, 1)]
    wheelq.advance(minutes=2)
    assert ran == [(1, 1), (2, 1), (2, 2)]
    wheelq.advance(minutes=2)
    assert ran == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]


def test_plain_handlers_run_in_the_tests_own_thread_one_after_the_other(wheelq: WheelqTest) -> None:
    """So they see its database transaction, and their order is that of the due times."""
    seen: list[tuple[int, int]] = []

    @wheelq.worker.handler("orders")
    def handle(job: Job) -> None:
        seen.append((job.payload, threading.get_ident()))

    wheelq.client.schedule_many("orders", [JobSpec(n, delay=60) for n in range(20)])
    wheelq.advance(60)
    assert [n for n, _ in seen] == sorted(range(20), key=lambda n: [run.job.payload for run in wheelq.runs].index(n))
    assert {thread for _, thread in seen} == {threading.get_ident()}


def test_with_threads_plain_handlers_run_in_threads() -> None:
    seen: list[int] = []
    with WheelqTest(threads=True) as wheelq:

        @wheelq.worker.handler("orders")
        def handle(job: Job) -> None:
            Client.connect().schedule("more", delay=0)
            seen.append(threading.get_ident())

        @wheelq.worker.handler("more")
        def handle_more(job: Job) -> None: ...

        wheelq.client.schedule("orders", delay=60)
        wheelq.advance(60)
        wheelq.assert_ran("more", times=1)
    assert seen
    assert threading.get_ident() not in seen


def test_a_topic_of_several_shards_is_promoted_whole() -> None:
    with WheelqTest(settings=Settings(topic=TopicSettings(shards=5))) as wheelq:

        @wheelq.worker.handler("orders")
        async def handle(job: Job) -> None: ...

        wheelq.client.schedule_many("orders", [JobSpec(n, delay=n) for n in range(50)])
        assert [job.payload for job in wheelq.waiting()] == list(range(1, 50))
        wheelq.advance(49)
        assert [run.job.payload for run in wheelq.runs] == list(range(50))


# asserts


def test_asserts_show_what_there_is_instead(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("orders")
    async def handle(job: Job) -> None: ...

    wheelq.client.schedule("orders", {"id": 1}, delay=60, key="a")
    waits = r"'a' due in 60 s \(.*\): \{'id': 1\}"
    with pytest.raises(AssertionError, match=f"no such job waits in 'orders', key 'b'\nwaiting:\n  orders {waits}"):
        wheelq.assert_scheduled("orders", "b")
    with pytest.raises(AssertionError, match="due in 120"):
        wheelq.assert_scheduled("orders", "a", due_in=120)
    with pytest.raises(AssertionError, match=waits):
        wheelq.assert_not_scheduled("orders", payload={"id": 1})
    with pytest.raises(AssertionError, match=waits):
        wheelq.assert_nothing_waits()
    with pytest.raises(AssertionError, match="'orders', key 'a' ran never\nruns: nothing"):
        wheelq.assert_ran("orders", "a")
    wheelq.advance(60)
    with pytest.raises(AssertionError, match=r"ran 1 time, not 2\nruns:\n  orders 'a' at .* in group default"):
        wheelq.assert_ran("orders", "a", times=2)
    with pytest.raises(AssertionError, match="runs of 'orders':\n  orders 'a'"):
        wheelq.assert_not_ran("orders")


def test_a_job_that_no_worker_handles_is_told(wheelq: WheelqTest) -> None:
    wheelq.client.schedule("orders", delay=60)
    wheelq.advance(60)
    with pytest.raises(AssertionError, match=r"is the worker added\?\): \{'orders': 1\}"):
        wheelq.assert_nothing_waits()
    wheelq.assert_nothing_waits("other")


def test_the_kept_state_of_finished_jobs_does_not_count_as_waiting() -> None:
    """With retention the entries stay, for a replay; and a state can be looked up."""
    with WheelqTest(settings=Settings(topic=TopicSettings(retention_ms=86_400_000, keep_done_ms=86_400_000))) as wheelq:

        @wheelq.worker.handler("orders")
        async def handle(job: Job) -> str:
            return "closed"

        wheelq.client.schedule("orders", delay=60, key="k")
        wheelq.advance(60)
        wheelq.assert_nothing_waits()
        info = wheelq.client.get("orders", "k")
        assert info is not None
        assert (info.state, info.result, info.finished_ms) == (JobState.DONE, "closed", info.due_ms)
