"""wheelq guide: shows a page of the guide, which ships with the package."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.markdown import Markdown

from wheelq import guide as pages
from wheelq.cli.output import stdout
from wheelq.errors import InvalidInput

_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)


def guide(
    page: Annotated[
        str, typer.Argument(metavar="[PAGE]", help="A page, such as testing; else the index.")
    ] = pages.INDEX,
) -> None:
    """Show a page of the guide. Without a name, list the pages."""
    try:
        text = pages.source(page)
    except KeyError:
        known = ", ".join(sorted(pages.names()))
        raise InvalidInput("page", f"{page!r} is not a page of the guide; the pages are {known}") from None
    stdout().print(Markdown(_FILE.sub(r"*\1*", text), hyperlinks=False))
