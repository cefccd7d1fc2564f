"""9. Dead letters: jobs that were given up can be looked at, called back, and removed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.spec.conftest import Run, known
from tests.waiting import until
from wheelq import (
    AsyncClient,
    Bury,
    Client,
    DeadJob,
    Job,
    JobSpec,
    JobState,
    ReplayOutcome,
    Retry,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.errors import InvalidInput, TopicNotFound
from wheelq.settings import TopicSettings


class Broken:
    """A handler that fails until it is mended, and remembers its runs."""

    def __init__(self) -> None:
        self.runs: list[Job] = []
        self.is_mended = False

    async def __call__(self, job: Job) -> None:
        self.runs.append(job)
        if not self.is_mended:
            raise ValueError(f"no {job.id}")


Work = Callable[..., Broken]


@pytest.fixture
def work(url: str, settings: Settings, topic: str, run: Run, scheduler: Scheduler) -> Work:
    """Runs a worker of a group, whose handler is broken."""

    def start(group: str = "billing") -> Broken:
        broken = Broken()
        worker = Worker.connect(url, group=group, settings=settings)
        worker.handler(topic, retry=Retry(max_attempts=2, base=0.01))(broken)
        run(worker)
        return broken

    return start


async def dead(client: AsyncClient, topic: str, count: int) -> list[DeadJob]:
    """The dead jobs, once there are so many."""

    async def are_there() -> bool:
        return any(info.dead >= count for info in await client.topics() if info.name == topic)

    await until(are_there)
    return (await client.dead.list(topic, newest_first=False)).jobs


async def test_a_dead_job_tells_who_gave_it_up_and_why(aclient: AsyncClient, topic: str, work: Work) -> None:
    """With its payload, its headers, the last error in a line, the end of the traceback, attempts and times."""
    broken = work()
    receipt = await aclient.schedule(topic, {"id": 42}, delay=0, key="a", headers={"trace": "x"})
    [job] = await dead(aclient, topic, 1)
    assert (job.id, job.topic, job.group, job.reason) == ("a", topic, "billing", "failed")
    assert (job.payload, job.headers, job.attempt, job.replays) == ({"id": 42}, {"trace": "x"}, 2, 0)
    assert job.error == "ValueError: no a"
    assert job.traceback.startswith("Traceback")
    assert job.first_due_ms == receipt.due_ms <= job.due_ms == broken.runs[1].due_ms <= job.buried_ms
    assert await aclient.dead.show(topic, job.dead_id) == job


async def test_a_handler_can_give_a_job_up_at_once(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, scheduler: Scheduler
) -> None:
    """`raise Bury(...)`: no further attempt."""

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        raise Bury("there is no such order")

    run(worker)
    await aclient.schedule(topic, delay=0)
    [job] = await dead(aclient, topic, 1)
    assert (job.reason, job.error, job.attempt) == ("given_up", "there is no such order", 1)


async def test_a_dead_job_that_is_replayed_starts_over(aclient: AsyncClient, topic: str, work: Work) -> None:
    """With the same id, payload and headers, from attempt 1, and the handler can see that it was dead."""
    broken = work()
    await aclient.schedule(topic, {"id": 42}, delay=0, key="a", headers={"trace": "x"})
    [job] = await dead(aclient, topic, 1)
    broken.is_mended = True
    assert await aclient.dead.replay_one(topic, job.dead_id) is ReplayOutcome.REPLAYED
    assert await aclient.dead.replay_one(topic, job.dead_id) is ReplayOutcome.NOT_FOUND
    await until(lambda: len(broken.runs) == 3)
    again = broken.runs[2]
    assert (again.id, again.payload, again.headers, again.attempt) == ("a", {"id": 42}, {"trace": "x"}, 1)
    assert (again.replays, again.last_error) == (1, "ValueError: no a")
    assert again.first_due_ms == job.first_due_ms

    async def is_done() -> bool:
        return await aclient.get(topic, "a") is None

    await until(is_done)
    assert (await aclient.dead.list(topic)).jobs == []


async def test_a_job_runs_again_only_in_the_group_that_gave_it_up(aclient: AsyncClient, topic: str, work: Work) -> None:
    billing, mail = work("billing"), work("mail")
    mail.is_mended = True
    await aclient.schedule(topic, delay=0, key="a")
    [job] = await dead(aclient, topic, 1)
    await until(lambda: len(mail.runs) == 1)
    billing.is_mended = True
    await aclient.dead.replay_one(topic, job.dead_id)
    await until(lambda: len(billing.runs) == 3)

    async def is_done() -> bool:
        return await aclient.get(topic, "a") is None

    await until(is_done)
    assert len(mail.runs) == 1


async def test_each_group_that_gave_a_job_up_has_a_dead_letter(aclient: AsyncClient, topic: str, work: Work) -> None:
    work("billing"), work("mail")
    await aclient.schedule(topic, delay=0, key="a")
    jobs = await dead(aclient, topic, 2)
    assert sorted((job.id, job.group) for job in jobs) == [("a", "billing"), ("a", "mail")]
    info = await aclient.topic(topic)
    assert (info.waiting, info.ready, info.running, info.retrying, info.dead) == (0, 0, 0, 0, 2)


async def test_while_it_waits_to_run_again_its_id_is_taken(aclient: AsyncClient, topic: str, work: Work) -> None:
    broken = work()
    await aclient.schedule(topic, delay=0, key="a")
    await aclient.schedule(topic, delay=0, key="b")
    await dead(aclient, topic, 2)
    broken.is_mended = True
    await aclient.dead.replay(topic, all=True, rate=0.01)  # the first is due now, the second in 100 s
    await until(lambda: len(broken.runs) == 5)
    waiting = ({"a", "b"} - {broken.runs[4].id}).pop()
    info = known(await aclient.get(topic, waiting))
    assert (info.state, info.replays, info.last_error) == (JobState.RETRYING, 1, f"ValueError: no {waiting}")
    assert not (await aclient.schedule(topic, delay=60, key=waiting)).created


async def test_a_dead_job_whose_id_has_a_new_life_stays_dead(aclient: AsyncClient, topic: str, work: Work) -> None:
    work()
    await aclient.schedule(topic, delay=0, key="a")
    [job] = await dead(aclient, topic, 1)
    await aclient.schedule(topic, delay=60, key="a")
    assert await aclient.dead.replay_one(topic, job.dead_id) is ReplayOutcome.ALIVE
    assert await aclient.dead.replay(topic, all=True) == (0, 1)
    assert await aclient.dead.show(topic, job.dead_id) == job


async def test_a_job_that_dies_again_is_not_replayed_by_the_same_call(
    aclient: AsyncClient, topic: str, work: Work
) -> None:
    """One call ends, whatever the handlers do meanwhile."""
    broken = work()
    await aclient.schedule_many(topic, [JobSpec(delay=0) for _ in range(300)])
    await dead(aclient, topic, 300)
    assert await aclient.dead.replay(topic, all=True) == (300, 0)
    await dead(aclient, topic, 300)
    assert len(broken.runs) == 1_200


@pytest.fixture
def sharded(url: str, settings: Settings) -> Client:
    """A client whose topics have three shards."""
    return Client.connect(url, Settings(prefix=settings.prefix, topic=TopicSettings(shards=3)))


@pytest.mark.parametrize("newest_first", [True, False])
async def test_pages_hold_all_dead_jobs_of_all_shards_once_in_order(
    sharded: Client, aclient: AsyncClient, topic: str, work: Work, newest_first: bool
) -> None:
    work()
    sharded.schedule_many(topic, [JobSpec(n, delay=0, key=f"job-{n}") for n in range(25)])
    await dead(aclient, topic, 25)
    found, cursor = [], None
    while True:
        page = sharded.dead.list(topic, limit=4, cursor=cursor, newest_first=newest_first)
        assert len(page.jobs) <= 4
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(job.payload for job in found) == list(range(25))
    assert [job.buried_ms for job in found] == sorted((job.buried_ms for job in found), reverse=newest_first)
    for job in found[:3]:
        assert sharded.dead.show(topic, job.dead_id) == job
    assert sharded.dead.purge(topic, all=True) == 25
    sharded.close()


async def test_dead_jobs_are_chosen_by_group_reason_id_and_time(aclient: AsyncClient, topic: str, work: Work) -> None:
    work("billing")
    work("mail")
    await aclient.schedule_many(topic, [JobSpec(delay=0, key="a"), JobSpec(delay=0, key="b")])
    jobs = await dead(aclient, topic, 4)

    async def chosen(**where: object) -> set[tuple[str, str]]:
        return {(job.id, job.group) for job in (await aclient.dead.list(topic, **where)).jobs}  # type: ignore[arg-type]

    assert await chosen(group="mail") == {("a", "mail"), ("b", "mail")}
    assert await chosen(id="a") == {("a", "mail"), ("a", "billing")}
    assert await chosen(reason="failed", id="b", group="billing") == {("b", "billing")}
    assert await chosen(reason="given_up") == set()
    assert await chosen(since=jobs[0].buried, until=jobs[-1].buried + timedelta(milliseconds=1)) == {
        (job.id, job.group) for job in jobs
    }
    assert await chosen(until=jobs[0].buried) == set()
    assert await aclient.dead.purge(topic, id="a") == 2
    assert await aclient.dead.replay(topic, group="mail") == (1, 0)


async def test_replaying_or_purging_everything_must_be_explicit(aclient: AsyncClient, topic: str, work: Work) -> None:
    """A filter that got lost on the way here must not remove every dead job, nor run every one again."""
    work()
    await aclient.schedule(topic, delay=0, key="a")
    await dead(aclient, topic, 1)
    with pytest.raises(InvalidInput, match=r"which dead jobs to purge, by a filter \(group, .*\), or all=True"):
        await aclient.dead.purge(topic)
    with pytest.raises(InvalidInput, match=r"which dead jobs to replay, .* all=True"):
        await aclient.dead.replay(topic, group=None, limit=5)
    assert len((await aclient.dead.list(topic)).jobs) == 1
    assert await aclient.dead.purge(topic, all=True) == 1


async def test_a_purged_job_is_gone(aclient: AsyncClient, topic: str, work: Work) -> None:
    work()
    await aclient.schedule(topic, delay=0)
    [job] = await dead(aclient, topic, 1)
    assert await aclient.dead.purge_one(topic, job.dead_id)
    assert not await aclient.dead.purge_one(topic, job.dead_id)
    assert await aclient.dead.show(topic, job.dead_id) is None


def test_a_topic_that_was_never_used_has_no_dead_jobs(client: Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        client.dead.list(topic)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("cursor", lambda dead, topic: dead.list(topic, cursor="next")),
        ("cursor", lambda dead, topic: dead.list(topic, cursor="0-0:0")),
        ("cursor", lambda dead, topic: dead.list(topic, cursor="99999999999999999999-0:0")),
        ("cursor", lambda dead, topic: dead.list(topic, cursor=f"{2**64 - 1}-{2**64 - 1}:0", newest_first=False)),
        ("cursor", lambda dead, topic: dead.list(topic, cursor="1763000000000.00~6b")),
        ("dead_id", lambda dead, topic: dead.show(topic, "1-99999999999999999999:0")),
        ("limit", lambda dead, topic: dead.list(topic, limit=0)),
        ("limit", lambda dead, topic: dead.replay(topic, all=True, limit=-1)),
        ("limit", lambda dead, topic: dead.replay(topic, all=True, limit=1.5)),
        ("limit", lambda dead, topic: dead.list(topic, limit=501)),
        ("since", lambda dead, topic: dead.list(topic, since=datetime(2030, 1, 1))),  # noqa: DTZ001
        ("dead_id", lambda dead, topic: dead.show(topic, "order-42")),
        ("rate", lambda dead, topic: dead.replay(topic, all=True, rate=0)),
        ("rate", lambda dead, topic: dead.replay(topic, all=True, rate="x")),
        ("all", lambda dead, topic: dead.replay(topic, all=True, id="a")),
        ("all", lambda dead, topic: dead.purge(topic, all=True, group="mail")),
        ("group", lambda dead, topic: dead.purge(topic, group="")),
    ],
)
def test_invalid_arguments_are_refused(client: Client, topic: str, field: str, call: Callable[..., object]) -> None:
    client.schedule(topic, delay=60)
    with pytest.raises(InvalidInput, match=field):
        call(client.dead, topic)


@pytest.mark.parametrize("cursor", ["next", "1763000000000-0:0", "1763000000000.00~6", 7])
def test_a_wrong_cursor_of_waiting_jobs_is_refused(client: Client, topic: str, cursor: object) -> None:
    client.schedule(topic, delay=60)
    with pytest.raises(InvalidInput, match="cursor"):
        client.waiting(topic, cursor=cursor)  # type: ignore[arg-type]


def test_a_missing_shard_holds_no_dead_job(client: Client, topic: str) -> None:
    client.schedule(topic, delay=60, at=None)
    assert client.dead.show(topic, "1763000000000-0:7") is None
    assert client.dead.replay_one(topic, "1763000000000-0:7") is ReplayOutcome.NOT_FOUND
    assert not client.dead.purge_one(topic, "1763000000000-0:7")
    assert client.dead.list(topic, until=datetime.now(UTC)) == ([], None)
