"""`SqlSink`: a batch handler that stores its jobs in a SQL database, each exactly once.

    worker ──jobs──▶ SqlSink ──┬─ BEGIN ─ remember the jobs ─ the user's statements ─ COMMIT ─▶ acked
                               ├─ rows refused: halves, until the bad ones stand alone; these are retried or buried
                               └─ database away: waits for it, and uses up nobody's attempts

A worker may die at any point. Before the commit nothing has happened; after it the database knows the jobs, and
refuses them when they are delivered again. So delivery at least once becomes a row exactly once.

The usual batch costs one transaction and asks nothing: only when jobs may have been stored before (delivered or tried
a second time, or refused as already there) the sink looks which are. What it does not do: undo effects outside of the
database, such as a mail sent by the user's function.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, exc, insert

from wheelq.clock import SystemClock, sleep, wall_ms
from wheelq.errors import ConfigurationError
from wheelq.job import Job
from wheelq.sinks.memory import Ledger, Memory, UniqueColumn
from wheelq.sinks.rows import store_in_parts
from wheelq.sinks.trouble import Trouble, trouble_of
from wheelq.words import counted

logger = logging.getLogger("wheelq.sinks")

Row = Callable[[Job], Mapping[str, Any]]
Statements = Callable[[Connection, Sequence[Job]], object]

REPEATS = 5
"""How often a transaction is repeated at once when another was in its way."""
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
        identity: Callable[[Job], str] = lambda job: job.id,
        ledger: str = "wheelq_ledger",
        name: str | None = None,
    ) -> None:
        """`database` is SQLAlchemy's URL or engine.

        `store` is the table to insert into, with one row per job as `row` makes it (without: the payload, a dict); or
        a function that executes any statements for some jobs over the connection it is given, and does not commit.

        `unique` names a column of that table which is unique and gets the job's identity. Without it, and for a
        function, identities are kept in the table `ledger`, which is made if it is not there, apart for each `name`
        (the table's or function's name, if none is given). Two groups that store the same jobs need two names.

        The identity is the job's id. Jobs that use an id again after the first has finished are the same job to the
        sink, unless `identity` says otherwise.

        Raises: ConfigurationError.
        """
        self._engine = create_engine(database, pool_pre_ping=True) if isinstance(database, str) else database
        self._identity = identity
        self._is_prepared = False
        if isinstance(store, Table):
            self._store: Statements = partial(_insert, store, row or _payload, unique, identity)
        elif row is not None or unique is not None:
            raise ConfigurationError("row and unique are for a table; a function makes its own rows")
        else:
            self._store = store
        default_name = store.name if isinstance(store, Table) else getattr(store, "__qualname__", "function")
        self._ledger = Ledger(ledger, (name or str(default_name))[:100])
        self._memory: Memory = (
            UniqueColumn(store, unique) if isinstance(store, Table) and unique is not None else self._ledger
        )

    async def __call__(self, jobs: Sequence[Job]) -> list[Exception | None]:
        """Store these jobs of one topic, and wait as long as the database is away; per job its error, or None."""
        pause, clock = FIRST_PAUSE, SystemClock()
        while True:
            try:
                return await asyncio.to_thread(self._store_parts, jobs)
            except DatabaseAway as away:
                topic, cause = jobs[0].topic, away.__cause__
                waiting = counted(len(jobs), f"job of {topic} waits", f"jobs of {topic} wait")
                logger.warning("%s for the database: %s", waiting, cause)
            await clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def forget(self, older_than: timedelta) -> int:
        """Remove from the ledger what was stored so long ago; how many.

        A job delivered once more after that would be stored again. Deliveries are repeated within seconds of a
        worker's death, and dead jobs when somebody replays them: a week is plenty, unless you replay older ones.
        """
        with self._engine.begin() as connection:
            return self._ledger.forget(connection, wall_ms() - int(older_than.total_seconds() * 1000))

    def _store_parts(self, jobs: Sequence[Job]) -> list[Exception | None]:
        self._prepare()
        return store_in_parts(jobs, self._store_all, lambda error: not isinstance(error, DatabaseAway))

    def _prepare(self) -> None:
        if self._is_prepared:
            return
        try:
            self._memory.prepare(self._engine)
        except exc.SQLAlchemyError as error:  # without a memory nothing can be stored, and no row is to blame
            raise DatabaseAway from error
        self._is_prepared = True

    def _store_all(self, jobs: Sequence[Job]) -> None:
        """One transaction for all. Raises: DatabaseAway; whatever else is about the rows."""
        may_be_known = any(job.redelivered or job.attempt > 1 for job in jobs)
        conflicts = 0
        while True:
            try:
                return self._transact(jobs, may_be_known)
            except exc.IntegrityError:
                if may_be_known:
                    raise
            except exc.SQLAlchemyError as error:
                kind = trouble_of(error)
                if kind is Trouble.ROWS:
                    raise
                conflicts += 1
                if kind is Trouble.AWAY or conflicts > REPEATS:
                    raise DatabaseAway from error
                sleep(random.uniform(0.005, 0.05))
            may_be_known = True

    def _transact(self, jobs: Sequence[Job], may_be_known: bool) -> None:
        topic = jobs[0].topic
        with self._connection() as connection, connection.begin():
            if may_be_known:
                known = self._memory.known(connection, topic, [self._identity(job) for job in jobs])
                jobs = [job for job in jobs if self._identity(job) not in known]
                if not jobs:
                    return
            self._memory.remember(connection, topic, [self._identity(job) for job in jobs])
            self._store(connection, jobs)

    def _connection(self) -> Connection:
        try:
            return self._engine.connect()
        except exc.SQLAlchemyError as error:  # whatever the reason, no row is to blame
            raise DatabaseAway from error


def _insert(
    table: Table,
    row: Row,
    unique: str | None,
    identity: Callable[[Job], str],
    connection: Connection,
    jobs: Sequence[Job],
) -> None:
    """Insert a row for each job, with as few statements as rows of different columns allow."""
    rows = [{**row(job), unique: identity(job)} if unique else dict(row(job)) for job in jobs]
    for values in rows:
        if unknown := values.keys() - table.c.keys():  # which SQLAlchemy would leave out without a word
            raise KeyError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    rows.sort(key=sorted)  # SQLAlchemy takes the columns of the first row for those of all
    for _, alike in groupby(rows, key=sorted):
        connection.execute(insert(table), list(alike))


def _payload(job: Job) -> Mapping[str, Any]:
    if not isinstance(job.payload, dict):
        raise TypeError(f"the payload of job {job.id} is no dict: give the sink a row=")
    return job.payload
