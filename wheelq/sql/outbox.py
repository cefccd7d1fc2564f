"""`SqlOutbox`: writes schedule, cancel and reschedule calls into the caller's own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from sqlalchemy import Connection, Engine, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from wheelq.base.clock import wall_ms
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import check_id, check_on_duplicate, check_topic, due_argument
from wheelq.model.job import JobSpec, OnDuplicate, OutboxOptions, Payload, Receipt
from wheelq.model.task import Task, TaskJob
from wheelq.producer.outbox.kept import due_at
from wheelq.producer.preparation import Preparation, carrying, check_specs
from wheelq.producer.submission import Submission
from wheelq.protocol import codec
from wheelq.protocol.calls.producer import NewJob, Tagging
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, settings_in_force
from wheelq.sql.table import NAME, Tables, check_database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # needs greenlet, which not every SQLAlchemy brings

P = ParamSpec("P")
R = TypeVar("R")

_NOT_SENT = Tagging(0, 0)


class SqlOutbox:
    """Schedules jobs in a transaction of yours: they are scheduled if it commits, and only then.

        outbox = SqlOutbox(engine)
        with engine.begin() as connection:
            connection.execute(insert(orders), {"id": 42})
            outbox.schedule(connection, "orders", {"id": 42}, delay=1800, key="order-42")

    `connection` is SQLAlchemy's connection or session; asynchronous ones lend theirs by `run_sync`. Each call adds rows
    to a table, and asks neither Redis nor a second connection. `wheelq courier` delivers them after the commit: calls
    about a topic in their order within a transaction, and after those of transactions that had committed before.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, table: str = NAME, settings: Settings | None = None) -> None:
        """`table` may have a schema before it. `settings` (else those in force) limit delays and payloads.

        Raises: ConfigurationError, if an outbox cannot be in this database.
        """
        self._engine = engine if isinstance(engine, Engine) else engine.sync_engine
        check_database(self._engine.dialect)
        self._tables = Tables(table)
        self._settings = (settings or settings_in_force()).client
        self._is_checked = False

    def create(self, connection: Connection | None = None) -> None:
        """Create the tables, unless they exist; in your transaction, if you give a `connection`.

        Raises: ConfigurationError with an asynchronous engine, unless you give one.
        """
        if connection is not None:
            return self._tables.create(connection)
        if self._engine.dialect.is_async:
            raise ConfigurationError("an asynchronous engine needs `await connection.run_sync(outbox.create)`")
        for left in (2, 1, 0):
            try:
                with self._engine.begin() as own:
                    return self._tables.create(own)
            except DBAPIError:  # perhaps another process was making them
                if not left:
                    raise
        return None

    @overload
    def schedule(
        self, connection: Connection | Session, topic: TaskJob[R], **options: Unpack[OutboxOptions]
    ) -> Receipt[R]: ...

    @overload
    def schedule(
        self,
        connection: Connection | Session,
        topic: str,
        payload: Payload = None,
        **options: Unpack[OutboxOptions],
    ) -> Receipt: ...

    def schedule(
        self,
        connection: Connection | Session,
        topic: str | TaskJob[Any],
        payload: Payload = None,
        *,
        on_duplicate: OnDuplicate = "keep",
        **options: Any,
    ) -> Receipt:
        """Schedule a job when the transaction commits. Arguments and errors are those of `Client.schedule`.

        A delay counts from this call, by the database's clock. The receipt says `in_outbox`, and its due time is an
        estimate. Whether a live job has the id shows at delivery: with "raise" the call is then put aside.

        Raises: InvalidInput and ConfigurationError (nothing was written), and the database's errors.
        """
        task = None
        if isinstance(topic, TaskJob):
            task, topic, payload = topic.task, topic.without(payload), topic
        spec: JobSpec = JobSpec(payload, **options)
        check_on_duplicate(on_duplicate)
        job = Preparation(check_topic(topic), self._settings, wall_ms(), on_duplicate).job(carrying(spec))
        receipt = self._schedule(connection, topic, [(job, spec.partition_key)], on_duplicate)[0]
        return receipt if task is None else receipt._replace(read_result=task.read_result)

    @overload
    def schedule_many(
        self,
        connection: Connection | Session,
        topic: Task[P, R, ..., Any],
        jobs: Iterable[JobSpec[TaskJob[R, P]]],
        *,
        on_duplicate: OnDuplicate = "keep",
    ) -> list[Receipt[R]]: ...

    @overload
    def schedule_many(
        self,
        connection: Connection | Session,
        topic: str,
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
    ) -> list[Receipt]: ...

    def schedule_many(
        self,
        connection: Connection | Session,
        topic: str | Task[..., Any, ..., Any],
        jobs: Iterable[JobSpec],
        *,
        on_duplicate: OnDuplicate = "keep",
    ) -> list[Receipt]:
        """Schedule many jobs when the transaction commits; returns one receipt for each, in order.

        Raises: InvalidJob, which tells the bad one; then nothing was written.
        """
        name = topic.topic if isinstance(topic, Task) else topic
        check_on_duplicate(on_duplicate)
        check_specs(jobs)
        specs = map(carrying, jobs)
        submission = Submission(Keys(), check_topic(name), specs, on_duplicate, self._settings, wall_ms(), _NOT_SENT)
        found, bad = submission.remaining()
        if bad is not None:
            raise bad
        receipts = self._schedule(connection, name, list(found.values()), on_duplicate)
        if isinstance(topic, Task):
            return [receipt._replace(read_result=topic.read_result) for receipt in receipts]
        return receipts

    def cancel(
        self, connection: Connection | Session, topic: str, id: str, *, partition_key: str | None = None
    ) -> None:
        """Cancel a job when the transaction commits, if it still waits when the courier gets there."""
        self._change(connection, "cancel", topic, id, partition_key, "")

    def reschedule(
        self,
        connection: Connection | Session,
        topic: str,
        id: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Give a job a new due time when the transaction commits, if it still waits when the courier gets there."""
        due = due_argument(delay, at, wall_ms(), self._settings.max_delay_ms)
        self._change(connection, "reschedule", topic, id, partition_key, due)

    def _schedule(
        self,
        connection: Connection | Session,
        topic: str,
        jobs: Sequence[tuple[NewJob, str | None]],
        on_duplicate: OnDuplicate,
    ) -> list[Receipt]:
        now_ms = wall_ms()
        rows = [
            _row("schedule", topic, id, partition_key, due, on_duplicate, record)
            for (id, due, record), partition_key in jobs
        ]
        self._write(connection, rows)
        return [
            Receipt(id, due_at(due, now_ms)[0], True, in_outbox=True, topic=topic, life=codec.life_of(record))
            for (id, due, record), _ in jobs
        ]

    def _change(
        self,
        connection: Connection | Session,
        kind: str,
        topic: str,
        id: str,
        partition_key: str | None,
        due: str,
    ) -> None:
        if partition_key is not None:
            check_id(partition_key, "partition_key")
        self._write(connection, [_row(kind, check_topic(topic), check_id(id, "id"), partition_key, due, "", None)])

    def _write(self, connection: Connection | Session, rows: list[dict[str, Any]]) -> None:
        execute = getattr(connection, "execute", None)
        if execute is None:
            raise InvalidInput("connection", f"must be SQLAlchemy's Connection or Session, not {connection!r:.60}")
        if iscoroutinefunction(execute):
            how = "await connection.run_sync(lambda sync: outbox.schedule(sync, …))"
            raise InvalidInput("connection", f"is asynchronous: {how}")
        if not self._is_checked:
            self._tables.check(connection if isinstance(connection, Connection) else connection.connection())
            self._is_checked = True
        if rows:
            execute(insert(self._tables.rows), rows)


def _row(
    kind: str, topic: str, id: str, partition_key: str | None, due: str, on_duplicate: str, record: bytes | None
) -> dict[str, Any]:
    names = ("kind", "topic", "job_id", "partition_key", "due", "on_duplicate", "record")
    return dict(zip(names, (kind, topic, id, partition_key, due, on_duplicate, record), strict=True))
