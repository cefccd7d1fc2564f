"""The courier of a SQL outbox: each committed call takes effect once, whatever dies, hangs or is away.

No scheduler runs here. Overdue jobs go straight to the ready stream, where each promotion leaves an entry. With
`hasty`, every job has run and is forgotten when the next call arrives.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from sqlalchemy import delete, event, exc, text, update

from tests.cli.commands import wheelq as run
from tests.databases import DATABASES
from tests.faults.test_outbox_repeats import Lossy, OnItsWay, hasty, promotions
from tests.outboxes import Place, engine_of, placed
from tests.transports import ALWAYS, AsyncWith, BlockingWith, Fault, Refusing, ReplyLost, Unreachable
from tests.waiting import in_time, until
from wheelq import CancelOutcome, Client, JobSpec, RescheduleOutcome, Settings
from wheelq.admin.figures import ASKS_ALWAYS, Fleet, by_slot, fleet
from wheelq.admin.metrics import FleetMetrics
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import AuthenticationFailed, ConfigurationError, ServerError, ServerFull
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol import scores
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import producer
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, ConnectionSettings, TopicSettings
from wheelq.sql import SqlOutbox, table
from wheelq.sql import courier as courier_module
from wheelq.sql import rows as rows_module
from wheelq.sql.courier import SqlCourier
from wheelq.sql.rows import Rows
from wheelq.transport import Address, AsyncTransport, Transport

TOPIC = "orders"
OVERDUE = datetime(2020, 1, 1, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)
NEVER_S = 3_600.0


@pytest.fixture
def url(private_server: Callable[..., EmbeddedServer]) -> str:
    return private_server().url


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with placed(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    with placed("sqlite", tmp_path) as place:
        yield place


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client.connect(url) as client:
        yield client


def courier(place: Place, url: str, *faults: Fault, **how: Any) -> SqlCourier:
    """A courier whose lease, unlike its patience, lasts."""
    options: dict[str, Any] = {"settings": Settings(), "lease_s": NEVER_S, **how}
    return SqlCourier(engine_of(place.url), AsyncWith(url, *faults), table=place.table, **options)


async def delivered(one: SqlCourier, place: Place, left: int = 0) -> None:
    """Makes turns until only these rows wait."""
    async with asyncio.timeout(60):
        while place.left > left:
            with suppress(ServerError):
                await asyncio.sleep(await one.step() / 10)


async def steps(one: SqlCourier, number: int) -> None:
    for _ in range(number):
        with suppress(ServerError):
            await one.step()


def schedule(place: Place, *ids: str, topic: str = TOPIC) -> None:
    """One transaction, of jobs that are due."""
    with place.transaction() as connection:
        for id in ids:
            place.outbox.schedule(connection, topic, {"of": id}, at=OVERDUE, key=id)


class Killed(BaseException):
    """The process ends."""


class Killing(Fault):
    """The process dies when it makes the call."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        raise Killed


class Busy(Fault):
    """Every second call takes a while."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        if self.struck % 2 == 0:
            time.sleep(0.03)
        return [call]


async def test_a_topic_that_is_being_removed_holds_up_no_rows_of_others(
    sqlite: Place, url: str, client: Client
) -> None:
    with Client(BlockingWith(url, Refusing("drop_shard"))) as dying:
        dying.schedule("going", delay=60)
        with pytest.raises(ServerError):
            dying.remove_topic("going", force=True)
    schedule(sqlite, "first", topic="going")
    schedule(sqlite, "a")
    one = courier(sqlite, url, settings=Settings(client=ClientSettings(topics_ttl_ms=10)))  # each turn looks again
    running = asyncio.create_task(one.run())
    await until(lambda: sqlite.left == 1)
    assert client.get(TOPIC, "a") is not None
    schedule(sqlite, "b")
    schedule(sqlite, "c", topic="unknown-so-far")
    await until(lambda: sqlite.left == 1)
    assert [(row["topic"], row["tries"]) for row in sqlite.all()] == [("going", 0)]
    client.remove_topic("going", force=True)
    await until(lambda: sqlite.left == 0)
    one.stop()
    await running


# The lease


@pytest.mark.parametrize("until_us", [None, 1 << 60], ids=["missing", "in-the-future"])
async def test_a_courier_delivers_though_the_lease_is_missing_or_lasts_too_long(
    place: Place, url: str, until_us: int | None
) -> None:
    """The tables were restored without their rows, or the database's clock was set back after a courier had died."""
    schedule(place, "a")
    with place.transaction() as connection:
        lease = place.outbox._tables.courier
        if until_us is None:
            connection.execute(delete(lease))
        else:
            connection.execute(update(lease).values(holder="dead", until_us=until_us))
    await delivered(courier(place, url, lease_s=2.0), place)
    assert promotions(url) == {"a": 1}


def test_a_courier_refuses_a_database_url_for_asyncio() -> None:
    with pytest.raises(ConfigurationError, match=r"postgresql\+psycopg_async is for asyncio"):
        engine_of("postgresql+psycopg_async://localhost/shop")


@pytest.mark.parametrize("url", ["postgres://localhost/shop", "postgresql+nodriver://localhost/shop", "no URL"])
def test_a_courier_names_drivers_if_the_database_url_has_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"postgresql\+psycopg://…, mysql\+pymysql://"):
        engine_of(url)


# Order


async def test_calls_of_one_transaction_keep_their_order_whatever_they_do_with_duplicates(
    sqlite: Place, url: str
) -> None:
    with sqlite.transaction() as connection:
        for n in range(6):
            how = "replace" if n % 2 else "keep"
            sqlite.outbox.schedule(connection, TOPIC, key=f"job-{n}", at=OVERDUE, partition_key="p", on_duplicate=how)
    await delivered(courier(sqlite, url), sqlite)
    assert list(promotions(url)) == [f"job-{n}" for n in range(6)]


async def test_calls_of_one_transaction_are_due_in_their_order_though_some_turns_are_slow(
    sqlite: Place, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MOST_ROWS", 20)
    client.schedule(TOPIC, delay=3_600, key="there")
    with sqlite.transaction() as connection:
        for n in range(60):
            sqlite.outbox.schedule(connection, TOPIC, key=f"job-{n:02}", delay=600, partition_key="p")
    await delivered(courier(sqlite, url, Busy("TIME", times=ALWAYS)), sqlite)
    found = client.waiting(TOPIC, limit=100)
    waiting = [(job.due_ms, job.id) for job in found.jobs if job.id != "there"]
    assert [id for _, id in sorted(waiting)] == [f"job-{n:02}" for n in range(60)]


# Crashes


async def test_committed_jobs_arrive_once_and_others_never(place: Place, url: str) -> None:
    schedule(place, "a", "b")
    with place.engine.connect() as connection:
        place.outbox.schedule(connection, TOPIC, at=OVERDUE, key="rolled-back")
        connection.rollback()
    await delivered(courier(place, url), place)
    assert promotions(url) == {"a": 1, "b": 1}


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_courier_that_is_killed_at_a_call_loses_and_doubles_no_job(place: Place, url: str, at: str) -> None:
    schedule(place, *(f"job-{n}" for n in range(5)))
    dying = courier(place, url, *([ReplyLost("schedule", times=ALWAYS)] if at == "after" else []), Killing("schedule"))
    if at == "after":
        dying = courier(place, url, ReplyLost("schedule", times=ALWAYS))
        await steps(dying, 2)
    else:
        with pytest.raises(Killed):
            await steps(dying, 2)
    assert (place.left, {row["tag"] is None for row in place.all()}) == (5, {False})
    place.end_lease()
    await delivered(courier(place, url, hasty()), place)
    assert promotions(url) == {f"job-{n}": 1 for n in range(5)}


async def test_a_courier_that_is_killed_before_it_deletes_doubles_no_job(place: Place, url: str) -> None:
    """Although the jobs have run and been forgotten since, and others have taken their ids."""
    schedule(place, "a", "b")
    await steps(courier(place, url), 2)
    assert promotions(url) == {"a": 1, "b": 1}
    place.end_lease()
    await delivered(courier(place, url, hasty()), place)
    assert promotions(url) == {"a": 1, "b": 1}


@pytest.mark.parametrize("method", ["_delete", "_write", "_claimed"])
@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_transaction_whose_end_is_unknown_is_made_again(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch, method: str, is_committed: bool
) -> None:
    """The database goes away in the middle of a turn, or while it commits it."""
    lost = 0
    turn, original = Rows._turn, getattr(Rows, method)

    def fail() -> None:
        nonlocal lost
        lost += 1
        raise exc.OperationalError("…", {}, Exception("server closed the connection"), connection_invalidated=False)

    def failing(self: Rows, *arguments: Any) -> Any:
        if lost < 3:
            fail()
        return original(self, *arguments)

    def failing_after(self: Rows, engine: Any, *arguments: Any) -> Any:
        found = turn(self, engine, *arguments)
        if lost < 3 and found.leads and (found.claims or arguments[0].taken):
            engine.commit()
            fail()
        return found

    monkeypatch.setattr(Rows, "_turn" if is_committed else method, failing_after if is_committed else failing)
    schedule(place, "a", "b")
    one = courier(place, url, hasty())
    await delivered(one, place)
    schedule(place, "c")
    await delivered(one, place)
    assert (lost, promotions(url)) == (3, {"a": 1, "b": 1, "c": 1})


async def test_a_link_that_loses_replies_doubles_and_loses_no_job(place: Place, url: str) -> None:
    for n in range(40):
        schedule(place, *(f"job-{n}-{m}" for m in range(20)))
    settings = Settings(topic=TopicSettings(shards=3))
    await delivered(courier(place, url, hasty(), lossy := Lossy(), settings=settings), place)
    found = promotions(url, 3)
    assert (len(found), set(found.values()), lossy.struck > 0) == (800, {1}, True)


async def test_debounced_calls_of_a_key_make_one_job_bounded_from_when_the_first_was_made(
    place: Place, url: str, client: Client
) -> None:
    """Although they are delivered when it is overdue. Another call of the key in between keeps its place."""

    def call(connection: Any, payload: int, **options: Any) -> None:
        options = {"delay": 0, "max_wait": 1, "on_duplicate": "replace"} | options
        place.outbox.schedule(connection, TOPIC, payload, key="a", **options)

    with place.transaction() as connection:
        for n in range(20):
            call(connection, n)
    place.change(asked_us=place.all()[0]["asked_us"] - 60_000_000)
    asked_by_ms = time.time() * 1000 - 60_000
    await delivered(one := courier(place, url, Lossy()), place)
    found = client.get(TOPIC, "a")
    assert found is not None
    assert found.scheduled_ms is not None
    assert (found.payload, promotions(url), client.get(TOPIC, "a~second")) == (19, {}, None)
    assert max(found.due_ms, found.scheduled_ms) < asked_by_ms + 30_000
    with place.transaction() as connection:
        call(connection, 20)
        call(connection, 21, delay=3600, max_wait=None)
        call(connection, 22, delay=60, max_wait=90)
    await delivered(one, place)
    found = client.get(TOPIC, "a")
    assert found is not None
    assert (found.payload, found.due_ms > asked_by_ms + 110_000) == (22, True)


# Two couriers


async def test_one_delivers_and_the_other_stands_by_until_it_is_gone(place: Place, url: str) -> None:
    first, second = courier(place, url), courier(place, url)
    await steps(first, 1)
    schedule(place, "a")
    assert await second.step() > 0
    assert (place.left, promotions(url)) == (1, {})
    await delivered(first, place)
    schedule(place, "b")
    place.end_lease()
    await delivered(second, place)
    schedule(place, "c")
    assert await first.step() > 0
    assert place.left == 1
    await delivered(second, place)
    assert promotions(url) == {"a": 1, "b": 1, "c": 1}


async def test_a_lease_is_given_back_at_the_end(place: Place, url: str) -> None:
    first = courier(place, url)
    running = asyncio.create_task(first.run())
    schedule(place, "a")
    await until(lambda: place.left == 0)
    first.stop()
    await in_time(running)
    schedule(place, "b")
    await delivered(courier(place, url), place)
    assert promotions(url) == {"a": 1, "b": 1}


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
async def test_a_courier_that_is_frozen_in_its_transaction_stops_no_other(
    tmp_path: Path, url: str, client: Client, kind: str
) -> None:
    """It holds the lock on the lease as long as its session lasts. SQLite knows no such limit."""
    with placed(kind, tmp_path) as place:
        frozen, other = (courier(place, url, lease_s=1.0) for _ in range(2))
        thaw, is_frozen = threading.Event(), threading.Event()
        frozen._is_checked = True  # so that its first transaction is a turn

        @event.listens_for(frozen._engine, "commit")
        def freeze(connection: Any) -> None:
            is_frozen.set()
            thaw.wait(60)

        step = asyncio.create_task(frozen.step())
        await until(is_frozen.is_set)
        schedule(place, "a")
        running = asyncio.create_task(other.run())
        await until(lambda: promotions(url) == {"a": 1})
        thaw.set()
        with pytest.raises(ServerError):
            await step
        other.stop()
        await running


async def test_what_a_frozen_courier_has_claimed_is_delivered_once_by_another(place: Place, url: str) -> None:
    """It wakes when its claims are being delivered, and neither sends nor releases them."""
    schedule(place, "a", "b")
    clock = Frozen()
    frozen = courier(place, url, clock=clock)
    clock.freezes = True
    await steps(frozen, 2)  # claimed, and not sent
    assert [row["tag"] is None for row in place.all()] == [False, False]
    place.end_lease()
    other = courier(place, url, hasty())
    await steps(other, 1)
    assert promotions(url) == {"a": 1, "b": 1}
    clock.freezes = False
    await steps(frozen, 2)  # wakes
    await delivered(other, place)
    assert promotions(url) == {"a": 1, "b": 1}


class Frozen(SystemClock):
    """A process that stands still whenever it has looked at its uptime."""

    freezes = False
    _passed = 0.0

    def uptime(self) -> float:
        self._passed += NEVER_S if self.freezes else 0.0
        return super().uptime() + self._passed


async def test_a_courier_ends_though_redis_is_silent_and_another_makes_its_calls_again(
    place: Place, private_server: Callable[..., EmbeddedServer]
) -> None:
    server = private_server()
    patient = AsyncTransport(Address(server.url, ConnectionSettings(reply_timeout_ms=600_000)))
    one = SqlCourier(engine_of(place.url), patient, Settings(), table=place.table)
    running = asyncio.create_task(one.run())
    schedule(place, "before")
    await until(lambda: place.left == 0)
    os.kill(server.pid, signal.SIGSTOP)
    schedule(place, "a", "b")
    schedule(place, "c")
    await until(lambda: any(row["tag"] for row in place.all()))
    one.stop()
    await in_time(running)
    os.kill(server.pid, signal.SIGCONT)
    assert place.left == 3
    await delivered(courier(place, server.url, hasty()), place)  # at once: the lease was given back
    assert promotions(server.url) == {"before": 1, "a": 1, "b": 1, "c": 1}


# Order, changes


async def test_calls_of_a_transaction_take_effect_in_their_order(place: Place, url: str, client: Client) -> None:
    with place.transaction() as connection:
        outbox = place.outbox
        outbox.schedule(connection, TOPIC, 1, delay=100, key="again")
        outbox.cancel(connection, TOPIC, "again")
        outbox.schedule(connection, TOPIC, 2, delay=200, key="again")
        outbox.schedule(connection, TOPIC, 1, delay=100, key="cancelled")
        outbox.schedule(connection, TOPIC, 1, delay=100, key="moved")
        outbox.reschedule(connection, TOPIC, "moved", delay=1_000)
        outbox.schedule(connection, TOPIC, 2, delay=300, key="moved", on_duplicate="keep")
        outbox.schedule(connection, TOPIC, 3, delay=100, key="replaced")
        outbox.schedule(connection, TOPIC, 4, delay=400, key="replaced", on_duplicate="replace")
        outbox.cancel(connection, TOPIC, "cancelled")
    with place.transaction() as connection:
        outbox.reschedule(connection, TOPIC, "again", delay=500)
    await delivered(courier(place, url), place)
    now_ms = SystemClock().wall_ms()
    found = {id: client.get(TOPIC, id) for id in ("again", "cancelled", "moved", "replaced")}
    assert {id: info and info.payload for id, info in found.items()} == {
        "again": 2,
        "cancelled": None,
        "moved": 1,
        "replaced": 4,
    }
    for id, delay in {"again": 500, "moved": 1_000, "replaced": 400}.items():
        info = found[id]
        assert info is not None
        assert abs(info.due_ms - now_ms - 1_000 * delay) < 60_000


async def test_a_change_of_a_job_that_does_not_wait_does_nothing(sqlite: Place, url: str, client: Client) -> None:
    client.schedule(TOPIC, at=OVERDUE, key="promoted")
    with sqlite.transaction() as connection:
        for topic, id in [(TOPIC, "promoted"), (TOPIC, "never"), ("no-such-topic", "never")]:
            sqlite.outbox.cancel(connection, topic, id)
            sqlite.outbox.reschedule(connection, topic, id, delay=5)
    await delivered(courier(sqlite, url), sqlite)
    assert promotions(url) == {"promoted": 1}
    assert [info.name for info in client.topics()] == [TOPIC]


@pytest.mark.parametrize("kind", ["cancel", "reschedule"])
async def test_a_change_that_arrives_late_leaves_the_next_job_of_the_id_alone(
    sqlite: Place, url: str, client: Client, kind: str
) -> None:
    """Its bytes were still in a dead connection when it was repeated, and the id was used again."""
    client.schedule(TOPIC, at=LATER, key="a")
    with sqlite.transaction() as connection:
        if kind == "cancel":
            sqlite.outbox.cancel(connection, TOPIC, "a")
        else:
            sqlite.outbox.reschedule(connection, TOPIC, "a", delay=1_000)
    late = OnItsWay(kind)
    await delivered(courier(sqlite, url, late), sqlite)
    client.cancel(TOPIC, "a")
    second = client.schedule(TOPIC, at=LATER, key="a")
    transport = AsyncTransport(Address(url))
    await transport.send(late.caught)
    await transport.close()
    found = client.get(TOPIC, "a")
    assert (found is not None and found.due_ms, late.struck) == (second.due_ms, 1)


async def test_a_reschedule_that_arrives_after_its_couriers_lease_does_nothing(
    sqlite: Place, url: str, client: Client
) -> None:
    """Another has made it and the one after it: the job has its first due time and its life again."""
    client.schedule(TOPIC, at=LATER, key="a")
    with sqlite.transaction() as connection:
        sqlite.outbox.reschedule(connection, TOPIC, "a", delay=1_000)
        sqlite.outbox.reschedule(connection, TOPIC, "a", at=LATER)
    late, transport = OnItsWay("reschedule"), AsyncTransport(Address(url))
    await steps(courier(sqlite, url, late), 1)
    sqlite.end_lease()
    await delivered(courier(sqlite, url), sqlite)
    now_ms = await transport.send(server_time_us()) // 1000
    *args, last_ms = late.caught.args
    assert now_ms < int(last_ms) <= now_ms + NEVER_S / 2 * 1000
    arrives_late = replace(late.caught, args=[*args, now_ms - 1])
    assert await transport.send(arrives_late) is RescheduleOutcome.CHANGED
    await transport.close()
    info = client.get(TOPIC, "a")
    assert (info is not None and info.due, late.struck) == (LATER, 1)


async def test_a_change_whose_reply_is_lost_is_made_again(sqlite: Place, url: str, client: Client) -> None:
    client.schedule(TOPIC, delay=100, key="a")
    client.schedule(TOPIC, delay=100, key="b")
    with sqlite.transaction() as connection:
        sqlite.outbox.cancel(connection, TOPIC, "a")
        sqlite.outbox.reschedule(connection, TOPIC, "b", delay=1_000)
    await delivered(courier(sqlite, url, ReplyLost("cancel"), ReplyLost("reschedule")), sqlite)
    found = client.get(TOPIC, "b")
    assert (client.get(TOPIC, "a"), found is not None and found.due_ms > SystemClock().wall_ms() + 500_000) == (
        None,
        True,
    )


async def test_a_change_follows_a_job_that_is_replaced_meanwhile(sqlite: Place, url: str, client: Client) -> None:
    """Between the look and the change another client gives the job a new life."""

    class Replacing(Fault):
        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            client.schedule(TOPIC, delay=100, key="a", on_duplicate="replace")
            return [call]

    client.schedule(TOPIC, delay=100, key="a")
    with sqlite.transaction() as connection:
        sqlite.outbox.cancel(connection, TOPIC, "a")
    await delivered(courier(sqlite, url, Replacing("cancel")), sqlite)
    assert client.get(TOPIC, "a") is None


async def test_a_change_finds_a_job_by_its_partition_key_and_without_it(
    sqlite: Place, url: str, client: Client
) -> None:
    client.configure(TOPIC, dead_max=100)
    client.set_shards(TOPIC, 8)
    for id in ("a", "b"):
        client.schedule(TOPIC, delay=100, key=id, partition_key=f"key of {id}")
    with sqlite.transaction() as connection:
        sqlite.outbox.cancel(connection, TOPIC, "a", partition_key="key of a")
        sqlite.outbox.cancel(connection, TOPIC, "b")
    await delivered(courier(sqlite, url), sqlite)
    assert (client.get(TOPIC, "a"), client.get(TOPIC, "b")) == (None, None)


@pytest.mark.parametrize("score", ["high", "low", "held back"])
async def test_a_change_finds_the_due_time_in_every_score(sqlite: Place, url: str, client: Client, score: str) -> None:
    """That of another priority has a fraction; that of a job that is held back for its key is far higher."""
    priority: Any = "normal" if score == "held back" else score
    for id in ("a", "b"):
        client.schedule(TOPIC, delay=100, key=id, priority=priority)
    if score == "held back":
        with redis.Redis.from_url(url) as raw:
            raw.zincrby(Keys().shard(TOPIC, 0).delayed, scores.HELD, "b")
    with sqlite.transaction() as connection:
        sqlite.outbox.cancel(connection, TOPIC, "a")
        sqlite.outbox.reschedule(connection, TOPIC, "b", at=LATER)
    await delivered(courier(sqlite, url), sqlite)
    found = client.get(TOPIC, "b")
    assert (client.get(TOPIC, "a"), found is not None and found.due) == (None, LATER)


def test_a_change_with_a_life_changes_no_other_job(url: str, client: Client) -> None:
    receipt = client.schedule(TOPIC, delay=100, key="a")
    shard, transport = Keys().shard(TOPIC, 0), Transport(Address(url))
    assert transport.send(producer.cancel(shard, "a", b"x" * 8)) is CancelOutcome.NOT_FOUND
    assert transport.send(producer.reschedule(shard, "a", "+5", None, b"x" * 8)).value == "not_found"
    assert transport.send(producer.still_waiting(shard, "a")) == (0, receipt.due_ms, mock.ANY)
    moved = transport.send(producer.reschedule(shard, "a", "+5000000", receipt.due_ms, receipt.life))
    assert moved is RescheduleOutcome.RESCHEDULED
    assert transport.send(producer.cancel(shard, "a", receipt.life)) is CancelOutcome.CANCELLED
    assert transport.send(producer.still_waiting(shard, "a")) is None
    transport.close()


async def test_debounced_calls_put_a_job_off_no_longer_than_max_wait(place: Place, url: str, client: Client) -> None:
    """Counted from the first call by the database's clock, also if the calls arrive an hour later."""
    how: Any = {"delay": 4_000, "on_duplicate": "replace"}
    for _ in range(3):
        with place.transaction() as connection:
            place.outbox.schedule(connection, TOPIC, key="far", max_wait=9_000, **how)
            place.outbox.schedule(connection, TOPIC, key="near", max_wait=4_500, **how)
    for n, row in enumerate(place.all()):
        asked_us = row["asked_us"] - (3_600 - 600 * (n // 2)) * 1_000_000
        with place.transaction() as connection:
            one = place.rows.c.seq == row["seq"]
            connection.execute(place.rows.update().where(one).values(asked_us=asked_us))
    await delivered(courier(place, url), place)
    now_ms = SystemClock().wall_ms()
    for id, due_s in (("far", 1_600), ("near", 900)):
        info = client.get(TOPIC, id)
        assert info is not None
        assert abs(info.due_ms - now_ms - 1_000 * due_s) < 60_000


async def test_a_cancelled_debounced_key_leaves_no_second_job(sqlite: Place, url: str, client: Client) -> None:
    how: Any = {"key": "a", "on_duplicate": "replace", "max_wait": 1_000}
    client.schedule(TOPIC, delay=0, **how)
    client.schedule(TOPIC, delay=500, **how)
    with sqlite.transaction() as connection:
        sqlite.outbox.cancel(connection, TOPIC, "a")
    assert client.topic(TOPIC).waiting == 1
    await delivered(courier(sqlite, url), sqlite)
    assert client.topic(TOPIC).waiting == 0


# Clocks


@pytest.mark.parametrize("skew_s", [-3_600, 0, 3_600])
async def test_a_delay_counts_from_the_call_whatever_the_databases_clock_says(
    place: Place, url: str, client: Client, monkeypatch: pytest.MonkeyPatch, skew_s: int
) -> None:
    rounded = table._rounded
    monkeypatch.setattr(table, "_rounded", lambda *how: f"({rounded(*how)} + {skew_s * 1_000_000})")
    skewed = Place(place.url)
    before_ms = SystemClock().wall_ms()
    with skewed.transaction() as connection:
        skewed.outbox.schedule(connection, TOPIC, delay=1_000, key="a")
        skewed.outbox.schedule(connection, TOPIC, delay=0, key="b")
        skewed.outbox.schedule(connection, TOPIC, at=LATER, key="at")
    after_ms = SystemClock().wall_ms()
    await asyncio.sleep(0.05)
    await delivered(courier(skewed, url), skewed)
    arrived_ms = SystemClock().wall_ms()
    skewed.drop()
    a, b, at = (client.get(TOPIC, id) for id in ("a", "b", "at"))
    assert a is not None
    assert b is not None
    assert at is not None
    for info, delay in ((a, 1_000_000), (b, 0)):
        assert before_ms + delay <= info.due_ms <= min(after_ms + delay + 2 + arrived_ms - after_ms, arrived_ms + delay)
    assert at.due == LATER


async def test_a_job_whose_delay_has_passed_is_as_late_as_it_is(sqlite: Place, url: str, client: Client) -> None:
    """So the topic's misfire and `expires` count from the time at which it was due."""
    with sqlite.transaction() as connection:
        sqlite.outbox.schedule(connection, TOPIC, delay=10, key="a")
    [row] = sqlite.all()
    sqlite.change(asked_us=row["asked_us"] - 3_600_000_000)
    await delivered(courier(sqlite, url), sqlite)
    info = client.get(TOPIC, "a")
    assert info is not None
    assert 3_500_000 < SystemClock().wall_ms() - info.due_ms < 3_700_000


# Redis


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Unreachable, None), (ReplyLost, None), (Refusing, ServerFull()), (Refusing, AuthenticationFailed("WRONGPASS"))],
    ids=["away", "silent", "full", "password"],
)
async def test_it_waits_for_redis_and_says_so_once(
    sqlite: Place, url: str, caplog: pytest.LogCaptureFixture, fault: type[Fault], error: ServerError | None
) -> None:
    caplog.set_level(logging.WARNING, "wheelq")
    failing = fault("schedule", times=25)
    if error is not None:
        failing.error = error  # type: ignore[attr-defined]
    one = courier(sqlite, url, failing, hasty())
    running = asyncio.create_task(one.run())
    schedule(sqlite, "a", "b")
    schedule(sqlite, "c", topic="other")
    await until(lambda: sqlite.left == 0)
    one.stop()
    await in_time(running)
    assert (promotions(url), failing.struck) == ({"a": 1, "b": 1}, 25)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert all(row["error"] is None for row in sqlite.all())


async def test_a_server_that_is_restarted_gets_everything(
    sqlite: Place, private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = private_server(tmp_path / "redis")
    one = courier(sqlite, server.url)
    running = asyncio.create_task(one.run())
    schedule(sqlite, "before")
    await until(lambda: sqlite.left == 0)
    server.kill()
    schedule(sqlite, "during", "too")
    await asyncio.sleep(0.2)
    server.start()
    await until(lambda: sqlite.left == 0)
    one.stop()
    await in_time(running)
    assert promotions(server.url) == {"before": 1, "during": 1, "too": 1}


async def test_a_server_out_of_memory_gets_everything_when_it_has_room(sqlite: Place, url: str) -> None:
    transport = Transport(Address(url))
    one = courier(sqlite, url)
    await steps(one, 1)
    transport.send(command("CONFIG SET", "maxmemory", "1", read=bool))
    schedule(sqlite, "a", "b")
    await steps(one, 5)
    assert (sqlite.left, promotions(url)) == (2, {})
    transport.send(command("CONFIG SET", "maxmemory", "0", read=bool))
    await delivered(one, sqlite)
    transport.close()
    assert promotions(url) == {"a": 1, "b": 1}


async def test_a_server_that_refuses_all_writes_gets_everything_when_it_takes_them_again(
    place: Place, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "MOST_TRIES", 1)
    client.schedule(TOPIC, delay=60, key="gone")
    one, raw = courier(place, url), redis.Redis.from_url(url)
    raw.config_set("min-replicas-to-write", 1)
    schedule(place, "a")
    with place.transaction() as connection:
        place.outbox.cancel(connection, TOPIC, "gone")
    for _ in range(5):
        with suppress(ServerError):
            await one.step()
    assert [row["error"] for row in place.all()] == [None, None]
    raw.config_set("min-replicas-to-write", 0)
    await in_time(delivered(one, place))
    assert (promotions(url), client.get(TOPIC, "gone")) == ({"a": 1}, None)


async def test_a_full_topic_waits_and_holds_up_no_other(sqlite: Place, url: str, client: Client) -> None:
    client.configure(TOPIC, max_pending=1)
    client.schedule(TOPIC, delay=1_000, key="first")
    with sqlite.transaction() as connection:
        for id in ("a", "b"):
            sqlite.outbox.schedule(connection, TOPIC, delay=1_000, key=id)
        sqlite.outbox.schedule(connection, "other", delay=1_000, key="c")
    one = courier(sqlite, url)
    await delivered(one, sqlite, left=2)
    assert client.get("other", "c") is not None
    client.configure(TOPIC, max_pending=0)
    await delivered(one, sqlite)
    assert client.topic(TOPIC).waiting == 3


async def test_a_change_passes_the_rows_of_a_full_topic_that_are_about_other_ids(
    place: Place, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are; and it does not pass those about its own."""
    monkeypatch.setattr(rows_module, "MOST_ROWS", 20)
    client.configure(TOPIC, max_pending=2)
    client.schedule(TOPIC, delay=1_000, key="moved")
    client.schedule(TOPIC, delay=1_000, key="stays")
    with place.transaction() as connection:
        place.outbox.schedule_many(connection, TOPIC, [JobSpec(delay=1_000, key=f"job-{n}") for n in range(70)])
        place.outbox.cancel(connection, TOPIC, "job-5")
        place.outbox.reschedule(connection, TOPIC, "moved", delay=90_000)
        place.outbox.schedule(connection, TOPIC, delay=1_000, key="moved", on_duplicate="replace")
        place.outbox.cancel(connection, TOPIC, "moved")
    one = courier(place, url)
    await delivered(one, place, left=73)
    moved = client.get(TOPIC, "moved")
    assert moved is not None
    assert moved.due_ms > SystemClock().wall_ms() + 80_000_000
    assert [row["job_id"] for row in place.all() if row["kind"] == "cancel"] == ["job-5", "moved"]
    client.configure(TOPIC, max_pending=0)
    await delivered(one, place)
    assert (client.topic(TOPIC).waiting, client.get(TOPIC, "job-5"), client.get(TOPIC, "moved")) == (70, None, None)


async def test_other_topics_wait_little_for_the_looks_for_changes_of_full_ones(
    sqlite: Place, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more rows a full topic has, the longer a look takes, and the rarer it is."""
    clock, looks, original = Jumping(), list[float](), Rows._passing

    def slow(*arguments: Any) -> Any:
        looks.append(clock.monotonic())
        clock.ahead += 20.0
        return original(*arguments)

    monkeypatch.setattr(Rows, "_passing", slow)
    client.configure(TOPIC, max_pending=1)
    client.schedule(TOPIC, delay=1_000)
    with sqlite.transaction() as connection:
        sqlite.outbox.schedule_many(connection, TOPIC, [JobSpec(delay=1_000) for _ in range(5)])
    one = courier(sqlite, url, clock=clock)
    for _ in range(300):
        clock.ahead += 2.0  # by now, the topic may be asked again
        await one.step()
    waits = [later - earlier for earlier, later in pairwise(looks)]
    assert waits
    assert min(waits) >= 200.0


class Jumping(SystemClock):
    """A clock that is ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_a_turn_takes_four_statements_and_one_for_its_settings(place: Place, url: str) -> None:
    """For the lease, the last turn's rows, the next rows and their claims, however many shards they go to."""
    one, statements = courier(place, url, settings=Settings(topic=TopicSettings(shards=4))), list[str]()
    schedule(place, "first")
    await delivered(one, place)
    event.listen(one._engine, "before_cursor_execute", lambda *how: statements.append(how[2]))
    schedule(place, *(f"job-{n}" for n in range(20)))
    await one.step()
    schedule(place, *(f"more-{n}" for n in range(20)))
    statements.clear()
    await one.step()
    settings = {"sqlite": [], "postgresql": ["SELECT"]}.get(one._engine.dialect.name, ["SET"])
    assert [sql.split()[0] for sql in statements] == [*settings, "UPDATE", "DELETE", "SELECT", "UPDATE"]
    await delivered(one, place)
    assert len(promotions(url, 4)) == 41


def test_postgres_reads_the_rows_by_their_index_though_the_table_was_never_analyzed(tmp_path: Path, url: str) -> None:
    """Otherwise each turn would read and sort the whole table, with all that was deleted since the last VACUUM."""
    with placed("postgres", tmp_path) as place:
        with place.transaction() as connection:
            place.outbox.schedule_many(connection, TOPIC, [JobSpec(delay=60) for _ in range(3_000)])
        query = courier(place, url)._rows._unclaimed.params(skip=[""], most=100)
        asked = query.compile(dialect=place.engine.dialect, compile_kwargs={"literal_binds": True})
        with place.transaction() as connection:
            table.begin_turn(connection, 1.0)
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {asked}").scalars())
        assert "Index Scan" in plan
        assert "Sort" not in plan


async def test_calls_about_one_id_wait_for_each_other_and_hold_up_no_other_topic(
    sqlite: Place, url: str, client: Client
) -> None:
    with sqlite.transaction() as connection:
        for busy in (TOPIC, "another"):
            for n in range(200):
                sqlite.outbox.schedule(connection, busy, n, delay=1_000, key="a", on_duplicate="replace")
        sqlite.outbox.schedule(connection, "other", delay=1_000, key="b")
    one = courier(sqlite, url)
    await steps(one, 50)
    assert client.get("other", "b") is not None
    assert sqlite.left > 200
    await delivered(one, sqlite)
    assert [found.payload for name in (TOPIC, "another") if (found := client.get(name, "a"))] == [199, 199]


async def test_unconfirmed_jobs_stay_until_they_are_confirmed(sqlite: Place, url: str) -> None:
    schedule(sqlite, "a", "b")
    durable = ClientSettings(durability="replicated", replicated_timeout_ms=1)
    await steps(courier(sqlite, url, settings=Settings(client=durable)), 3)
    assert (sqlite.left, promotions(url)) == (2, {"a": 1, "b": 1})
    sqlite.end_lease()
    await delivered(courier(sqlite, url, hasty()), sqlite)
    assert promotions(url) == {"a": 1, "b": 1}


@pytest.mark.parametrize("fault", [ReplyLost, OnItsWay])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
async def test_a_reshard_between_a_call_and_its_repeat_loses_and_doubles_no_job(
    sqlite: Place, url: str, client: Client, fault: type[Fault], before: int, after: int
) -> None:
    ids = [f"job-{n}" for n in range(40)]
    client.configure(TOPIC, dead_max=10)
    client.set_shards(TOPIC, before)
    schedule(sqlite, *ids)
    await steps(courier(sqlite, url, fault("schedule", times=ALWAYS)), 2)
    client.set_shards(TOPIC, after)
    sqlite.end_lease()
    schedule(sqlite, "late", "job-1")  # of an id that was used before
    await delivered(courier(sqlite, url), sqlite)
    found = promotions(url, 4)
    assert (len(found), set(found.values())) == (41, {1})


# Aside


async def test_a_row_that_redis_refuses_goes_aside_and_its_neighbours_arrive(
    sqlite: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier_module, "MOST_TRIES", 3)
    schedule(sqlite, "a", "bad", "b")
    schedule(sqlite, "c", topic="other")
    with sqlite.transaction() as connection:
        c = sqlite.rows.c
        connection.execute(sqlite.rows.update().where(c.job_id == "bad").values(record=b"no record"))
        connection.execute(sqlite.rows.update().where(c.job_id == "c").values(topic="no/topic"))
    await delivered(courier(sqlite, url), sqlite)
    assert promotions(url) == {"a": 1, "b": 1}
    bad, other = sqlite.all()
    assert "no record of job bad" in bad["error"]
    assert "'no/topic' is not a topic name" in other["error"]
    result = run("outbox", "--database", sqlite.url, "--table", sqlite.table)
    assert "Set aside: 2" in result.out
    assert "no record of job bad" in result.out
    shown = json.loads(run("outbox", "--database", sqlite.url, "--table", sqlite.table, "--json").out)
    assert (shown["waiting"], shown["aside"], len(shown["put_aside"])) == (0, 2, 2)


DAMAGED: dict[str, dict[str, Any]] = {
    "empty": {"record": b""},
    "no record": {"record": None},
    "short": {"record": b"\x02" + b"\0" * 7 + b"\1"},
    "short parts": {"record": b"\x02" + b"\0" * 7 + b"\1" + b"\0" * 8 + b"\0\x09k"},
    "due": {"due": "soon"},
    "no due": {"due": ""},
    "late": {"due": "9" * 24},
    "duplicate": {"on_duplicate": "odd"},
    "kind": {"kind": "pause"},
    "moved": {"kind": "reschedule", "due": "+"},
    "a number": {"record": text("5")},
    "text": {"record": text("'text'")},
    "asked": {"asked_us": text("'soon'")},
    "no text": {"partition_key": text("CAST(x'ff00' AS TEXT)")},
}


@pytest.mark.parametrize("damage", DAMAGED)
async def test_a_damaged_row_goes_aside_and_its_neighbours_arrive(
    sqlite: Place, url: str, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(courier_module, "MOST_TRIES", 2)
    schedule(sqlite, "a", "bad", "b")
    schedule(sqlite, "c", topic="other")
    with sqlite.transaction() as connection:
        connection.execute(sqlite.rows.update().where(sqlite.rows.c.job_id == "bad").values(**DAMAGED[damage]))
    await in_time(delivered(courier(sqlite, url), sqlite))
    assert promotions(url) == {"a": 1, "b": 1}
    [bad] = sqlite.all()
    assert (bad["job_id"], bool(bad["error"]), bad["tag"]) == ("bad", True, None)


DAMAGED_CLAIMS: dict[str, dict[str, Any]] = {
    "empty": {"record": b""},
    "a number": {"record": text("5")},
    "not claimed": {"claimed_us": None},
    "claimed": {"claimed_us": text("'soon'")},
    "no terms": {"terms": None},
    "terms": {"terms": "zzz"},
    "no turn": {"turn_ms": None},
    "no shard": {"shard": None},
    "tag": {"tag": text("'text'")},
}


@pytest.mark.parametrize("damage", DAMAGED_CLAIMS)
async def test_a_row_that_is_damaged_after_it_was_claimed_goes_aside_with_those_that_were_sent_with_it(
    sqlite: Place, url: str, damage: str
) -> None:
    schedule(sqlite, "a", "b")
    await steps(courier(sqlite, url, ReplyLost("schedule", times=ALWAYS)), 2)
    sqlite.change(**DAMAGED_CLAIMS[damage])
    sqlite.end_lease()
    schedule(sqlite, "c")
    await in_time(delivered(courier(sqlite, url), sqlite))
    assert promotions(url) == {"a": 1, "b": 1, "c": 1}
    assert [row["job_id"] for row in sqlite.all() if "may have been delivered" in row["error"]] == ["a", "b"]


async def test_a_duplicate_that_should_be_an_error_goes_aside_until_it_is_tried_again(
    sqlite: Place, url: str, client: Client
) -> None:
    client.schedule(TOPIC, 1, delay=100, key="a")
    with sqlite.transaction() as connection:
        for id in ("a", "b"):
            sqlite.outbox.schedule(connection, TOPIC, 2, delay=100, key=id, on_duplicate="raise")
    one = courier(sqlite, url)
    await delivered(one, sqlite)
    assert [(row["job_id"], row["error"]) for row in sqlite.all()] == [
        ("a", "a live job had this id when it was delivered")
    ]
    client.cancel(TOPIC, "a")
    assert "1 call waits" in run("outbox", "--database", sqlite.url, "--table", sqlite.table, "--retry").out
    await delivered(one, sqlite)
    info = client.get(TOPIC, "a")
    assert (info is not None and info.payload, sqlite.all()) == (2, [])


async def test_a_claim_whose_answer_may_be_forgotten_goes_aside(sqlite: Place, url: str) -> None:
    schedule(sqlite, "a")
    await steps(courier(sqlite, url, ReplyLost("schedule", times=ALWAYS)), 2)
    [row] = sqlite.all()
    sqlite.change(claimed_us=row["claimed_us"] - 11 * 3_600_000_000 - 1_000_000)
    sqlite.end_lease()
    schedule(sqlite, "b")
    await delivered(courier(sqlite, url, hasty()), sqlite)
    assert promotions(url) == {"a": 1, "b": 1}
    assert [row["error"] for row in sqlite.all()] == [courier_module.TOO_OLD]


# Waking up, many


async def test_new_rows_are_delivered_soon_and_rolled_back_ones_wake_nobody(place: Place, url: str) -> None:
    one = courier(place, url)
    running = asyncio.create_task(one.run())
    await until(lambda: one._listener.listens or one._idle.failures > 3)
    schedule(place, "a")
    await until(lambda: place.left == 0)
    one.stop()
    await in_time(running)
    assert promotions(url) == {"a": 1}


async def test_postgres_announces_a_commit(tmp_path: Path, url: str) -> None:
    with placed("postgres", tmp_path) as place:
        one = courier(place, url)
        await one.step()
        heard = one._listener.heard
        with place.engine.connect() as connection:
            place.outbox.schedule(connection, TOPIC, at=OVERDUE)
            connection.rollback()
        assert not heard.is_set()
        schedule(place, "a")
        await in_time(heard.wait())
        await delivered(one, place)
        await one._close()


@pytest.mark.parametrize(("driver", "listens"), [("psycopg2", True), ("pg8000", False)])
async def test_other_drivers_of_postgres_deliver_too(tmp_path: Path, url: str, driver: str, listens: bool) -> None:
    """One that cannot wait for announcements looks at the table."""
    pytest.importorskip(driver)
    with placed("postgres", tmp_path) as place:
        engine = engine_of(place.url.replace("+psycopg:", f"+{driver}:"))
        one = SqlCourier(engine, AsyncTransport(Address(url)), Settings(), table=place.table)
        running = asyncio.create_task(one.run())
        await until(lambda: one._began > 0)
        for id in ("a", "b"):
            schedule(place, id)
            await until(lambda: place.left == 0)
        assert one._listener.listens == listens
        one.stop()
        await in_time(running)
        assert promotions(url) == {"a": 1, "b": 1}


async def test_a_backlog_of_many_topics_goes_in_batches(place: Place, url: str) -> None:
    with place.transaction() as connection:
        for topic in ("one", "two"):
            specs = [JobSpec({"n": n}, at=OVERDUE) for n in range(1_300)]
            place.outbox.schedule_many(connection, topic, specs)
            specs = [JobSpec({"n": n}, at=OVERDUE) for n in range(700)]
            place.outbox.schedule_many(connection, topic, specs, on_duplicate="replace")
    one = courier(place, url)
    await delivered(one, place)
    with Client.connect(url) as client:
        assert {info.name: info.ready for info in client.topics()} == {"one": 2_000, "two": 2_000}
    assert one.delivered == 4_000


async def test_it_waits_for_its_tables_and_names_the_remedy(
    sqlite: Place, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A deploy may start it before the migration."""
    sqlite.drop()
    one = courier(sqlite, url)
    running = asyncio.create_task(one.run())
    await until(lambda: "wheelq courier --database URL --create" in caplog.text)
    sqlite.outbox.create()
    schedule(sqlite, "a")
    await until(lambda: sqlite.left == 0)
    one.stop()
    await in_time(running)
    assert promotions(url) == {"a": 1}


def test_the_outbox_command_refuses_what_is_for_the_other_kind(sqlite: Place, tmp_path: Path) -> None:
    assert run("outbox", "--database", sqlite.url, "--deliver").code == 2
    assert run("outbox", tmp_path / "outbox.db", "--retry").code == 2


def test_a_database_that_is_away_is_named_without_advice_about_redis() -> None:
    answer = run("outbox", "--database", "postgresql+psycopg://nobody@127.0.0.1:1/x")
    assert (answer.code, "WHEELQ_URL" in answer.err) == (1, False), answer.err
    assert answer.err.startswith("the database cannot be used:")


def test_the_outbox_command_names_the_remedy_if_there_are_no_tables(tmp_path: Path) -> None:
    answer = run("outbox", "--database", f"sqlite:///{tmp_path}/empty.db")
    assert (answer.code, "make it with wheelq courier" in answer.err, "WHEELQ_URL" in answer.err) == (2, True, False)


def test_the_courier_command_ends_if_no_server_is_named(sqlite: Place) -> None:
    """It would wait for a server that nobody has named."""
    answer = run("courier", "--database", sqlite.url)
    assert (answer.code, "no server named" in answer.err) == (2, True)


async def test_rows_wait_while_no_server_is_named(sqlite: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "MOST_TRIES", 1)
    monkeypatch.delenv("WHEELQ_URL", raising=False)
    one = SqlCourier.connect(None, engine_of(sqlite.url), Settings(), table=sqlite.table)
    schedule(sqlite, "a")
    for _ in range(5):
        with suppress(ConfigurationError, ServerError):
            await one.step()
    [row] = sqlite.all()
    assert (row["error"], row["tries"]) == (None, 0)


def test_the_outbox_command_says_why_the_database_cannot_be_used(tmp_path: Path) -> None:
    result = run("outbox", "--database", f"sqlite:///{tmp_path}/nowhere/shop.db")
    assert (result.code, "the database cannot be used" in result.err, "Traceback" in result.err) == (1, True, False)


def test_the_command_makes_the_tables(sqlite: Place) -> None:
    sqlite.drop()
    assert run("courier", "--database", sqlite.url, "--table", sqlite.table, "--create").code == 0
    assert sqlite.left == 0


# Reports


async def test_a_courier_reports_to_the_fleet_until_it_ends(sqlite: Place, url: str, client: Client) -> None:
    client.configure(TOPIC, max_pending=1)
    client.schedule(TOPIC, delay=1_000)
    with sqlite.transaction() as connection:
        sqlite.outbox.schedule(connection, TOPIC, delay=1_000)
        sqlite.outbox.schedule(connection, "other", delay=1_000)
    one = courier(sqlite, url)
    await steps(one, 3)
    one._report_at = 0.0
    await steps(one, 1)
    transport = AsyncTransport(Address(url))
    [told] = (await fleet_of(transport)).processes.couriers
    assert (told.place, told.courier, told.waiting, told.aside, told.lives) == (one.place, one.name, 1, 0, True)
    page = await FleetMetrics(transport, Keys(), SystemClock(), "0").text()
    assert f'wheelq_courier_waiting_calls{{outbox="{one.place}"}} 1' in page
    assert f'wheelq_courier_delivered_total{{outbox="{one.place}"}} 1' in page
    hidden = await FleetMetrics(transport, Keys(), SystemClock(), "0").text(reads_all=False)
    assert "wheelq_courier" not in hidden, "an outbox belongs to no topic"
    await one._close()
    assert (await fleet_of(transport)).processes.couriers == ()
    await transport.close()


def test_no_two_outboxes_have_one_name(url: str) -> None:
    databases = (
        "sqlite:///a.db",
        "sqlite:///b.db",
        "mysql+pymysql://127.0.0.1/test",
        "mysql+pymysql://127.0.0.1:3307/test",
        "mysql+pymysql://db/test",
        "postgresql+psycopg://127.0.0.1/test",
    )
    names = {courier_at(database, url).place for database in databases}
    assert len(names) == len(databases)
    assert {name.partition("://")[0] for name in names if socket.gethostname() in name} == {"sqlite"}


def courier_at(database: str, url: str) -> SqlCourier:
    return SqlCourier(engine_of(database), AsyncTransport(Address(url)), Settings())


@pytest.mark.parametrize(("schema", "is_made_by_hand"), [("user", False), ("group", True)])
async def test_a_table_and_its_schema_may_be_named_by_words_of_sql(
    place: Place, url: str, client: Client, schema: str, is_made_by_hand: bool
) -> None:
    quote = place.engine.dialect.identifier_preparer.quote
    has_schema = place.engine.dialect.name != "sqlite"
    name = f"{schema}.order" if has_schema else "order"
    outbox = SqlOutbox(place.engine, table=name)
    if has_schema:
        with place.transaction() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {quote(schema)}")
    if is_made_by_hand:
        with place.transaction() as connection:
            for statement in outbox._tables.sql(place.engine.dialect):
                connection.exec_driver_sql(statement)
    else:
        outbox.create()
    try:
        with place.transaction() as connection:
            outbox.schedule(connection, TOPIC, key="a", delay=60)
        one = SqlCourier(engine_of(place.url), AsyncTransport(Address(url)), Settings(), table=name)
        running = asyncio.create_task(one.run())
        await until(lambda: client.get(TOPIC, "a") is not None)
        with place.transaction() as connection:
            outbox.schedule(connection, TOPIC, key="b", delay=60)
        await until(lambda: client.get(TOPIC, "b") is not None)
        one.stop()
        await running
    finally:
        outbox._tables.rows.metadata.drop_all(place.engine)
        with place.transaction() as connection:
            if place.engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f'DROP FUNCTION "{schema}"."order_notify"')
            if has_schema:
                connection.exec_driver_sql(f"DROP SCHEMA {quote(schema)}")


async def fleet_of(transport: AsyncTransport) -> Fleet:
    return await AsyncDriver(transport, ASKS_ALWAYS, SystemClock()).run(fleet(Keys(), by_slot(transport.slot)))


async def test_a_courier_needs_the_rights_of_a_producer(sqlite: Place, url: str, client: Client) -> None:
    rights = (Path(__file__).parents[2] / "config" / "acl" / "producer.acl").read_text().splitlines()[-1].split()[3:]
    transport = Transport(Address(url))
    transport.send(command("ACL SETUSER", "courier", "on", ">secret", *rights, read=bool))
    client.schedule(TOPIC, delay=1_000, key="a")
    client.set_shards(TOPIC, 2)
    with sqlite.transaction() as connection:
        sqlite.outbox.reschedule(connection, TOPIC, "a", delay=5)
        for n in range(10):
            sqlite.outbox.schedule(connection, TOPIC, delay=0, key=f"job-{n}")
        sqlite.outbox.cancel(connection, TOPIC, "a")
    one = courier(sqlite, url.replace("redis://", "redis://courier:secret@"))
    one._report_at = 0.0
    await delivered(one, sqlite)
    await one._close()
    assert (len(promotions(url, 2)), client.get(TOPIC, "a")) == (10, None)
    refused = transport.send(command("ACL LOG", read=list))
    assert not [entry for entry in refused if b"client" not in bytes(entry[5]).lower()], refused
    transport.close()
