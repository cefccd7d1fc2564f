"""script: prints the Lua scripts, for programs that talk to Redis themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wheelq.cli.output import stdout, table
from wheelq.errors import InvalidInput
from wheelq.protocol import scripts


def script(
    name: Annotated[str | None, typer.Argument(help="The script's name.", metavar="NAME", show_default=False)] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Show every script's name and purpose.")] = False,
    into: Annotated[
        Path | None, typer.Option(help="Write every script into this directory, as NAME.lua.", metavar="DIRECTORY")
    ] = None,
) -> None:
    """Print a complete Lua script for EVAL or SCRIPT LOAD, for programs in other languages.

    wheelq script schedule > schedule.lua

    wheelq/protocol/PROTOCOL.md describes the arguments.
    """
    names = scripts.script_names()
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        for each in names:
            (into / f"{each}.lua").write_text(scripts.script(each).text)
    elif list_all:
        stdout().print(table("script", "purpose~", rows=((each, scripts.purpose(each)) for each in names)))
    elif name in names:
        typer.echo(scripts.script(name).text, nl=False)  # unchanged, so that its digest is the library's
    else:
        problem = f"there is no script {name!r}" if name else "missing; or --list, or --into DIRECTORY"
        raise InvalidInput("name", f"{problem}; these are: {', '.join(names)}")
