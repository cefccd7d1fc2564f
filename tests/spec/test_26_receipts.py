"""26. Receipts: `wait` and `get` answer for the job of the receipt, also when other jobs have had its id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.spec.conftest import Inbox, Run
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobSpec, JobState, Receipt, Retry, Scheduler, Settings, Worker
from wheelq.base.clock import SystemClock
from wheelq.errors import JobFailed, JobNotFound, NotFinished
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import SchedulerSettings, TopicSettings
from wheelq.transport import Address, Transport

HOUR_MS = 3_600_000
UNKNOWN = (None, "not found")
WAITS = (("waiting", "second"), "not finished")
Told = tuple[tuple[str, Any] | None, Any]
"""State and payload by `get`; what `wait` returns or raises."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics keep finished jobs, and what was promoted, for an hour."""
    return replace(settings, topic=TopicSettings(keep_done_ms=HOUR_MS, retention_ms=HOUR_MS))


class Gate:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> object:
        await self.open.wait()
        return work(job)


def work(job: Job) -> str:
    """Fails if the payload says so, unless it is a replay."""
    if "fails" in str(job.payload) and not job.replays:
        raise RuntimeError(job.payload)
    return f"result of {job.payload}"


@pytest.fixture
def serve(url: str, settings: Settings, topic: str, run: Run) -> Callable[..., Worker]:
    """Starts a worker, which tries each job once."""

    def start(handler: Callable[[Job], object] = work, group: str = "g") -> Worker:
        worker = Worker.connect(url, group=group, settings=settings)
        worker.handler(topic, retry=Retry(max_attempts=1))(handler)
        run(worker)
        return worker

    return start


async def told(client: AsyncClient, topic: str | Receipt, id: str | None = None) -> Told:
    """What is told about a job now."""
    info = await client.get(topic, id)
    state = None if info is None else (info.state.value, info.payload)
    try:
        return state, await (client.wait(topic, timeout=0) if id is None else client.wait(topic, id, timeout=0))  # type: ignore[call-overload]
    except JobFailed as error:
        return state, ("failed", error.error)
    except JobNotFound:
        return state, "not found"
    except NotFinished:
        return state, "not finished"


def done(payload: str) -> Told:
    return ("done", payload), f"result of {payload}"


def dead(payload: str) -> Told:
    return ("dead", payload), ("failed", f"RuntimeError: {payload}")


async def ended(client: AsyncClient, topic: str, payload: str) -> Receipt:
    """Schedule job a, and wait for its end."""
    receipt = await client.schedule(topic, payload, delay=0, key="a")
    assert receipt.created
    with suppress(JobFailed):
        await client.wait(receipt, timeout=PATIENCE)
    await until(lambda: is_free(client, receipt))
    return receipt


async def is_free(client: AsyncClient, receipt: Receipt) -> bool:
    """Whether the job has ended in every group, so that its id is free."""
    info = await client.get(receipt)
    return info is not None and info.is_finished


# Two jobs of one id


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("first", "second", "by_first", "by_second", "by_id"),
    [
        ("first", "waits", done("first"), WAITS, WAITS),
        ("first fails", "waits", dead("first fails"), WAITS, WAITS),
        ("first", "is cancelled", done("first"), UNKNOWN, done("first")),
        ("first fails", "is cancelled", dead("first fails"), UNKNOWN, dead("first fails")),
        ("first", "is replaced", done("first"), UNKNOWN, (("waiting", "third"), "not finished")),
        ("first", "ends", UNKNOWN, done("second"), done("second")),
        ("first fails", "ends", dead("first fails"), done("second"), done("second")),
        ("first", "fails", done("first"), dead("second fails"), dead("second fails")),
        ("first fails", "fails", UNKNOWN, dead("second fails"), dead("second fails")),
    ],
)
async def test_each_receipt_tells_of_its_own_job(
    aclient: AsyncClient,
    topic: str,
    scheduler: Scheduler,
    serve: Callable[..., Worker],
    first: str,
    second: str,
    by_first: Told,
    by_second: Told,
    by_id: Told,
) -> None:
    """An id alone means the latest job. Of each id the last result is kept, and the last death in each group."""
    serve()
    receipt = await ended(aclient, topic, first)
    if second in ("ends", "fails"):
        other = await ended(aclient, topic, "second fails" if second == "fails" else "second")
    else:
        other = await aclient.schedule(topic, "second", delay=3600, key="a")
        if second == "is cancelled":
            await aclient.cancel(topic, "a")
        if second == "is replaced":
            latest = await aclient.schedule(topic, "third", delay=3600, key="a", on_duplicate="replace")
            assert await told(aclient, latest) == (("waiting", "third"), "not finished")
    assert await told(aclient, receipt) == by_first
    assert await told(aclient, other) == by_second
    assert await told(aclient, topic, "a") == by_id


async def test_who_waits_for_a_job_that_is_cancelled_does_not_get_the_result_of_the_one_before(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    serve()
    await ended(aclient, topic, "first")
    second = await aclient.schedule(topic, "second", delay=3600, key="a")
    waiting = asyncio.create_task(aclient.wait(second, timeout=PATIENCE))
    await asyncio.sleep(0.05)  # also right if it has not asked yet
    await aclient.cancel(topic, "a")
    with pytest.raises(JobNotFound):
        await waiting


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_the_receipt_of_a_kept_job_waits_for_the_live_one(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker], is_promoted: bool
) -> None:
    """Also after an earlier one has ended; jobs with the same payload are other jobs."""
    serve(gate := Gate())
    gate.open.set()
    await ended(aclient, topic, "same")
    gate.open.clear()
    first = await aclient.schedule(topic, "same", delay=0 if is_promoted else 3600, key="a")
    second = await aclient.schedule(topic, "same", delay=60, key="a")
    assert (first.created, second.created, second.life) == (True, False, first.life)
    assert await told(aclient, second) == await told(aclient, first)
    if not is_promoted:
        await aclient.run_now(topic, "a")
    gate.open.set()
    assert await aclient.wait(second, timeout=PATIENCE) == "result of same"
    third = await aclient.schedule(topic, "third", delay=3600, key="a")
    await aclient.cancel(topic, "a")
    assert await told(aclient, second) == done("same")
    assert await told(aclient, third) == UNKNOWN


async def test_a_replayed_job_is_the_job_of_its_receipt(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    serve()
    receipt = await ended(aclient, topic, "fails once")
    assert await told(aclient, receipt) == dead("fails once")
    await aclient.dead.replay(topic, id="a")
    await until(lambda: is_free(aclient, receipt))
    await until(lambda: has_result(aclient, receipt))
    assert await told(aclient, receipt) == done("fails once")
    second = await aclient.schedule(topic, "second", delay=3600, key="a")
    assert await told(aclient, receipt) == done("fails once")
    assert await told(aclient, second) == WAITS


async def has_result(client: AsyncClient, receipt: Receipt) -> bool:
    info = await client.get(receipt)
    return info is not None and info.state is JobState.DONE


@pytest.mark.parametrize("second_has_ended", [False, True])
async def test_a_rerun_tells_nothing_of_a_later_job(
    aclient: AsyncClient,
    topic: str,
    scheduler: Scheduler,
    serve: Callable[..., Worker],
    second_has_ended: bool,
) -> None:
    runs: list[object] = []

    def count(job: Job) -> str:
        runs.append(job.payload)
        return f"{work(job)}, run {runs.count(job.payload)}"

    serve(count)
    first = await ended(aclient, topic, "first")
    until_now = datetime.now(UTC)
    if second_has_ended:
        second = await ended(aclient, topic, "second")
    else:
        second = await aclient.schedule(topic, "second", delay=3600, key="a")
    of_second = await told(aclient, second)
    since = until_now - timedelta(hours=1)
    await aclient.rerun(topic, group="g", since=since)
    await until(lambda: runs.count("first") == 2)
    if second_has_ended:
        await until(lambda: runs.count("second") == 2)
    again = "second" if second_has_ended else "first"
    receipt = second if second_has_ended else first

    async def is_told() -> bool:
        return (await told(aclient, receipt))[1] == f"result of {again}, run 2"

    await until(is_told)
    if not second_has_ended:
        assert await told(aclient, second) == of_second


async def test_receipts_tell_of_their_jobs_in_several_groups(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """Job one fails in one group; job two is cancelled; job three is done in both."""
    serve(lambda job: f"mailed {job.payload}", group="mail")
    serve(work, group="work")

    async def both_are_there() -> bool:
        await aclient.schedule(topic, 0, delay=0, key="primer")
        info = await aclient.get(topic, "primer")
        return info is not None and len(info.groups) == 2

    await until(both_are_there)
    first = await ended(aclient, topic, "first fails")
    second = await aclient.schedule(topic, "second", delay=3600, key="a")
    await aclient.cancel(topic, "a")
    info = await aclient.get(first)
    assert info is not None
    assert {name: one.state for name, one in info.groups.items()} == {"mail": JobState.DONE, "work": JobState.DEAD}
    assert await aclient.wait(first, group="mail", timeout=0) == "mailed first fails"
    assert await told(aclient, second) == UNKNOWN
    third = await ended(aclient, topic, "third")
    info = await aclient.get(third)
    assert info is not None
    assert {name: one.result for name, one in info.groups.items()} == {
        "mail": "mailed third",
        "work": "result of third",
    }
    assert await told(aclient, first) == dead("first fails")
    assert await told(aclient, second) == UNKNOWN


async def test_nothing_is_known_of_a_job_that_is_no_longer_kept(
    url: str, aclient: AsyncClient, topic: str, settings: Settings, serve: Callable[..., Worker], run: Run
) -> None:
    run(Scheduler.connect(url, replace(settings, scheduler=SchedulerSettings(window_ms=200, idle_ms=1_000))))
    serve()
    await aclient.configure(topic, keep_done_ms=1)
    first = await aclient.schedule(topic, "first", delay=0, key="a")

    async def is_forgotten() -> bool:
        return await told(aclient, first) == UNKNOWN

    await until(is_forgotten)
    second = await aclient.schedule(topic, "second", delay=3600, key="a")
    assert await told(aclient, first) == UNKNOWN
    assert await told(aclient, second) == WAITS
    with pytest.raises(JobNotFound):
        await aclient.wait(first, timeout=PATIENCE)


# When a job was scheduled


class AnHourOff(SystemClock):
    """The clock of a machine that is an hour ahead."""

    def wall_ms(self) -> int:  # type: ignore[override]
        return SystemClock.wall_ms() + HOUR_MS


@pytest.fixture
def hasty(url: str, settings: Settings) -> Iterator[Client]:
    """A client on such a machine."""
    with Client(
        Transport(Address(url)), Keys(settings.prefix), settings.client, settings.topic, clock=AnHourOff()
    ) as client:
        yield client


@pytest.fixture
def server_ms(url: str) -> Iterator[Callable[[], int]]:
    transport = Transport(Address(url))
    yield lambda: transport.send(server_time_us()) // 1000
    transport.close()


@pytest.mark.every_server
async def test_a_job_knows_when_it_was_scheduled_by_the_servers_clock(
    hasty: Client,
    topic: str,
    scheduler: Scheduler,
    url: str,
    settings: Settings,
    run: Run,
    inbox: Inbox,
    server_ms: Callable[[], int],
) -> None:
    """In its handler, also in a retry, and by `get`, while it waits and after its end."""
    worker = Worker.connect(url, group="g", settings=settings)

    @worker.handler(topic, retry=Retry(max_attempts=2, base=0.01))
    async def handle(job: Job) -> None:
        inbox.put(job)
        if job.attempt == 1:
            raise RuntimeError("not yet")

    before = server_ms()
    receipts = [
        hasty.schedule(topic, delay=3600, key="a"),
        hasty.schedule(topic, delay=0, priority="high"),
        *hasty.schedule_many(topic, [JobSpec(n, delay=0.1) for n in range(3)]),
    ]
    after = server_ms()

    def all_say() -> set[bool]:
        found = [hasty.get(receipt) for receipt in receipts]
        return {info is not None and before <= (info.scheduled_ms or 0) <= after for info in found}

    assert all_say() == {True}
    assert hasty.run_now(topic, "a") == "promoted"
    run(worker)
    jobs = await inbox.wait_for(2 * len(receipts))
    assert all(before <= job.scheduled_ms <= after for job in jobs)
    await until(lambda: all(info is not None and info.is_finished for info in map(hasty.get, receipts)))
    assert all_say() == {True}


async def test_an_occurrence_knows_when_it_was_scheduled(
    hasty: Client,
    topic: str,
    scheduler: Scheduler,
    make_worker: Callable[..., Worker],
    run: Run,
    inbox: Inbox,
    server_ms: Callable[[], int],
) -> None:
    """When its scheduler made it, or when it was triggered."""
    before = server_ms()
    hasty.recurring.put(topic, "tick", every=1)
    triggered = hasty.recurring.trigger(topic, "tick")
    assert triggered is not None
    info = hasty.get(triggered)
    assert info is not None
    assert before <= (info.scheduled_ms or 0) <= server_ms()
    run(make_worker())
    jobs = await inbox.wait_for(4)
    assert all(before <= job.scheduled_ms <= server_ms() for job in jobs)
    made = [job for job in jobs if job.id != triggered.id]
    assert len({job.scheduled_ms for job in made}) > 1
