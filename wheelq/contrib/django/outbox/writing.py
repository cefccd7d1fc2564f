"""`DjangoOutbox`: a `SqlOutbox` that writes over Django's connection, and so in Django's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import Dialect, Insert
from sqlalchemy.dialects import mysql, postgresql, sqlite

from wheelq.settings import Settings
from wheelq.sql.outbox import SqlOutbox
from wheelq.sql.table import Tables

_DIALECTS: dict[str, Any] = {"postgresql": postgresql, "mysql": mysql, "sqlite": sqlite}


class DjangoOutbox(SqlOutbox):
    """The outbox in the database `default`."""

    def __init__(self, settings: Settings) -> None:
        self._tables = Tables()
        self._settings = settings.client
        self._is_checked = True


class DjangoConnection:
    """Executes the statements of an outbox in Django's transaction, if one is open; else each commits by itself."""

    def execute(self, statement: Insert, rows: Sequence[dict[str, Any]]) -> None:
        """Insert rows."""
        connection = connections[DEFAULT_DB_ALIAS]
        dialect = dialect_of(connection.vendor)
        compiled = statement.compile(dialect=dialect, column_keys=list(rows[0]))
        names: list[str] = compiled.positiontup or []
        bind = {name: statement.table.c[name].type.bind_processor(dialect) or (lambda value: value) for name in names}
        with connection.cursor() as cursor:
            cursor.executemany(str(compiled), [[bind[name](row[name]) for name in names] for row in rows])


def dialect_of(vendor: str) -> Dialect:
    """Returns SQLAlchemy's dialect for a database of Django. Raises: ImproperlyConfigured."""
    if vendor not in _DIALECTS:
        raise ImproperlyConfigured(f"an outbox can be in PostgreSQL, MariaDB, MySQL or SQLite, not in {vendor}")
    dialect: Dialect = _DIALECTS[vendor].dialect(paramstyle="format")
    return dialect


def make_tables(apps: Any, schema_editor: Any) -> None:
    """Make the tables, unless they are there."""
    tables, connection = Tables(), schema_editor.connection
    if tables.name not in connection.introspection.table_names():
        for sql in tables.sql(dialect_of(connection.vendor)):
            schema_editor.execute(sql)


def drop_tables(apps: Any, schema_editor: Any) -> None:
    """Drop the tables, with all calls that wait."""
    tables = Tables()
    for table in (tables.rows, tables.courier):
        schema_editor.execute(f"DROP TABLE {table.fullname}")
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP FUNCTION IF EXISTS {tables.rows.fullname}_notify()")
