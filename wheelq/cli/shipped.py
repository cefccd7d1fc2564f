"""guide, script: print what ships with the package. `config` and `init` write files with the help of this module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from wheelq import guide as pages
from wheelq.cli.output import stdout, table
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.protocol import scripts

PAGE_WIDTH = 100
"""The most columns of a page, which is read and not processed: fewer than a pipe or a wide terminal may have."""
STARTER = "starter/"
"""Where `config/` has what `wheelq init` writes."""
_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)


def guide(
    page: Annotated[
        str, typer.Argument(metavar="[PAGE]", help="A page, such as testing; else the index.")
    ] = pages.INDEX,
) -> None:
    """Show a page of the guide. Without a name, list the pages."""
    from rich.markdown import Markdown  # slow to import, and no other command here needs it

    try:
        text = pages.source(page)
    except KeyError:
        known = ", ".join(sorted(pages.names()))
        raise InvalidInput("page", f"{page!r} is not a page of the guide; the pages are {known}") from None
    console = stdout()
    console.print(Markdown(_FILE.sub(r"*\1*", text), hyperlinks=False), width=min(console.width, PAGE_WIDTH))


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


def config_files() -> dict[str, bytes]:
    """Returns the content of the files of `config/` by their paths there, such as "acl/worker.acl"."""
    return {path: content for path, content in _files().items() if not path.startswith(STARTER)}


def starter_files() -> dict[str, bytes]:
    """Returns the content of the files that `wheelq init` writes, by name."""
    return {path.removeprefix(STARTER): content for path, content in _files().items() if path.startswith(STARTER)}


def _files() -> dict[str, bytes]:
    """Returns the files of `config/`, which is in the installed package, or beside it in a checkout."""
    package = files("wheelq")
    folders: tuple[Traversable, ...] = (package / "config", Path(str(package)).parent / "config")
    for folder in folders:
        if folder.joinpath("wheelq.toml").is_file():
            return {path: entry.read_bytes() for path, entry in _entries(folder, "")}
    raise ConfigurationError("this installation of wheelq lacks its config files: install it again")


def _entries(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            yield from _entries(entry, f"{path}{entry.name}/")
        else:
            yield f"{path}{entry.name}", entry


def write_new(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    """Write files below a directory; returns their paths. Raises: InvalidInput, if one exists; then none is written."""
    paths = {directory / name: content for name, content in contents.items()}
    if there := [str(path) for path in paths if path.exists()]:
        raise InvalidInput("directory", f"{', '.join(there)} exists already: remove it, or name another directory")
    for path, content in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return list(paths)
