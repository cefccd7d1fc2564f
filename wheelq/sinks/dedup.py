"""How a sink remembers which jobs it has stored: in the same transaction as the rows, so both are stored or neither.

    `UniqueColumn`    a column of the user's own table holds the job's identity; nothing else is written
    `Ledger`          a small table of the sink, for any statements of the user

Either way the database itself refuses a second insert of one identity: a worker that was frozen, killed between commit
and ack, or that never learned whether its commit arrived, cannot store a job again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import (
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
    delete,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from wheelq.base.clock import wall_ms
from wheelq.errors import ConfigurationError


class Memory(Protocol):
    """Remembers which jobs were stored."""

    def prepare(self, engine: Engine) -> None:
        """Called before first use."""
        ...

    def known(self, connection: Connection, topic: str, identities: Sequence[str]) -> set[str]:
        """Returns which of these are stored."""
        ...

    def remember(self, connection: Connection, topic: str, identities: Sequence[str]) -> None:
        """Record that these are stored; the database refuses this if any already is."""
        ...


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
        return set(connection.scalars(select(self._column).where(self._column.in_(identities))))

    def remember(self, connection: Connection, topic: str, identities: Sequence[str]) -> None:
        """Does nothing: the rows themselves are the memory."""


class Ledger:
    """A table of stored jobs: `sink, topic, job_id` (its primary key) and `stored_ms`."""

    def __init__(self, name: str, sink: str) -> None:
        self._sink = sink
        self.table = Table(
            name,
            MetaData(),
            Column("sink", _Exact(100), primary_key=True),
            Column("topic", _Exact(100), primary_key=True),
            Column("job_id", _Exact(256), primary_key=True),
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
        c = self.table.c
        here = (c.sink == self._sink, c.topic == topic, c.job_id.in_(identities))
        return set(connection.scalars(select(c.job_id).where(*here)))

    def remember(self, connection: Connection, topic: str, identities: Sequence[str]) -> None:
        now_ms = wall_ms()
        rows = [
            {"sink": self._sink, "topic": topic, "job_id": identity, "stored_ms": now_ms} for identity in identities
        ]
        connection.execute(insert(self.table), rows)

    def forget(self, connection: Connection, before_ms: int) -> int:
        """Remove the entries that this sink stored before that time. Returns how many."""
        c = self.table.c
        return connection.execute(delete(self.table).where(c.sink == self._sink, c.stored_ms < before_ms)).rowcount


class _Exact(TypeDecorator[str]):
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
