"""`SqlSink` against real databases: exactly once by id, bad rows alone, patience while the database is away."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
    CheckConstraint,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    exc,
    insert,
    select,
    text,
    update,
)

from tests.databases import DATABASES, database_url
from tests.waiting import PATIENCE, in_time
from wheelq.errors import ConfigurationError
from wheelq.model.job import Job
from wheelq.sinks import SqlSink
from wheelq.sinks.sql import Trouble, trouble_of


def job(id: str, payload: Any = None, *, attempt: int = 1, redelivered: bool = False, topic: str = "orders") -> Job:
    return Job(id, topic, payload, 0, attempt, "1-0", 0.0, {}, redelivered)


def jobs(count: int, **how: Any) -> list[Job]:
    return [job(f"job-{n}", {"n": n}, **how) for n in range(count)]


def meet(barrier: threading.Barrier) -> None:
    """Wait for the other one, if it gets so far: where the database lets only one in at a time, it does not."""
    with suppress(threading.BrokenBarrierError):
        barrier.wait(1.0)


class Place:
    """A database with a table `orders`, in which `n` has a bound and `job_id` is unique."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = create_engine(url)
        self.metadata = MetaData()
        mark = secrets.token_hex(4)
        self.ledger = f"ledger_{mark}"
        self.orders = Table(
            f"orders_{mark}",
            self.metadata,
            Column("row_id", Integer, primary_key=True, autoincrement=True),
            Column("job_id", String(64), unique=True),
            Column("n", Integer, CheckConstraint("n < 1000"), nullable=False),
            Column("note", String(10)),
        )
        self.metadata.create_all(self.engine)

    def sink(self, **how: Any) -> SqlSink:
        return SqlSink(self.engine, self.orders, **({"unique": "job_id"} | how))

    def ledger_sink(self, store: Any = None, **how: Any) -> SqlSink:
        return SqlSink(self.engine, self.orders if store is None else store, ledger=self.ledger, **how)

    def rows(self) -> list[tuple[str | None, int]]:
        with self.engine.connect() as connection:
            c = self.orders.c
            return sorted((id, n) for id, n in connection.execute(select(c.job_id, c.n)))

    def numbers(self) -> list[int]:
        return sorted(n for _, n in self.rows())

    def drop(self) -> None:
        Table(self.ledger, self.metadata)
        self.metadata.drop_all(self.engine)
        self.engine.dispose()


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(database_url(request.param, tmp_path))
    yield place
    place.drop()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    place = Place(database_url("sqlite", tmp_path))
    yield place
    place.drop()


# Exactly once


async def test_each_job_becomes_a_row_with_its_id(place: Place) -> None:
    assert await place.sink()(jobs(3)) == [None] * 3
    assert place.rows() == [("job-0", 0), ("job-1", 1), ("job-2", 2)]


@pytest.mark.parametrize("again", [{"redelivered": True}, {"attempt": 2}, {}])
@pytest.mark.parametrize("kind", ["sink", "ledger_sink"])
async def test_a_stored_job_is_not_stored_again(place: Place, kind: str, again: dict[str, Any]) -> None:
    """Also when nobody says that a job was delivered before: the database refuses it, and the sink looks."""
    sink = getattr(place, kind)()
    await sink(jobs(3))
    assert await sink(jobs(6, **again)) == [None] * 6
    assert place.numbers() == list(range(6))


async def test_another_sink_object_knows_too(place: Place) -> None:
    """As after a restart of the worker."""
    await place.ledger_sink()(jobs(3))
    await place.ledger_sink()(jobs(4))
    assert place.numbers() == [0, 1, 2, 3]


async def test_two_that_store_the_same_jobs_at_the_same_time_store_each_once(place: Place) -> None:
    """As a worker does that was frozen, beside the one that took over. The first commits when the second has begun."""
    both_there = threading.Barrier(2, timeout=10)

    def store(connection: Connection, some: Sequence[Job]) -> None:
        meet(both_there)
        connection.execute(insert(place.orders), [{"n": one.payload["n"]} for one in some])

    results = await asyncio.gather(*(place.ledger_sink(store, name="same")(jobs(20)) for _ in range(2)))
    assert results == [[None] * 20] * 2
    assert place.numbers() == list(range(20))


async def test_a_repeat_that_waits_for_the_first_run_to_commit_counts_as_stored(place: Place) -> None:
    """The repeat looks when the first has not committed, and is refused when it has."""
    first_stores, both_there = threading.Event(), threading.Barrier(2, timeout=10)

    def store(connection: Connection, some: Sequence[Job]) -> None:
        connection.execute(insert(place.orders), [{"n": one.payload["n"], "job_id": one.id} for one in some])
        if not first_stores.is_set():
            first_stores.set()
            meet(both_there)

    class Repeat(SqlSink):
        def _tell_surprises(self, known: Sequence[Job]) -> None:  # it has looked, and knows nothing
            super()._tell_surprises(known)
            if not known:
                meet(both_there)

    first = asyncio.create_task(place.ledger_sink(store, name="same")([job("only", {"n": 1})]))
    await asyncio.to_thread(first_stores.wait, 10)
    repeat = Repeat(place.engine, store, ledger=place.ledger, name="same")
    assert await repeat([job("only", {"n": 1}, attempt=2)]) == [None]
    assert await first == [None]
    assert place.rows() == [("only", 1)]


async def test_ids_that_differ_in_case_or_by_a_space_are_two(place: Place) -> None:
    """MySQL's text would call them equal; the ledger does not."""
    await place.ledger_sink()([job(id, {"n": n}) for n, id in enumerate(["a", "A", "a ", "ä"])])
    assert place.numbers() == [0, 1, 2, 3]


async def test_topics_and_names_are_apart_in_a_ledger(place: Place) -> None:
    await place.ledger_sink()([job("a", {"n": 1})])
    await place.ledger_sink()([job("a", {"n": 2}, topic="others")])
    await place.ledger_sink(name="second")([job("a", {"n": 3})])
    assert place.numbers() == [1, 2, 3]


async def test_one_column_does_not_serve_two_topics(place: Place) -> None:
    """Their ids may be the same, and the second job would count as stored. A ledger keeps topics apart."""
    sink = place.sink()
    await sink([job("a", {"n": 1})])
    with pytest.raises(ConfigurationError, match=r"'orders' and 'others'.*identity"):
        await sink([job("a", {"n": 2}, topic="others")])
    assert place.numbers() == [1]
    for identity in (lambda one: f"{one.topic}/{one.id}", lambda one: one.id):
        told = place.sink(identity=identity)
        await told([job("b", {"n": 3})])
        await told([job("c", {"n": 4}, topic="others")])


async def test_jobs_that_count_as_stored_when_they_come_first_are_told(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The call was repeated, or another topic, with a sink of its own, writes to the column."""
    await place.sink()(jobs(2))
    await place.sink()(jobs(3, redelivered=True))
    assert "stored before" not in caplog.text
    await place.sink()([job("job-1", {"n": 7}, topic="others"), job("new", {"n": 8}, topic="others")])
    assert "1 job of others is taken for stored before" in caplog.text
    assert "job-1" in caplog.text


async def test_identity_says_which_jobs_are_the_same(place: Place) -> None:
    sink = place.sink(identity=lambda one: f"{one.id}/{one.payload['n']}")
    await sink([job("a", {"n": 1}), job("a", {"n": 2})])
    await sink([job("a", {"n": 1})])
    assert place.rows() == [("a/1", 1), ("a/2", 2)]


async def test_a_function_executes_any_statements_and_they_stand_or_fall_with_the_job(place: Place) -> None:
    def store(connection: Connection, some: Sequence[Job]) -> None:
        connection.execute(update(place.orders).values(n=place.orders.c.n + len(some)))

    await place.sink()(jobs(1))
    sink = place.ledger_sink(store)
    await sink([job("x"), job("y")])
    await sink([job("y"), job("z")])
    assert place.numbers() == [3]


async def test_the_ledger_can_forget_what_is_old(place: Place) -> None:
    sink = place.ledger_sink()
    await sink(jobs(3))
    assert sink.forget(timedelta(days=7)) == 0
    assert sink.forget(timedelta(seconds=-60)) == 3
    await sink(jobs(1))
    assert place.numbers() == [0, 0, 1, 2]


# Rows


async def test_rows_of_different_columns_are_all_stored(place: Place) -> None:
    some = [job("a", {"n": 1}), job("b", {"n": 2, "note": "x"}), job("c", {"n": 3})]
    assert await place.sink()(some) == [None] * 3
    with place.engine.connect() as connection:
        found = connection.execute(select(place.orders.c.n, place.orders.c.note)).all()
    assert sorted(map(tuple, found)) == [(1, None), (2, "x"), (3, None)]


@pytest.mark.parametrize(
    "bad",
    [{"n": None}, {"n": 1_000}, {"n": "no number"}, {"n": 1, "colour": "red"}, {"n": {"a": 1}}, "no row at all"],
    ids=["null", "check", "type", "column", "dict", "no dict"],
)
@pytest.mark.parametrize("kind", ["sink", "ledger_sink"])
async def test_a_row_that_is_refused_fails_alone(place: Place, kind: str, bad: object) -> None:
    if place.engine.dialect.name == "sqlite" and bad == {"n": "no number"}:
        pytest.skip("SQLite takes any type")
    some = [*jobs(20), job("bad", bad)]
    errors = await getattr(place, kind)()([*some[10:], *some[:10]])
    assert [error is not None for error in errors] == [False] * 10 + [True] + [False] * 10
    assert place.numbers() == list(range(20))


async def test_an_error_of_the_users_own_function_fails_its_job_alone_and_leaves_nothing_of_it(place: Place) -> None:
    def store(connection: Connection, some: Sequence[Job]) -> None:
        for one in some:
            connection.execute(insert(place.orders), {"n": one.payload["n"]})
            if one.payload["n"] == 3:
                raise LookupError("no such customer")

    errors = await place.ledger_sink(store)(jobs(6))
    assert [type(error) for error in errors] == [type(None)] * 3 + [LookupError] + [type(None)] * 2
    assert place.numbers() == [0, 1, 2, 4, 5]


# A database that is away


async def test_a_database_that_is_away_is_waited_for(sqlite: Place) -> None:
    """Nobody's attempts are used up."""
    connects = 0

    @event.listens_for(sqlite.engine, "do_connect")
    def refuse(*_: object) -> None:
        nonlocal connects
        connects += 1
        if connects <= 3:
            raise sqlite3.OperationalError("unable to open database file")

    sqlite.engine.dispose()
    assert await in_time(sqlite.sink()(jobs(3))) == [None] * 3
    assert connects == 4
    assert sqlite.numbers() == [0, 1, 2]


async def test_a_commit_whose_answer_was_lost_stores_nothing_twice(place: Place) -> None:
    """The connection is gone in the moment of the commit, which has happened."""
    lost = []

    def store(connection: Connection, some: Sequence[Job]) -> None:
        connection.execute(insert(place.orders), [{"n": one.payload["n"]} for one in some])
        if not lost:
            lost.append(True)
            connection.commit()
            gone = exc.OperationalError("COMMIT", {}, Exception("gone"))
            gone.connection_invalidated = True
            raise gone

    assert await in_time(place.ledger_sink(store)(jobs(3))) == [None] * 3
    assert place.numbers() == [0, 1, 2]


async def test_waiting_for_the_database_can_be_cancelled(tmp_path: Path, sqlite: Place) -> None:
    """So that a worker's stop hands the jobs back."""
    sink = SqlSink(f"sqlite:///{tmp_path}/no/such/place.db", sqlite.orders, unique="job_id")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await sink(jobs(3))


async def test_a_deadlock_is_repeated(place: Place) -> None:
    """Two transactions that lock two rows in opposite orders."""
    if place.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    await place.sink()(jobs(2))
    both_there = threading.Barrier(2, timeout=10)

    def add_in(order: list[int]) -> Any:
        def store(connection: Connection, some: Sequence[Job]) -> None:
            for n in order:
                c = place.orders.c
                connection.execute(update(place.orders).where(c.job_id == f"job-{n}").values(note="x", n=c.n + 10))
                if n == order[0]:
                    meet(both_there)

        return store

    sinks = [place.ledger_sink(add_in(order), name=str(order)) for order in ([0, 1], [1, 0])]
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*(sink([job(f"x{n}")]) for n, sink in enumerate(sinks)))
    assert results == [[None], [None]]
    assert place.numbers() == [20, 21]


def test_errors_of_the_three_databases_are_told_apart() -> None:
    class Mysql(Exception):
        pass

    class Postgres(Exception):
        def __init__(self, sqlstate: str | None) -> None:
            self.sqlstate = sqlstate

    class Sqlite(Exception):
        def __init__(self, code: int) -> None:
            self.sqlite_errorcode = code

    cases = {
        Trouble.AWAY: [Mysql(2006), Mysql(1040), Postgres("57P01"), Postgres("08006"), Sqlite(13), Sqlite(10 | 3 << 8)],
        Trouble.CONFLICT: [Mysql(1213), Mysql(1205), Postgres("40001"), Postgres("40P01"), Sqlite(5)],
        Trouble.ROWS: [
            Mysql(4025),
            Mysql(1366),
            Mysql("?"),
            Postgres("22001"),
            Postgres(None),
            Sqlite(19),
            Exception(),
        ],
    }
    for kind, errors in cases.items():
        for error in errors:
            assert trouble_of(exc.OperationalError("", {}, error)) is kind, error
    assert trouble_of(exc.TimeoutError()) is Trouble.AWAY
    assert trouble_of(KeyError("row")) is Trouble.ROWS


# What is refused at once


def test_a_column_that_is_not_unique_cannot_hold_the_identity(sqlite: Place) -> None:
    pair = Table("pairs", MetaData(), Column("a", Integer), Column("b", Integer), UniqueConstraint("a", "b"))
    for table, column in ((sqlite.orders, "note"), (pair, "a"), (sqlite.orders, "colour")):
        with pytest.raises(ConfigurationError, match=column):
            SqlSink(sqlite.engine, table, unique=column)


async def test_a_primary_key_can_hold_it(sqlite: Place) -> None:
    table = Table("t", metadata := MetaData(), Column("id", String(64), primary_key=True), Column("n", Integer))
    metadata.create_all(sqlite.engine)
    sink = SqlSink(sqlite.engine, table, unique="id")
    for _ in range(2):
        await sink(jobs(1))
    with sqlite.engine.connect() as connection:
        assert connection.scalar(text("SELECT COUNT(*) FROM t")) == 1


async def test_a_column_of_fixed_length_can_hold_it(place: Place) -> None:
    """PostgreSQL fills its values up with spaces, so a stored job looked like another one."""
    table = Table(
        f"{place.orders.name}_c", place.metadata, Column("id", CHAR(20), primary_key=True), Column("n", Integer)
    )
    place.metadata.create_all(place.engine)
    sink = SqlSink(place.engine, table, unique="id")
    for again in ({}, {"redelivered": True}, {"attempt": 2}):
        assert await sink(jobs(2, **again)) == [None] * 2
    with place.engine.connect() as connection:
        assert len(connection.execute(select(table)).all()) == 2


async def test_a_sink_can_be_a_handler_of_single_jobs(sqlite: Place) -> None:
    sink = sqlite.sink()
    await sink(jobs(1)[0])
    with pytest.raises(Exception, match="CHECK constraint"):
        await sink(job("bad", {"n": 1_000}))
    assert sqlite.rows() == [("job-0", 0)]


def test_a_function_takes_neither_row_nor_unique(sqlite: Place) -> None:
    with pytest.raises(ConfigurationError):
        SqlSink(sqlite.engine, lambda connection, some: None, unique="job_id")


async def test_a_ledger_that_is_there_is_used_as_it_is(place: Place) -> None:
    await place.ledger_sink()(jobs(1))
    with place.engine.connect() as connection:
        assert connection.scalar(text(f"SELECT COUNT(*) FROM {place.ledger}")) == 1
    await place.ledger_sink()(jobs(2))
    assert place.numbers() == [0, 1]
