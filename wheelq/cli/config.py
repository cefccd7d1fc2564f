"""wheelq config: prints the settings in force and where each comes from; writes the files of `config/`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from wheelq.cli.options import Session
from wheelq.cli.output import say, say_json
from wheelq.cli.shipped import config_files, write_new
from wheelq.settings.declaration import declarations
from wheelq.settings.environment import CONFIG, meant_for_wheelq, settings_in_force, variable_of
from wheelq.settings.whole import Settings, read_toml, tables
from wheelq.transport.address import without_password

SECRETS = frozenset(one.name for one in declarations(Settings).values() if one.is_secret)
HIDDEN = "***"
DEFAULT = "default"


class SettingInForce(NamedTuple):
    """One setting, its value and where the value comes from."""

    table: str
    """Empty for a setting outside of the tables."""
    name: str
    value: Any
    source: str
    """An option, an environment variable, the path of the settings file, or "default"."""


def config(
    session: Session,
    default: Annotated[bool, typer.Option("--default", help="Print the default file, with comments.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            help="Write the default file and the examples beside it (ACLs, receivers) into this directory.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show every setting in force and where it comes from: option, environment variable, file or default.

    The output is TOML. Passwords are not shown.
    """
    if into is not None:
        for path in write_new(into, config_files()):
            say(str(path))
    elif default:
        say(config_files()["wheelq.toml"].decode().rstrip("\n"))
    else:
        found = [_without_secrets(setting) for setting in all_in_force(session.config, session.url)]
        if session.json:
            say_json([setting._asdict() for setting in found])
        else:
            _say_toml(found)


def _without_secrets(setting: SettingInForce) -> SettingInForce:
    if setting.name == "url" and setting.value:
        return setting._replace(value=without_password(setting.value))
    if setting.name in SECRETS and setting.value:
        return setting._replace(value=HIDDEN)
    return setting


def _say_toml(found: Sequence[SettingInForce]) -> None:
    """Print the settings in TOML, whose strings, numbers and booleans are JSON's."""
    lines = [(setting, f"{setting.name} = {json.dumps(setting.value, ensure_ascii=False)}") for setting in found]
    width = max(len(line) for _, line in lines)
    table = ""
    for setting, line in lines:
        if setting.table != table:
            table = setting.table
            say(f"\n[{table}]")
        if setting.value is None:
            say(f"# {setting.name} is not set")
        else:
            say(f"{line:<{width}}  # {setting.source}")


def all_in_force(config: str | os.PathLike[str] | None = None, url: str | None = None) -> list[SettingInForce]:
    """Returns every setting in force; `config` and `url` are the values of --config and --url, if given.

    Raises: ConfigurationError, which names the file or the variable.
    """
    in_force = tables(settings_in_force(config))
    file = str(config or os.environ.get(CONFIG) or "")
    in_file = read_toml(file, "settings") if file else {}
    variables = meant_for_wheelq(os.environ)

    def source(table: str, name: str) -> str:
        if variable_of(table, name) in variables:
            return variable_of(table, name)
        within: Mapping[str, Any] = in_file.get(table, {}) if table else in_file
        return file if name in within else DEFAULT

    found = [
        SettingInForce(table, one.name, one.default, source(table, one.name))
        for table, settings in in_force.items()
        for one in settings
    ]
    if url is not None and url != os.environ.get(variable_of("", "url")):  # the option reads the variable too
        found[0] = SettingInForce("", "url", url, "--url")
    return found
