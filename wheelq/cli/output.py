"""Prints the output of commands: text or JSON on stdout, errors on stderr.

Much of it was written by others: payloads, errors, names. All commands print through here, where control characters
become escapes, so that no job can steer the terminal of the person who looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from wheelq.base.printable import json_line, one_line, printable
from wheelq.errors import (
    BundleNotFound,
    ConfigurationError,
    InvalidInput,
    JobNotFound,
    OutcomeUnknown,
    ServerTooOld,
    TlsFailed,
    Unavailable,
    WheelqError,
    is_wrong_setup,
)
from wheelq.model.durations import span
from wheelq.model.job import Receipt, from_ms

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

FAILED, UNUSABLE, NOT_FOUND, TOO_LATE = 1, 2, 3, 4
LONGEST_LINE = 10_000
GAP = 2
MARKS = ">?~"
LEAST_TEXT = 16
"""The least width of cut text."""

_REMEDIES: dict[type[WheelqError], str] = {
    TlsFailed: "Check the certificates: ssl_ca_certs in the URL names the authority that issued the server's.",
    Unavailable: "Is the server running there? Name another with --url or WHEELQ_URL, or start one: wheelq up",
    OutcomeUnknown: "The server may be busy or gone. Look: wheelq doctor",
    ServerTooOld: "Look: wheelq doctor",
}


def exit_code(error: WheelqError) -> int:
    """Returns 2 if the command as given cannot work, 3 if what it names is not there, else 1."""
    if isinstance(error, (JobNotFound, BundleNotFound)):
        return NOT_FOUND
    is_unusable = isinstance(error, (InvalidInput, ConfigurationError)) or is_wrong_setup(error)
    return UNUSABLE if is_unusable else FAILED


def complain(error: WheelqError) -> None:
    """Print an error in red, and what to do about it."""
    console = stderr()
    console.print(str(error), style="red", markup=False, soft_wrap=True)
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy:
        console.print(remedy, markup=False, soft_wrap=True)


def say(text: str) -> None:
    typer.echo(printable(text))


def progress_bar() -> Progress:
    """A bar on stderr that vanishes at the end; nothing where that is no terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = stderr()
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def say_aside(text: str) -> None:
    typer.echo(printable(text), err=True)


def say_json(answer: object) -> None:
    typer.echo(json_line(plain(answer), plain))


def plain(value: Any) -> Any:
    """Returns a value that JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    return value.to_unix() if hasattr(value, "to_unix") else value  # a msgpack timestamp of another program


def say_content(payload: object, headers: Mapping[str, str]) -> None:
    """Print a job's payload, and its headers."""
    say_json(payload)
    for name, value in headers.items():
        say(f"{name}={value}")


def receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """Returns a receipt as JSON shows it."""
    fields = {"topic": receipt.topic, **receipt._asdict(), "due": receipt.due}
    del fields["read_result"], fields["life"]
    return fields


def moment(ms: float, now_ms: float) -> str:
    """Returns a moment as text: local time with its zone, and its distance from now."""
    return f"{from_ms(ms).astimezone().isoformat(sep=' ', timespec='milliseconds')}, {distance(ms, now_ms)}"


def distance(ms: float, now_ms: float) -> str:
    """Returns how far a moment is from now: "in 4m 30s", "2h ago"."""
    left = ms - now_ms
    return f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"


def table(*columns: str, rows: Iterable[Iterable[object]], title: str | None = None) -> FittingTable:
    """Returns a plain table that fits the console: the least important columns are left out, long text is cut.

    Names and ids stay whole. A column is named by its header, with marks around it:

        >jobs       numbers, aligned to the right
        settings?   left out if there is no room, the last such column first
        error~      text that is cut if there is no room
    """
    return FittingTable(columns, rows, title)


def table_of(things: Iterable[T], columns: Mapping[str, str | Callable[[T], object]]) -> FittingTable:
    """Returns a table with a row for each thing. A column shows an attribute, or what a function returns."""
    shows = [attrgetter(show) if isinstance(show, str) else show for show in columns.values()]
    return FittingTable(tuple(columns), [[show(thing) for show in shows] for thing in things])


class SafeConsole(Console):
    """A console that shows control characters in strings as escapes. Its own colours stay."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def stderr() -> Console:
    return SafeConsole(stderr=True, highlight=False)


def stdout(wide: bool = False) -> Console:
    """Returns a console on stdout, with `wide` for lines of any length.

    Into a file or a pipe lines may have 240 columns, unless COLUMNS says how many.
    """
    if wide:
        return SafeConsole(highlight=False, width=LONGEST_LINE)
    console = SafeConsole(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else SafeConsole(highlight=False, width=240)


class FittingTable:
    """A table without lines, which looks at the console's width when it is printed."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
        shown = [[f"{cell:,}" if isinstance(cell, int) else one_line(str(cell)) for cell in row] for row in rows]
        cells = list(zip(*shown, strict=True)) or [()] * len(columns)
        self._columns = list(zip(columns, cells, strict=True))
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(self._columns)
        while _least_width(columns) > options.max_width and (falling := [one for one in columns if "?" in one[0]]):
            columns.remove(falling[-1])
        fits = _least_width(columns) <= options.max_width
        made = Table(title=self._title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        made.header_style = "dim"
        for column in columns:
            made.add_column(
                column[0].strip(MARKS),
                justify="right" if column[0].startswith(">") else "left",
                no_wrap=fits and "~" not in column[0],
                overflow="fold",
                min_width=_least_width([column]) if fits else None,
            )
        for row in zip(*(cells for _, cells in columns), strict=True):
            made.add_row(*(_cell(spec, text) for (spec, _), text in zip(columns, row, strict=True)))
        yield made


def _cell(spec: str, text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis") if "~" in spec else Text(text)


def _least_width(columns: Sequence[tuple[str, Sequence[str]]]) -> int:
    """Returns the width of columns whose long text is cut as far as it may be."""
    least = []
    for spec, cells in columns:
        title = cell_len(spec.strip(MARKS))
        whole = max(title, *map(cell_len, cells)) if cells else title
        least.append(min(whole, max(LEAST_TEXT, title)) if "~" in spec else whole)
    return sum(least) + GAP * (len(least) - 1)
