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
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import wheelq
from tests.transports import ALWAYS, AsyncWith, BlockingWith, Fault, ReplyLost, Unreachable
from tests.unit.test_outbox import in_a_fork
from tests.waiting import PATIENCE, eventually
from wheelq import AsyncClient, CancelOutcome, Client, JobSpec, Receipt, Settings
from wheelq.base.clock import ManualClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import CircuitOpen, InvalidJob, OutboxFull, OutcomeUnknown, PartlyScheduled, ServerError, Unavailable
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


def test_while_the_server_is_away_calls_soon_fail_at_once_and_say_for_how_long(server: EmbeddedServer) -> None:
    with Client.connect(server.url, Settings(breaker=QUICK)) as client:
        client.schedule(TOPIC, delay=60)
        server.kill()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with pytest.raises(Unavailable) as caught:
                client.schedule(TOPIC, delay=60)
            if isinstance(caught.value, CircuitOpen):
                break
        assert isinstance(caught.value, CircuitOpen)
        assert 0 < caught.value.retry_after <= 0.4
        server.start()
        time.sleep(caught.value.retry_after)
        assert eventually(lambda: _works(client))


def _works(client: Client) -> bool:
    try:
        return client.schedule(TOPIC, delay=60).created
    except Unavailable:
        return False


async def test_an_asyncio_client_fails_fast_as_well(server: EmbeddedServer) -> None:
    async with AsyncClient.connect(server.url, Settings(breaker=QUICK)) as client:
        await client.schedule(TOPIC, delay=60)
        server.kill()
        seen: set[type[Exception]] = set()
        until = time.monotonic() + PATIENCE
        while CircuitOpen not in seen and time.monotonic() < until:
            with pytest.raises(ServerError) as caught:
                await client.schedule(TOPIC, delay=60)
            seen.add(type(caught.value))
        assert CircuitOpen in seen


def test_a_refusal_of_the_server_does_not_open_the_breaker(server: EmbeddedServer) -> None:
    transport = Transport(Address(server.url))
    ready = Keys().shard(TOPIC, 0).delayed
    transport.send(command("SET", ready, "in the way", read=bool, key=ready))
    with Client.connect(server.url, Settings(breaker=QUICK)) as client:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
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


def test_a_due_time_is_kept_over_the_outage(client: Client, server: EmbeddedServer, path: Path) -> None:
    client.schedule(TOPIC, delay=0)
    server.kill()
    kept = client.schedule(TOPIC, {"id": 1}, delay=3_600, key="later", headers={"a": "b"})
    assert abs(kept.due_ms - time.time() * 1000 - 3_600_000) < 60_000
    server.start()
    assert eventually(lambda: info(path) == 0)
    found = client.get(TOPIC, "later")
    assert found is not None
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


def test_a_producer_delivers_what_a_former_one_kept_though_it_schedules_nothing(
    client: Client, server: EmbeddedServer, path: Path
) -> None:
    server.kill()
    client.schedule(TOPIC, delay=60, key="left")
    client.close()
    server.start()
    with Client.connect(server.url, outbox=path) as other:
        assert eventually(lambda: info(path) == 0)
        assert other.get(TOPIC, "left") is not None


async def test_an_asyncio_producer_delivers_what_a_former_one_kept_though_it_schedules_nothing(
    client: Client, server: EmbeddedServer, path: Path
) -> None:
    server.kill()
    client.schedule(TOPIC, delay=60, key="left")
    client.close()
    server.start()
    async with AsyncClient.connect(server.url, outbox=path) as other:
        assert await asyncio.to_thread(eventually, lambda: info(path) == 0)
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
    assert client._fallback is not None
    client._driver.run(client._fallback.aside(TOPIC, specs, "keep"))


def test_a_job_that_is_cancelled_while_it_is_delivered_does_not_come_back(server: EmbeddedServer, path: Path) -> None:
    """To cancel it, it is delivered first; by then the delivery under way must have arrived."""
    may_arrive = threading.Event()
    late = Late("schedule", may_arrive)
    with Client(BlockingWith(server.url, late), outbox=OutboxSettings(path=str(path))) as client:
        keep_aside(client, [JobSpec(delay=60, key="a")])
        assert late.is_under_way.wait(PATIENCE)
        threading.Timer(0.2, may_arrive.set).start()
        assert client.cancel(TOPIC, "a") is CancelOutcome.CANCELLED
    assert may_arrive.is_set()
    with Client.connect(server.url) as client:
        assert client.get(TOPIC, "a") is None


def test_a_producer_that_dies_between_delivering_and_forgetting_does_not_deliver_twice(
    server: EmbeddedServer, path: Path
) -> None:
    """The server has the jobs and the file does not know: delivered again, each is found there."""
    outbox = OutboxSettings(path=str(path))
    with Client(BlockingWith(server.url, Unreachable(times=ALWAYS)), outbox=outbox) as client:
        for n in range(10):
            client.schedule(TOPIC, n, delay=60, key=f"job-{n}")
    [parcel] = Outbox(outbox).parcels()
    with Client.connect(server.url) as dying:
        dying._deliver(parcel)
    with Client.connect(server.url, outbox=path) as client:
        assert eventually(lambda: Outbox(outbox).is_empty)
        [found] = client.topics()
        assert found.waiting == 10


def test_a_job_whose_reply_was_lost_goes_to_the_outbox_and_is_made_once(server: EmbeddedServer, path: Path) -> None:
    outbox = OutboxSettings(path=str(path))
    with Client(BlockingWith(server.url, ReplyLost("schedule", times=2)), outbox=outbox) as client:
        receipt = client.schedule(TOPIC, {"id": 1}, delay=60)
        assert receipt.in_outbox
        assert eventually(lambda: Outbox(outbox).is_empty)
        [found] = client.topics()
        assert found.waiting == 1


def test_a_bulk_call_that_loses_the_server_half_way_keeps_the_rest(server: EmbeddedServer, path: Path) -> None:
    outbox = OutboxSettings(path=str(path))
    fault = Unreachable("schedule", after=2, times=2)
    with Client(BlockingWith(server.url, fault), outbox=outbox) as client:
        receipts = client.schedule_many(TOPIC, (JobSpec(n, delay=60) for n in range(2_000)))
        assert len({receipt.id for receipt in receipts}) == 2_000
        assert 0 < sum(receipt.in_outbox for receipt in receipts) < 2_000
        assert eventually(lambda: Outbox(outbox).is_empty)
        [found] = client.topics()
        assert found.waiting == 2_000


def test_a_bad_job_among_many_is_named_and_what_came_before_it_is_kept(server: EmbeddedServer, path: Path) -> None:
    outbox = OutboxSettings(path=str(path))
    specs = [JobSpec(n, delay=-1 if n == 700 else 60) for n in range(900)]
    with Client(BlockingWith(server.url, Unreachable("register_topic", times=1)), outbox=outbox) as client:
        with pytest.raises(InvalidJob) as caught:
            client.schedule_many(TOPIC, specs)
        assert (caught.value.place, caught.value.field) == (700, "jobs[700].delay")
        assert sorted(caught.value.receipts) == list(range(700))
        assert eventually(lambda: Outbox(outbox).is_empty)
        [found] = client.topics()
        assert found.waiting == 700


def test_jobs_of_a_topic_nobody_has_used_are_kept_as_well(server: EmbeddedServer, path: Path) -> None:
    server.kill()
    with Client.connect(server.url, outbox=path) as client:
        assert client.schedule_many("unused", [JobSpec(delay=60)])[0].in_outbox


def test_jobs_of_a_parcel_that_a_full_topic_takes_run_once(server: EmbeddedServer, path: Path) -> None:
    """A job that is due at once needs no room: it runs, and is forgotten, while those beside it are refused."""
    settings = Settings(topic=TopicSettings(max_pending=1), outbox=OutboxSettings(path=str(path), retry_ms=10))
    with Client.connect(server.url, settings) as client:
        client.schedule(TOPIC, delay=3_600)
        keep_aside(client, [JobSpec(delay=60, key="refused"), JobSpec(delay=0, key="runs")])
        assert eventually(lambda: "runs" in added(server))
        redis = Transport(Address(server.url))
        keys = Keys().shard(TOPIC, 0)
        redis.send(command("HDEL", keys.jobs, "runs", read=int, key=keys.jobs))  # as after its run
        rounds = []
        assert client._outbox is not None
        deliver = client._outbox._deliver
        client._outbox._deliver = lambda parcel: rounds.append(parcel) or deliver(parcel)  # type: ignore[func-returns-value]
        assert eventually(lambda: len(rounds) > 3)
        assert added(server) == ["runs"]
        assert {job.id for parcel in list(rounds) for job in parcel.jobs} == {"refused"}


def test_asking_about_a_kept_job_delivers_it_first(client: Client, server: EmbeddedServer, path: Path) -> None:
    client.schedule(TOPIC, delay=60)
    server.kill()
    client.schedule(TOPIC, delay=60, key="kept")
    with pytest.raises(Unavailable):
        client.cancel(TOPIC, "kept")
    server.start()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
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


async def test_an_asyncio_bulk_call_that_loses_the_server_half_way_keeps_the_rest(
    server: EmbeddedServer, path: Path
) -> None:
    outbox = OutboxSettings(path=str(path))
    async with AsyncClient(AsyncWith(server.url, ReplyLost("schedule", after=1, times=2)), outbox=outbox) as client:
        receipts = await client.schedule_many(TOPIC, (JobSpec(n, delay=60) for n in range(2_000)))
        assert len({receipt.id for receipt in receipts}) == 2_000
        await client.deliver_outbox()
        [found] = await client.topics()
        assert found.waiting == 2_000


# An outbox that takes no more


@pytest.fixture
def stuck(client: Client, path: Path) -> Iterator[Outbox]:
    """The outbox, in which a job waits that another process should deliver; no more can be written."""
    other = Outbox(OutboxSettings(path=str(path)))
    assert other.try_to_deliver()
    keep_aside(client, [JobSpec("first", delay=60, key="waits")])
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER full_disk BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    yield other
    other.close()


def test_when_no_more_can_be_kept_jobs_go_to_the_server(client: Client, stuck: Outbox) -> None:
    receipts = [
        client.schedule(TOPIC, delay=60),
        *client.schedule_many(TOPIC, (JobSpec(n, delay=60) for n in range(900))),
    ]
    assert not any(receipt.in_outbox for receipt in receipts)
    assert len({receipt.id for receipt in receipts}) == 901
    [found] = client.topics()
    assert found.waiting == 901


async def test_when_no_more_can_be_kept_jobs_of_an_asyncio_client_go_to_the_server(
    server: EmbeddedServer, path: Path, stuck: Outbox
) -> None:
    async with AsyncClient.connect(server.url, outbox=path) as client:
        receipts = [await client.schedule(TOPIC, delay=60), *await client.schedule_many(TOPIC, [JobSpec(1, delay=60)])]
        assert not any(receipt.in_outbox for receipt in receipts)


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
    found = client.get(TOPIC, "waits")
    assert found is not None
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


def test_a_job_whose_reply_was_lost_and_that_cannot_be_kept_has_an_unknown_outcome(
    server: EmbeddedServer, path: Path
) -> None:
    outbox, lost = OutboxSettings(path=str(path)), ReplyLost("schedule", times=ALWAYS)
    with Client(BlockingWith(server.url, lost), outbox=outbox) as client:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        with pytest.raises(OutcomeUnknown, match=r"the server is away, and the outbox .*: disk full") as one:
            client.schedule(TOPIC, delay=60, key="a")
        assert one.value.ids == ("a",)
        with pytest.raises(PartlyScheduled, match="disk full") as many:
            client.schedule_many(TOPIC, [JobSpec(delay=60, key="b"), JobSpec(delay=60, key="c")])
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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_delay_counts_from_the_call_and_not_from_when_its_job_was_kept(
    server: EmbeddedServer, path: Path, clock: ManualClock
) -> None:
    now_ms, outbox = clock.wall_ms(), OutboxSettings(path=str(path), retry_ms=60_000)
    with Client(BlockingWith(server.url, Silent(clock)), clock=clock, outbox=outbox) as client:
        one = client.schedule(TOPIC, delay=60)
        assert (one.in_outbox, one.due_ms) == (True, now_ms + 60_000)


def test_delays_of_a_list_count_from_the_call_and_those_of_an_iterator_do_not(
    server: EmbeddedServer, path: Path, clock: ManualClock
) -> None:
    """What an iterator yields may have been asked for just now, and would run early."""
    now_ms, outbox = clock.wall_ms(), OutboxSettings(path=str(path), retry_ms=60_000)
    with Client(BlockingWith(server.url, Silent(clock)), clock=clock, outbox=outbox) as client:
        listed = client.schedule_many(TOPIC, [JobSpec(delay=60)] * 2)
        assert [receipt.due_ms for receipt in listed] == [now_ms + 60_000] * 2
    path.unlink()
    now_ms = clock.wall_ms()
    with Client(BlockingWith(server.url, Silent(clock)), clock=clock, outbox=outbox) as client:
        yielded = client.schedule_many(TOPIC, iter([JobSpec(delay=60)]))
        assert [receipt.due_ms for receipt in yielded] == [now_ms + 69_000]


@pytest.mark.parametrize("many", [False, True])
async def test_the_delays_of_an_asyncio_producer_count_from_the_call_as_well(
    server: EmbeddedServer, path: Path, clock: ManualClock, many: bool
) -> None:
    now_ms, outbox = clock.wall_ms(), OutboxSettings(path=str(path), retry_ms=60_000)
    async with AsyncClient(AsyncWith(server.url, Silent(clock)), clock=clock, outbox=outbox) as client:
        if many:
            [kept] = await client.schedule_many(TOPIC, [JobSpec(delay=60)])
        else:
            kept = await client.schedule(TOPIC, delay=60)
        assert (kept.in_outbox, kept.due_ms) == (True, now_ms + 60_000)


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


@pytest.mark.parametrize("many", [False, True])
def test_delays_are_counted_by_the_servers_clock_also_when_this_machines_is_wrong_and_is_stepped(
    server: EmbeddedServer, path: Path, clock: ManualClock, many: bool
) -> None:
    outbox, fault = OutboxSettings(path=str(path), retry_ms=60_000), Unreachable("schedule", after=1, times=ALWAYS)
    with Client(BlockingWith(server.url, fault), clock=clock, outbox=outbox) as client:

        def schedule() -> Receipt:
            return client.schedule_many(TOPIC, [JobSpec(delay=60)])[0] if many else client.schedule(TOPIC, delay=60)

        before_ms = time.time() * 1000
        assert not schedule().in_outbox
        answered_ms = time.time() * 1000
        clock.step_wall(-7_200)
        kept = schedule()
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


WRONG_S = (5 * 3_600, -5 * 3_600)


@pytest.mark.parametrize("wrong_s", WRONG_S)
@pytest.mark.parametrize(("many", "by_another"), [(False, False), (True, False), (False, True)])
def test_a_delay_is_right_though_the_machines_clock_is_wrong_and_the_server_first_answers_later(
    server: EmbeddedServer, path: Path, clock: ManualClock, wrong_s: int, many: bool, by_another: bool
) -> None:
    """Whether the same client delivers, or that of another process."""
    clock.step_wall(time.time() - clock.wall_ms() / 1000 + wrong_s)
    outbox, away = OutboxSettings(path=str(path), retry_ms=60_000), Away()
    with ExitStack() as stack:
        client = stack.enter_context(Client(BlockingWith(server.url, away), clock=clock, outbox=outbox))
        spec = JobSpec(delay=3_600, key="a")
        kept = client.schedule_many(TOPIC, [spec])[0] if many else client.schedule(TOPIC, delay=3_600, key="a")
        assert kept.in_outbox
        if by_another:
            client.close()
        clock.advance(60)
        after_ms = time.time() * 1000 - 60_000
        if by_another:
            client = stack.enter_context(Client(BlockingWith(server.url), clock=clock, outbox=outbox))
        away.is_back = True
        client.deliver_outbox()
        before_ms = time.time() * 1000 - 60_000
        found = client.get(TOPIC, "a")
        assert found is not None
        check_due(found.due_ms, after_ms, before_ms)


@pytest.mark.parametrize("wrong_s", WRONG_S)
async def test_a_delay_of_an_asyncio_producer_is_right_as_well(
    server: EmbeddedServer, path: Path, clock: ManualClock, wrong_s: int
) -> None:
    clock.step_wall(time.time() - clock.wall_ms() / 1000 + wrong_s)
    outbox, away = OutboxSettings(path=str(path), retry_ms=60_000), Away()
    async with AsyncClient(AsyncWith(server.url, away), clock=clock, outbox=outbox) as client:
        assert (await client.schedule(TOPIC, delay=3_600, key="a")).in_outbox
        clock.advance(60)
        after_ms = time.time() * 1000 - 60_000
        away.is_back = True
        await client.deliver_outbox()
        before_ms = time.time() * 1000 - 60_000
        found = await client.get(TOPIC, "a")
        assert found is not None
        check_due(found.due_ms, after_ms, before_ms)


def test_a_date_needs_no_clock(server: EmbeddedServer, path: Path, clock: ManualClock) -> None:
    at = datetime.fromtimestamp(clock.wall_ms() // 1000 + 3_600, UTC)
    outbox, away, no_time = OutboxSettings(path=str(path), retry_ms=60_000), Away(), Away("TIME")
    with Client(BlockingWith(server.url, away, no_time), clock=clock, outbox=outbox) as client:
        assert client.schedule(TOPIC, at=at, key="a").in_outbox
        away.is_back = True
        clock.advance(60)
        client.deliver_outbox()
        assert client.outbox_info() == OutboxInfo(0, 0, 0, None, {})
        found = client.get(TOPIC, "a")
        assert found is not None
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
