"""A SQL outbox in each kind of database, for tests of `SqlOutbox` and of its courier."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, delete, event, func, select, update

from tests.databases import database_url
from wheelq.sql import SqlOutbox
from wheelq.sql.courier import engine_of
from wheelq.sql.table import read_any_text


class Place:
    """A database with the tables of one outbox, which no other test uses."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.table = f"outbox_{secrets.token_hex(4)}"
        self.engine = create_engine(url)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", read_any_text)
        self.outbox = SqlOutbox(self.engine, table=self.table)
        self.outbox.create()
        self.rows = self.outbox._tables.rows

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self.engine.begin() as connection:
            yield connection

    def all(self) -> list[dict[str, Any]]:
        """Every row, in order."""
        with self.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(select(self.rows).order_by(self.rows.c.seq))]

    @property
    def left(self) -> int:
        """How many rows still wait."""
        with self.engine.connect() as connection:
            waits = select(func.count()).select_from(self.rows).where(self.rows.c.error.is_(None))
            return connection.scalar(waits) or 0

    def change(self, **values: Any) -> None:
        """Change all rows, as another program might."""
        with self.transaction() as connection:
            connection.execute(update(self.rows).values(values))

    def clear(self) -> None:
        with self.transaction() as connection:
            connection.execute(delete(self.rows))

    def end_lease(self) -> None:
        """The courier has been gone for longer than its lease."""
        with self.transaction() as connection:
            connection.execute(update(self.outbox._tables.courier).values(until_us=0))

    def drop(self) -> None:
        self.rows.metadata.drop_all(self.engine)
        self.engine.dispose()


@contextmanager
def placed(kind: str, directory: Path) -> Iterator[Place]:
    """An outbox in this kind of database; skips the test if none answers."""
    place = Place(database_url(kind, directory))
    try:
        yield place
    finally:
        place.drop()


__all__ = ["Place", "engine_of", "placed"]
