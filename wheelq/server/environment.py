"""The server's settings from the environment: WHEELQ_SERVER_PORT=8080 comes before the settings file.

The names, types and defaults are those of `settings.ServerSettings`; here is only how they are read.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pydantic import ValidationError, create_model
from pydantic_settings import BaseSettings, SettingsConfigDict

from wheelq.errors import ConfigurationError
from wheelq.settings import ServerSettings, Settings

PREFIX = "WHEELQ_SERVER_"


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid")


def with_environment(settings: Settings, **given: Any) -> Settings:
    """The settings, with what the environment says of the server, and over that what is `given` (None: it is not).

    Raises: ConfigurationError.
    """
    known: dict[str, Any] = {item.name: (type(item.default) | None, None) for item in fields(ServerSettings)}
    try:
        read = create_model("Environment", __base__=_Environment, **known)()
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + ".".join(map(str, first["loc"])).upper()
        raise ConfigurationError(f"{name}: {first['msg']}, not {first['input']!r}") from error
    said = {name: value for name, value in read.model_dump().items() if value is not None}
    over = {name: value for name, value in given.items() if value is not None}
    return replace(settings, server=replace(settings.server, **{**said, **over}))
