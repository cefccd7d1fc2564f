"""19. The state of a job: times, worker, progress, result; and waiting for its end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from tests.faces import Face, both_faces
from tests.spec.conftest import Run, known
from tests.waiting import CLOCK_ERROR_MS, PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobInfo, JobState, Retry, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.errors import InvalidInput, JobFailed, JobNotFound, NotFinished, TopicNotFound
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, ConnectionSettings, Misfire, TopicSettings

HOUR_MS = 3_600_000


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Topics keep finished jobs for an hour."""
    return replace(settings, topic=TopicSettings(keep_done_ms=HOUR_MS, result_max_bytes=1_000))


Handler = Callable[[Job], object]


@pytest.fixture
def serve(url: str, settings: Settings, topic: str, run: Run) -> Callable[..., Worker]:
    """Starts a worker whose handler is given."""

    def start(handler: Handler, group: str = "g", retry: Retry | None = None) -> Worker:
        worker = Worker.connect(url, group=group, settings=settings)
        worker.handler(topic, retry=retry or Retry(max_attempts=2, base=0.01))(handler)
        run(worker)
        return worker

    return start


async def in_state(client: AsyncClient, topic: str, id: str, *states: JobState) -> JobInfo:
    """Wait until the job is in one of these; what is known of it then."""
    found: list[JobInfo] = []

    async def is_there() -> bool:
        info = await client.get(topic, id)
        found[:] = [info] if info else []
        return bool(found) and found[0].state in states

    await until(is_there)
    return found[0]


class Gate:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> object:
        await self.open.wait()
        return {"closed": job.payload}


# States


async def test_a_job_goes_from_waiting_over_running_to_done(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """With its times, the worker that has it, and what the handler returned."""
    worker = serve(gate := Gate())
    receipt = await aclient.schedule(topic, 42, delay=3600, key="a")
    info = known(await aclient.get(topic, "a"))
    assert (info.state, info.due_ms, info.attempt, info.groups) == (JobState.WAITING, receipt.due_ms, 1, {})
    assert info.scheduled_ms is not None
    assert abs(info.scheduled_ms - time.time() * 1000) < 10_000

    await aclient.reschedule(topic, "a", delay=0.2)
    info = await in_state(aclient, topic, "a", JobState.RUNNING)
    assert (info.worker, info.groups["g"].deliveries, info.payload) == (worker.name, 1, 42)
    assert info.promoted_ms is not None
    assert info.promoted_ms >= info.due_ms
    assert not info.is_finished

    gate.open.set()
    info = await in_state(aclient, topic, "a", JobState.DONE)
    assert (info.result, info.payload, info.attempt, info.worker) == ({"closed": 42}, 42, 1, worker.name)
    assert info.started_ms is not None
    assert info.finished_ms is not None
    assert info.due_ms <= info.promoted_ms <= info.started_ms <= info.finished_ms + CLOCK_ERROR_MS
    assert info.is_finished


async def test_a_made_id_tells_when_it_was_made(aclient: AsyncClient, topic: str) -> None:
    receipt = await aclient.schedule(topic, delay=60)
    info = known(await aclient.get(topic, receipt.id))
    assert info.scheduled_ms is not None
    assert abs(info.scheduled_ms - time.time() * 1000) < 10_000


async def test_a_promoted_job_that_no_worker_has_is_ready(aclient: AsyncClient, topic: str) -> None:
    receipt = await aclient.schedule(topic, delay=0)
    info = known(await aclient.get(topic, receipt.id))
    assert info.state is JobState.READY


async def test_a_failed_job_is_retrying_with_its_next_attempt(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    def fail(job: Job) -> None:
        raise RuntimeError("no such order")

    serve(fail, retry=Retry(base=600, cap=600))
    receipt = await aclient.schedule(topic, 1, delay=0)
    info = await in_state(aclient, topic, receipt.id, JobState.RETRYING)
    assert (info.attempt, info.payload) == (2, 1)
    assert info.due_ms > receipt.due_ms + 200_000


async def test_a_job_tells_its_attempts_when_on_which_worker_how_long_and_why_they_failed(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    fails = True

    async def handler(job: Job) -> object:
        if fails:
            raise TimeoutError(f"{job.attempt:02} {'é' * 300}")
        return "closed"

    worker = serve(handler, retry=Retry(max_attempts=99, base=0.01, cap=0.02))
    receipt = await aclient.schedule(topic, delay=0, key="a")

    async def has_failed_often() -> bool:
        info = await aclient.get(topic, "a")
        return info is not None and info.attempt > 11

    await until(has_failed_often)
    fails = False
    info = await in_state(aclient, topic, "a", JobState.DONE)
    *failed, last = info.attempts
    assert len(failed) == 9
    assert last.error is None
    assert {one.worker for one in info.attempts} == {worker.name}
    errors = [one.error or "" for one in failed]
    assert all(re.match("TimeoutError: [0-9]+ éé", error) for error in errors)
    assert errors == sorted(errors)
    assert all(len((one.error or "").encode()) <= 200 for one in failed)
    assert receipt.due_ms <= info.attempts[0].started_ms + CLOCK_ERROR_MS
    assert last.started_ms == info.started_ms
    assert info.finished_ms is not None
    assert last.duration_ms == max(0, info.finished_ms - last.started_ms)


async def test_a_job_that_is_given_up_tells_its_attempts_also_after_a_replay(
    scheduler: Scheduler, serve: Callable[..., Worker], aclient: AsyncClient, topic: str
) -> None:
    async def handler(job: Job) -> None:
        raise RuntimeError(f"attempt {job.attempt}, replay {job.replays}")

    serve(handler)
    await aclient.schedule(topic, delay=0, key="a")
    info = await in_state(aclient, topic, "a", JobState.DEAD)
    errors = [f"RuntimeError: attempt {n}, replay 0" for n in (1, 2)]
    assert [one.error for one in info.attempts] == errors
    await aclient.dead.replay(topic, id="a")

    async def is_dead_again() -> bool:
        found = await aclient.get(topic, "a")
        return found is not None and found.state is JobState.DEAD and found.replays == 1

    await until(is_dead_again)
    info = await in_state(aclient, topic, "a", JobState.DEAD)
    assert [one.error for one in info.attempts] == [*errors, *(f"RuntimeError: attempt {n}, replay 1" for n in (1, 2))]
    assert info.groups["g"].attempts == info.attempts


async def test_each_group_has_a_state_of_its_own(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """All in all the job is as far as the group that is least far."""
    slow = Gate()
    serve(lambda job: "fast", group="fast")
    serve(slow, group="slow")
    await until(lambda: both_groups_are_there(aclient, topic))
    await aclient.schedule(topic, 1, delay=0.1, key="a")

    async def fast_is_done() -> bool:
        info = await aclient.get(topic, "a")
        return info is not None and "fast" in info.groups and info.groups["fast"].state is JobState.DONE

    await until(fast_is_done)
    info = await in_state(aclient, topic, "a", JobState.RUNNING)
    assert {name: one.state for name, one in info.groups.items()} == {"fast": JobState.DONE, "slow": JobState.RUNNING}
    assert info.groups["fast"].result == "fast"
    slow.open.set()
    info = await in_state(aclient, topic, "a", JobState.DONE)
    assert {name: one.result for name, one in info.groups.items()} == {"fast": "fast", "slow": {"closed": 1}}


async def test_a_group_that_returns_nothing_has_no_say_in_the_result(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """Such as that of callbacks, which passes over jobs without a target."""
    answered = asyncio.Event()

    async def late(job: Job) -> None:
        await answered.wait()

    serve(lambda job: {"closed": 1}, group="shop")
    serve(late, group="late")
    await until(lambda: both_groups_are_there(aclient, topic))
    receipt = await aclient.schedule(topic, delay=0)
    assert await aclient.wait(receipt, group="shop") == {"closed": 1}
    answered.set()
    assert await aclient.wait(receipt, timeout=PATIENCE) == {"closed": 1}
    assert (await in_state(aclient, topic, receipt.id, JobState.DONE)).result == {"closed": 1}


async def both_groups_are_there(client: AsyncClient, topic: str) -> bool:
    await client.schedule(topic, 0, delay=0, key="primer")
    info = await client.get(topic, "primer")
    return info is not None and len(info.groups) == 2


# What is kept


@pytest.mark.parametrize("numbers", [(5,), (5, 1)], ids=["after one change", "after a change and back"])
async def test_a_finished_job_does_not_hide_a_later_one_with_its_id(
    aclient: AsyncClient,
    client: Client,
    topic: str,
    serve: Callable[..., Worker],
    scheduler: Scheduler,
    numbers: list[int],
) -> None:
    """The first ended where one number of shards had placed it; the later one is where another number placed it."""
    serve(lambda job: None)
    keys = [f"k{n}" for n in range(8)]
    for key in keys:
        await aclient.schedule(topic, "first", delay=0, key=key)
    for key in keys:
        await in_state(aclient, topic, key, JobState.DONE)  # from now on it knows the topic, with one shard
    client.set_shards(topic, numbers[0])
    for key in keys:
        client.schedule(topic, "later", delay=3600, key=key, on_duplicate="replace")
    for number in numbers[1:]:
        client.set_shards(topic, number)
    for key in keys:
        found = known(await aclient.get(topic, key))
        assert (found.state, found.payload) == (JobState.WAITING, "later")


async def test_without_keep_done_a_finished_job_is_forgotten_at_once(
    url: str, settings: Settings, topic: str, serve: Callable[..., Worker]
) -> None:
    settings = replace(settings, topic=TopicSettings())
    async with AsyncClient.connect(url, settings) as client:
        receipt = await client.schedule(topic, delay=0)
        serve(lambda job: "result")

        async def is_gone() -> bool:
            return await client.get(topic, receipt.id) is None

        await until(is_gone)
        with pytest.raises(InvalidInput, match="keep_done_ms"):
            await client.wait(topic, receipt.id)


async def test_a_result_is_kept_if_the_topic_keeps_jobs_when_its_job_is_acknowledged(
    url: str, settings: Settings, topic: str, run: Run
) -> None:
    """Whatever the topic said when the handler returned: the worker decides once."""
    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings())) as client:
        worker = Worker.connect(url, group="g", settings=settings)
        await client.configure(topic)

        @worker.handler(topic)
        async def handle(job: Job) -> str:
            asyncio.get_running_loop().call_soon(keep)
            return "result"

        def keep() -> None:  # the worker reads the topic again at this moment
            [shard] = worker._shards.shards
            shard.topic = replace(shard.topic, keep_done_ms=HOUR_MS)

        receipt = await client.schedule(topic, delay=0.5)
        run(Scheduler.connect(url, settings), worker)
        await until(lambda: worker.handled == 1)
        await client.configure(topic, keep_done_ms=HOUR_MS)
        assert await client.wait(receipt, timeout=PATIENCE) == "result"


async def test_a_result_that_is_too_large_or_no_payload_is_left_out(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    """The job is done all the same; the worker's log says why."""
    serve(lambda job: "x" * 2_000 if job.payload == "large" else object())
    for payload in ("large", "object"):
        receipt = await aclient.schedule(topic, payload, delay=0)
        assert await aclient.wait(topic, receipt.id, timeout=PATIENCE) is None
    assert "2,003 bytes packed, the limit is 1,000" in caplog.text
    assert "raise result_max_bytes" in caplog.text
    assert "a object cannot be sent" in caplog.text


async def test_a_schedule_call_repeated_after_the_job_ran_finds_it(
    url: str, settings: Settings, topic: str, serve: Callable[..., Worker]
) -> None:
    """The reply was lost, the job ran, and the client repeats the call: with `keep_done_ms` it does not run twice."""
    from tests.transports import BlockingWith, ReplyLost

    runs: list[str] = []
    serve(lambda job: runs.append(job.id))

    class RanMeanwhile(ReplyLost):
        def strike(self, call):  # type: ignore[no-untyped-def]
            [lost] = super().strike(call)

            def wait_and_lose(reply: object) -> None:
                deadline = time.monotonic() + PATIENCE
                while not runs and time.monotonic() < deadline:
                    time.sleep(0.01)
                with Client.connect(url, settings) as other:
                    other.wait(topic, "a", timeout=PATIENCE)
                lost.read(reply)

            return [replace(lost, read=wait_and_lose)]

    transport = BlockingWith(url, struck := RanMeanwhile("schedule"))
    client = Client(transport, Keys(settings.prefix), topic_settings=settings.topic)
    receipt = await asyncio.to_thread(client.schedule, topic, 1, delay=0, key="a")
    assert (struck.struck, receipt.created) == (1, True)
    await asyncio.sleep(0.1)
    assert runs == ["a"]


async def test_a_kept_job_does_not_hold_its_key(aclient: AsyncClient, topic: str, serve: Callable[..., Worker]) -> None:
    """A key is unique while its job is alive: another call with it makes a new job, which takes the old one's place."""
    serve(lambda job: job.payload)
    for n in (1, 2):
        assert (await aclient.schedule(topic, n, delay=0, key="a", on_duplicate="raise")).created
        assert await aclient.wait(topic, "a", timeout=PATIENCE) == n


# Progress


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_tells_its_progress(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], kind: str
) -> None:
    """The latest word is there within half a second or so, and gone with the job."""
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def handle(job: Job) -> str:
        for n in range(100):
            await job.progress(n / 100, f"page {n}")
        await go_on.wait()
        return "done"

    def handle_plainly(job: Job) -> str:
        for n in range(100):
            job.progress(n / 100, f"page {n}")
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(PATIENCE)
        return "done"

    serve(handle if kind == "async" else handle_plainly)
    await aclient.schedule(topic, delay=0, key="a")

    async def is_told() -> bool:
        info = await aclient.get(topic, "a")
        return info is not None and info.progress is not None and info.progress.text == "page 99"

    await until(is_told)
    info = known(await aclient.get(topic, "a"))
    assert info.progress is not None
    assert (info.progress.fraction, info.state) == (0.99, JobState.RUNNING)
    assert info.started_ms is not None
    go_on.set()
    assert await aclient.wait(topic, "a", timeout=PATIENCE) == "done"
    info = known(await aclient.get(topic, "a"))
    assert info.progress is None


def test_progress_is_a_fraction() -> None:
    job = Job("a", "orders", None, 0, 1, "0-1", 0.0)
    with pytest.raises(InvalidInput, match="fraction"):
        job.progress(40)
    job.progress(0.4)  # without a worker nobody is told


# Waiting


async def test_wait_returns_the_result_soon_after_the_end(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """Many can wait at the same time, and nobody asks again and again."""
    serve(lambda job: job.payload * 2)
    receipts = [await aclient.schedule(topic, n, delay=0.5) for n in range(20)]
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*(aclient.wait(topic, receipt.id) for receipt in receipts))
    assert results == [2 * n for n in range(20)]


async def test_the_blocking_client_waits_too(
    client: Client, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    serve(lambda job: "closed")
    receipt = client.schedule(topic, delay=0.3)
    assert await asyncio.to_thread(client.wait, topic, receipt.id, timeout=PATIENCE) == "closed"


@both_faces
async def test_other_calls_never_wait_until_a_wait_has_ended(
    face: Face, private_server: Callable[..., EmbeddedServer], topic: str
) -> None:
    """Waiting calls hold three of four connections at most, and take turns."""
    server = private_server(appendonly=False)
    settings = Settings(connection=ConnectionSettings(max_connections=4), topic=TopicSettings(keep_done_ms=HOUR_MS))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(20))
    with redis.Redis.from_url(server.url) as raw:

        def reads() -> int:
            return int(raw.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"])

        async with face.connect(server.url, settings) as client:
            receipts = [await client.schedule(topic, n, delay=3600) for n in range(12)]
            waiting = [asyncio.ensure_future(client.wait(receipt, timeout=PATIENCE)) for receipt in receipts]
            await until(lambda: raw.info("clients")["blocked_clients"] >= 3)
            before = reads()
            for _ in range(100):
                await client.schedule(topic, delay=3600)
                assert raw.info("clients")["blocked_clients"] <= 3
            assert reads() - before < 50
            for receipt in receipts:
                await client.cancel(topic, receipt.id)
            assert [type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)] == [JobNotFound] * 12


async def test_a_wait_without_a_place_ends_in_time(url: str, topic: str) -> None:
    """A client of a single connection keeps it for other calls; then a job's end is found by looking."""
    settings = Settings(connection=ConnectionSettings(max_connections=1), topic=TopicSettings(keep_done_ms=HOUR_MS))
    with Client.connect(url, settings) as client:
        client.schedule(topic, delay=3600, key="a")
        with pytest.raises(NotFinished):
            client.wait(topic, "a", timeout=0.1)
        waiting = asyncio.create_task(asyncio.to_thread(client.wait, topic, "a", timeout=PATIENCE))
        client.cancel(topic, "a")
        with pytest.raises(JobNotFound):
            await waiting


async def test_a_wait_keeps_its_connection_though_replies_may_not_take_long(url: str, topic: str) -> None:
    settings = Settings(
        connection=ConnectionSettings(reply_timeout_ms=2_000, max_connections=4),
        client=ClientSettings(replicated_timeout_ms=1_000),
        topic=TopicSettings(keep_done_ms=HOUR_MS),
    )
    with Client.connect(url, settings) as client, redis.Redis.from_url(url) as raw:
        receipt = client.schedule(topic, delay=3600)
        before = raw.info("stats")["total_connections_received"]
        with pytest.raises(NotFinished):
            client.wait(receipt, timeout=2.5)
        assert raw.info("stats")["total_connections_received"] == before


async def test_wait_gives_up_after_its_timeout(aclient: AsyncClient, topic: str) -> None:
    await aclient.schedule(topic, delay=60, key="a")
    with pytest.raises(NotFinished) as caught:
        await aclient.wait(topic, "a", timeout=0.1)
    assert caught.value.state == "waiting"
    assert isinstance(caught.value, TimeoutError)


async def test_a_wait_for_a_group_that_never_gets_the_job_says_so(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker]
) -> None:
    serve(lambda job: "done", group="a")
    receipt = await aclient.schedule(topic, delay=0)
    await aclient.wait(receipt, timeout=PATIENCE)
    with pytest.raises(NotFinished, match=r"is done after 0\.1 s of waiting; group 'b' has not got it"):
        await aclient.wait(receipt, timeout=0.1, group="b")


async def test_a_waiting_client_hears_that_the_job_was_cancelled(aclient: AsyncClient, topic: str) -> None:
    await aclient.schedule(topic, delay=60, key="a")
    waiting = asyncio.create_task(aclient.wait(topic, "a", timeout=PATIENCE))
    await asyncio.sleep(0.1)
    await aclient.cancel(topic, "a")
    with pytest.raises(JobNotFound, match="cancelled"):
        await waiting


async def test_a_group_that_finishes_an_earlier_job_late_leaves_the_result_of_the_present_one_alone(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker]
) -> None:
    """The first jobs of a topic reach a group that is made later, and meanwhile their ids may be taken again."""
    serve(lambda job: f"{job.payload} in a", group="a")
    receipts = []
    for payload in (1, 2):
        receipts.append(await aclient.schedule(topic, payload, delay=0, key="x"))
        assert await aclient.wait(receipts[-1], timeout=PATIENCE) == f"{payload} in a"
    late = serve(lambda job: f"{job.payload} in b", group="b")
    await until(lambda: late.handled == 2)
    assert await aclient.wait(receipts[1], group="b", timeout=PATIENCE) == "2 in b"
    groups = known(await aclient.get(receipts[1])).groups
    assert {name: group.result for name, group in groups.items()} == {"a": "2 in a", "b": "2 in b"}


@pytest.mark.parametrize("misfire", ["run", "skip"])
async def test_a_job_that_never_ran_is_not_done(
    aclient: AsyncClient, topic: str, serve: Callable[..., Worker], misfire: Misfire
) -> None:
    """It came too late, by its `expires` or its topic's grace: nothing is kept of it, and whoever waits is told."""
    await aclient.configure(topic, misfire=misfire, grace_ms=10)
    late = await aclient.schedule(topic, delay=0, expires=0.01 if misfire == "run" else None)
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(aclient.wait(late, timeout=PATIENCE))
    serve(lambda job: "ran")
    with pytest.raises(JobNotFound, match=r"too late \(expires, misfire\)"):
        await waiting
    assert await aclient.get(late) is None


async def test_there_is_no_waiting_for_what_is_not_known(aclient: AsyncClient, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await aclient.wait(topic, "a")
    await aclient.schedule(topic, delay=60)
    with pytest.raises(JobNotFound, match="never scheduled"):
        await aclient.wait(topic, "a")


async def test_the_end_in_one_group_that_is_no_longer_kept_is_no_result(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """The job is alive, because another group has not finished it. It was taken for one that returned None."""
    await aclient.configure(topic, keep_done_ms=HOUR_MS)
    await aclient.make_group(topic, "behind")
    serve(lambda job: "result", group="done")
    receipt = await aclient.schedule(topic, delay=0)
    assert await aclient.wait(receipt, group="done", timeout=PATIENCE) == "result"
    keys = Keys(settings.prefix).shard(topic, 0)
    with redis.Redis.from_url(url) as raw:
        raw.delete(keys.done, keys.ended)  # as after an hour
    with pytest.raises(JobNotFound):
        await aclient.wait(receipt, group="done", timeout=PATIENCE)


async def test_waiting_for_one_group_does_not_wait_for_the_others(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    slow = Gate()
    serve(lambda job: "fast", group="fast")
    serve(slow, group="slow")
    await until(lambda: both_groups_are_there(aclient, topic))
    await aclient.schedule(topic, 1, delay=0.1, key="a")
    assert await aclient.wait(topic, "a", group="fast", timeout=PATIENCE) == "fast"
    slow.open.set()
    assert await aclient.wait(topic, "a", group="slow", timeout=PATIENCE) == {"closed": 1}


async def test_waiting_for_a_buried_job_raises_its_failure(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, serve: Callable[..., Worker]
) -> None:
    """Which group, why, the last error; `get` shows the job as dead."""

    def fail(job: Job) -> None:
        raise RuntimeError("no such order")

    serve(fail)
    await aclient.schedule(topic, 7, delay=0, key="a")
    with pytest.raises(JobFailed, match="no such order") as caught:
        await aclient.wait(topic, "a", timeout=PATIENCE)
    assert (caught.value.group, caught.value.reason, caught.value.attempt) == ("g", "failed", 2)
    assert "RuntimeError" in caught.value.error
    info = known(await aclient.get(topic, "a"))
    assert (info.state, info.payload, info.attempt) == (JobState.DEAD, 7, 2)
    assert "no such order" in (info.last_error or "")
    assert info.finished_ms is not None
