"""The server goes away under producers: they fail fast and definitely, or keep their jobs in an outbox."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import wheelq
from tests.faces import Face, both_faces
from tests.found import ajob_of, job_of
from tests.transports import ALWAYS, BlockingWith, Fault, Refusing, ReplyLost, Unreachable
from tests.unit.test_outbox import in_a_fork
from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, CancelOutcome, Client, Continuation, JobSpec, Receipt, Settings
from wheelq.base.clock import ManualClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import (
    BundleNotFound,
    CircuitOpen,
    InvalidJob,
    OutboxFull,
    OutcomeUnknown,
    PartlyScheduled,
    ServerError,
    Unavailable,
)
from wheelq.model.job import OnDuplicate
from wheelq.producer.outbox.kept import Asked, Sending
from wheelq.producer.outbox.store import Outbox, OutboxInfo
from wheelq.protocol.call import Call, command
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings, OutboxSettings, TopicSettings
from wheelq.transport import Address, Transport

TOPIC = "orders"
QUICK = BreakerSettings(failures=3, failing_ms=50, open_ms=200, open_max_ms=400)


@pytest.fixture
def server(private_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    return private_server()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def outbox(path: Path) -> OutboxSettings:
    return OutboxSettings(path=str(path))


@pytest.fixture
def patient(path: Path) -> OutboxSettings:
    """An outbox that does not try again during the test."""
    return OutboxSettings(path=str(path), retry_ms=60_000)


@pytest.fixture
def client(server: EmbeddedServer, path: Path) -> Iterator[Client]:
    with Client.connect(server.url, Settings(breaker=QUICK), outbox=path) as client:
        yield client


def info(path: Path) -> int:
    return Outbox(OutboxSettings(path=str(path))).info().jobs


def wait_until_due(*receipts: Receipt) -> None:
    """A client that got its first answer late takes the server's clock to be later than it is, by as much."""
    assert eventually(lambda: time.time() * 1000 > max(receipt.due_ms for receipt in receipts))


def added(server: EmbeddedServer) -> list[str]:
    """The ids in the ready stream, in the order in which they came: each once per promotion."""
    with_ready = Transport(Address(server.url))
    ready = Keys().shard(TOPIC, 0).ready
    entries = with_ready.send(command("XRANGE", ready, "-", "+", read=list, key=ready))
    return [fields[1].decode() for _, fields in entries]


# The breaker


@both_faces
async def test_while_the_server_is_away_calls_soon_fail_at_once_and_say_for_how_long(
    server: EmbeddedServer, face: Face
) -> None:
    async with face.connect(server.url, Settings(breaker=QUICK)) as client:
        await client.schedule(TOPIC, delay=60)
        server.kill()
        failed = await why_it_fails(client, face)
        give_up = time.monotonic() + PATIENCE
        while not isinstance(failed, CircuitOpen) and time.monotonic() < give_up:
            failed = await why_it_fails(client, face)
        assert isinstance(failed, CircuitOpen)
        assert 0 < failed.retry_after <= 0.4
        server.start()
        await asyncio.sleep(failed.retry_after)
        await until(lambda: works(client))


async def why_it_fails(client: Any, face: Face) -> ServerError:
    """An asyncio client may learn of the end by the call that was under way, whose outcome is unknown."""
    with pytest.raises(Unavailable if face is Face.BLOCKING else ServerError) as caught:
        await client.schedule(TOPIC, delay=60)
    return caught.value


async def works(client: Any) -> bool:
    try:
        return bool((await client.schedule(TOPIC, delay=60)).created)
    except Unavailable:
        return False


@both_faces
async def test_an_answer_that_is_an_error_closes_the_breaker_too(server: EmbeddedServer, face: Face) -> None:
    """Else a caller whose calls all end so takes every probe, and the others are refused for ever."""
    async with face.connect(server.url, Settings(breaker=QUICK)) as client:
        await client.schedule(TOPIC, delay=60)
        server.kill()
        await until(lambda: is_open(client))
        server.start()

        async def is_answered() -> bool:
            try:
                await client.schedule_many(TOPIC, [JobSpec(delay=60)], bundle=f"{TOPIC}:unknown")
            except BundleNotFound:
                return True
            except ServerError:
                return False
            raise AssertionError("there is no such bundle")

        await until(is_answered)
        assert (await client.schedule(TOPIC, delay=60)).created


async def is_open(client: Any) -> bool:
    try:
        await client.schedule(TOPIC, delay=60)
    except ServerError as error:
        return isinstance(error, CircuitOpen)
    return False


def test_a_refusal_of_the_server_does_not_open_the_breaker(server: EmbeddedServer) -> None:
    transport = Transport(Address(server.url))
    ready = Keys().shard(TOPIC, 0).delayed
    transport.send(command("SET", ready, "in the way", read=bool, key=ready))
    with Client.connect(server.url, Settings(breaker=QUICK)) as client:
        over = time.monotonic() + 0.5
        while time.monotonic() < over:
            with pytest.raises(Exception, match="WRONGTYPE"):
                client.schedule(TOPIC, delay=60)


# The outbox


def test_jobs_scheduled_while_the_server_is_away_are_kept_and_delivered_in_order(
    client: Client, server: EmbeddedServer, path: Path
) -> None:
    assert not client.schedule(TOPIC, delay=0, key="before").in_outbox
    server.kill()
    receipts = [client.schedule(TOPIC, n, delay=0, key=f"job-{n}") for n in range(20)]
    receipts += client.schedule_many(TOPIC, [JobSpec(n, delay=0, key=f"job-{n}") for n in range(20, 1_500)])
    assert all(receipt.in_outbox and receipt.created for receipt in receipts)
    assert info(path) == 1_500
    wait_until_due(*receipts)
    server.start()
    assert eventually(lambda: info(path) == 0)
    assert added(server) == ["before", *(f"job-{n}" for n in range(1_500))]
    assert not client.schedule(TOPIC, delay=0, key="after").in_outbox


@pytest.mark.parametrize("on_duplicate", ["replace", "keep"])
def test_a_member_of_a_bundle_overtakes_no_kept_job_with_its_id(
    server: EmbeddedServer, patient: OutboxSettings, on_duplicate: OnDuplicate
) -> None:
    """Else the kept job, which was scheduled first, would replace the member, or take its place."""
    with Client.connect(server.url, Settings(breaker=QUICK, outbox=patient)) as client:
        client.schedule(TOPIC, delay=60)
        server.kill()
        assert client.schedule(TOPIC, "first", delay=60, key="a", on_duplicate=on_duplicate).in_outbox
        server.start()
        follow = Continuation("done", "all")
        members = [JobSpec("second", delay=60, key=key) for key in ("a", None)]

        def is_made() -> bool:
            try:
                return bool(client.schedule_many(TOPIC, members, on_duplicate=on_duplicate, then=follow))
            except Unavailable:
                return False

        assert eventually(is_made)
        assert job_of(client, TOPIC, "a").payload == ("second" if on_duplicate == "replace" else "first")


def test_a_due_time_is_kept_over_the_outage(client: Client, server: EmbeddedServer, path: Path) -> None:
    client.schedule(TOPIC, delay=0)
    server.kill()
    kept = client.schedule(TOPIC, {"id": 1}, delay=3_600, key="later", headers={"a": "b"})
    assert abs(kept.due_ms - time.time() * 1000 - 3_600_000) < 60_000
    server.start()
    assert eventually(lambda: info(path) == 0)
    found = job_of(client, TOPIC, "later")
    assert (found.due_ms, found.payload) == (kept.due_ms, {"id": 1})


def test_kept_jobs_survive_a_killed_producer(server: EmbeddedServer, path: Path) -> None:
    """Another process keeps jobs and is killed right after it was told so; the next producer delivers them."""
    program = (
        "import sys, time\n"
        "from wheelq import Client\n"
        "client = Client.connect(sys.argv[1], outbox=sys.argv[2])\n"
        "for n in range(50): client.schedule('orders', n, delay=0, key=f'job-{n}')\n"
        "print('kept', flush=True)\n"
        "time.sleep(60)\n"
    )
    url = server.url
    server.kill()
    child = subprocess.Popen([sys.executable, "-c", program, url, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "kept\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert info(path) == 50
    server.start()
    with Client.connect(url, outbox=path) as client:
        client.schedule(TOPIC, delay=0, key="next")
        assert eventually(lambda: info(path) == 0)
    assert added(server) == [*(f"job-{n}" for n in range(50)), "next"]


@both_faces
async def test_a_producer_delivers_what_a_former_one_kept_though_it_schedules_nothing(
    client: Client, server: EmbeddedServer, path: Path, face: Face
) -> None:
    server.kill()
    client.schedule(TOPIC, delay=60, key="left")
    client.close()
    server.start()
    async with face.connect(server.url, outbox=path) as other:
        await until(lambda: info(path) == 0)
        assert await other.get(TOPIC, "left") is not None


def test_a_producer_that_only_asks_for_a_kept_job_goes_on_to_deliver(
    client: Client, server: EmbeddedServer, path: Path
) -> None:
    """It has the file's lock from then on, so nobody else would."""
    with Client.connect(server.url, Settings(breaker=QUICK), outbox=path) as asking:
        server.kill()
        client.schedule(TOPIC, delay=60, key="kept")
        client.close()
        with pytest.raises(ServerError):
            asking.cancel(TOPIC, "kept")
        server.start()
        assert eventually(lambda: info(path) == 0)


class Late(Fault):
    """It is under way for long."""

    def __init__(self, name: str, may_arrive: threading.Event) -> None:
        super().__init__(name)
        self.is_under_way = threading.Event()
        self._may_arrive = may_arrive

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self.is_under_way.set()
        self._may_arrive.wait(PATIENCE)
        return [call]


def keep_aside(client: Client, specs: list[JobSpec]) -> None:
    """Put jobs into the client's outbox, as if the server were away."""

    client._driver.run(client._scheduling.aside(TOPIC, specs, "keep", Asked.now(client._clock)))


def test_a_job_that_is_cancelled_while_it_is_delivered_does_not_come_back(
    server: EmbeddedServer, outbox: OutboxSettings
) -> None:
    """To cancel it, it is delivered first; by then the delivery under way must have arrived."""
    may_arrive = threading.Event()
    late = Late("schedule", may_arrive)
    with Client(BlockingWith(server.url, late), outbox=outbox) as client:
        keep_aside(client, [JobSpec(delay=60, key="a")])
        assert late.is_under_way.wait(PATIENCE)
        threading.Timer(0.2, may_arrive.set).start()
        assert client.cancel(TOPIC, "a") is CancelOutcome.CANCELLED
    assert may_arrive.is_set()
    with Client.connect(server.url) as client:
        assert client.get(TOPIC, "a") is None


async def all_are_delivered(client: Any, outbox: OutboxSettings, jobs: int) -> None:
    """All that was kept is on the server, which has this many jobs."""
    await until(lambda: Outbox(outbox).is_empty)
    [found] = await client.topics()
    assert found.waiting == jobs


@both_faces
async def test_a_producer_that_dies_between_delivering_and_forgetting_does_not_deliver_twice(
    server: EmbeddedServer, outbox: OutboxSettings, path: Path, face: Face
) -> None:
    """The server has the jobs and the file does not know: delivered again, each is found there."""
    with Client(BlockingWith(server.url, Unreachable(times=ALWAYS)), outbox=outbox) as client:
        for n in range(10):
            client.schedule(TOPIC, n, delay=60, key=f"job-{n}")
    kept = Outbox(outbox)
    assert kept.try_to_deliver()
    with Client.connect(server.url) as dying:
        scheduling, run = dying._scheduling, dying._driver.run
        placed = run(scheduling.placement(TOPIC))
        run(scheduling.parcels(Sending(placed, kept.fix(TOPIC, placed))))
    kept.close()
    async with face.connect(server.url, outbox=path) as living:
        await all_are_delivered(living, outbox, 10)


def removal_breaks_off(url: str, topic: str) -> None:
    """The client that removes a topic dies half-way."""
    with Client(BlockingWith(url, Refusing("drop_shard"))) as dying:
        dying.schedule(topic, delay=60)
        with pytest.raises(ServerError):
            dying.remove_topic(topic, force=True)


@both_faces
async def test_a_topic_that_is_being_removed_holds_up_no_jobs_of_others(
    server: EmbeddedServer, outbox: OutboxSettings, face: Face
) -> None:
    removal_breaks_off(server.url, "going")
    async with face.connect(server.url, outbox=outbox.path) as client:
        assert (await client.schedule("going", delay=60, key="first")).in_outbox
        await client.schedule(TOPIC, delay=60, key="job")
        await until(lambda: Outbox(outbox).info().topics == {"going": 1})
        assert await client.cancel(TOPIC, "job") is CancelOutcome.CANCELLED
        with Client.connect(server.url) as other:
            other.remove_topic("going", force=True)
        await until(lambda: Outbox(outbox).is_empty)
        assert {info.name: info.waiting for info in await client.topics()} == {"going": 1, TOPIC: 0}


@both_faces
async def test_a_job_whose_reply_was_lost_goes_to_the_outbox_and_is_made_once(
    server: EmbeddedServer, outbox: OutboxSettings, face: Face
) -> None:
    async with face.struck(server.url, ReplyLost("schedule", times=2), outbox=outbox) as client:
        assert (await client.schedule(TOPIC, {"id": 1}, delay=60)).in_outbox
        await all_are_delivered(client, outbox, 1)


@both_faces
@pytest.mark.parametrize("fault", [Refusing, Unreachable, ReplyLost])
async def test_a_job_that_was_made_before_its_topic_could_be_registered_is_not_made_again(
    server: EmbeddedServer, patient: OutboxSettings, face: Face, fault: type[Fault]
) -> None:
    """The first job of a shard has its topic registered once more, in case the server has lost it meanwhile."""
    async with face.struck(server.url, fault("register_topic", after=1, times=2), outbox=patient) as client:
        receipt = await client.schedule(TOPIC, {"id": 1}, delay=60, key="k")
        with Client.connect(server.url) as other:
            assert other.cancel(TOPIC, receipt.id) == CancelOutcome.CANCELLED
            if receipt.in_outbox:
                await client.deliver_outbox()
            assert other.topic(TOPIC).waiting == 0


@both_faces
@pytest.mark.parametrize(("fault", "after"), [(Unreachable, 2), (ReplyLost, 1)])
async def test_a_bulk_call_that_loses_the_server_half_way_keeps_the_rest(
    server: EmbeddedServer, outbox: OutboxSettings, fault: type[Fault], after: int, face: Face
) -> None:
    async with face.struck(server.url, fault("schedule", after=after, times=2), outbox=outbox) as client:
        receipts = await client.schedule_many(TOPIC, (JobSpec(n, delay=60) for n in range(2_000)))
        assert len({receipt.id for receipt in receipts}) == 2_000
        assert fault is ReplyLost or 0 < sum(receipt.in_outbox for receipt in receipts) < 2_000
        await all_are_delivered(client, outbox, 2_000)


@both_faces
async def test_a_bad_job_among_many_is_named_and_what_came_before_it_is_kept(
    server: EmbeddedServer, outbox: OutboxSettings, face: Face
) -> None:
    specs = [JobSpec(n, delay=-1 if n == 700 else 60) for n in range(900)]
    async with face.struck(server.url, Unreachable("register_topic", times=1), outbox=outbox) as client:
        with pytest.raises(InvalidJob) as caught:
            await client.schedule_many(TOPIC, specs)
        assert (caught.value.place, caught.value.field) == (700, "jobs[700].delay")
        assert sorted(caught.value.receipts) == list(range(700))
        await all_are_delivered(client, outbox, 700)


def test_jobs_of_a_topic_nobody_has_used_are_kept_as_well(server: EmbeddedServer, path: Path) -> None:
    server.kill()
    with Client.connect(server.url, outbox=path) as client:
        assert client.schedule_many("unused", [JobSpec(delay=60)])[0].in_outbox


def test_jobs_of_a_parcel_that_a_full_topic_takes_run_once(server: EmbeddedServer, path: Path) -> None:
    """A job that is due at once needs no room: it runs, and is forgotten, while those beside it are refused."""
    settings = Settings(topic=TopicSettings(max_pending=1), outbox=OutboxSettings(path=str(path), retry_ms=10))
    seen = ReplyLost("schedule", times=0)
    with Client(BlockingWith(server.url, seen), topic_settings=settings.topic, outbox=settings.outbox) as client:
        client.schedule(TOPIC, delay=3_600)
        keep_aside(client, [JobSpec(delay=60, key="refused"), JobSpec(delay=0, key="runs")])
        assert eventually(lambda: "runs" in added(server))
        redis = Transport(Address(server.url))
        keys = Keys().shard(TOPIC, 0)
        redis.send(command("HDEL", keys.jobs, "runs", read=int, key=keys.jobs))  # as after its run
        rounds = seen.met
        assert eventually(lambda: seen.met > rounds + 3)
        assert added(server) == ["runs"]
        assert [job.id for job in Outbox(settings.outbox).jobs(10)] == ["refused"]


def test_asking_about_a_kept_job_delivers_it_first(client: Client, server: EmbeddedServer, path: Path) -> None:
    client.schedule(TOPIC, delay=60)
    server.kill()
    client.schedule(TOPIC, delay=60, key="kept")
    with pytest.raises(Unavailable):
        client.cancel(TOPIC, "kept")
    server.start()
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        try:
            assert client.cancel(TOPIC, "kept") == "cancelled"
            break
        except Unavailable:
            time.sleep(0.05)
    assert client.get(TOPIC, "kept") is None


def test_a_full_outbox_refuses_and_nothing_is_done(server: EmbeddedServer, path: Path) -> None:
    settings = Settings(outbox=OutboxSettings(path=str(path), max_jobs=3))
    server.kill()
    with Client.connect(server.url, settings) as client:
        for _ in range(3):
            assert client.schedule(TOPIC, delay=0).in_outbox
        with pytest.raises(OutboxFull, match="holds 3 jobs; its limit is 3"):
            client.schedule(TOPIC, delay=0)


def test_forked_producers_share_one_file(client: Client, server: EmbeddedServer, path: Path) -> None:
    client.schedule(TOPIC, delay=60)
    server.kill()
    client.schedule(TOPIC, delay=0, key="parent")

    def in_the_child() -> bool:
        return all(client.schedule(TOPIC, delay=0, key=f"{os.getpid()}-{n}").in_outbox for n in range(20))

    for _ in range(3):
        assert in_a_fork(in_the_child) == 0
    assert info(path) == 61
    wait_until_due(client.schedule(TOPIC, delay=0, key="last"))
    server.start()
    assert eventually(lambda: info(path) == 0)
    ids = added(server)
    assert sorted(ids) == sorted(set(ids))
    assert len(ids) == 62


async def test_an_asyncio_producer_keeps_and_delivers_as_well(server: EmbeddedServer, path: Path) -> None:
    async with AsyncClient.connect(server.url, Settings(breaker=QUICK), outbox=path) as client:
        assert not (await client.schedule(TOPIC, delay=0, key="before")).in_outbox
        server.kill()
        kept = await asyncio.gather(*(client.schedule(TOPIC, n, delay=0, key=f"job-{n}") for n in range(50)))
        kept += await client.schedule_many(TOPIC, [JobSpec(n, delay=0, key=f"many-{n}") for n in range(700)])
        assert all(receipt.in_outbox for receipt in kept)
        await asyncio.to_thread(wait_until_due, *kept)
        await asyncio.to_thread(server.start)
        assert await asyncio.to_thread(eventually, lambda: info(path) == 0)
        assert not (await client.schedule(TOPIC, delay=0, key="after")).in_outbox
    found = added(server)
    assert found[0] == "before"
    assert found[-1] == "after"
    assert sorted(found[1:-1]) == sorted(receipt.id for receipt in kept)


# An outbox that takes no more


FULL_DISK = "CREATE TRIGGER full_disk BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END"


@pytest.fixture
def stuck(client: Client, path: Path) -> Iterator[Outbox]:
    """The outbox, in which a job waits that another process should deliver; no more can be written."""
    other = Outbox(OutboxSettings(path=str(path)))
    assert other.try_to_deliver()
    keep_aside(client, [JobSpec("first", delay=60, key="waits")])
    with sqlite3.connect(path) as connection:
        connection.execute(FULL_DISK)
    yield other
    other.close()


@both_faces
async def test_when_no_more_can_be_kept_jobs_go_to_the_server(
    server: EmbeddedServer, path: Path, stuck: Outbox, face: Face
) -> None:
    async with face.connect(server.url, outbox=path) as client:
        receipts = [await client.schedule(TOPIC, delay=60)]
        receipts += await client.schedule_many(TOPIC, (JobSpec(n, delay=60) for n in range(900)))
        assert not any(receipt.in_outbox for receipt in receipts)
        assert len({receipt.id for receipt in receipts}) == 901
        [found] = await client.topics()
        assert found.waiting == 901


def test_a_bad_job_among_those_that_cannot_be_kept_is_named(client: Client, stuck: Outbox) -> None:
    with pytest.raises(InvalidJob) as caught:
        client.schedule_many(TOPIC, [JobSpec(n, delay=-1 if n == 700 else 60) for n in range(900)])
    assert (caught.value.place, sorted(caught.value.receipts)) == (700, list(range(500)))


def test_a_job_does_not_overtake_a_waiting_one_with_its_id(client: Client, stuck: Outbox) -> None:
    for schedule in (
        lambda: client.schedule(TOPIC, "second", delay=60, key="waits", on_duplicate="replace"),
        lambda: client.schedule_many(TOPIC, [JobSpec("second", delay=60, key="waits")], on_duplicate="replace"),
    ):
        with pytest.raises(Unavailable, match="cannot be written: disk full; and job 'waits' waits in the outbox"):
            schedule()
    stuck.close()
    assert client.schedule(TOPIC, "second", delay=60, key="waits", on_duplicate="replace").replaced
    found = job_of(client, TOPIC, "waits")
    assert found.payload == "second"


def test_when_no_more_can_be_kept_and_the_server_is_away_nothing_was_done(
    client: Client, server: EmbeddedServer, stuck: Outbox
) -> None:
    server.kill()
    with pytest.raises(Unavailable):
        client.schedule(TOPIC, delay=60)
    stuck.close()
    with pytest.raises(Unavailable, match="cannot be written: disk full"):
        client.schedule(TOPIC, delay=60, key="waits")


@both_faces
async def test_a_job_whose_reply_was_lost_and_that_cannot_be_kept_has_an_unknown_outcome(
    server: EmbeddedServer, outbox: OutboxSettings, path: Path, face: Face
) -> None:
    async with face.struck(server.url, ReplyLost("schedule", times=ALWAYS), outbox=outbox) as client:
        with sqlite3.connect(path) as connection:
            connection.execute(FULL_DISK)
        with pytest.raises(OutcomeUnknown, match=r"the server is away, and the outbox .*: disk full") as one:
            await client.schedule(TOPIC, delay=60, key="a")
        assert one.value.ids == ("a",)
        with pytest.raises(PartlyScheduled, match="disk full") as many:
            await client.schedule_many(TOPIC, [JobSpec(delay=60, key="b"), JobSpec(delay=60, key="c")])
        assert many.value.unknown == {0: "b", 1: "c"}


# Delays


class Silent(Fault):
    """Nobody answers, and it takes nine seconds to find that out."""

    def __init__(self, clock: ManualClock, *, after: int = 0) -> None:
        super().__init__(after=after, times=ALWAYS)
        self._clock = clock

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self._clock.advance(9)
        raise Unavailable("nobody answers")


async def schedule(client: Any, many: bool, delay: float, key: str | None = None) -> Receipt:
    """One job, by either call."""
    if many:
        return (await client.schedule_many(TOPIC, [JobSpec(delay=delay, key=key)]))[0]  # type: ignore[no-any-return]
    return await client.schedule(TOPIC, delay=delay, key=key)  # type: ignore[no-any-return]


one_or_many = pytest.mark.parametrize("many", [False, True], ids=["one", "many"])


@both_faces
@one_or_many
async def test_a_delay_counts_from_the_call_and_not_from_when_its_job_was_kept(
    server: EmbeddedServer, patient: OutboxSettings, clock: ManualClock, many: bool, face: Face
) -> None:
    now_ms = clock.wall_ms()
    async with face.struck(server.url, Silent(clock), clock=clock, outbox=patient) as client:
        kept = await schedule(client, many, 60)
        assert (kept.in_outbox, kept.due_ms) == (True, now_ms + 60_000)


def test_a_delay_that_an_iterator_yields_counts_from_when_its_job_was_kept(
    server: EmbeddedServer, patient: OutboxSettings, clock: ManualClock
) -> None:
    """It may have been asked for just now, and would run early."""
    now_ms = clock.wall_ms()
    with Client(BlockingWith(server.url, Silent(clock)), clock=clock, outbox=patient) as client:
        [yielded] = client.schedule_many(TOPIC, iter([JobSpec(delay=60)]))
        assert yielded.due_ms == now_ms + 69_000


def test_a_duplicate_says_nothing_about_the_servers_clock(client: Client, server: EmbeddedServer) -> None:
    """Its due time is that of the job which was there before."""
    for key, delay in (("soon", 5), ("late", 7_200)):
        client.schedule(TOPIC, 1, delay=delay, key=key)
        assert not client.schedule(TOPIC, 2, delay=3_600, key=key).created
    server.kill()
    asked_ms = time.time() * 1000
    kept = client.schedule(TOPIC, delay=3_600)
    assert kept.in_outbox
    assert abs(kept.due_ms - asked_ms - 3_600_000) < 60_000


@both_faces
@one_or_many
async def test_delays_are_counted_by_the_servers_clock_also_when_this_machines_is_wrong_and_is_stepped(
    server: EmbeddedServer, patient: OutboxSettings, clock: ManualClock, many: bool, face: Face
) -> None:
    fault = Unreachable("schedule", after=1, times=ALWAYS)
    async with face.struck(server.url, fault, clock=clock, outbox=patient) as client:
        before_ms = time.time() * 1000
        assert not (await schedule(client, many, 60)).in_outbox
        answered_ms = time.time() * 1000
        clock.step_wall(-7_200)
        kept = await schedule(client, many, 60)
        assert kept.in_outbox
        assert before_ms - 1 <= kept.due_ms - 60_000 <= answered_ms + 2


class Away(Fault):
    """The server is away until it `is_back`."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name, times=ALWAYS)
        self.is_back = False

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        if not self.is_back:
            raise Unavailable("nobody answers")
        return [call]


def check_due(due_ms: int, asked_after_ms: float, asked_before_ms: float) -> None:
    """A delay of an hour; it is late by what clocks may have drifted within a minute."""
    assert asked_after_ms - 1 <= due_ms - 3_600_000 <= asked_before_ms + 12 + 2


@both_faces
@pytest.mark.parametrize("wrong_s", [5 * 3_600, -5 * 3_600])
@pytest.mark.parametrize(("many", "by_another"), [(False, False), (True, False), (False, True)])
async def test_a_delay_is_right_though_the_machines_clock_is_wrong_and_the_server_first_answers_later(
    server: EmbeddedServer,
    patient: OutboxSettings,
    clock: ManualClock,
    wrong_s: int,
    many: bool,
    by_another: bool,
    face: Face,
) -> None:
    """Whether the same client delivers, or that of another process."""
    clock.step_wall(time.time() - clock.wall_ms() / 1000 + wrong_s)
    away = Away()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(face.struck(server.url, away, clock=clock, outbox=patient))
        assert (await schedule(first, many, 3_600, "a")).in_outbox
        delivering = first
        if by_another:
            await first.close()
        clock.advance(60)
        after_ms = time.time() * 1000 - 60_000
        if by_another:
            delivering = await stack.enter_async_context(face.struck(server.url, clock=clock, outbox=patient))
        away.is_back = True
        await delivering.deliver_outbox()
        before_ms = time.time() * 1000 - 60_000
        found = await ajob_of(delivering, TOPIC, "a")
        check_due(found.due_ms, after_ms, before_ms)


def test_a_date_needs_no_clock(server: EmbeddedServer, patient: OutboxSettings, clock: ManualClock) -> None:
    at = datetime.fromtimestamp(clock.wall_ms() // 1000 + 3_600, UTC)
    away, no_time = Away(), Away("TIME")
    with Client(BlockingWith(server.url, away, no_time), clock=clock, outbox=patient) as client:
        assert client.schedule(TOPIC, at=at, key="a").in_outbox
        away.is_back = True
        clock.advance(60)
        client.deliver_outbox()
        assert client.outbox_info() == OutboxInfo(0, 0, 0, None, {})
        found = job_of(client, TOPIC, "a")
        assert found.due_ms == at.timestamp() * 1000


# The command


def test_the_command_shows_what_waits_and_delivers_it(client: Client, server: EmbeddedServer, path: Path) -> None:
    url = server.url
    client.schedule(TOPIC, delay=60)
    server.kill()
    client.schedule(TOPIC, delay=3_600, key="kept")
    client.close()
    shown = wheelq("outbox", path)
    assert "1 job waits" in shown.out
    assert "kept" in shown.out
    said = wheelq("outbox", path, "--json").json
    assert (said["jobs"], said["topics"], said["next"][0]["id"]) == (1, {TOPIC: 1}, "kept")
    assert wheelq("outbox", path, "--deliver", url=url).code == 1
    server.start()
    assert "Nothing waits." in wheelq("outbox", path, "--deliver", url=url).out


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    assert "no outbox named" in wheelq("outbox").err
    assert f"there is no outbox at {tmp_path / 'none.db'}" in wheelq("outbox", tmp_path / "none.db").err
