"""The two tables of an outbox in a SQL database, and what differs between databases.

    {name}           one row for each call, in the order of `seq`; a row with an `error` was put aside
    {name}_courier   one row: the courier that delivers, and until when

`asked_us` is the database's time of the call, never too early. A row that is being delivered names its call to the
server: `tag`, `shard`, `terms`, `turn_ms` (see `producer.outbox`), and since when (`claimed_us`).

PostgreSQL announces new rows on a channel, once for each transaction; `Listener` hears them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
from functools import partial
from typing import Any

from sqlalchemy import (
    DDL,
    URL,
    BigInteger,
    Column,
    Connection,
    Dialect,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.functions import FunctionElement

from wheelq.errors import ConfigurationError
from wheelq.sinks.sql import Exact

logger = logging.getLogger("wheelq.courier")

NAME = "wheelq_outbox"
OLDEST = {"postgresql": (12,), "mariadb": (10, 6), "mysql": (8, 0), "sqlite": (3, 35)}
"""The oldest release of each database that an outbox can be in."""
MYSQL_IDLE_S = 60
"""How long a connection to MySQL may be idle at least."""
_NAME = re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,39}")


class database_us(FunctionElement[int]):  # noqa: N801  # a function of SQL
    """The database's time now, in microseconds since the Unix epoch, rounded down."""

    type = BigInteger()
    inherit_cache = True


class asked_us(database_us):  # noqa: N801
    """The same, rounded up."""

    inherit_cache = True


@compiles(database_us, "postgresql")
def _postgres_us(element: database_us, compiler: Any, **_: Any) -> str:
    return _rounded(element, "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)", 1)


@compiles(database_us, "mysql", "mariadb")
def _mysql_us(element: database_us, compiler: Any, **_: Any) -> str:
    return _rounded(element, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", 1)


@compiles(database_us, "sqlite")
def _sqlite_us(element: database_us, compiler: Any, **_: Any) -> str:  # its clock has whole milliseconds
    return _rounded(element, "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000", 1000)


def _rounded(element: database_us, sql: str, unit: int) -> str:
    return f"({sql} + {unit})" if isinstance(element, asked_us) else f"({sql})"


_BIG = BigInteger().with_variant(Integer(), "sqlite")  # only an INTEGER counts up there


class _AsStored(LargeBinary):
    """Bytes in SQLite, or whatever else somebody has stored there: that is no reason to read none of the rows."""

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        return None


_BYTES = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb").with_variant(_AsStored(), "sqlite")
_TAG = LargeBinary().with_variant(VARBINARY(12), "mysql", "mariadb").with_variant(_AsStored(), "sqlite")


class Tables:
    """The tables of one outbox."""

    def __init__(self, name: str = NAME) -> None:
        """`name` is that of the outbox, perhaps with a schema before it. Raises: ConfigurationError."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a table name: use up to 40 small letters, digits and '_'")
        schema, _, table = name.rpartition(".")
        self.name = name
        self.channel = table
        """Where PostgreSQL announces new rows."""
        metadata = MetaData(schema=schema or None)
        self.rows = Table(
            table,
            metadata,
            Column("seq", _BIG, primary_key=True),
            Column("kind", String(10), nullable=False),  # schedule, cancel or reschedule
            Column("topic", Exact(100), nullable=False),
            Column("job_id", Exact(256), nullable=False),
            Column("partition_key", Exact(256)),
            Column("due", String(24), nullable=False),  # "+ms" from the call or "ms" since the epoch; its priority
            Column("on_duplicate", String(7), nullable=False),
            Column("record", _BYTES),
            Column("asked_us", BigInteger, nullable=False, default=asked_us()),
            Column("tag", _TAG),
            Column("shard", Integer),
            Column("terms", String(200)),
            Column("turn_ms", Integer),
            Column("claimed_us", BigInteger),
            Column("tries", SmallInteger, nullable=False, server_default="0"),
            Column("error", Text),
            sqlite_autoincrement=True,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )
        self.courier = Table(
            f"{table}_courier",
            metadata,
            Column("one", SmallInteger, primary_key=True, autoincrement=False),
            Column("holder", String(100), nullable=False),
            Column("until_us", BigInteger, nullable=False),
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )
        for sql in _trigger(self.rows.fullname, self.channel):
            announce: DDL = DDL(sql)  # type: ignore[no-untyped-call]
            event.listen(self.rows, "after_create", announce.execute_if(dialect="postgresql"))

    def create(self, connection: Connection) -> None:
        """Create what is missing of them."""
        check_database(connection.dialect)
        self.rows.metadata.create_all(connection)
        self.make_lease(connection)

    def make_lease(self, connection: Connection) -> None:
        """Insert the row of the courier that delivers, if it is missing."""
        if connection.scalar(select(self.courier.c.one)) is None:
            connection.execute(insert(self.courier), {"one": 1, "holder": "", "until_us": 0})

    def check(self, connection: Connection) -> None:
        """Raises: ConfigurationError, if they are not there, or cannot be in this database."""
        check_database(connection.dialect)
        inspector, schema = inspect(connection), self.rows.schema
        if not all(inspector.has_table(table.name, schema) for table in (self.rows, self.courier)):
            remedy = "make it with wheelq courier --database URL --create"
            raise ConfigurationError(f"there is no outbox {self.name} in this database: {remedy}")

    def sql(self, dialect: Dialect) -> list[str]:
        """Returns the statements that create them in an empty database."""
        made = [str(CreateTable(table).compile(dialect=dialect)).strip() for table in (self.rows, self.courier)]
        first = insert(self.courier).values(one=1, holder="", until_us=0)
        written = str(first.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        return [*made, *(_trigger(self.rows.fullname, self.channel) if dialect.name == "postgresql" else ()), written]


def begin_turn(connection: Connection, idle_s: float) -> None:
    """Let the server end this transaction if nothing comes for so long: a process that is frozen in it keeps its locks.

    MySQL ends only whole connections, which wait between transactions, too. SQLite's locks last until the process ends.
    PostgreSQL must read the rows by their index: it takes a table that was never analyzed for an empty one, and sorts.
    """
    if connection.dialect.name == "postgresql":
        limit = {"idle_in_transaction_session_timeout": f"{math.ceil(idle_s * 1000)}"}
        wanted = limit | {"enable_seqscan": "off", "enable_sort": "off", "jit": "off"}
        local = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in wanted.items())
        connection.exec_driver_sql(f"SELECT {local}")
    elif getattr(connection.dialect, "is_mariadb", False):
        connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {math.ceil(idle_s)}")
    elif connection.dialect.name == "mysql":
        connection.exec_driver_sql(f"SET SESSION wait_timeout = {max(math.ceil(idle_s), MYSQL_IDLE_S)}")


def read_any_text(connection: Any, _: object) -> None:
    """Let a connection to SQLite read text that is not UTF-8: it is damage of its row, and no reason to read none."""
    connection.text_factory = partial(bytes.decode, errors="surrogateescape")


def place_of(url: URL, table: str) -> str:
    """Returns the name of a table for people. That of a file names the machine and the whole path."""
    kind, database = url.get_backend_name(), url.database or ""
    if kind == "sqlite":
        return f"{kind}://{socket.gethostname()}{os.path.abspath(database)}/{table}"
    port = f":{url.port}" if url.port else ""
    return f"{kind}://{url.host or ''}{port}/{database}/{table}"


def check_database(dialect: Dialect) -> None:
    """Raises: ConfigurationError, if an outbox cannot be in this database. Its version is known once connected."""
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    if name not in OLDEST:
        raise ConfigurationError(f"an outbox can be in PostgreSQL, MariaDB, MySQL or SQLite, not in {name}")
    version = getattr(dialect, "server_version_info", None)
    if version and tuple(version) < OLDEST[name]:
        shown, oldest = (".".join(map(str, one)) for one in (version[:3], OLDEST[name]))
        raise ConfigurationError(f"this database is {name} {shown}; an outbox needs {oldest} or newer")


def _trigger(table: str, channel: str) -> tuple[str, str]:
    """Returns the statements by which PostgreSQL announces new rows, once for each transaction."""
    quoted = '"' + table.replace(".", '"."') + '"'  # the name may be a word of SQL
    function = quoted[:-1] + '_notify"'
    body = f"BEGIN PERFORM pg_notify('{channel}', ''); RETURN NULL; END"
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS '{_quoted(body)}'",
        f"CREATE TRIGGER {channel}_notify AFTER INSERT ON {quoted} FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
    )


def _quoted(sql: str) -> str:
    return sql.replace("'", "''")


class Listener:
    """Listens to one channel, for one event loop, with psycopg or psycopg2."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._connection: Connection | None = None
        self._driver: Any = None
        self._socket = 0
        self.heard = asyncio.Event()
        """Set when something was announced."""

    @property
    def listens(self) -> bool:
        """Whether announcements are heard."""
        return self._connection is not None

    async def listen(self) -> None:
        """Listen from now on, if the database announces anything."""
        if self.listens or self._engine.dialect.driver not in ("psycopg", "psycopg2"):
            return
        try:
            self._connection = await asyncio.to_thread(self._connect)
        except SQLAlchemyError as error:
            logger.debug("new rows are not announced for now: %s", error)
        else:
            self._driver = self._connection.connection.driver_connection
            self._socket = self._driver.fileno()
            asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def _connect(self) -> Connection:
        made = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        made.exec_driver_sql(f'LISTEN "{self._channel}"')
        return made

    def _hear(self) -> None:
        """Take the announcements that have come, without waiting."""
        self.heard.set()
        try:
            if self._engine.dialect.driver == "psycopg2":
                self._driver.poll()
                self._driver.notifies.clear()
            else:
                self._driver.pgconn.consume_input()
                while self._driver.pgconn.notifies():
                    pass
        except Exception as error:  # noqa: BLE001  # the driver's: the connection is lost
            logger.debug("new rows are not announced for now: %s", error)
            self.close()

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
