"""Tables that fit the terminal: names and ids stay whole, the least important columns are left out, long text is cut.

A column is named by its header, with marks around it:

    >jobs       numbers, aligned to the right
    settings?   left out if there is no room, the last such column first
    error~      text that is cut if there is no room
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
LEAST_TEXT = 16
"""The least width of cut text."""


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
        shown = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
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
