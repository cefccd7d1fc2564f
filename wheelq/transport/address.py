"""From a URL to connections: `redis://`, `rediss://` (TLS) and `unix://`, with user, password and database.

redis://[user:password@]host[:port][/database]      special characters in the password are %-escaped
rediss://…?ssl_ca_certs=/path/ca.pem
unix://[user:password@]/path/to/socket[?db=0]
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheelq.errors import ConfigurationError
from wheelq.settings import ConnectionSettings


class Address:
    """Where a server is and how to connect to it."""

    def __init__(self, url: str, settings: ConnectionSettings | None = None) -> None:
        """Raises: ConfigurationError when `url` is no URL of a server."""
        self.url = url
        self.settings = settings or ConnectionSettings()
        self.shown = _without_password(url)
        # RESP2: replies are plain lists in every release, and reading them costs a third less.
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_connect_timeout": self.settings.connect_timeout_ms / 1000,
            "socket_keepalive": True,
        }
        if url.startswith("unix:"):
            del self._options["socket_keepalive"]
        self.pool()

    def pool(self) -> redis.BlockingConnectionPool:
        """A pool of blocking connections that never repeats a request by itself."""
        try:
            return redis.BlockingConnectionPool.from_url(
                self.url,
                socket_timeout=self.settings.reply_timeout_ms / 1000,
                max_connections=self.settings.max_connections,
                timeout=self.settings.reply_timeout_ms / 1000,
                retry=Retry(NoBackoff(), 0),
                **self._options,
            )
        except ValueError as error:
            raise ConfigurationError(
                f"{self.shown!r} is no server URL ({error}); write redis://host:port/0, rediss://… for TLS, or unix:///path"
            ) from error

    def connection(self) -> redis.asyncio.Connection:
        """A new asyncio connection, not yet open. Time-outs are the user's: replies may come late on purpose."""
        pool: Any = redis.asyncio.ConnectionPool.from_url(
            self.url, socket_timeout=None, retry=AsyncRetry(NoBackoff(), 0), **self._options
        )
        connection: redis.asyncio.Connection = pool.make_connection()
        return connection


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "<unreadable URL>"
    if "@" not in parts.netloc:
        return url
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    return parts._replace(netloc=f"{user}:***@{parts.netloc.rpartition('@')[2]}").geturl()
