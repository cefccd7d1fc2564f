"""From a URL to connections: `redis://`, `rediss://` (TLS) and `unix://`, with user, password and database.

    redis://[user][:password]@host[:port][/database]        plain
    rediss://…[?ssl_ca_certs=/path/ca.pem]                  TLS; without the option the system's authorities are trusted
    unix://[user][:password]@/path/to/socket[?db=0]         a socket on this machine

The URL is the one given (`connect(url)`, `--url`), else the environment's WHEELQ_URL, else `url` in the settings file.
Characters of the password other than letters, digits and `-._~` are %-escaped: `urllib.parse.quote(password, safe="")`
makes `p%40ss%2F1` of `p@ss/1`; letters of any language are escaped as UTF-8. A URL in which that was forgotten is
refused, not misread. With TLS the server's certificate and name are always checked; ssl_certfile and ssl_keyfile name
a certificate of one's own where the server asks for it. `config/acl` has users with no more rights than a producer, a
scheduler, a worker or a monitor needs.

Passwords are shown nowhere: `Address.shown` is what errors and logs say, and it ends before the options.
"""

from __future__ import annotations

import re
from typing import Any

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
        if _has_stray_at(url):
            raise ConfigurationError(
                f"{self.shown!r} cannot be read: / ? # @ in a password are %-escaped in a URL, as "
                "urllib.parse.quote(password, safe='') does"
            )
        database = url.partition("://")[2].partition("?")[0].partition("/")[2].strip("/")
        if database and not url.startswith("unix:") and not database.isdecimal():
            raise ConfigurationError(f"{self.shown!r} names the database {database!r}: write its number, as in /0")
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
            why = "" if "@" in self.url else f" ({error})"  # with a login in the URL, its words may hold the password
            raise ConfigurationError(
                f"{self.shown!r} is no server URL{why}; write redis://host:port/0, rediss://… for TLS, or unix:///path"
            ) from None

    def connection(self) -> redis.asyncio.Connection:
        """A new asyncio connection, not yet open. Time-outs are the user's: replies may come late on purpose."""
        pool: Any = redis.asyncio.ConnectionPool.from_url(
            self.url, socket_timeout=None, retry=AsyncRetry(NoBackoff(), 0), **self._options
        )
        connection: redis.asyncio.Connection = pool.make_connection()
        return connection


def _without_password(url: str) -> str:
    """What may be shown: without options, and without what stands before the last @, except the user's name.

    So nothing is given away by a URL that nobody can read, because its password holds a / or # that was not escaped.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if rest.startswith("/"):  # a socket's path and no login: an @ is the path's own
        return f"{scheme}{separator}{rest.partition('?')[0]}"
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{colon and ':***'}{at}{place.partition('?')[0]}"


def _has_stray_at(url: str) -> bool:
    """Whether an @ that should end the password stands where none is read as such."""
    place = url.partition("://")[2]
    network = re.split("[/?#]", place, maxsplit=1)[0]
    beyond = place[len(network) :]
    return bool(network) and "@" in (beyond.partition("?")[0] if "@" in network else beyond)
