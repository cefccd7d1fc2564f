"""Prints the output of commands: text or JSON on stdout, errors on stderr."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

import typer
from rich.console import Console

from wheelq.base.clock import wall_ms
from wheelq.cli.tables import FittingTable
from wheelq.cli.values import span
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
from wheelq.model.job import Receipt, from_ms

FAILED, UNUSABLE, NOT_FOUND, TOO_LATE = 1, 2, 3, 4
LONGEST_LINE = 10_000

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
    console = Console(stderr=True, highlight=False)
    console.print(str(error), style="red", markup=False, soft_wrap=True)
    remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy:
        console.print(remedy, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one line of text."""
    typer.echo(text)


def say_json(answer: object) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(plain(answer), default=plain, ensure_ascii=False))


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
    """Returns a plain table that fits the console; `tables` tells what the marks around column names mean."""
    return FittingTable(columns, rows, title)


def stdout(wide: bool = False) -> Console:
    """Returns a console on stdout, with `wide` for lines of any length.

    Into a file or a pipe lines may have 240 columns, unless COLUMNS says how many.
    """
    if wide:
        return Console(highlight=False, width=LONGEST_LINE)
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=240)
