"""Sinks: batch handlers that store jobs somewhere, exactly once.

sql         `SqlSink`: one transaction for a batch; waits while the database is away; remembers what it has stored

Needs SQLAlchemy and a driver: `pip install wheelq[sql] pymysql`, or `psycopg[binary]`; SQLite needs none.
"""

from __future__ import annotations

try:
    from wheelq.sinks.sql import SqlSink
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise ModuleNotFoundError("SqlSink needs SQLAlchemy: pip install 'wheelq[sql]'", name=error.name) from error

__all__ = ["SqlSink"]
