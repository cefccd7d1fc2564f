"""import: schedules the jobs in a file of JSON lines, or on standard input.

lines ──▶ chunks of 5,000 ──by topic──▶ schedule_many (500 per round trip)
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from wheelq.base.plural import counted
from wheelq.base.printable import one_line
from wheelq.cli.options import Config, Json, Url, client_of
from wheelq.cli.output import UNUSABLE, say, say_json, stderr
from wheelq.cli.values import parse_at
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput, InvalidJob, ServerError
from wheelq.model.checks import check_topic
from wheelq.model.durations import parse_duration
from wheelq.model.job import JobSpec

CHUNK = 5_000
"""Lines at a time: enough for round trips that overlap, and few enough for any memory."""
FIELDS = ("topic", *(item.name for item in fields(JobSpec)))
BAR = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())


def import_jobs(
    file: Annotated[str, typer.Argument(help="JSON lines; '-' is standard input.")],
    topic: Annotated[str | None, typer.Option("--topic", help="For lines without topic.")] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="For lines without delay and at: 30m, 1h30m, 2d.")
    ] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Schedule the jobs in a file, one JSON object in each line.

    {"topic": "orders", "key": "order-42", "delay": "30m", "payload": {"amount": 12.5}}

    A line may have every field of a job. Refused lines are reported on stderr with their numbers, and the others are
    scheduled. Exit code 2: some lines were refused.

    After an interruption, give the same command again. A line is not scheduled twice while its first job is alive: its
    key identifies it, or else the file's name, the line's number and its text.
    """
    path = None if file == "-" else Path(file)
    console = stderr()
    bar = Progress(*BAR, console=console, disable=not console.is_terminal, transient=True)
    with client_of(url, config) as client, _opened(path) as source, bar:
        run = _Import(client, path.name if path else "stdin", topic, delay)
        task = bar.add_task(run.name, total=path.stat().st_size if path else None)
        lines = enumerate(source, 1)
        try:
            while chunk := list(islice(lines, CHUNK)):
                for number, why in sorted(run.schedule(chunk)):
                    text = one_line(f"line {number}: {why}")
                    console.print(text, style="yellow", markup=False, soft_wrap=True)
                bar.advance(task, sum(len(text) for _, text in chunk))
        except (ServerError, KeyboardInterrupt):
            done = counted(run.tally.total(), "line is", "lines are")
            console.print(f"{run.name}: {done} done; run the same command again to continue", markup=False)
            raise
    scheduled, kept, refused = (run.tally[name] for name in ("scheduled", "kept", "refused"))
    if json:
        say_json({"scheduled": scheduled, "kept": kept, "refused": refused})
    else:
        say(f"{run.name}: {scheduled:,} scheduled, {kept:,} already existed, {counted(refused, 'line')} refused")
    if refused:
        raise typer.Exit(UNUSABLE)


def _opened(path: Path | None) -> AbstractContextManager[IO[bytes]]:
    try:
        return path.open("rb") if path else nullcontext(sys.stdin.buffer)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


class _Import:
    """Schedules lines, and counts how many are scheduled, were there already ("kept") and are refused."""

    def __init__(self, client: Client, name: str, topic: str | None, delay: str | None) -> None:
        """`topic` and `delay` are for lines without their own."""
        self.name = name
        self.tally: Counter[str] = Counter()
        self._client = client
        self._topic = topic
        self._delay = delay

    def schedule(self, lines: list[tuple[int, bytes]]) -> list[tuple[int, str]]:
        """Schedule lines; returns the numbers of the refused ones, and why. Blank lines are left out."""
        jobs: defaultdict[str, list[tuple[int, JobSpec]]] = defaultdict(list)
        refused = []
        for number, text in lines:
            if text.strip():
                try:
                    topic, spec = self._job(number, text)
                    jobs[topic].append((number, spec))
                except InvalidInput as error:
                    refused.append((number, str(error)))
        for topic, specs in jobs.items():
            refused += self._schedule_in(topic, specs)
        self.tally["refused"] += len(refused)
        return refused

    def _job(self, number: int, text: bytes) -> tuple[str, JobSpec]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput("job", f"is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise InvalidInput("job", f"must be a JSON object, not {type(found).__name__}")
        if unknown := sorted(found.keys() - set(FIELDS)):
            raise InvalidInput(unknown[0], f"is not a field of a job; the fields are {', '.join(FIELDS)}")
        topic = found.pop("topic", None) or self._topic
        if topic is None:
            raise InvalidInput("topic", "missing: give it in the line, or with --topic")
        if found.get("delay") is None and found.get("at") is None:
            found["delay"] = self._delay
        for name in ("delay", "spread", "expires"):
            if isinstance(found.get(name), str):
                found[name] = parse_duration(found[name], name)
        if found.get("at") is not None:
            found["at"] = parse_at(str(found["at"]))
        found["priority"] = str(found.get("priority") or "normal")
        if found.get("key") is None:
            found["key"] = blake2b(
                f"{self.name}\n{number}\n".encode(errors="replace") + text, digest_size=12
            ).hexdigest()
        return check_topic(topic), JobSpec(**found)

    def _schedule_in(self, topic: str, jobs: list[tuple[int, JobSpec]]) -> list[tuple[int, str]]:
        """Schedule the jobs of a topic; if the client refuses one, go on without it."""
        refused = []
        while jobs:
            try:
                receipts = self._client.schedule_many(topic, [spec for _, spec in jobs])
                jobs = []
            except InvalidJob as error:
                receipts = list(error.receipts.values())
                refused.append((jobs[error.place][0], str(error.__cause__)))
                jobs = [job for n, job in enumerate(jobs) if n != error.place and n not in error.receipts]
            self.tally.update("scheduled" if receipt.created else "kept" for receipt in receipts)
        return refused
