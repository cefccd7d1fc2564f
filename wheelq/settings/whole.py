"""All settings together, as read from a TOML file, and the URL that comes before theirs."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from wheelq.errors import ConfigurationError, InvalidSetting
from wheelq.settings.checked import Checked
from wheelq.settings.nodes import SchedulerSettings, WorkerSettings
from wheelq.settings.producers import BreakerSettings, ClientSettings, ConnectionSettings, OutboxSettings
from wheelq.settings.server import ServerSettings
from wheelq.settings.topic import TopicSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them together, as read from a file."""

    url: str | None = None
    """Where the server is; WHEELQ_URL and --url come before it."""
    prefix: str = "wheelq"
    """First part of every key: several wheelqs can share a server."""
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
        if not self.prefix or any(c in self.prefix for c in "{}: \n"):
            raise InvalidSetting("prefix", f"must be non-empty, without braces, colons and spaces, not {self.prefix!r}")
        if self.client.replicated_timeout_ms >= self.connection.reply_timeout_ms:
            raise InvalidSetting("client.replicated_timeout_ms", "must be less than connection.reply_timeout_ms")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The settings in a TOML file; what it does not name has its default. Raises: ConfigurationError."""
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
    """The server's URL: the one given, else WHEELQ_URL, else the settings file's. Raises: ConfigurationError."""
    found = url or os.environ.get("WHEELQ_URL") or (settings.url if settings else None)
    if not found:
        raise ConfigurationError("no server named: give a URL (redis://localhost:6379), --url, or set WHEELQ_URL")
    return found
