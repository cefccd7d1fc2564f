"""wheelq config: prints the settings in force and where each comes from; writes the files of `config/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from wheelq.cli.files import config_files, write_new
from wheelq.cli.options import Config, Json, Url
from wheelq.cli.output import say, say_json
from wheelq.settings.provenance import SettingInForce, all_in_force
from wheelq.transport.address import without_password

SECRETS = frozenset({"password"})
HIDDEN = "***"


def config(
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
    url: Url = None,
    config: Config = None,
    json: Json = False,
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
        found = [_without_secrets(setting) for setting in all_in_force(config, url)]
        if json:
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
    lines = [(setting, f"{setting.name} = {_in_toml(setting.value)}") for setting in found]
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


def _in_toml(value: Any) -> str:
    """Returns a value as TOML writes it; its strings are JSON's, and so are its numbers and booleans."""
    return json.dumps(value, ensure_ascii=False)
