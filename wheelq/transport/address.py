"""From a URL to connections, with user, password and database.

    redis://[user][:password]@host[:port][/database]        one server or a node of a cluster; the server says which
    rediss://…[?ssl_ca_certs=/path/ca.pem]                  TLS; without the option the system's authorities are trusted
    unix://[user][:password]@/path/to/socket[?db=0]         a socket on this machine
    redis+cluster://[login@]host[:port],host[:port]         a cluster by several nodes; some may be down
    redis+sentinel://[login@]host[:port],host[:port]/service[/database]
        sentinels and the service they watch; the login is for the servers, and the sentinels have their own:
        ?sentinel_username=…&sentinel_password=…; both kinds also with TLS: rediss+cluster, rediss+sentinel
    memory://name                                           a server in this process, for tests: see `memory`

The URL is the one given (`connect(url)`, `--url`), else the environment's WHEELQ_URL, else `url` in the settings file.
User name and password may be settings of their own (WHEELQ_USERNAME, WHEELQ_PASSWORD, WHEELQ_PASSWORD_FILE).
Characters of the password other than letters, digits and `-._~` are %-escaped: `urllib.parse.quote(password, safe="")`
makes `p%40ss%2F1` of `p@ss/1`; letters of any language are escaped as UTF-8. A URL with an unescaped password is
refused, not misread. With TLS the server's certificate and name are always checked; ssl_certfile and ssl_keyfile name a
client certificate if the server requires one. `config/acl` has users with exactly the rights that a producer, a
scheduler, a worker or a monitor needs.

A module may call `connect()` before a server is named, or while WHEELQ_URL still names another, because tests and
programs import it first and set the variable later. `server_address` then looks the address up at first use.

No password is ever shown: errors and logs use `Address.shown`, which ends before the options.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from difflib import get_close_matches
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheelq.errors import ConfigurationError
from wheelq.settings import ConnectionSettings, Settings, find_url, resolve_url, settings_in_force
from wheelq.transport.slots import Node

SERVER_PORT, SENTINEL_PORT = 6379, 26379
SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
KNOWN_OPTIONS = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sentinel_username", "sentinel_password")
"""The options of a URL that this module documents; other options of redis-py work too."""


class ServerKind(Enum):
    """The kind of server that a URL names."""

    SERVER = auto()
    """One server, which may turn out to be a node of a cluster."""
    CLUSTER = auto()
    """Nodes of a cluster."""
    SENTINEL = auto()
    """Sentinels, which know where the server is."""


class Login(NamedTuple):
    """User name and password for a URL that has none; empty: none."""

    username: str = ""
    password: str = ""


class Address:
    """Where a server, a cluster or sentinels are, and how to connect."""

    def __init__(self, url: str, settings: ConnectionSettings | None = None, login: Login | None = None) -> None:
        """`login` is for a URL without user name and password.

        Raises: ConfigurationError if `url` is not the URL of a server.
        """
        self.url = url
        self.settings = settings or ConnectionSettings()
        self.shown = self.written = without_password(url)
        """`shown` is the server as errors name it; `written` is the URL that led to it."""
        self.is_sentinel = False
        if _has_stray_at(url):
            raise ConfigurationError(
                f"{self.shown!r} cannot be read: / ? # @ in a password are %-escaped in a URL, as "
                "urllib.parse.quote(password, safe='') does"
            )
        try:
            self.kind, self.nodes, self.service, plain_url = _take_apart(url)
            for node in self.nodes:
                node.host.encode("idna")  # raises UnicodeError, a ValueError, as a connection would
            _check_database(plain_url, self.shown)
            self._blocking, self._asyncio = _connection_options(plain_url)
            if login is not None and not url.startswith("memory:"):
                self._add_login(login)
            self._sentinel_login: dict[str, Any] = {}
            for name in ("username", "password"):
                self._sentinel_login[name] = self._blocking.pop(f"sentinel_{name}", None)
                self._asyncio.pop(f"sentinel_{name}", None)
            self.has_password = bool(self._blocking.get("password"))
            _check_options(self._blocking, self.connection, self.shown)
        except (ValueError, TypeError) as error:
            scheme, _, rest = self.shown.rpartition("://")
            if scheme not in SCHEMES and (near := get_close_matches(scheme or "redis", SCHEMES, 1)):
                problem = f"is not a server URL: did you mean {near[0]}://{rest}?"
                raise ConfigurationError(f"{self.shown!r} {problem}") from None
            why = "" if "@" in url else f" ({error})"  # with a login in the URL, the error's text may hold the password
            raise ConfigurationError(
                f"{self.shown!r} is not a server URL{why}; write redis://host:port/0, rediss://… for TLS, "
                "unix:///path, redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service"
            ) from None

    def _add_login(self, login: Login) -> None:
        if self._blocking.get("password"):
            return
        for options in (self._blocking, self._asyncio):
            options.update({name: value for name, value in login._asdict().items() if value and not options.get(name)})

    def at(self, node: Node) -> Self:
        """The address of another server with the same user, password, TLS and timeouts."""
        return self._at(node, {})

    def at_sentinel(self, node: Node) -> Self:
        """The address of one of the sentinels."""
        found = self._at(node, {**self._sentinel_login, "db": 0})
        found.is_sentinel = True
        return found

    def _at(self, node: Node, changes: dict[str, Any]) -> Self:
        found = copy.copy(self)
        found.kind, found.nodes, found.shown = ServerKind.SERVER, (node,), str(node)
        changes = {**changes, "host": node.host, "port": node.port}
        found._blocking = {**self._blocking, **changes}
        found._asyncio = {**self._asyncio, **changes}
        if found._blocking.pop("path", None) is not None:  # a cluster whose first node was reached by its unix socket
            for options in (found._blocking, found._asyncio):
                options.pop("path", None)
                options.pop("connection_class", None)
        return found

    @property
    def reply_timeout_ms(self) -> int:
        """How long a call waits for its reply."""
        return self.settings.reply_timeout_ms

    @property
    def max_connections(self) -> int:
        """The most connections of a client."""
        return self.settings.max_connections

    def pool(self, reply_timeout_ms: int | None = None) -> redis.BlockingConnectionPool:
        """A pool of blocking connections that never repeat a request by themselves."""
        reply_timeout = (reply_timeout_ms or self.settings.reply_timeout_ms) / 1000
        options: dict[str, Any] = {
            **self._options(),
            "socket_timeout": reply_timeout,
            "max_connections": self.max_connections,
            "timeout": reply_timeout,
            "retry": Retry(NoBackoff(), 0),
            **self._blocking,
        }
        return redis.BlockingConnectionPool(**options)

    def connection(self) -> redis.asyncio.Connection:
        """A new asyncio connection, not yet open, without timeouts, because some replies come late on purpose."""
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
        # RESP2: replies are plain lists in every release, and take a third less time to read.
        options = {**_driver(), "protocol": 2, "socket_connect_timeout": self.settings.connect_timeout_ms / 1000}
        return options if "path" in self._blocking else {**options, "socket_keepalive": True}


@cache
def _driver() -> dict[str, Any]:
    """Returns the option that names redis-py's release; without it, redis-py reads files for each connection."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # a release that reads them once
        return {}
    return {"driver_info": DriverInfo()}


def _connection_options(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of blocking and of asyncio connections."""
    if url.startswith("memory:"):
        try:
            from wheelq.transport import memory
        except ImportError as error:
            raise ConfigurationError("memory:// needs fakeredis: pip install 'wheelq[testing]'") from error
        return memory.connection_options(url)
    return dict(redis.connection.parse_url(url)), dict(redis.asyncio.connection.parse_url(url))


def _take_apart(url: str) -> tuple[ServerKind, tuple[Node, ...], str, str]:
    """Returns kind, nodes, service, and the URL of one server with the rest."""
    scheme, plus, kind_name = url.partition("://")[0].partition("+")
    if not plus:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", SERVER_PORT if scheme == "unix" else parts.port or SERVER_PORT
        return ServerKind.SERVER, (Node(host, port),), "", url
    kinds = {"cluster": ServerKind.CLUSTER, "sentinel": ServerKind.SENTINEL}
    if kind_name not in kinds or scheme not in ("redis", "rediss"):
        raise ValueError(f"{scheme}+{kind_name} is not known")
    kind = kinds[kind_name]
    place = url.partition("://")[2]
    network = re.split("[/?#]", place, maxsplit=1)[0]
    login, at, hosts = network.rpartition("@")
    nodes = tuple(
        _node(text, SENTINEL_PORT if kind is ServerKind.SENTINEL else SERVER_PORT) for text in hosts.split(",")
    )
    # Of several hosts only the first: urlsplit refuses brackets in the middle.
    parts = urlsplit(f"{scheme}://{login}{at}{nodes[0]}{place[len(network) :]}")
    service, path = "", parts.path
    if kind is ServerKind.SENTINEL:
        service, _, database = parts.path.strip("/").partition("/")
        path = f"/{database}" if database else ""
        if not service:
            raise ValueError("the service that the sentinels watch is missing: …/service")
    return kind, nodes, service, parts._replace(path=path).geturl()


def _check_options(options: dict[str, Any], connect: Callable[[], object], shown: str) -> None:
    """Raises: ConfigurationError, if connections do not know one of the options."""
    try:
        connect()
    except TypeError as error:
        unknown = next((name for name in options if f"'{name}'" in str(error)), "?")
        if unknown.startswith("ssl_") and unknown in KNOWN_OPTIONS:
            problem = "is for TLS: write rediss://"
        else:
            near = get_close_matches(unknown, KNOWN_OPTIONS)
            problem = f"does not exist{': did you mean ' + ' or '.join(near) + '?' if near else ''}"
        raise ConfigurationError(f"the option {unknown} of {shown!r} {problem}") from None


def _check_database(url: str, shown: str) -> None:
    database = url.partition("://")[2].partition("?")[0].partition("/")[2].strip("/")
    if database and not url.startswith("unix:") and not database.isdecimal():
        raise ConfigurationError(f"{shown!r} names the database {database!r}: write its number, as in /0")


def _node(text: str, default_port: int) -> Node:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return Node(parts.hostname, parts.port or default_port)


def without_password(url: str) -> str:
    """Returns the URL without options, and of the part before the last @ only the user's name.

    This hides the password even in a malformed URL, whose password holds an unescaped / or #.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if rest.startswith("/"):  # a socket's path without login: an @ belongs to the path
        return f"{scheme}{separator}{rest.partition('?')[0]}"
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{colon and ':***'}{at}{place.partition('?')[0]}"


def _has_stray_at(url: str) -> bool:
    """Whether the URL has an @ outside its login, which should perhaps end a password."""
    place = url.partition("://")[2]
    network = re.split("[/?#]", place, maxsplit=1)[0]
    beyond = place[len(network) :]
    return bool(network) and "@" in (beyond.partition("?")[0] if "@" in network else beyond)


def server_address(url: str | None, settings: Settings | None) -> Address:
    """Returns the address of `url`, else of the URL in `settings`; else the one in force at its first use.

    So the clients of a module that a test imports use the test's server, whatever WHEELQ_URL was before.
    Raises: ConfigurationError, also at first use.
    """
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"the URL of the server must be a string, not {type(url).__name__}")
    if url is not None and not url.strip():
        raise ConfigurationError("the URL is empty: write redis://host:port/0, or give none to use WHEELQ_URL")
    known = settings or settings_in_force()
    found = find_url(url, known)
    address = Address(found, known.connection, login_of(known)) if found else None  # so that a wrong URL is told now
    is_given = url is not None or (settings is not None and settings.url)
    return address if address is not None and is_given else LateAddress(settings)


def login_of(settings: Settings) -> Login:
    """Returns user name and password of the settings. Raises: ConfigurationError, which names the file."""
    password = settings.password
    if settings.password_file:
        try:
            password = Path(settings.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"cannot read the password file {settings.password_file}: {why}") from error
    return Login(settings.username, password)


class LateAddress(Address):
    """An address whose URL is not known yet. It becomes an ordinary address at its first use."""

    def __init__(self, settings: Settings | None) -> None:
        self._given = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "settings":  # known before the URL is
            self.settings = (self._given or settings_in_force()).connection
            return self.settings
        settings = self._given or settings_in_force()
        found = Address(resolve_url(None, settings), settings.connection, login_of(settings))
        self.__dict__.update(vars(found))
        return getattr(found, name)
