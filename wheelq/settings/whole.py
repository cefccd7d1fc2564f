"""All settings together, as read from a TOML file, and the server's URL."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from wheelq.errors import ConfigurationError, InvalidSetting
from wheelq.settings.components import (
    BreakerSettings,
    ClientSettings,
    ConnectionSettings,
    OutboxSettings,
    SchedulerSettings,
    ServerSettings,
    TopicSettings,
    WorkerSettings,
)
from wheelq.settings.declaration import Checked, Declaration, declarations, setting

Overrides = Mapping[tuple[str, str], tuple[str, Any]]
"""By table and name, "" for a setting outside of the tables: the variable that overrides a setting, and its value."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Settings(Checked):
    """All settings together, as read from a file."""

    url: str | None = setting(None, "The server's URL. --url overrides it. Without one, commands end with an error.")
    username: str = setting("", "User name at the server; one in the URL overrides it.")
    password: str = setting(
        "",
        "Password at the server; one in the URL overrides it. Better: WHEELQ_PASSWORD, password_file.",
        is_secret=True,
    )
    password_file: str = setting("", "A file that contains the password, such as a mounted secret.")
    prefix: str = setting(
        "wheelq",
        "First part of every key: several wheelqs can share one server. All processes of one must agree on it.",
    )
    log_level: str = setting(
        "info", 'The lowest level that commands log: "debug", "info", "warning" or "error".', one_of=LOG_LEVELS
    )
    log_format: str = setting(
        "text", 'How commands log to stderr: "text", or "json" with one object per line.', one_of=LOG_FORMATS
    )
    connection: ConnectionSettings = setting(ConnectionSettings(), "Connections to the server.")
    client: ClientSettings = setting(ClientSettings(), "Producers.")
    breaker: BreakerSettings = setting(
        BreakerSettings(), "While the server is away, the circuit is open: calls fail at once."
    )
    outbox: OutboxSettings = setting(
        OutboxSettings(), "The outbox, where producers keep jobs while the server is away, to deliver them later."
    )
    topic: TopicSettings = setting(
        TopicSettings(),
        "The settings of a new topic, stored with its first job. Changing them here does not change existing topics: "
        "use `wheelq configure` or `client.configure` for those.",
    )
    scheduler: SchedulerSettings = setting(SchedulerSettings(), "Schedulers.")
    worker: WorkerSettings = setting(WorkerSettings(), "Workers.")
    server: ServerSettings = setting(
        ServerSettings(),
        "The HTTP server (wheelq server). Variables that Kubernetes sets for a service called wheelq-server "
        "(WHEELQ_SERVER_PORT=tcp://…) are ignored.",
    )
    callbacks: BreakerSettings = setting(
        BreakerSettings(open_ms=2_000, open_max_ms=60_000),
        "Each receiver of callbacks has its own circuit breaker, as in [breaker]. While it is open, no calls are made.",
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.password and self.password_file:
            raise InvalidSetting("password_file", "cannot be given together with password: leave one of them out")
        if not self.prefix or any(c in self.prefix for c in "{}: \n"):
            raise InvalidSetting("prefix", f"must be non-empty, without braces, colons and spaces, not {self.prefix!r}")
        if self.client.replicated_timeout_ms >= self.connection.reply_timeout_ms:
            raise InvalidSetting("client.replicated_timeout_ms", "must be less than connection.reply_timeout_ms")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the settings in a TOML file; those it omits have their defaults. Raises: ConfigurationError."""
        settings: Self = merged(cls(), read_toml(path, "settings"), str(path), {})
        return settings


def merged(default: Any, given: dict[str, Any], where: str, over: Overrides) -> Any:
    """Returns settings with the values of a file, and with those that variables override.

    They are checked together, because half of a pair may be in the file. Raises: ConfigurationError.
    """
    for secret, other in (
        ("password", "password_file"),
        ("password_file", "password"),
    ):  # a variable for either replaces both
        if over.get(("", secret), ("", ""))[1] and ("", other) not in over:
            given.pop(other, None)
    for (table, name), (_, value) in over.items():
        values = given.setdefault(table, {}) if table else given
        if isinstance(values, dict):
            values[name] = value
    return _replaced(default, given, where, over)


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Returns the content of a file of settings or services. Raises: ConfigurationError, which names the file."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of huge numbers, and of bytes that are not UTF-8
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error


def tables(settings: Settings) -> dict[str, list[Declaration]]:
    """Returns every setting by its table, "" for those outside of the tables; the defaults are the values in force."""
    found: dict[str, list[Declaration]] = {"": []}
    for one in declarations(settings).values():
        if isinstance(one.default, Checked):
            found[one.name] = list(declarations(one.default).values())
        else:
            found[""].append(one)
    return found


def _replaced(owner: Any, given: dict[str, Any], where: str, over: Overrides, table: str = "") -> Any:
    values = {name: _value(where, owner, name, value, over) for name, value in given.items()}
    try:
        return replace(owner, **values)
    except InvalidSetting as error:
        in_table, _, name = error.setting.rpartition(".")
        if found := over.get((in_table or table, name)):
            raise InvalidSetting(found[0], error.problem) from error
        raise InvalidSetting(error.setting, error.problem, where=f"{where}: ") from error


def _value(where: str, owner: Any, name: str, value: Any, over: Overrides) -> Any:
    known = declarations(owner)
    if name not in known:
        raise ConfigurationError(f"{where}: unknown setting {name!r}; known here: {', '.join(sorted(known))}")
    default = known[name].default
    if isinstance(default, Checked):
        if not isinstance(value, dict):
            raise ConfigurationError(f"{where}: {name} must be a table ([{name}])")
        return _replaced(default, value, f"{where} [{name}]", over, name)
    wanted = str if default is None else type(default)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigurationError(f"{where}: {name} must be {wanted.__name__}, not {value!r}")
    return value


def resolve_url(url: str | None, settings: Settings | None = None) -> str:
    """Returns the server's URL: `url`, else the settings', else WHEELQ_URL. Raises: ConfigurationError.

    `settings_in_force()` has applied WHEELQ_URL already; it is read here for settings that a program made itself.
    """
    found = find_url(url, settings)
    if not found:
        raise ConfigurationError("no server named: give a URL (redis://localhost:6379), --url, or set WHEELQ_URL")
    return found


def find_url(url: str | None, settings: Settings | None = None) -> str | None:
    """Returns the server's URL as `resolve_url` does, or None if none is named."""
    return url or (settings.url if settings else None) or os.environ.get("WHEELQ_URL") or None
