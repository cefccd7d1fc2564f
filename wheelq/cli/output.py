"""Prints the output of commands: text or JSON on stdout, errors on stderr.

Much of it was written by others: payloads, errors, names. All commands print through here, where control characters
become escapes, so that no job can steer the terminal of the person who looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from wheelq.base.clock import wall_ms
from wheelq.base.printable import json_line, one_line, printable
from wheelq.errors import (
    ConfigurationError,
    InvalidInput,
    OutcomeUnknown,
    ServerTooOld,
    TlsFailed,
    Unavailable,
    WheelqError,
    is_wrong_setup,
)
from wheelq.model.durations import span
from wheelq.model.job import Receipt, from_ms

FAILED, UNUSABLE, NOT_FOUND, TOO_LATE = 1, 2, 3, 4
LONGEST_LINE = 10_000
GAP = 2
LEAST_TEXT = 16
"""The least width of cut text."""

_REMEDIES: dict[type[WheelqError], str] = {
    TlsFailed: "Check the certificates: ssl_ca_certs in the URL names the authority that issued the server's.",
    Unavailable: "Is the server running there? Name another with --url or WHEELQ_URL, or start one: wheelq up",
    OutcomeUnknown: "The server may be busy or gone. Look: wheelq doctor",
    ServerTooOld: "Look: wheelq doctor",
}


def exit_code(error: WheelqError) -> int:
    """Returns 2 if repeating the same command is useless, else 1."""
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
    """Print text."""
    typer.echo(printable(text))


def say_aside(text: str) -> None:
    """Print text on stderr."""
    typer.echo(printable(text), err=True)


def say_json(answer: object) -> None:
    """Print one line of JSON."""
    typer.echo(json_line(plain(answer), plain))


def plain(value: Any) -> Any:
    """Returns a value that JSON can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """Returns a receipt as JSON shows it."""
    fields = {"topic": receipt.topic, **receipt._asdict(), "due": receipt.due}
    del fields["read_result"]
    return fields


def moment(ms: float) -> str:
    """Returns a moment as text: local time with its zone, and its distance from now by this machine's clock."""
    return f"{from_ms(ms).astimezone().isoformat(sep=' ', timespec='milliseconds')}, {distance(ms)}"


def distance(ms: float) -> str:
    """Returns how far a moment is from now, by this machine's clock: "in 4m 30s", "2h ago"."""
    left = ms - wall_ms()
    return f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"


def table(*columns: str, rows: Iterable[Iterable[object]], title: str | None = None) -> FittingTable:
    """Returns a plain table that fits the console: the least important columns are left out, long text is cut.

    Names and ids stay whole. A column is named by its header, with marks around it:

        >jobs       numbers, aligned to the right
        settings?   left out if there is no room, the last such column first
        error~      text that is cut if there is no room
    """
    return FittingTable(columns, rows, title)


class SafeConsole(Console):
    """A console that shows control characters in strings as escapes. Its own colours stay."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def stderr() -> Console:
    """Returns a console on stderr."""
    return SafeConsole(stderr=True, highlight=False)


def stdout(wide: bool = False) -> Console:
    """Returns a console on stdout, with `wide` for lines of any length.

    Into a file or a pipe lines may have 240 columns, unless COLUMNS says how many.
    """
    if wide:
        return SafeConsole(highlight=False, width=LONGEST_LINE)
    console = SafeConsole(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else SafeConsole(highlight=False, width=240)


@dataclass(frozen=True, slots=True)
class Column:
    """A column, its cells as text."""

    title: str
    cells: Sequence[str]
    is_number: bool
    may_fall: bool
    may_be_cut: bool

    @property
    def width(self) -> int:
        """The width that shows all of it."""
        return max(cell_len(text) for text in (self.title, *self.cells))

    @property
    def least(self) -> int:
        """The least width."""
        return min(self.width, max(LEAST_TEXT, cell_len(self.title))) if self.may_be_cut else self.width


class FittingTable:
    """A table without lines, which looks at the console's width when it is printed."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None) -> None:
        shown = [[f"{cell:,}" if isinstance(cell, int) else one_line(str(cell)) for cell in row] for row in rows]
        cells = list(zip(*shown, strict=True)) or [()] * len(columns)
        self._columns = [
            Column(spec.strip(">?~"), column, spec.startswith(">"), spec.rstrip("~").endswith("?"), spec.endswith("~"))
            for spec, column in zip(columns, cells, strict=True)
        ]
        self._title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._made(options.max_width)

    def _made(self, width: int) -> Table:
        columns = _that_fit(self._columns, width)
        made = Table(
            title=self._title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
        )
        room = width - sum(column.least for column in columns) - GAP * (len(columns) - 1)
        texts: list[list[str]] = []
        for column in columns:
            its = min(column.width, column.least + max(room, 0))
            room -= its - column.least
            justify = "right" if column.is_number else "left"
            made.add_column(column.title, justify=justify, no_wrap=room >= 0, overflow="fold")  # type: ignore[arg-type]
            texts.append([_cut(text, its) for text in column.cells] if column.may_be_cut else list(column.cells))
        for row in zip(*texts, strict=True):
            made.add_row(*map(Text, row))
        return made


def _that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    kept = list(columns)
    while sum(column.least for column in kept) + GAP * (len(kept) - 1) > width:
        falls = next((column for column in reversed(kept) if column.may_fall), None)
        if falls is None:
            break
        kept.remove(falls)
    return kept


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
