"""`SqlSink`: a batch handler that stores its jobs in a SQL database, each exactly once.

    worker ──jobs──▶ SqlSink ──┬─ BEGIN ─ remember the jobs ─ the user's statements ─ COMMIT ─▶ acked
                               ├─ rows refused: halves, until the bad ones stand alone; these are retried or buried
                               └─ database away: waits for it, and uses up no job's attempts

A worker may die at any point. Before the commit nothing has happened; after it the database knows the jobs, and refuses
them when they are delivered again. So at-least-once delivery becomes exactly one row.

The usual batch takes one transaction without queries. Only if jobs may have been stored before (delivered or tried a
second time, or refused as duplicates) does the sink look up which. It cannot undo effects outside of the database, such
as a mail sent by the user's function.

It remembers the jobs in the same transaction as the rows, so both are stored or neither:

    `UniqueColumn`    a column of the user's own table holds the job's identity; nothing else is written
    `Ledger`          a small table of the sink, for any statements of the user

Either way the database itself refuses a second insert of one identity: a worker that was frozen, killed between commit
and ack, or that never learned whether its commit arrived, cannot store a job again.

When the database refuses a batch, its error code decides, because drivers do not agree on classes: PyMySQL raises
OperationalError both for a violated CHECK and for a lost server. An unknown error counts as one of the rows, so that it
shows as a failure of its jobs and is not waited out for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from itertools import groupby
from typing import Any, TypeVar, overload

from sqlalchemy import (
    CHAR,
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
    create_engine,
    delete,
    exc,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from wheelq.base.clock import SystemClock, sleep, wall_ms
from wheelq.base.plural import counted
from wheelq.errors import ConfigurationError
from wheelq.model.job import Job
from wheelq.reminders import Loop

logger = logging.getLogger("wheelq.sinks")

Row = Callable[[Job], Mapping[str, Any]]
Statements = Callable[[Connection, Sequence[Job]], object]

REPEATS = 5
"""How often a transaction is repeated at once after a conflict with another."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts while the database is away."""


class DatabaseAway(Exception):
    """The database cannot be used now."""


class SqlSink:
    """Stores jobs in a SQL database, each exactly once.

        sink = SqlSink("postgresql+psycopg://…", orders, row=lambda job: {"total": job.payload}, unique="job_id")
        worker.batch_handler("orders", max_size=500)(sink)

    MySQL, MariaDB, PostgreSQL and SQLite are tested.
    """

    def __init__(
        self,
        database: str | Engine,
        store: Table | Statements,
        *,
        row: Row | None = None,
        unique: str | None = None,
        identity: Callable[[Job], str] | None = None,
        ledger: str = "wheelq_ledger",
        name: str | None = None,
    ) -> None:
        """`database` is SQLAlchemy's URL or engine.

        `store` is the table to insert into, with one row per job as `row` makes it (without: the payload, a dict); or
        a function that executes any statements for some jobs over the connection it is given, and does not commit.

        `unique` names a unique column of that table, which gets the job's identity. Without it, and for a function,
        identities are kept in the table `ledger`, which is created if missing, separately for each `name` (by default
        the name of the table or function). Two groups that store the same jobs need two names.

        The identity is the job's id. Jobs that reuse an id after the first has finished are the same job to the sink,
        unless `identity` says otherwise. A ledger distinguishes topics; a `unique` column serves jobs of one topic,
        unless `identity` distinguishes those of several.

        Raises: ConfigurationError.
        """
        self._engine = create_engine(database, pool_pre_ping=True) if isinstance(database, str) else database
        self._identity = identity or (lambda job: job.id)
        self._serves_any = identity is not None or unique is None
        self._topic: str | None = None
        self._is_prepared = False
        if isinstance(store, Table):
            self._store: Statements = partial(_insert, store, row or _payload, unique, self._identity)
        elif row is not None or unique is not None:
            raise ConfigurationError("row and unique are for a table; a function makes its own rows")
        else:
            self._store = store
        default_name = store.name if isinstance(store, Table) else getattr(store, "__qualname__", "function")
        self._ledger = Ledger(ledger, (name or str(default_name))[:100])
        self._memory: UniqueColumn | Ledger = self._ledger
        if isinstance(store, Table) and unique is not None:
            self._memory = UniqueColumn(store, unique)

    @overload
    async def __call__(self, work: Job) -> None: ...
    @overload
    async def __call__(self, work: Sequence[Job]) -> list[Exception | None]: ...
    async def __call__(self, work: Job | Sequence[Job]) -> list[Exception | None] | None:
        """Store a job, or all jobs of a batch, waiting while the database is away. Returns each job's error, or None.

        Raises: ConfigurationError, if a unique column would have to serve two topics; the error of a single job.
        """
        if not isinstance(work, Job):
            return await self._store_patiently(work)
        [error] = await self._store_patiently([work])
        if error is not None:
            raise error
        return None

    async def _store_patiently(self, jobs: Sequence[Job]) -> list[Exception | None]:
        self._check_topic(jobs[0].topic)
        topic = jobs[0].topic
        what = counted(len(jobs), f"job of {topic} waits for the database", f"jobs of {topic} wait for the database")
        trying = Loop(SystemClock(), logger, what, FIRST_PAUSE, LONGEST_PAUSE, errors=DatabaseAway)
        return await trying.insist(partial(asyncio.to_thread, self._store_parts, jobs))

    def _check_topic(self, topic: str) -> None:
        self._topic = self._topic or topic
        if topic != self._topic and not self._serves_any:
            raise ConfigurationError(
                f"topics {self._topic!r} and {topic!r} would share a unique column, and a job of one could count as "
                "stored because the other has its id: say what tells them apart, as in identity=lambda job: "
                "f'{job.topic}/{job.id}' (or identity=lambda job: job.id, if no two have one id)"
            )

    def forget(self, older_than: timedelta) -> int:
        """Remove ledger entries that are older than this. Returns how many.

        A job that is delivered again after that would be stored again. Deliveries are repeated within seconds of a
        worker's death, and dead jobs when they are replayed: a week is plenty, unless you replay older ones.
        """
        with self._engine.begin() as connection:
            return self._ledger.forget(connection, wall_ms() - int(older_than.total_seconds() * 1000))

    def _store_parts(self, jobs: Sequence[Job]) -> list[Exception | None]:
        self._prepare()
        return store_in_parts(jobs, self._store_all)

    def _prepare(self) -> None:
        if self._is_prepared:
            return
        try:
            self._memory.prepare(self._engine)
        except exc.SQLAlchemyError as error:  # without a memory nothing can be stored; the rows are not at fault
            raise DatabaseAway(str(error)) from error
        self._is_prepared = True

    def _store_all(self, jobs: Sequence[Job]) -> None:
        """Store all jobs in one transaction. Raises: DatabaseAway; all other errors are about the rows."""
        may_be_known = any(job.redelivered or job.attempt > 1 for job in jobs)
        conflicts, was_refused = 0, False
        while True:
            try:
                return self._transact(jobs, may_be_known)
            except exc.IntegrityError:
                if was_refused:
                    raise
                was_refused = True  # an earlier run of the same job may have committed just now
            except exc.SQLAlchemyError as error:
                kind = trouble_of(error)
                if kind is Trouble.ROWS:
                    raise
                conflicts += 1
                if kind is Trouble.AWAY or conflicts > REPEATS:
                    raise DatabaseAway(str(error)) from error
                sleep(random.uniform(0.005, 0.05))
            may_be_known = True

    def _transact(self, jobs: Sequence[Job], may_be_known: bool) -> None:
        topic = jobs[0].topic
        with self._connection() as connection, connection.begin():
            if may_be_known:
                known = self._memory.known(connection, topic, [self._identity(job) for job in jobs])
                self._tell_surprises([job for job in jobs if self._identity(job) in known])
                jobs = [job for job in jobs if self._identity(job) not in known]
                if not jobs:
                    return
            self._memory.remember(connection, topic, [self._identity(job) for job in jobs])
            self._store(connection, jobs)

    def _tell_surprises(self, known: Sequence[Job]) -> None:
        """Warn about jobs that count as stored although this seems to be their first delivery."""
        first = [job.id for job in known if not job.redelivered and job.attempt == 1 and not job.replays]
        if first:
            logger.warning(
                "%s taken for stored before, though nothing says that it was delivered before: %s. Unless ids are used "
                "again, or a commit went unanswered, another topic writes to the same column: give the sink identity=",
                counted(len(first), f"job of {known[0].topic} is", f"jobs of {known[0].topic} are"),
                ", ".join(first[:5]),
            )

    def _connection(self) -> Connection:
        try:
            return self._engine.connect()
        except exc.SQLAlchemyError as error:  # whatever the reason, the rows are not at fault
            raise DatabaseAway(str(error)) from error


def _insert(
    table: Table,
    row: Row,
    unique: str | None,
    identity: Callable[[Job], str],
    connection: Connection,
    jobs: Sequence[Job],
) -> None:
    """Insert a row for each job, with one statement for each set of columns."""
    rows = [{**row(job), unique: identity(job)} if unique else dict(row(job)) for job in jobs]
    for values in rows:
        if unknown := values.keys() - table.c.keys():  # SQLAlchemy would silently leave them out
            raise KeyError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    rows.sort(key=sorted)  # SQLAlchemy uses the columns of the first row for all
    for _, alike in groupby(rows, key=sorted):
        connection.execute(insert(table), list(alike))


def _payload(job: Job) -> Mapping[str, Any]:
    if not isinstance(job.payload, dict):
        raise TypeError(f"the payload of job {job.id} is not a dict: give the sink a row=")
    return job.payload


class UniqueColumn:
    """The user's table is the memory: one of its columns is unique and holds the identity."""

    def __init__(self, table: Table, name: str) -> None:
        """Raises: ConfigurationError unless the table has this column and declares it unique."""
        if name not in table.c:
            raise ConfigurationError(f"table {table.name} has no column {name!r}")
        column = table.c[name]
        keys = [key for key in table.constraints if isinstance(key, (PrimaryKeyConstraint, UniqueConstraint))]
        alone = [list(key.columns) for key in [*keys, *(index for index in table.indexes if index.unique)]]
        if [column.name] not in [[other.name for other in columns] for columns in alone]:
            raise ConfigurationError(f"column {name!r} of table {table.name} must be unique, by itself")
        self._column = column

    def prepare(self, engine: Engine) -> None:
        """Does nothing: the user creates the table."""

    def known(self, connection: Connection, topic: str, identities: Sequence[str]) -> set[str]:
        """Returns which of these are stored."""
        stored = set(connection.scalars(select(self._column).where(self._column.in_(identities))))
        if not isinstance(self._column.type, CHAR):
            return stored
        unpadded = {identity.rstrip(" ") for identity in stored}  # PostgreSQL fills them up with spaces
        return {identity for identity in identities if identity.rstrip(" ") in unpadded}

    def remember(self, connection: Connection, topic: str, identities: Sequence[str]) -> None:
        """Does nothing: the rows themselves are the memory."""


class Ledger:
    """A table of stored jobs: `sink, topic, job_id` (its primary key) and `stored_ms`."""

    def __init__(self, name: str, sink: str) -> None:
        self._sink = sink
        self.table = Table(
            name,
            MetaData(),
            Column("sink", Exact(100), primary_key=True),
            Column("topic", Exact(100), primary_key=True),
            Column("job_id", Exact(256), primary_key=True),
            Column("stored_ms", BigInteger, nullable=False),
        )

    def prepare(self, engine: Engine) -> None:
        """Create the table unless it exists."""
        try:
            self.table.create(engine, checkfirst=True)
        except DBAPIError:
            if not inspect(engine).has_table(self.table.name):  # otherwise another worker has just created it
                raise

    def known(self, connection: Connection, topic: str, identities: Sequence[str]) -> set[str]:
        """Returns which of these are stored."""
        c = self.table.c
        here = (c.sink == self._sink, c.topic == topic, c.job_id.in_(identities))
        return set(connection.scalars(select(c.job_id).where(*here)))

    def remember(self, connection: Connection, topic: str, identities: Sequence[str]) -> None:
        """Record that these are stored; the database refuses this if any already is."""
        now_ms = wall_ms()
        rows = [
            {"sink": self._sink, "topic": topic, "job_id": identity, "stored_ms": now_ms} for identity in identities
        ]
        connection.execute(insert(self.table), rows)

    def forget(self, connection: Connection, before_ms: int) -> int:
        """Remove the entries that this sink stored before that time. Returns how many."""
        c = self.table.c
        return connection.execute(delete(self.table).where(c.sink == self._sink, c.stored_ms < before_ms)).rowcount


class Exact(TypeDecorator[str]):
    """Text that is equal only if each byte is. In MySQL, 'a', 'A' and 'a ' would be the same key."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        length = self.impl_instance.length  # type: ignore[attr-defined]  # the impl is a String
        return VARBINARY(length * 4) if _is_mysql(dialect) else String(length)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        return value.encode() if value is not None and _is_mysql(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes) else value


def _is_mysql(dialect: Dialect) -> bool:
    return dialect.name in ("mysql", "mariadb")


T = TypeVar("T")


class Trouble(Enum):
    """The kinds of errors."""

    AWAY = "away"
    """The database cannot be used now: wait for it."""
    CONFLICT = "conflict"
    """Another transaction was in the way: repeat."""
    ROWS = "rows"
    """The rows are at fault."""


# MySQL and MariaDB: error numbers
_MYSQL_CONFLICT = {1205, 1213, 1020, 3572}  # lock wait timeout, deadlock, record changed since last read, NOWAIT
_MYSQL_AWAY = {
    *(1021, 1040, 1041, 1053, 1114, *range(1158, 1162), 1203, 1226),  # disk, connections, memory, shut down, network
    *(1290, 1317, 1836, 1927, 3024),  # read-only, interrupted, killed
    *range(2000, 2100),  # errors of the client: cannot connect, gone away
}
# PostgreSQL: SQLSTATE, whose first two characters are the class
_POSTGRES_CONFLICT = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available
_POSTGRES_AWAY = {"08", "53", "57", "58"}  # connection, resources, operator (shut down, cancelled), system
_POSTGRES_READ_ONLY = "25006"
# SQLite: primary result codes
_SQLITE_CONFLICT = {5, 6}  # busy, locked
_SQLITE_AWAY = {7, 8, 10, 13, 14}  # memory, read-only, I/O, full, cannot open


def trouble_of(error: Exception) -> Trouble:
    """Returns the kind of `error`, raised by SQLAlchemy or by the user's code."""
    if isinstance(error, exc.TimeoutError):  # no connection of the pool was free
        return Trouble.AWAY
    if not isinstance(error, exc.DBAPIError):
        return Trouble.ROWS
    if error.connection_invalidated:
        return Trouble.AWAY
    return _of_code(error.orig)


def _of_code(error: object) -> Trouble:
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        if sqlstate in _POSTGRES_CONFLICT:
            return Trouble.CONFLICT
        is_away = sqlstate[:2] in _POSTGRES_AWAY or sqlstate == _POSTGRES_READ_ONLY
        return Trouble.AWAY if is_away else Trouble.ROWS
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if isinstance(sqlite_code, int):
        return _of_number(sqlite_code & 0xFF, _SQLITE_CONFLICT, _SQLITE_AWAY)
    args = getattr(error, "args", ())
    if args and isinstance(args[0], int):
        return _of_number(args[0], _MYSQL_CONFLICT, _MYSQL_AWAY)
    return Trouble.ROWS


def _of_number(code: int, conflict: set[int], away: set[int]) -> Trouble:
    if code in conflict:
        return Trouble.CONFLICT
    return Trouble.AWAY if code in away else Trouble.ROWS


def store_in_parts(items: Sequence[T], store: Callable[[Sequence[T]], object]) -> list[Exception | None]:
    """Stores the good rows of a batch that is refused because of some bad ones; pure except for `store`.

        500 ✗ ─┬─ 250 ✓
               └─ 250 ✗ ─┬─ 125 ✗ ─ … ─ 1 ✗  the bad row
                         └─ 125 ✓

    One bad row among n costs about 2·log2(n) further attempts. Returns for each item the error with which it was
    refused, or None.

    `store` stores all given items or none. Raises: DatabaseAway; items stored before that stay stored.
    """
    try:
        store(items)
    except DatabaseAway:
        raise
    except Exception as error:  # noqa: BLE001  # about the rows
        if len(items) == 1:
            return [error]
    else:
        return [None] * len(items)
    half = len(items) // 2
    return [*store_in_parts(items[:half], store), *store_in_parts(items[half:], store)]
