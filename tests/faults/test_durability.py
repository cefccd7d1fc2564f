"""`durability="replicated"` and `"fsynced"`: a primary and its replica, which is frozen, missing, or promoted.

What is written here for one client holds for both; `Producer` lets each test run with either.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.faces import Face, both_faces
from tests.transports import Fault, Forgetful, ReplyLost
from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, Client, JobSpec, Receipt, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.errors import InvalidInput, NotReplicated, Refused, ServerTooOld, WheelqError
from wheelq.protocol.call import command
from wheelq.protocol.calls import worker
from wheelq.protocol.calls.worker import Burial
from wheelq.protocol.keys import Keys
from wheelq.protocol.scripts import script
from wheelq.settings import ClientSettings, Durability, TopicSettings
from wheelq.transport import Address, Transport

SETTINGS = ClientSettings(durability="replicated", replicated_timeout_ms=9_000)  # a busy replica may need seconds
TIMEOUT_MS = 1_500
IMPATIENT = ClientSettings(durability="replicated", replicated_timeout_ms=TIMEOUT_MS)
"""For calls that no replica confirms."""
ORDERS = Keys().shard("orders", 0)
LATER = datetime.now(UTC) + timedelta(days=3)

Start = Callable[..., EmbeddedServer]


@dataclass(frozen=True)
class Producer:
    """A client of either kind, for one call."""

    face: Face
    settings: ClientSettings = SETTINGS

    async def schedule(self, url: str, *keys: str, **options: Any) -> list[Receipt]:
        """Schedule a job for each key: one by `schedule`, more by `schedule_many`."""
        async with self.face.connect(url, Settings(client=self.settings)) as client:
            if len(keys) == 1:
                return [await client.schedule("orders", delay=60, key=keys[0], **options)]
            specs = [JobSpec(delay=60, key=key) for key in keys]
            return await client.schedule_many("orders", specs, **options)  # type: ignore[no-any-return]


@pytest.fixture(params=Face)
def producer(request: pytest.FixtureRequest) -> Producer:
    return Producer(request.param)


@dataclass
class Pair:
    """A primary and its replica."""

    primary: EmbeddedServer
    replica: EmbeddedServer

    def freeze(self) -> None:
        """The replica is there and says nothing. It is woken when it is stopped."""
        os.kill(self.replica.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.replica.pid, signal.SIGCONT)


@pytest.fixture
def pair(private_server: Start) -> Iterator[Pair]:
    primary = private_server(port=0, options={"repl-diskless-sync-delay": "0"})
    followed = {"replicaof": f"127.0.0.1 {primary.url.rpartition(':')[2]}"}
    replica = private_server(port=0, appendonly=False, options=followed)  # one that writes its first AOF does not stop
    with Client.connect(primary.url, Settings(client=SETTINGS)) as client:
        client.schedule("warm-up", delay=60)  # a new replica confirms nothing for up to a second
    yield Pair(primary, replica)
    replica.kill()  # a primary waits ten seconds for a frozen one


def ask(url: str, *words: str | int) -> Any:
    with closing(Transport(Address(url))) as transport:
        return transport.send(command(str(words[0]), *words[1:], read=lambda reply: reply))


def _waiting(url: str) -> set[str]:
    return {id.decode() for id in ask(url, "ZRANGE", ORDERS.delayed, 0, -1)}


# Replicated


CHANGES: list[Callable[[Client, Sequence[str]], object]] = [
    lambda client, dead: client.cancel("orders", "a"),
    lambda client, dead: client.cancel("orders", "gone"),
    lambda client, dead: client.reschedule("orders", "a", delay=3600),
    lambda client, dead: client.run_now("orders", "a"),
    lambda client, dead: client.cancel_due("orders", until=LATER),
    lambda client, dead: client.reschedule_due("orders", by=60, until=LATER),
    lambda client, dead: client.rerun("orders", group="g", since=LATER),
    lambda client, dead: client.recurring.put("orders", "hourly", every=3600),
    lambda client, dead: client.recurring.put("new", "hourly", every=3600),
    lambda client, dead: client.recurring.pause("orders", "daily"),
    lambda client, dead: client.recurring.trigger("orders", "daily"),
    lambda client, dead: client.recurring.remove("orders", "daily"),
    lambda client, dead: client.dead.replay_one("orders", dead[0]),
    lambda client, dead: client.dead.purge_one("orders", dead[1]),
    lambda client, dead: client.dead.replay("orders", all=True),
    lambda client, dead: client.dead.purge("orders", all=True),
]


def test_every_change_waits_for_the_replica(pair: Pair) -> None:
    """A failover would undo it otherwise, although its caller was told of it. Looking does not wait."""
    with Client.connect(pair.primary.url) as client:
        client.configure("orders", retention_ms=60_000)
        client.schedule_many(
            "orders", [*(JobSpec(delay=0, key=f"dead-{n}") for n in range(3)), JobSpec(delay=60, key="a")]
        )
        client.recurring.put("orders", "daily", every=86_400)
        ask(pair.primary.url, "XGROUP", "CREATE", ORDERS.ready, "g", "0")
        with closing(Transport(Address(pair.primary.url))) as transport:
            for entry in transport.send(worker.read([ORDERS], "g", "w", 3, None))[0]:
                burial = Burial("failed", "it broke", "", 1, entry.due_ms)
                transport.send(worker.bury(ORDERS, "g", "w", entry, burial, TopicSettings()))
        dead = [job.dead_id for job in client.dead.list("orders").jobs]
    pair.freeze()
    quick = ClientSettings(durability="replicated", replicated_timeout_ms=100)
    with Client.connect(pair.primary.url, Settings(client=quick)) as client:
        for change in CHANGES:
            with pytest.raises(NotReplicated, match="it is done, but only 0 of 1"):
                change(client, dead)
        assert client.get("orders", "a") is None
        assert not client.dead.list("orders").jobs
        assert [info.name for info in client.recurring.list("orders")] == ["hourly"]


@pytest.mark.every_server
async def test_when_the_call_returns_the_replica_has_the_jobs(pair: Pair, producer: Producer) -> None:
    await producer.schedule(pair.primary.url, "a")
    assert _waiting(pair.replica.url) == {"a"}
    many = [f"job-{n}" for n in range(6_000)]
    receipts = await producer.schedule(pair.primary.url, *many)
    assert _waiting(pair.replica.url) == {"a", *many}
    assert [receipt.id for receipt in receipts] == many


async def test_a_job_is_scheduled_once_though_the_server_knows_only_some_of_the_scripts(
    pair: Pair, producer: Producer
) -> None:
    """What was done does not go again: its job might have run and been forgotten, and would run a second time."""
    await producer.schedule(pair.primary.url, "first")
    ask(pair.primary.url, "SCRIPT", "FLUSH")
    ask(pair.primary.url, "SCRIPT", "LOAD", script("schedule").text)
    before = _calls(pair.primary.url, "hmget")
    assert (await producer.schedule(pair.primary.url, "a"))[0].created
    assert _waiting(pair.replica.url) == {"first", "a"}
    assert _calls(pair.primary.url, "hmget") - before == 1, "the schedule script asks once"


def _calls(url: str, command: str) -> int:
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", ask(url, "INFO", "commandstats").decode())
    return int(found[1]) if found else 0


async def test_a_silent_replica_is_told_within_the_timeout_and_the_job_is_scheduled(
    pair: Pair, producer: Producer
) -> None:
    await producer.schedule(pair.primary.url, "first")
    pair.freeze()
    began = time.monotonic()
    with pytest.raises(NotReplicated) as told:
        await Producer(producer.face, IMPATIENT).schedule(pair.primary.url, "a")
    assert TIMEOUT_MS / 1000 * 0.9 < time.monotonic() - began < TIMEOUT_MS / 1000 + 20
    assert [(receipt.id, receipt.created) for receipt in told.value.receipts] == [("a", True)]
    assert (told.value.confirmed, told.value.wanted) == (0, 1)
    assert "a" in _waiting(pair.primary.url)


async def test_repeating_waits_for_what_the_first_call_wrote(pair: Pair, producer: Producer) -> None:
    """The repeated call writes nothing, and since Redis 7.2 the server would let it through at once."""
    pair.freeze()
    for created in (True, False):
        with pytest.raises(NotReplicated) as told:
            await Producer(producer.face, IMPATIENT).schedule(pair.primary.url, "a")
        assert told.value.receipts[0].created is created
    pair.wake()
    assert not (await producer.schedule(pair.primary.url, "a"))[0].created
    assert _waiting(pair.replica.url) == {"a"}
    assert _waiting(pair.primary.url) == {"a"}


async def test_many_jobs_wait_for_a_silent_replica_once_or_twice_and_are_all_scheduled(
    pair: Pair, producer: Producer
) -> None:
    """Six chains of 5,000, of which two are under way when the first falls short."""
    impatient = Producer(producer.face, ClientSettings(durability="replicated", replicated_timeout_ms=2_000))
    pair.freeze()
    many = [f"job-{n}" for n in range(30_000)]
    before = _calls(pair.primary.url, "wait")
    with pytest.raises(NotReplicated) as told:
        await impatient.schedule(pair.primary.url, *many)
    assert _calls(pair.primary.url, "wait") - before <= 2
    assert [receipt.id for receipt in told.value.receipts] == many
    assert len(_waiting(pair.primary.url)) == len(many)


@pytest.mark.every_server
async def test_more_replicas_than_there_are_is_told(pair: Pair, producer: Producer) -> None:
    wanting = Producer(producer.face, ClientSettings(durability="replicated", replicas=2, replicated_timeout_ms=50))

    async def is_told() -> bool:  # a busy replica confirms a later call
        with pytest.raises(NotReplicated) as told:
            await wanting.schedule(pair.primary.url, "a")
        return "only 1 of 2" in str(told.value)

    await until(is_told)


async def test_other_calls_of_an_async_client_do_not_wait_behind_one_that_does(pair: Pair) -> None:
    async with AsyncClient.connect(pair.primary.url, Settings(client=replace(SETTINGS, durability="server"))) as client:
        await client.schedule("orders", delay=60, durability="replicated")
        pair.freeze()
        waiting = asyncio.create_task(client.schedule("orders", delay=60, durability="replicated"))
        for _ in range(100):
            await client.schedule("orders", delay=60)
        assert not waiting.done()
        pair.wake()
        assert (await waiting).created


async def test_many_calls_of_an_async_client_wait_side_by_side(pair: Pair) -> None:
    settings = Settings(client=IMPATIENT)
    async with AsyncClient.connect(pair.primary.url, settings) as client:
        pair.freeze()
        began = time.monotonic()
        calls = (client.schedule("orders", delay=60) for _ in range(40))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {NotReplicated}
        assert time.monotonic() - began < 30 * TIMEOUT_MS / 1000, "one after the other they take 40 times as long"


@both_faces
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("kind", [ReplyLost, Forgetful])
async def test_lost_replies_and_forgotten_scripts_are_mended(
    pair: Pair, kind: type[Fault], after: int, face: Face
) -> None:
    keys = [f"job-{n}" for n in range(6_000)]
    async with face.struck(pair.primary.url, kind("schedule", after=after), settings=SETTINGS) as client:
        assert len(await client.schedule_many("orders", [JobSpec(delay=60, key=key) for key in keys])) == len(keys)
    assert _waiting(pair.replica.url) == set(keys)


@pytest.mark.every_server
def test_after_a_failover_everything_confirmed_is_there(pair: Pair) -> None:
    """The primary is killed under load from four threads; its replica takes over."""
    confirmed: list[str] = []

    def produce(name: int) -> None:
        with Client.connect(pair.primary.url, Settings(client=SETTINGS)) as client:
            for n in range(1_000_000):
                try:
                    confirmed.append(client.schedule("orders", delay=60, key=f"{name}-{n}").id)
                except WheelqError:
                    return

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(confirmed) > 200)
    pair.primary.kill()
    for thread in threads:
        thread.join()
    ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
    assert len(confirmed) > 100
    assert set(confirmed) <= _waiting(pair.replica.url)


# On disk


def _can_wait_for_the_disk(url: str) -> bool:
    try:
        ask(url, "WAITAOF", 0, 0, 1)
    except ServerTooOld:
        return False
    return True


FSYNCED = ClientSettings(durability="fsynced", replicated_timeout_ms=9_000)


@pytest.mark.every_server
async def test_fsynced_returns_when_the_disk_has_the_jobs(private_server: Start, producer: Producer) -> None:
    """Without replicas: the server's own disk is what is asked for, unless `fsynced_replicas` says more."""
    server = private_server(port=0)
    if not _can_wait_for_the_disk(server.url):
        pytest.skip("this server has no WAITAOF")
    assert len(await Producer(producer.face, FSYNCED).schedule(server.url, "a", "b")) == 2
    more = ClientSettings(durability="fsynced", fsynced_replicas=1, replicated_timeout_ms=50)
    with pytest.raises(NotReplicated) as told:
        await Producer(producer.face, more).schedule(server.url, "c")
    assert told.value.wanted == 2


@pytest.mark.every_server
async def test_fsynced_where_it_cannot_be_says_so_and_schedules_nothing(
    private_server: Start, producer: Producer
) -> None:
    """A server without WAITAOF, and one that writes no append-only file."""
    server = private_server(port=0, appendonly=False)
    expected: tuple[type[Refused], str] = (ServerTooOld, "appendfsync to always.*'replicated'")
    if _can_wait_for_the_disk(server.url):
        expected = (Refused, "appendonly is disabled")
    with pytest.raises(expected[0], match=expected[1]):
        await Producer(producer.face, FSYNCED).schedule(server.url, "a")
    assert _waiting(server.url) == set()


# The choice


@pytest.mark.every_server
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
async def test_the_default_waits_for_nobody(private_server: Start, producer: Producer, keys: Sequence[str]) -> None:
    server = private_server(port=0)
    await Producer(producer.face, ClientSettings()).schedule(server.url, *keys)
    assert _waiting(server.url) == set(keys)


async def test_the_argument_comes_before_the_settings(private_server: Start, producer: Producer) -> None:
    server = private_server(port=0)
    chosen: Durability = "server"
    impatient = Producer(producer.face, IMPATIENT)
    await impatient.schedule(server.url, "a", durability=chosen)
    with pytest.raises(NotReplicated):
        await impatient.schedule(server.url, "b")


async def test_an_unknown_durability_is_refused_before_anything_is_sent(producer: Producer) -> None:
    with pytest.raises(InvalidInput, match="durability: 'disk' is not one of server, replicated, fsynced"):
        await producer.schedule("redis://127.0.0.1:1", "a", durability="disk")


# A planned switch


@pytest.mark.every_server
def test_a_switch_with_failover_loses_no_confirmed_job_though_another_replica_may_have_confirmed_it(
    pair: Pair, private_server: Start
) -> None:
    """Two replicas, of which the calls wait for one. SENTINEL FAILOVER does not pause writes, and loses some."""
    primary_port, port = (server.url.rpartition(":")[2] for server in (pair.primary, pair.replica))
    followed = {"replicaof": f"127.0.0.1 {primary_port}"}
    private_server(port=0, appendonly=False, options=followed)
    with Client.connect(pair.primary.url, Settings(client=replace(SETTINGS, replicas=2))) as client:
        client.schedule("orders", delay=60, key="both")
    confirmed: list[str] = []

    def schedule_until_refused() -> None:
        with Client.connect(pair.primary.url, Settings(client=replace(IMPATIENT, repeats=0))) as client:
            for n in range(1_000_000):
                try:
                    confirmed.append(client.schedule("orders", delay=60, key=f"job-{n}").id)
                except NotReplicated:
                    continue
                except WheelqError:
                    return

    scheduling = threading.Thread(target=schedule_until_refused)
    scheduling.start()
    assert eventually(lambda: len(confirmed) > 100)
    assert ask(pair.primary.url, "FAILOVER", "TO", "127.0.0.1", port) == b"OK"
    scheduling.join(PATIENCE)
    assert not scheduling.is_alive()
    assert ask(pair.replica.url, "ROLE")[0] == b"master"
    assert set(confirmed) <= _waiting(pair.replica.url)
