"""What people and scripts read: words on stdout, JSON on stdout if asked for, complaints on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from wheelq.cli.values import span
from wheelq.clock import wall_ms
from wheelq.errors import ConfigurationError, InvalidInput, OutcomeUnknown, ServerTooOld, Unavailable, WheelqError
from wheelq.job import from_ms

FAILED, UNUSABLE, NOT_FOUND, TOO_LATE = 1, 2, 3, 4

_REMEDIES: dict[type[WheelqError], str] = {
    Unavailable: "Is the server running there? Name another with --url or WHEELQ_URL, or start one: wheelq up",
    OutcomeUnknown: "The server may be busy or gone. Look: wheelq doctor",
    ServerTooOld: "Look: wheelq doctor",
}


def exit_code(error: WheelqError) -> int:
    """2 when repeating the same command is no use, else 1."""
    return UNUSABLE if isinstance(error, (InvalidInput, ConfigurationError)) else FAILED


def complain(error: WheelqError) -> None:
    """An error in red, and what to do about it."""
    console = Console(stderr=True, highlight=False)
    console.print(str(error), style="red", markup=False, soft_wrap=True)
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy:
        console.print(remedy, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for people."""
    typer.echo(text)


def say_json(answer: object) -> None:
    """One line for scripts."""
    typer.echo(json.dumps(plain(answer), default=plain, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def moment(ms: float) -> str:
    """A moment for people: local time with its zone, and how far off it is by this machine's clock."""
    left = ms - wall_ms()
    distance = f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"
    return f"{from_ms(ms).astimezone().isoformat(sep=' ', timespec='milliseconds')}, {distance}"


def table(*columns: str, rows: Iterable[Iterable[object]], title: str | None = None) -> Table:
    """A plain table; columns named with a leading ">" hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    return made


def stdout() -> Console:
    """Stdout; wide enough for any table where it is no terminal, so that nothing is cut in a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=240)
