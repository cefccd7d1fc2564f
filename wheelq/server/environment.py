"""The server's settings from the environment: WHEELQ_SERVER_PORT=8080 comes before the settings file.

The names, types and defaults are those of `settings.ServerSettings`; here is only how they are read. A misspelt name
is refused: what was meant to close the server must not leave it open.

Kubernetes tells every container where its services are, in variables that it names after them, and a service may well
be called wheelq-server. So WHEELQ_SERVER_PORT=tcp://10.0.0.7:80 is no port, and WHEELQ_SERVER_SERVICE_HOST no mistake.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from wheelq.errors import ConfigurationError, InvalidSetting
from wheelq.settings import ServerSettings, Settings

logger = logging.getLogger("wheelq.server")

PREFIX = "WHEELQ_SERVER_"
_BINARY = "WHEELQ_SERVER_BINARY"
"""Names the server that `wheelq.binaries` runs: Redis or Valkey, not this one."""
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_OF_A_SERVICE = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment alone, and of it only what is meant for this server."""
        source = EnvSettingsSource(settings_cls)
        source.env_vars = _meant_for_us(source.env_vars, list(settings_cls.model_fields))
        return (source,)


def with_environment(settings: Settings, **given: Any) -> Settings:
    """The settings, with what the environment says of the server, and over that what is `given` (None: it is not).

    Raises: ConfigurationError.
    """
    known: dict[str, Any] = {item.name: (type(item.default), item.default) for item in fields(ServerSettings)}
    try:
        said = create_model("Environment", __base__=_Environment, **known)().model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + ".".join(map(str, first["loc"])).upper()
        raise ConfigurationError(f"{name}: {first['msg']}, not {first['input']!r}") from error
    over = {name: value for name, value in given.items() if value is not None}
    try:
        return replace(settings, server=replace(settings.server, **{**said, **over}))
    except InvalidSetting as error:
        is_said = error.setting in said and error.setting not in over
        setting = PREFIX + error.setting.upper() if is_said else error.setting
        raise InvalidSetting(setting, error.problem) from error


def _meant_for_us(variables: Mapping[str, str | None], known: list[str]) -> dict[str, str | None]:
    found = {}
    for variable, text in variables.items():
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or variable.upper() == _BINARY:
            continue
        if _ADDRESS.match(text or "") or _OF_A_SERVICE.fullmatch(name):
            logger.debug("%s is passed over: Kubernetes tells so where a service is", variable.upper())
        elif name.lower() in known:
            found[variable] = text
        else:
            _tell_unknown(variable.upper(), name.lower(), known)
    return found


def _tell_unknown(variable: str, name: str, known: list[str]) -> None:
    """Raises: ConfigurationError, if a setting has nearly this name; what is like none may be meant for others."""
    near = [PREFIX + one.upper() for one in get_close_matches(name, known, cutoff=0.7)]
    if near:
        raise ConfigurationError(f"{variable} is no setting of the server: did you mean {' or '.join(near)}?")
    logger.warning("%s is no setting of the server, and is passed over", variable)
