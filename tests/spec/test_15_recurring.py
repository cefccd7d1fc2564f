"""15. Recurring jobs: defined once, each occurrence made once, with any number of schedulers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.spec.conftest import Run
from tests.waiting import until
from wheelq import AsyncClient, CancelOutcome, Client, Job, RecurringOutcome, Scheduler, Settings, Worker
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.model.checks import check_id
from wheelq.model.job import from_ms

YEAR = timedelta(days=365)


def far_away() -> datetime:
    return datetime.now(UTC) + YEAR


class Seen:
    """A worker that notes what it was given."""

    def __init__(self, url: str, settings: Settings, topic: str) -> None:
        self.jobs: list[Job] = []
        self.worker = Worker.connect(url, settings=settings)

        @self.worker.handler(topic)
        async def note(job: Job) -> None:
            self.jobs.append(job)

    def ids(self, name: str) -> list[str]:
        return [job.id for job in self.jobs if job.id.startswith(name + "@")]


# Occurrences


async def test_every_occurrence_is_a_job_of_its_own_at_its_moment(
    url: str, settings: Settings, aclient: AsyncClient, scheduler: Scheduler, run: Run
) -> None:
    """Its id is the name, "@" and the moment in UTC; it starts within milliseconds of it, and never before."""
    seen = Seen(url, settings, "reports")
    await aclient.recurring.put("reports", "tick", {"kind": "sales"}, every=1, headers={"trace": "t1"})
    run(seen.worker)
    await until(lambda: len(seen.jobs) >= 3)
    for job in seen.jobs:
        moment = datetime.fromisoformat(job.id.removeprefix("tick@"))
        assert job.due == moment
        assert job.lateness >= 0
        assert (job.payload, job.headers) == ({"kind": "sales"}, {"trace": "t1"})


async def test_many_schedulers_make_each_occurrence_once(
    url: str, settings: Settings, aclient: AsyncClient, run: Run
) -> None:
    seen = Seen(url, settings, "reports")
    run(*(Scheduler.connect(url, settings) for _ in range(4)), seen.worker)
    for n in range(5):
        await aclient.recurring.put("reports", f"tick-{n}", cron="* * * * * *", tz="Europe/Berlin")
    await until(lambda: all(len(seen.ids(f"tick-{n}")) >= 3 for n in range(5)))
    counts = Counter(job.id for job in seen.jobs)
    assert set(counts.values()) == {1}


async def test_a_job_that_was_put_before_any_scheduler_ran_occurs_once_one_does(
    url: str, settings: Settings, aclient: AsyncClient, run: Run
) -> None:
    seen = Seen(url, settings, "reports")
    await aclient.recurring.put("reports", "tick", every=1)
    run(seen.worker, Scheduler.connect(url, settings))
    await until(lambda: len(seen.jobs) >= 2)


async def test_it_ends_with_its_end_and_stays_on_the_list(
    url: str, settings: Settings, aclient: AsyncClient, scheduler: Scheduler, run: Run
) -> None:
    seen = Seen(url, settings, "reports")
    end = datetime.now(UTC) + timedelta(seconds=5)
    await aclient.recurring.put("reports", "tick", every=1, end=end)
    await aclient.recurring.put("reports", "clock", every=1)
    run(seen.worker)
    await until(lambda: any(job.due > end + timedelta(seconds=1) for job in seen.jobs))
    assert all(datetime.fromisoformat(id.removeprefix("tick@")) <= end for id in seen.ids("tick"))
    assert seen.ids("tick")
    info = await aclient.recurring.get("reports", "tick")
    assert info is not None
    assert info.next is None
    assert info.last == datetime.fromisoformat(max(seen.ids("tick")).removeprefix("tick@"))


async def test_a_waiting_occurrence_can_be_looked_up_and_cancelled_by_its_id(
    aclient: AsyncClient, scheduler: Scheduler
) -> None:
    """Also in a topic of many shards. Only that one is cancelled; the next comes."""
    await aclient.schedule("reports", delay=3600)
    await aclient.set_shards("reports", 7)
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8)
    await aclient.recurring.put("reports", "nightly", every=3600, start=start)
    id = f"nightly@{start.isoformat().replace('+00:00', 'Z')}"

    async def is_made() -> bool:
        return await aclient.get("reports", id) is not None

    await until(is_made)
    assert await aclient.cancel("reports", id) is CancelOutcome.CANCELLED
    assert await aclient.get("reports", id) is None
    info = await aclient.recurring.get("reports", "nightly")
    assert info is not None


async def test_jobs_of_one_moment_go_in_the_order_of_priority(
    url: str, settings: Settings, aclient: AsyncClient, run: Run
) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    for priority in ("low", "high"):
        await aclient.recurring.put("reports", priority, every=3600, start=start, priority=priority)  # type: ignore[arg-type]
    found = await aclient.recurring.get("reports", "high")
    assert found is not None
    assert found.priority == "high"
    worker, ran = Worker.connect(url, concurrency=1, settings=settings), []

    @worker.handler("reports")
    async def work(job: Job) -> None:
        ran.append(job.id.partition("@")[0])

    run(worker, Scheduler.connect(url, settings))
    await until(lambda: "low" in ran)
    assert ran == ["high", "low"]


# Saying it again


def test_saying_the_same_again_changes_nothing(client: Client) -> None:
    """So a program may say what recurs each time it starts."""
    first = client.recurring.put("reports", "nightly", {"a": 1}, cron="0 2 * * *", tz="Europe/Berlin")
    again = client.recurring.put("reports", "nightly", {"a": 1}, cron="0 2 * * *", tz="Europe/Berlin")
    assert (first.outcome, again.outcome) == (RecurringOutcome.CREATED, RecurringOutcome.UNCHANGED)
    assert first.next == again.next
    assert first.next is not None
    assert first.next > datetime.now(UTC)


def test_a_recurring_job_cannot_expire_at_one_moment(client: Client, topic: str) -> None:
    """It was taken, and dropped every occurrence after that moment without a word."""
    with pytest.raises(InvalidInput, match="expires: must be seconds or a timedelta"):
        client.recurring.put("tick", topic, every=60, expires=datetime(2030, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]


def test_expires_is_part_of_a_recurring_job(client: Client) -> None:
    client.recurring.put("reports", "nightly", every=3600, expires=600)
    assert client.recurring.put("reports", "nightly", every=3600, expires=600).outcome is RecurringOutcome.UNCHANGED
    assert client.recurring.put("reports", "nightly", every=3600, expires=60).outcome is RecurringOutcome.UPDATED
    with pytest.raises(InvalidInput, match="priority: must be high"):
        client.recurring.put("reports", "nightly", every=3600, priority="urgent")  # type: ignore[arg-type]


def test_saying_it_differently_changes_it(client: Client) -> None:
    client.recurring.put("reports", "nightly", {"a": 1}, cron="0 2 * * *")
    changed = client.recurring.put("reports", "nightly", {"a": 2}, every=60, start=far_away())
    assert changed.outcome is RecurringOutcome.UPDATED
    [info] = client.recurring.list("reports")
    assert (info.payload, info.rule.cron, info.rule.every_ms, info.next) == ({"a": 2}, None, 60_000, changed.next)


async def test_an_occurrence_that_waits_follows_the_change(aclient: AsyncClient, scheduler: Scheduler) -> None:
    """It takes the new payload; with another time, it is made again for that."""
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=9)
    await aclient.recurring.put("reports", "once", "old", every=YEAR, start=soon)
    id = f"once@{soon.isoformat().replace('+00:00', 'Z')}"

    async def waits_with(payload: str | None) -> bool:
        job = await aclient.get("reports", id)
        return (None if job is None else job.payload) == payload

    await until(lambda: waits_with("old"))
    await aclient.recurring.put("reports", "once", "new", every=YEAR, start=soon)
    await until(lambda: waits_with("new"))
    await aclient.recurring.put("reports", "once", "new", every=YEAR, start=far_away())
    assert await waits_with(None)
    assert (await aclient.topics())[0].waiting == 0


# Pausing, triggering, removing


async def test_occurrences_wait_in_a_paused_topic_also_through_an_outage_of_all_schedulers(
    url: str, settings: Settings, aclient: AsyncClient, run: Run
) -> None:
    await aclient.configure("reports")
    await aclient.pause("reports")
    await aclient.recurring.put("reports", "tick", every=1)

    async def waiting() -> dict[str, datetime]:
        return {job.id: from_ms(job.due_ms) for job in (await aclient.jobs("reports", state="waiting")).jobs}

    async def are_late() -> bool:
        return sum(due < datetime.now(UTC) for due in (await waiting()).values()) >= 2

    first = Scheduler.connect(url, settings)
    served = run(first)
    await until(are_late)
    first.stop()
    await served
    before = await waiting()
    missed = max(before.values()) + timedelta(seconds=2)
    await until(lambda: datetime.now(UTC) > missed)
    run(Scheduler.connect(url, settings))

    async def goes_on() -> bool:
        return max((await waiting()).values()) > missed

    await until(goes_on)
    assert before.keys() <= (await waiting()).keys()


async def test_while_paused_it_does_not_occur(aclient: AsyncClient, scheduler: Scheduler) -> None:
    """An occurrence that waits is taken back. Putting it again does not end the pause."""
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=9)
    await aclient.recurring.put("reports", "nightly", every=3600, start=soon)

    async def waiting() -> int:
        return (await aclient.topics())[0].waiting

    async def one_waits() -> bool:
        return await waiting() == 1

    await until(one_waits)
    assert await aclient.recurring.pause("reports", "nightly") is RecurringOutcome.PAUSED
    assert await aclient.recurring.pause("reports", "nightly") is RecurringOutcome.UNCHANGED
    assert await waiting() == 0
    receipt = await aclient.recurring.put("reports", "nightly", "new", every=3600, start=soon)
    assert (receipt.outcome, receipt.next) == (RecurringOutcome.UPDATED, None)
    info = await aclient.recurring.get("reports", "nightly")
    assert info is not None
    assert (info.is_paused, info.next) == (True, None)
    assert await aclient.recurring.resume("reports", "nightly") is RecurringOutcome.RESUMED
    assert await aclient.recurring.resume("reports", "nightly") is RecurringOutcome.UNCHANGED
    await until(one_waits)


async def test_a_trigger_runs_it_once_at_once_besides_its_occurrences(
    url: str, settings: Settings, aclient: AsyncClient, run: Run
) -> None:
    """Also while it is paused."""
    seen = Seen(url, settings, "reports")
    run(seen.worker)
    await aclient.recurring.put("reports", "nightly", {"a": 1}, every=3600, start=far_away())
    await aclient.recurring.pause("reports", "nightly")
    receipts = [await aclient.recurring.trigger("reports", "nightly") for _ in range(2)]
    await until(lambda: len(seen.jobs) == 2)
    assert {receipt.id for receipt in receipts if receipt} == {job.id for job in seen.jobs}
    assert all(job.id.startswith("nightly@") and job.payload == {"a": 1} for job in seen.jobs)


def test_remove_forgets_it(client: Client) -> None:
    client.recurring.put("reports", "nightly", every=3600)
    assert client.recurring.remove("reports", "nightly") is RecurringOutcome.REMOVED
    assert client.recurring.get("reports", "nightly") is None
    assert client.recurring.list() == []


def test_a_missing_recurring_job_is_reported(client: Client) -> None:
    for operation in (client.recurring.pause, client.recurring.resume, client.recurring.remove):
        assert operation("reports", "nightly") is RecurringOutcome.NOT_FOUND
    assert client.recurring.trigger("reports", "nightly") is None
    assert client.recurring.get("reports", "nightly") is None
    assert client.recurring.list("reports") == []
    with pytest.raises(TopicNotFound):
        client.set_shards("reports", 2)


# Listing


def test_the_list_has_all_topics_by_topic_and_name(client: Client) -> None:
    for n in range(250):
        client.recurring.put("many", f"r{n:03}", n, every=3600)
    client.recurring.put("few", "only", cron="@daily")
    found = client.recurring.list()
    assert [(info.topic, info.name) for info in found] == [
        ("few", "only"),
        *(("many", f"r{n:03}") for n in range(250)),
    ]
    assert client.recurring.list("few") == found[:1]


# Mistakes


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, None])
def test_a_name_is_part_of_a_job_id(client: Client, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        client.recurring.put("reports", name, every=3600)
    assert refused.value.field == "name"


def test_the_longest_name_makes_ids_that_are_not_too_long(client: Client) -> None:
    name = "x" * 200
    client.recurring.put("reports", name, every=3600)
    receipt = client.recurring.trigger("reports", name)
    assert receipt is not None
    assert check_id(receipt.id)


def test_a_payload_is_checked_when_it_is_put(client: Client) -> None:
    with pytest.raises(InvalidInput, match="payload"):
        client.recurring.put("reports", "nightly", {1, 2}, every=3600)
    with pytest.raises(InvalidInput, match="cron: '61' is not a valid minute"):
        client.recurring.put("reports", "nightly", cron="61 * * * *")
    with pytest.raises(InvalidInput, match="did you mean Europe/Berlin"):
        client.recurring.put("reports", "nightly", cron="@daily", tz="Berlin")
    assert client.recurring.list() == []
