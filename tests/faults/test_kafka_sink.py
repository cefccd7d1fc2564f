"""Jobs go on to Kafka while brokers and workers fail: none is lost, none loses an attempt, keys keep their order."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.kafka import PRODUCE, KafkaCluster
from tests.kafka import Sent, cluster_of_one, sent
from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Job, JobSpec, JobState, Retry, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.model.dead import Reason
from wheelq.sinks import KafkaSink

SOON = Retry(base=0.05, cap=0.2)
INVALID_RECORD = 87


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with cluster_of_one() as cluster:
        yield cluster


class Place:
    """A topic of jobs, its workers, and the Kafka topic of the same name."""

    def __init__(self, url: str, settings: Settings, topic: str, cluster: KafkaCluster, client: AsyncClient) -> None:
        self._url = url
        self._settings = settings
        self._cluster = cluster
        self._client = client
        self._topic = topic

    def worker(self, *, ordered: Any = None, timeout: float = 30, group: str = "kafka", to: str = "") -> Worker:
        """A worker that forwards: in batches, or in order."""
        sink = KafkaSink(self._cluster.servers, to or self._topic, timeout=timeout)
        worker = Worker.connect(self._url, group=group, settings=self._settings)
        if ordered is None:
            worker.batch_handler(self._topic, max_size=20, max_wait=0.01, concurrency=2, retry=SOON)(sink)
        else:
            worker.handler(self._topic, ordered=ordered, retry=SOON)(sink)
        return worker

    async def schedule(
        self, count: int, *, start: int = 0, keys: int = 0, apart_s: float = 0.001, **options: Any
    ) -> list[str]:
        """Jobs that are due now, one after the other; returns their ids."""
        specs = [
            JobSpec(n, delay=apart_s * n, key=f"job-{n}", partition_key=f"key-{n % keys}" if keys else None, **options)
            for n in range(start, start + count)
        ]
        await self._client.schedule_many(self._topic, specs)
        return [str(spec.key) for spec in specs]

    async def sent(self, at_least: int, to: str = "") -> list[Sent]:
        return await sent(self._cluster.servers, to or self._topic, at_least)

    async def states(self) -> Counter[str]:
        [info] = [info for info in await self._client.topics() if info.name == self._topic]
        live = {"waiting": info.waiting, "ready": info.ready, "running": info.running, "retrying": info.retrying}
        return +Counter(live | {"dead": info.dead})

    async def are(self, **states: int) -> None:
        """Wait until so many jobs are in these states, and none in another."""

        async def is_so() -> bool:
            return await self.states() == Counter(states)

        await until(is_so)

    async def some_are(self, state: str) -> None:
        async def is_so() -> bool:
            return (await self.states())[state] > 0

        await until(is_so)


@pytest.fixture
def place(
    url: str, settings: Settings, topic: str, cluster: KafkaCluster, aclient: AsyncClient, scheduler: Scheduler
) -> Place:
    return Place(url, settings, topic, cluster, aclient)


# Batches


async def test_each_job_becomes_one_message_and_is_done(place: Place) -> None:
    ids = await place.schedule(300)
    async with running(place.worker(), place.worker()):
        found = await place.sent(300)
        await place.are()
    assert sorted(one.job for one in found) == sorted(ids)


async def test_each_group_sends_each_job(place: Place, topic: str) -> None:
    ids = await place.schedule(50)
    async with running(place.worker(), place.worker(group="audit", to=f"{topic}-audit")):
        found = [await place.sent(50), await place.sent(50, f"{topic}-audit")]
        await place.are()
    assert [sorted(one.job for one in some) for some in found] == [sorted(ids)] * 2


async def test_a_message_that_the_broker_refuses_buries_its_own_job_only(
    place: Place, cluster: KafkaCluster, aclient: AsyncClient, topic: str
) -> None:
    """The first request is refused, with all its messages; of those sent alone, the first and the second are."""
    cluster.make_topic(topic, 1)
    await place.schedule(20, apart_s=0)
    await place.are(ready=20)  # and so become one batch
    cluster.refuse(PRODUCE, INVALID_RECORD, INVALID_RECORD, INVALID_RECORD)
    async with running(place.worker()):
        found = await sent(cluster.servers, topic, 18, 1)
        await place.are(dead=2)
        dead = (await aclient.dead.list(topic)).jobs
        assert {one.reason for one in dead} == {Reason.GIVEN_UP}
        assert "Kafka refuses the message" in (dead[0].error or "")
        assert len(found) == 18
        await aclient.dead.replay(topic, all=True)
        again = await sent(cluster.servers, topic, 20, 1)
        await place.are()
    assert Counter(one.job for one in again) == Counter(f"job-{n}" for n in range(20))


# Brokers that are away


async def test_a_broker_away_for_longer_than_the_timeout_costs_no_attempt(
    place: Place, cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs with a single attempt go back to Redis, again and again, and arrive when the broker is back."""
    caplog.set_level("INFO")
    ids = await place.schedule(100, attempts=1)
    handed_back: list[str] = []
    worker = place.worker(timeout=1)

    @worker.on_error
    def failed(job: Job, error: Exception) -> None:
        handed_back.append(job.id)

    async with running(worker):
        cluster.go()
        await place.schedule(1, start=100, attempts=1)
        ids.append("job-100")
        await place.some_are("retrying")
        cluster.come_back()
        found = await place.sent(101)
        await place.are()
    assert set(ids) == {one.job for one in found}
    assert {one.attempt for one in found} == {"1"}
    assert handed_back == []  # it is no failure
    assert worker.failed == 0
    assert [one for one in caplog.records if "asks to run again" in one.getMessage()] == []


async def test_a_job_that_expires_while_the_broker_is_away_is_buried_and_never_sent(
    place: Place, cluster: KafkaCluster, aclient: AsyncClient, topic: str
) -> None:
    async with running(place.worker(timeout=1)):
        with cluster.away():
            await place.schedule(5, expires=timedelta(seconds=1))
            await place.are(dead=5)
        assert {one.reason for one in (await aclient.dead.list(topic)).jobs} == {Reason.EXPIRED}
        await place.schedule(1, start=5)
        assert [one.job for one in await place.sent(1)] == ["job-5"]


async def test_a_job_is_not_done_before_a_slow_broker_has_confirmed(
    place: Place, cluster: KafkaCluster, aclient: AsyncClient, topic: str
) -> None:
    cluster.slow_down(1_500)
    async with running(place.worker()):
        await place.schedule(1)
        await place.are(running=1)
        info = await aclient.get(topic, "job-0")
        assert info is not None
        assert info.state is JobState.RUNNING
        cluster.slow_down(0)
        await place.are()
    assert len(await place.sent(1)) == 1


# Order


@pytest.mark.parametrize("ordered", [True, "key"])
async def test_keys_keep_their_order_while_the_broker_restarts(
    place: Place, cluster: KafkaCluster, ordered: Any
) -> None:
    """It goes twice: for less than the timeout, and for so long that jobs are handed back."""
    await place.schedule(200, keys=5)
    worker = place.worker(ordered=ordered, timeout=1)
    in_flight: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()

    @worker.middleware
    async def counted(jobs: Any, proceed: Any) -> Any:
        [job] = jobs
        key = job.partition_key
        in_flight[key] += 1
        most[key] = max(most[key], in_flight[key])
        try:
            return await proceed()
        finally:
            in_flight[key] -= 1

    async with running(worker):
        for at, after_s in ((50, 0.1), (100, 2.5)):
            await until(lambda at=at: worker.handled >= at)  # type: ignore[misc]
            with cluster.away():
                await asyncio.sleep(after_s)
        found = await place.sent(200)
        await place.are()
    assert set(most.values()) == {1}
    by_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for one in found:
        number = int(one.job.removeprefix("job-"))
        if not by_key[one.key] or by_key[one.key][-1] != number:  # a confirmation may have been lost
            by_key[one.key].append(number)
    assert by_key == {f"key-{k}".encode(): list(range(k, 200, 5)) for k in range(5)}


# Workers that end


def is_queued() -> bool:
    """Whether a producer of this process has messages that are not confirmed."""
    return any(one.name == "wheelq-kafka" for one in threading.enumerate())


async def test_a_worker_that_stops_during_an_outage_hands_its_jobs_back_and_sends_none_later(
    place: Place, cluster: KafkaCluster
) -> None:
    """Its producer lives on in this process, and the broker comes back: each job arrives once, from another worker."""
    worker = place.worker()
    async with running(worker):
        await place.schedule(1)
        await until(lambda: worker.handled == 1 and not is_queued())
        cluster.go()
        await place.schedule(40, start=1)
        await until(is_queued)
        worker.stop(grace=0)
    cluster.come_back()
    async with running(place.worker()):
        await place.are()
        await until(lambda: not is_queued())
        found = await place.sent(41)
    assert Counter(one.job for one in found) == Counter(f"job-{n}" for n in range(41))


async def test_a_worker_that_stops_waits_for_confirmations(place: Place, cluster: KafkaCluster) -> None:
    cluster.slow_down(500)
    worker = place.worker()
    async with running(worker):
        await place.schedule(40)
        await place.some_are("running")
    assert worker.handled > 0
    assert worker.failed == 0
    assert len(await place.sent(worker.handled)) == worker.handled
    assert (await place.states()).total() == 40 - worker.handled


async def test_a_paused_topic_sends_nothing(place: Place, aclient: AsyncClient, topic: str) -> None:
    async with running(place.worker()):
        await place.schedule(1)
        await place.are()
        await aclient.pause(topic)
        await place.schedule(10, start=1)
        await place.are(waiting=10)
        await aclient.resume(topic)
        await place.are()
    assert len(await place.sent(11)) == 11


@pytest.mark.long
def test_workers_killed_while_they_send_and_a_broker_that_goes_lose_nothing(tmp_path: Path) -> None:
    from loadtest.kafka import Show

    with EmbeddedServer() as server:
        show = Show(server.url, tmp_path)
        try:
            found = show.run(3_000, rate=300, gone_s=2, kills=2, workers=2)
            assert found.is_exact, f"{found}\n{show.fleet.output()}"
            assert found.doubled <= 2 * 1_000, "no more than was in flight when a worker was killed"
        finally:
            show.close()
