"""From a URL to connections, with user, password and database.

    redis://[user][:password]@host[:port][/database]        one server, or a node of a cluster: which, it says itself
    rediss://…[?ssl_ca_certs=/path/ca.pem]                  TLS; without the option the system's authorities are trusted
    unix://[user][:password]@/path/to/socket[?db=0]         a socket on this machine
    redis+cluster://[login@]host[:port],host[:port]         a cluster by several nodes, of which some may be down
    redis+sentinel://[login@]host[:port],host[:port]/service[/database]
        sentinels, and the name of what they watch; the login is the servers', the sentinels' own one is
        ?sentinel_username=…&sentinel_password=…; both also with TLS: rediss+cluster, rediss+sentinel
    memory://name                                           a server in this process, for tests: see `memory`

The URL is the one given (`connect(url)`, `--url`), else the environment's WHEELQ_URL, else `url` in the settings file.
Characters of the password other than letters, digits and `-._~` are %-escaped: `urllib.parse.quote(password, safe="")`
makes `p%40ss%2F1` of `p@ss/1`; letters of any language are escaped as UTF-8. A URL in which that was forgotten is
refused, not misread. With TLS the server's certificate and name are always checked; ssl_certfile and ssl_keyfile name
a certificate of one's own where the server asks for it. `config/acl` has users with no more rights than a producer, a
scheduler, a worker or a monitor needs.

Passwords are shown nowhere: `Address.shown` is what errors and logs say, and it ends before the options.
"""

from __future__ import annotations

import copy
import re
from enum import Enum, auto
from typing import Any, Self
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
from wheelq.transport.slots import Node

SERVER_PORT, SENTINEL_PORT = 6379, 26379


class Kind(Enum):
    """What a URL leads to."""

    SERVER = auto()
    """A server, which may turn out to be a node of a cluster."""
    CLUSTER = auto()
    """Nodes of a cluster."""
    SENTINEL = auto()
    """Sentinels, which know where the server is."""


class Address:
    """Where a server, a cluster or sentinels are, and how to connect."""

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
        try:
            self.kind, self.nodes, self.service, plain_url = _take_apart(url)
            _check_database(plain_url, self.shown)
            self._blocking, self._asyncio = _connection_options(plain_url)
            self._sentinel_login: dict[str, Any] = {}
            for name in ("username", "password"):
                self._sentinel_login[name] = self._blocking.pop(f"sentinel_{name}", None)
                self._asyncio.pop(f"sentinel_{name}", None)
            self.pool()  # finds options that do not exist
        except (ValueError, TypeError) as error:
            why = "" if "@" in url else f" ({error})"  # with a login in the URL, its words may hold the password
            raise ConfigurationError(
                f"{self.shown!r} is no server URL{why}; write redis://host:port/0, rediss://… for TLS, unix:///path, "
                "redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service"
            ) from None

    def at(self, node: Node) -> Self:
        """The address of one server, to be reached as this one: same user, password, TLS and time-outs."""
        return self._at(node, {})

    def at_sentinel(self, node: Node) -> Self:
        """The address of one of the sentinels."""
        return self._at(node, {**self._sentinel_login, "db": 0})

    def _at(self, node: Node, changes: dict[str, Any]) -> Self:
        found = copy.copy(self)
        found.kind, found.nodes, found.shown = Kind.SERVER, (node,), str(node)
        changes = {**changes, "host": node.host, "port": node.port}
        found._blocking = {**self._blocking, **changes}
        found._asyncio = {**self._asyncio, **changes}
        if found._blocking.pop("path", None) is not None:  # a cluster whose first node was reached by its unix socket
            for options in (found._blocking, found._asyncio):
                options.pop("path", None)
                options.pop("connection_class", None)
        return found

    def pool(self, reply_timeout_ms: int | None = None) -> redis.BlockingConnectionPool:
        """A pool of blocking connections that never repeats a request by itself."""
        reply_timeout = (reply_timeout_ms or self.settings.reply_timeout_ms) / 1000
        options: dict[str, Any] = {
            **self._options(),
            "socket_timeout": reply_timeout,
            "max_connections": self.settings.max_connections,
            "timeout": reply_timeout,
            "retry": Retry(NoBackoff(), 0),
            **self._blocking,
        }
        return redis.BlockingConnectionPool(**options)

    def connection(self) -> redis.asyncio.Connection:
        """A new asyncio connection, not yet open. Time-outs are the user's: replies may come late on purpose."""
        options: dict[str, Any] = {
            **self._options(),
            "socket_timeout": None,
            "retry": AsyncRetry(NoBackoff(), 0),
            **self._asyncio,
        }
        pool: Any = redis.asyncio.ConnectionPool(**options)
        connection: redis.asyncio.Connection = pool.make_connection()
        return connection

    def _options(self) -> dict[str, Any]:
        # RESP2: replies are plain lists in every release, and reading them costs a third less.
        options = {"protocol": 2, "socket_connect_timeout": self.settings.connect_timeout_ms / 1000}
        return options if "path" in self._blocking else {**options, "socket_keepalive": True}


def _connection_options(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What blocking and asyncio connections are made with."""
    if url.startswith("memory:"):
        try:
            from wheelq.transport import memory
        except ImportError as error:
            raise ConfigurationError("memory:// needs fakeredis: pip install 'wheelq[testing]'") from error
        return memory.connection_options(url)
    return dict(redis.connection.parse_url(url)), dict(redis.asyncio.connection.parse_url(url))


def _take_apart(url: str) -> tuple[Kind, tuple[Node, ...], str, str]:
    """Kind, nodes, service, and a URL of one server with all the rest."""
    scheme, plus, kind_name = url.partition("://")[0].partition("+")
    if not plus:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", SERVER_PORT if scheme == "unix" else parts.port or SERVER_PORT
        return Kind.SERVER, (Node(host, port),), "", url
    kinds = {"cluster": Kind.CLUSTER, "sentinel": Kind.SENTINEL}
    if kind_name not in kinds or scheme not in ("redis", "rediss"):
        raise ValueError(f"{scheme}+{kind_name} is not known")
    kind, parts = kinds[kind_name], urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(text, SENTINEL_PORT if kind is Kind.SENTINEL else SERVER_PORT) for text in hosts.split(","))
    service, path = "", parts.path
    if kind is Kind.SENTINEL:
        service, _, database = parts.path.strip("/").partition("/")
        path = f"/{database}" if database else ""
        if not service:
            raise ValueError("the service that the sentinels watch is missing: …/service")
    return kind, nodes, service, parts._replace(scheme=scheme, netloc=f"{login}{at}{nodes[0]}", path=path).geturl()


def _check_database(url: str, shown: str) -> None:
    database = url.partition("://")[2].partition("?")[0].partition("/")[2].strip("/")
    if database and not url.startswith("unix:") and not database.isdecimal():
        raise ConfigurationError(f"{shown!r} names the database {database!r}: write its number, as in /0")


def _node(text: str, default_port: int) -> Node:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return Node(parts.hostname, parts.port or default_port)


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
