"""The settings in force: environment variables over the settings file over the defaults.

Every setting has a variable: `concurrency` in the table [worker] is WHEELQ_WORKER_CONCURRENCY, `prefix` is
WHEELQ_PREFIX. WHEELQ_CONFIG names the file. A variable whose name is close to a setting's is refused, so that a typing
error never leaves a server open; any other unknown name is ignored with a warning.

In every container, Kubernetes sets variables that are named after its services, and a service may be called
wheelq-server. So WHEELQ_SERVER_PORT=tcp://10.0.0.7:80 is not read as a port, and WHEELQ_SERVER_SERVICE_HOST is not a
mistake.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from wheelq.errors import ConfigurationError, InvalidSetting
from wheelq.settings.declaration import Declaration
from wheelq.settings.whole import Settings, merged, read_toml, tables

logger = logging.getLogger("wheelq.settings")

PREFIX = "WHEELQ_"
CONFIG = "WHEELQ_CONFIG"
"""Names the settings file."""
_NOT_SETTINGS = frozenset({CONFIG, "WHEELQ_DATABASE", "WHEELQ_DEBUG", "WHEELQ_ENV_FILE", "WHEELQ_SERVER_BINARY"})
_NOT_OURS = "WHEELQ_TEST_"
"""Variables of wheelq's own tests."""
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
_OF_A_SERVICE = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def settings_in_force(config: str | os.PathLike[str] | None = None) -> Settings:
    """Returns the settings of the file `config` (else WHEELQ_CONFIG), overridden by environment variables.

    Raises: ConfigurationError, which names the file or the variable.
    """
    return with_environment(config or os.environ.get(CONFIG), os.environ)


def with_environment(file: str | os.PathLike[str] | None, variables: Mapping[str, str]) -> Settings:
    """Returns the settings of a file, if there is one, overridden by environment variables.

    Raises: ConfigurationError, which names the file or the variable.
    """
    over = {
        (table, one.name): (variable, _value(variable, variables[variable], one.default))
        for variable, (table, one) in meant_for_wheelq(variables).items()
    }
    given = read_toml(file, "settings") if file else {}
    settings: Settings = merged(Settings(), given, str(file or "the environment"), over)
    return settings


def variable_of(table: str, name: str) -> str:
    """Returns the environment variable of a setting; `table` is empty for a setting outside of the tables."""
    return "_".join(part.upper() for part in ("wheelq", table, name) if part)


_BY_TABLE = tables(Settings())
_KNOWN = {variable_of(table, one.name): (table, one) for table, settings in _BY_TABLE.items() for one in settings}
_PREFIXES = tuple(variable_of(table, "") + "_" for table in _BY_TABLE if table)


def meant_for_wheelq(variables: Mapping[str, str]) -> dict[str, tuple[str, Declaration]]:
    """Returns the variables that set a setting, and which. Raises: ConfigurationError, if a name is close to one."""
    found = {}
    for name, text in variables.items():
        if not name.startswith(PREFIX) or name in _NOT_SETTINGS or name.startswith(_NOT_OURS):
            continue
        if _ADDRESS.match(text) or _OF_A_SERVICE.fullmatch(name.removeprefix(PREFIX)):
            logger.debug("%s is ignored: Kubernetes uses it to say where a service is", name)
        elif name in _KNOWN:
            found[name] = _KNOWN[name]
        else:
            _refuse_near_miss(name)
            _warn_of_unknown(name)
    return found


def _refuse_near_miss(variable: str) -> None:
    """Raises: ConfigurationError, if the name is close to a setting's."""
    table = next((one for one in _PREFIXES if variable.startswith(one)), PREFIX)
    known = {name.removeprefix(table): name for name in (*_KNOWN, CONFIG) if name.startswith(table)}
    near = [known[name] for name in get_close_matches(variable.removeprefix(table), known, cutoff=0.7)]
    if near:
        raise ConfigurationError(f"{variable} is not a setting of wheelq: did you mean {' or '.join(near)}?")


@cache
def _warn_of_unknown(variable: str) -> None:
    logger.warning("%s is not a setting of wheelq, and is ignored", variable)


def _value(variable: str, text: str, default: Any) -> Any:
    match default:
        case bool():
            if text.lower() not in (*_TRUE, *_FALSE):
                raise InvalidSetting(variable, f"must be true or false, not {text!r}")
            return text.lower() in _TRUE
        case int() | float():
            kind, wanted = (int, "a whole number") if isinstance(default, int) else (float, "a number")
            try:
                return kind(text)
            except ValueError as error:
                raise InvalidSetting(variable, f"must be {wanted}, not {text!r}") from error
        case _:
            return text
