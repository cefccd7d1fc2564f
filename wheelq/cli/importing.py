"""import: schedules every line of a file, shows progress, and continues an interrupted import.

    file ──rows──▶ chunks of 5,000 lines ──by topic──▶ schedule_many (500 per round trip) ──▶ journal (fsync)

An import resumes at a chunk. Chunks are large, so that their round trips overlap, but small enough for any memory.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from wheelq.base.plural import counted
from wheelq.base.printable import one_line
from wheelq.cli import rows
from wheelq.cli.journal import Journal, Tally
from wheelq.cli.options import Config, Json, Url, client_of
from wheelq.cli.output import UNUSABLE, say, say_json, stderr
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput, InvalidJob, ServerError
from wheelq.model.durations import parse_duration
from wheelq.model.job import Receipt

CHUNK = 5_000

Report = Callable[[rows.Broken], None]


def import_file(
    file: Annotated[str, typer.Argument(help="CSV (.csv) or JSON lines (.jsonl, .ndjson, .json); '-' is stdin.")],
    topic: Annotated[str | None, typer.Option("--topic", help="For rows without a column topic.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="For rows without delay and at: 30m, 1h30m, 2d.")] = None,
    format: Annotated[
        rows.Format | None, typer.Option("--format", help="Needed if the file's name does not show it.")
    ] = None,
    errors: Annotated[Path | None, typer.Option("--errors", help="Write broken lines here as well.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start at the first line, ignoring the journal.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Schedule every line of a file.

    The columns topic, key (or id), delay, at, payload (JSON) and header.NAME set these fields of the job; every other
    column becomes a field of the payload (from CSV always as text). An empty cell counts as missing.

    Broken lines are reported on stderr with their number, and the other lines are imported. Exit code 0: every line is
    scheduled; 2: some lines are broken; 1: the import was interrupted.

    The same command continues an interrupted import: a journal beside the file, FILE.wheelq-progress, records the
    progress (to within 5,000 lines) and is removed at the end. Stdin has no journal and starts at the first line.

    A row that is read twice is not scheduled twice while its first job is alive: its key identifies it, or else the
    file's name, its line number and its text. A job that has already run is forgotten, so its row would run again.
    """
    path = None if file == "-" else Path(file)
    name = path.name if path else "stdin"
    defaults = rows.Defaults(topic, None if delay is None else parse_duration(delay, "delay"))
    chosen = format or _format_of(path)
    with client_of(url, config) as client, _open(path) as (source, text):
        journal = Journal.of(path, [topic, delay, chosen], restart=restart)
        tally = journal.read()
        with _progress(path) as (progress, console), _reporter(errors, tally.records > 0, console) as report:
            if tally.records:
                console.print(f"{name}: continuing after the first {counted(tally.records, 'line')}", soft_wrap=True)
            run = _Import(client, journal, tally, report, lambda: progress(source.tell() if path else 0, tally.records))
            try:
                run.all(rows.read(text, chosen), name, defaults)
            except (ServerError, KeyboardInterrupt):
                done = counted(tally.records, "line is", "lines are")
                console.print(f"{name}: {done} done; run the same command again to continue")
                raise
    if json:
        say_json(tally)
    else:
        broken = counted(tally.broken, "line")
        say(f"{name}: {tally.created:,} scheduled, {tally.kept:,} already existed, {broken} broken")
    if tally.broken:
        raise typer.Exit(UNUSABLE)


class _Import:
    """One run: takes records, schedules them, keeps the tally."""

    def __init__(
        self, client: Client, journal: Journal, tally: Tally, report: Report, progressed: Callable[[], None]
    ) -> None:
        self._client = client
        self._journal = journal
        self._tally = tally
        self._report = report
        self._progressed = progressed

    def all(self, records: Iterator[rows.InputRecord | rows.Broken], name: str, defaults: rows.Defaults) -> None:
        """Schedule the lines that are not in the journal yet, chunk by chunk."""
        for _ in islice(records, self._tally.records):
            pass
        remaining = rows.to_rows(records, name, defaults)
        while chunk := list(islice(remaining, CHUNK)):
            self._schedule(chunk)
            self._tally.records += len(chunk)
            self._journal.write(self._tally)
            self._progressed()
        self._journal.remove()

    def _schedule(self, chunk: list[rows.Row | rows.Broken]) -> None:
        by_topic: dict[str, list[rows.Row]] = {}
        broken = []
        for row in chunk:
            if isinstance(row, rows.Broken):
                broken.append(row)
            else:
                by_topic.setdefault(row.topic, []).append(row)
        for topic, theirs in by_topic.items():
            broken += self._schedule_topic(topic, theirs)
        for line in sorted(broken):
            self._report(line)
        self._tally.broken += len(broken)

    def _schedule_topic(self, topic: str, theirs: list[rows.Row]) -> list[rows.Broken]:
        """Schedule these rows; if the client refuses one, continue without it."""
        broken: list[rows.Broken] = []
        while theirs:
            try:
                self._count(self._client.schedule_many(topic, [row.spec for row in theirs]))
                break
            except InvalidJob as error:
                self._count(error.receipts.values())
                before = [row.spec for n, row in enumerate(theirs[: error.place]) if n not in error.receipts]
                self._count(self._client.schedule_many(topic, before))
                broken.append(rows.Broken(theirs[error.place].line, str(error.__cause__)))
                theirs = [row for n, row in enumerate(theirs) if n > error.place and n not in error.receipts]
        return broken

    def _count(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            if receipt.created:
                self._tally.created += 1
            else:
                self._tally.kept += 1


def _format_of(path: Path | None) -> rows.Format:
    match path.suffix.lower() if path else None:
        case ".csv":
            return "csv"
        case ".jsonl" | ".ndjson" | ".json":
            return "jsonl"
    raise InvalidInput("format", f"cannot be told from {path or 'stdin'}: give --format csv or --format jsonl")


@contextmanager
def _open(path: Path | None) -> Iterator[tuple[IO[bytes], TextIO]]:
    """Yields the file, or stdin, as bytes (for the position) and as text."""
    try:
        source: IO[bytes] = path.open("rb") if path else sys.stdin.buffer
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    # newline="": the csv module needs unchanged line ends. A byte order mark, which spreadsheets write, is skipped.
    text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield source, text
    finally:
        text.detach()
        if path:
            source.close()


@contextmanager
def _reporter(errors: Path | None, again: bool, console: Console) -> Iterator[Report]:
    """Yields a function that reports broken lines on stderr and in `errors`, to which a continued import appends."""
    try:
        file = errors.open("a" if again else "w") if errors else None
    except OSError as error:
        raise ConfigurationError(f"cannot write {errors}: {error.strerror}") from error

    def report(broken: rows.Broken) -> None:
        text = one_line(f"line {broken.line}: {broken.reason}")
        console.print(text, style="yellow", markup=False, soft_wrap=True)
        if file:
            print(text, file=file)

    try:
        yield report
    finally:
        if file:
            file.close()


@contextmanager
def _progress(path: Path | None) -> Iterator[tuple[Callable[[int, int], None], Console]]:
    """Show a progress bar if stderr is a terminal; yields the function that moves it, and the console above it."""
    console = stderr()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        total = path.stat().st_size if path else None
        task = progress.add_task(path.name if path else "stdin", total=total, lines=0)
        yield lambda position, lines: progress.update(task, completed=position, lines=lines), console
