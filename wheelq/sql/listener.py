"""`Listener`: hears from PostgreSQL when there are new rows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

logger = logging.getLogger("wheelq.courier")


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
        made.exec_driver_sql(f"LISTEN {self._channel}")
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
