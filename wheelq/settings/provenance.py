"""Every setting in force with the place that it comes from, for `wheelq config`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wheelq.settings.environment import CONFIG, meant_for_wheelq, settings_in_force, variable_of
from wheelq.settings.whole import Settings

DEFAULT = "default"


class SettingInForce(NamedTuple):
    """One setting, its value and where the value comes from."""

    table: str
    """Empty for a setting outside of the tables."""
    name: str
    value: Any
    source: str
    """An option, an environment variable, the path of the settings file, or "default"."""


def all_in_force(config: str | os.PathLike[str] | None = None, url: str | None = None) -> list[SettingInForce]:
    """Returns every setting in force; `config` and `url` are the values of --config and --url, if given.

    Raises: ConfigurationError, which names the file or the variable.
    """
    settings = settings_in_force(config)
    file = str(config or os.environ.get(CONFIG) or "")
    in_file = tomllib.loads(Path(file).read_text()) if file else {}
    variables = meant_for_wheelq(os.environ)

    def source(table: str, name: str) -> str:
        if variable_of(table, name) in variables:
            return variable_of(table, name)
        within: Mapping[str, Any] = in_file.get(table, {}) if table else in_file
        return file if name in within else DEFAULT

    found = [SettingInForce(table, name, value, source(table, name)) for table, name, value in _values(settings)]
    if url is not None and url != os.environ.get(variable_of("", "url")):  # the option reads the variable too
        found[0] = SettingInForce("", "url", url, "--url")
    return found


def _values(settings: Settings) -> Iterator[tuple[str, str, Any]]:
    tables = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            tables.append((item.name, value))
        else:
            yield "", item.name, value
    for table, owner in tables:
        for item in fields(owner):
            yield table, item.name, getattr(owner, item.name)
