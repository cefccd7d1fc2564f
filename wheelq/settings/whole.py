"""All settings together, as read from a TOML file, and the server's URL."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

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
from wheelq.settings.declaration import Checked

T = TypeVar("T")

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings together, as read from a file."""

    url: str | None = None
    """The server's URL. `connect(url)` and --url override it."""
    username: str = ""
    """User name at the server. A name in the URL overrides it."""
    password: str = field(default="", repr=False)
    """Password at the server. A password in the URL overrides it."""
    password_file: str = ""
    """A file whose content is the password."""
    prefix: str = "wheelq"
    """First part of every key: several wheelqs can share a server."""
    log_level: str = "info"
    """The least level that commands log: debug, info, warning or error."""
    log_format: str = "text"
    """How commands log: "text", or "json" with one object per line."""
    connection: ConnectionSettings = ConnectionSettings()
    client: ClientSettings = ClientSettings()
    breaker: BreakerSettings = BreakerSettings()
    outbox: OutboxSettings = OutboxSettings()
    topic: TopicSettings = TopicSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    server: ServerSettings = ServerSettings()
    callbacks: BreakerSettings = BreakerSettings(open_ms=2_000, open_max_ms=60_000)

    def __post_init__(self) -> None:
        for name, known in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
            if getattr(self, name) not in known:
                raise InvalidSetting(name, f"must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.password and self.password_file:
            raise InvalidSetting("password_file", "cannot be given together with password: leave one of them out")
        if not self.prefix or any(c in self.prefix for c in "{}: \n"):
            raise InvalidSetting("prefix", f"must be non-empty, without braces, colons and spaces, not {self.prefix!r}")
        if self.client.replicated_timeout_ms >= self.connection.reply_timeout_ms:
            raise InvalidSetting("client.replicated_timeout_ms", "must be less than connection.reply_timeout_ms")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the settings in a TOML file; those it omits have their defaults. Raises: ConfigurationError."""
        try:
            table = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigurationError(f"cannot read the settings file {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
        given = {name: _value(str(path), cls, name, value) for name, value in table.items()}
        return _made(cls, given, str(path))


def _made(kind: type[T], given: dict[str, Any], where: str) -> T:
    try:
        return kind(**given)
    except InvalidSetting as error:
        raise InvalidSetting(error.setting, error.problem, where=f"{where}: ") from error


def _value(where: str, owner: Any, name: str, value: Any) -> Any:
    known = {item.name: item for item in fields(owner)}
    if name not in known:
        raise ConfigurationError(f"{where}: unknown setting {name!r}; known here: {', '.join(sorted(known))}")
    default = known[name].default
    if isinstance(default, Checked):
        if not isinstance(value, dict):
            raise ConfigurationError(f"{where}: {name} must be a table ([{name}])")
        section = type(default)
        given = {key: _value(f"{where} [{name}]", section, key, item) for key, item in value.items()}
        kept = {item.name: getattr(default, item.name) for item in fields(default)}  # type: ignore[arg-type]
        return _made(section, kept | given, f"{where} [{name}]")
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
