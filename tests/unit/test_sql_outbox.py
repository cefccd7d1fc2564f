"""`SqlOutbox` in real databases: what it writes, and that it checks as `Client` does. The courier is in `faults`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, select
from sqlalchemy.dialects import oracle, postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import wheelq as wheelq_package
from tests.databases import DATABASES
from tests.outboxes import Place, placed
from tests.waiting import PATIENCE
from wheelq import InvalidInput, JobSpec, Settings, Worker
from wheelq.base.clock import wall_ms
from wheelq.errors import ConfigurationError, InvalidJob, PayloadTooLarge
from wheelq.protocol import codec
from wheelq.settings import ClientSettings
from wheelq.sql import SqlOutbox
from wheelq.sql.table import Tables, asked_us, check_database, database_us
from wheelq.testing import WheelqTest

worker = Worker.connect("redis://127.0.0.1:1", group="shop")


@worker.task("typed")
async def close_order(order: int) -> str:
    return f"closed {order}"


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with placed(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    with placed("sqlite", tmp_path) as place:
        yield place


# What it writes


def test_a_call_is_there_if_and_only_if_its_transaction_commits(place: Place) -> None:
    with place.engine.connect() as connection:
        place.outbox.schedule(connection, "orders", 1, delay=1)
        connection.rollback()
        with connection.begin():
            place.outbox.schedule(connection, "orders", 2, delay=1, key="kept")
            with connection.begin_nested() as inner:
                place.outbox.schedule(connection, "orders", 3, delay=1)
                inner.rollback()
    assert [row["job_id"] for row in place.all()] == ["kept"]


def test_without_its_tables_it_says_how_to_make_them_and_spoils_no_transaction(place: Place) -> None:
    outbox = SqlOutbox(place.engine, table="nowhere")
    with place.engine.begin() as connection:
        with pytest.raises(ConfigurationError, match=r"no outbox nowhere .*wheelq courier --database URL --create"):
            outbox.schedule(connection, "orders", delay=1)
        place.outbox.schedule(connection, "orders", delay=1, key="kept")
    assert [row["job_id"] for row in place.all()] == ["kept"]


def test_calls_are_in_order(place: Place) -> None:
    with place.transaction() as connection:
        place.outbox.schedule(connection, "orders", delay=1, key="a")
        place.outbox.cancel(connection, "orders", "a", partition_key="p")
        place.outbox.schedule_many(connection, "orders", [JobSpec(delay=1, key=f"many-{n}") for n in range(1_200)])
        place.outbox.reschedule(connection, "orders", "a", delay=2)
    with place.transaction() as connection:
        place.outbox.cancel(connection, "orders", "b")
    found = [(row["kind"], row["job_id"]) for row in place.all()]
    many = [("schedule", f"many-{n}") for n in range(1_200)]
    assert found == [("schedule", "a"), ("cancel", "a"), *many, ("reschedule", "a"), ("cancel", "b")]


def test_names_differ_in_case_and_by_a_space_and_payloads_may_be_large(place: Place) -> None:
    payload = {"text": "x" * 200_000}
    outbox = SqlOutbox(
        place.engine, table=place.table, settings=Settings(client=ClientSettings(payload_max_bytes=10**6))
    )
    with place.transaction() as connection:
        for id in ("a", "A", "a ", "ä"):
            outbox.schedule(connection, "orders", payload, delay=1, key=id, partition_key=id)
    rows = place.all()
    assert [(row["job_id"], row["partition_key"]) for row in rows] == [(id, id) for id in ("a", "A", "a ", "ä")]
    assert codec.decode(rows[0]["record"]).payload == payload


def test_a_session_is_as_good_as_a_connection(place: Place) -> None:
    with Session(place.engine) as session:
        place.outbox.schedule(session, "orders", delay=1, key="rolled-back")
        session.rollback()
        place.outbox.schedule(session, "orders", delay=1, key="kept")
        session.commit()
    assert [row["job_id"] for row in place.all()] == ["kept"]


def test_a_call_is_dated_by_the_databases_clock_never_too_early(place: Place) -> None:
    for _ in range(20):
        with place.transaction() as connection:
            before = connection.scalar(select(database_us()))
            place.outbox.schedule(connection, "orders", delay=1)
        with place.transaction() as connection:
            after = connection.scalar(select(database_us()))
        [row] = place.all()
        assert before < row["asked_us"] <= after + 1_000
        assert abs(after / 1000 - wall_ms()) < 60_000  # since 1970, in UTC
        place.clear()


def test_a_receipt_tells_what_is_known(sqlite: Place) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with sqlite.transaction() as connection:
        one = sqlite.outbox.schedule(connection, "orders", 1, delay=60, key="a")
        other = sqlite.outbox.schedule(connection, "orders", 1, at=at)
        task = sqlite.outbox.schedule(connection, close_order.job(42), delay=1)
        many = sqlite.outbox.schedule_many(connection, close_order, [JobSpec(close_order.job(1), delay=1)])
        nothing = sqlite.outbox.schedule_many(connection, "orders", [])
    assert (one.id, one.topic, one.created, one.in_outbox, nothing) == ("a", "orders", True, True, [])
    assert abs(one.due_ms - 60_000 - wall_ms()) < 60_000
    assert other.due == at
    assert (task.topic, many[0].topic, task.read_result is not None) == ("typed", "typed", True)
    assert one.life == codec.life_of(sqlite.all()[0]["record"])


# What it checks

BAD: list[dict[str, Any]] = [
    {"topic": "no/topic", "delay": 1},
    {"topic": close_order, "delay": 1},
    {"topic": "orders"},
    {"topic": "orders", "delay": -1},
    {"topic": "orders", "delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)},
    {"topic": "orders", "at": datetime(2030, 1, 1)},  # noqa: DTZ001
    {"topic": "orders", "delay": 10**12},
    {"topic": "orders", "delay": 1, "key": ""},
    {"topic": "orders", "delay": 1, "key": "a\n"},
    {"topic": "orders", "delay": 1, "payload": object()},
    {"topic": "orders", "delay": 1, "headers": {"a": 1}},
    {"topic": "orders", "delay": 1, "partition_key": ""},
    {"topic": "orders", "delay": 1, "priority": "urgent"},
    {"topic": "orders", "delay": 1, "attempts": 0},
    {"topic": "orders", "delay": 1, "timeout": 0},
    {"topic": "orders", "delay": 1, "on_dead": "?"},
    {"topic": "orders", "delay": 1, "on_duplicate": "ignore"},
    {"topic": "orders", "delay": 1, "expires": -1},
    {"topic": "orders", "delay": 1, "spread": -1},
    {"topic": "orders", "delay": 1, "payload": "x" * 100_000},
]


@pytest.mark.parametrize("bad", BAD, ids=map(str, range(len(BAD))))
def test_bad_arguments_get_the_error_of_the_client(sqlite: Place, wheelq: WheelqTest, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as of_the_client:
        wheelq.client.schedule(**bad)
    with sqlite.transaction() as connection, pytest.raises(InvalidInput) as raised:
        sqlite.outbox.schedule(connection, **bad)
    assert (type(raised.value), str(raised.value)) == (type(of_the_client.value), str(of_the_client.value))
    assert sqlite.all() == []


def test_a_bad_job_among_many_is_named_and_none_is_written(sqlite: Place) -> None:
    with sqlite.transaction() as connection, pytest.raises(InvalidJob, match=r"jobs\[2\].delay") as raised:
        sqlite.outbox.schedule_many(connection, "orders", [JobSpec(delay=1), JobSpec(delay=1), JobSpec(delay=-1)])
    assert (raised.value.receipts, sqlite.all()) == ({}, [])
    with sqlite.transaction() as connection, pytest.raises(InvalidInput, match="jobs: must be JobSpecs"):
        sqlite.outbox.schedule_many(connection, "orders", 5)  # type: ignore[arg-type]


def changes(outbox: SqlOutbox, connection: Connection) -> dict[str, Callable[[], None]]:
    return {
        "topic": lambda: outbox.cancel(connection, "no/topic", "a"),
        "id": lambda: outbox.cancel(connection, "orders", ""),
        "partition_key": lambda: outbox.cancel(connection, "orders", "a", partition_key=""),
        "delay": lambda: outbox.reschedule(connection, "orders", "a"),
        "at": lambda: outbox.reschedule(connection, "orders", "a", delay=1, at=datetime(2030, 1, 1, tzinfo=UTC)),
    }


@pytest.mark.parametrize("field", ["topic", "id", "partition_key", "delay", "at"])
def test_bad_changes_are_refused(sqlite: Place, field: str) -> None:
    with sqlite.transaction() as connection, pytest.raises(InvalidInput) as raised:
        changes(sqlite.outbox, connection)[field]()
    assert (raised.value.field, sqlite.all()) == (field, [])


def test_what_is_no_connection_is_refused_with_the_remedy(sqlite: Place) -> None:
    class Asynchronous:
        async def execute(self, *arguments: Any) -> None: ...

    with pytest.raises(InvalidInput, match="run_sync"):
        sqlite.outbox.schedule(Asynchronous(), "orders", delay=1)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="must be SQLAlchemy's Connection or Session"):
        sqlite.outbox.schedule(sqlite.engine, "orders", delay=1)  # type: ignore[call-overload]


# Databases


def test_the_tables_are_made_once_and_by_many_at_a_time(place: Place) -> None:
    place.drop()

    def make() -> None:
        SqlOutbox(create_engine(place.url), table=place.table).create()

    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make) for _ in range(4)]:
            made.result(PATIENCE)
    place.outbox.create()
    with place.transaction() as connection:
        assert [tuple(row) for row in connection.execute(select(place.outbox._tables.courier))] == [(1, "", 0)]
        place.outbox.create(connection)
        place.outbox.schedule(connection, "orders", delay=1)
    assert len(place.all()) == 1


def test_the_statements_make_the_same_tables(place: Place) -> None:
    place.drop()
    with place.transaction() as connection:
        for sql in place.outbox._tables.sql(connection.dialect):
            connection.exec_driver_sql(sql)
        place.outbox._tables.check(connection)
        place.outbox.schedule(connection, "orders", delay=1)
    assert len(place.all()) == 1


@pytest.mark.parametrize("name", ["", "Wheelq", "a b", "a.b.c", "x" * 41, "orders;"])
def test_a_bad_table_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a table name"):
        Tables(name)


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("postgresql", (11, 9), "postgresql 11.9; an outbox needs 12 or newer"),
        ("mysql", (5, 7, 40), "mysql 5.7.40; an outbox needs 8.0 or newer"),
        ("mariadb", (10, 5, 1), "mariadb 10.5.1; an outbox needs 10.6 or newer"),
        ("sqlite", (3, 34, 1), "sqlite 3.34.1; an outbox needs 3.35 or newer"),
    ],
)
def test_a_database_that_is_too_old_or_of_another_kind_is_refused(
    name: str, version: tuple[int, ...], says: str
) -> None:
    dialect = oracle.dialect()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigurationError, match="not in oracle"):
        check_database(dialect)
    dialect.name, dialect.server_version_info = name, version
    with pytest.raises(ConfigurationError, match=says):
        check_database(dialect)


def test_the_clocks_of_sql_round_down_and_up() -> None:
    with create_engine("sqlite://").connect() as connection:
        now, asked = connection.execute(select(database_us(), asked_us())).one()
    assert (now % 1_000, asked - now) == (0, 1_000)


def test_the_settings_limit_payloads(sqlite: Place) -> None:
    outbox = SqlOutbox(
        sqlite.engine, table=sqlite.table, settings=Settings(client=ClientSettings(payload_max_bytes=100))
    )
    with sqlite.transaction() as connection, pytest.raises(PayloadTooLarge):
        outbox.schedule(connection, "orders", "x" * 200, delay=1)


def test_the_guide_shows_the_statements_that_make_the_tables() -> None:
    page = (Path(wheelq_package.__file__).parent / "guide" / "transactions.md").read_text()
    [shown] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    made = ";".join(Tables().sql(postgresql.dialect())) + ";"
    assert shown.split() == made.replace(";", "; ").replace("; RETURN NULL; ", "; RETURN NULL; ").split()


def test_an_asynchronous_engine_makes_the_tables_over_a_connection_only() -> None:
    outbox = SqlOutbox(create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    with pytest.raises(ConfigurationError, match=r"run_sync\(outbox\.create\)"):
        outbox.create()
