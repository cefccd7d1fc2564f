"""Sinks: handlers that pass jobs on to other systems.

sql         `SqlSink`: one transaction for a batch, each job exactly once; waits while the database is away
kafka       `KafkaSink`: a message for each job, at least once; hands jobs back while the brokers are away

`SqlSink` needs SQLAlchemy and a driver: `pip install wheelq[sql] pymysql`, or `psycopg[binary]`; SQLite needs none.
`KafkaSink` needs `pip install wheelq[kafka]`. Each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheelq.sinks.kafka import KafkaSink as KafkaSink
    from wheelq.sinks.sql import SqlSink as SqlSink

__all__ = ["KafkaSink", "SqlSink"]

_EXTRAS = {"KafkaSink": "kafka", "SqlSink": "sql"}
"""The extra that each sink needs, which is also the name of its module."""

if not TYPE_CHECKING:  # else type checkers would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _EXTRAS:
            raise AttributeError(f"module 'wheelq.sinks' has no attribute {name!r}")
        extra = _EXTRAS[name]
        try:
            return getattr(import_module(f"wheelq.sinks.{extra}"), name)
        except ModuleNotFoundError as error:
            remedy = f"{name} needs {error.name}: pip install 'wheelq[{extra}]'"
            raise ModuleNotFoundError(remedy, name=error.name) from error
