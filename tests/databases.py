"""The databases that sinks are tested with: SQLite always, MariaDB and PostgreSQL if they answer.

`WHEELQ_TEST_MYSQL` and `WHEELQ_TEST_POSTGRES` name databases on other machines.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc

DATABASES = ("sqlite", "mysql", "postgres")
_SERVERS = {
    "mysql": os.environ.get("WHEELQ_TEST_MYSQL", "mysql+pymysql://root@127.0.0.1:3306/test"),
    "postgres": os.environ.get("WHEELQ_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/test"),
}


def database_url(kind: str, directory: Path) -> str:
    """The URL of a database of this kind; skips the test if none answers."""
    if kind == "sqlite":
        return f"sqlite:///{directory / 'sink.db'}"
    engine = create_engine(_SERVERS[kind], connect_args={"connect_timeout": 2})
    try:
        engine.connect().close()
    except exc.SQLAlchemyError as error:
        pytest.skip(f"no {kind} server answers: {str(error).splitlines()[0]}")
    finally:
        engine.dispose()
    return _SERVERS[kind]
