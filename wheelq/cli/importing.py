"""import: schedules the jobs in a file of JSON lines, or on standard input.

lines ──▶ chunks of up to 1 MB ──by topic──▶ schedule_many (500 per round trip)

A chunk is what can be read at once: another program may write a line now and then, and its job is not to wait.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from hashlib import blake2b
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Annotated, cast

import typer

from wheelq.base.as_json import parse
from wheelq.base.plural import counted
from wheelq.base.printable import one_line
from wheelq.cli.options import Session
from wheelq.cli.output import UNUSABLE, progress_bar, stderr
from wheelq.cli.values import parse_at
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput, InvalidJob, TopicFull, WheelqError
from wheelq.model.checks import check_topic
from wheelq.model.durations import parse_duration
from wheelq.model.job import JobSpec

CHUNK_BYTES = 1_000_000
"""Read at a time: enough for round trips that overlap, and few enough for any memory."""
TOGETHER = 5_000
"""The most jobs in a call; after a bad one, the others are sent again."""
FIELDS = ("topic", *(item.name for item in fields(JobSpec) if item.name != "max_wait"))


def import_jobs(
    session: Session,
    file: Annotated[str, typer.Argument(help="JSON lines; '-' is standard input.")],
    topic: Annotated[str | None, typer.Option("--topic", help="For lines without topic.")] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", help="For lines without delay and at: 30m, 1h30m, 2d.")
    ] = None,
) -> None:
    """Schedule the jobs in a file, one JSON object in each line.

    {"topic": "orders", "key": "order-42", "delay": "30m", "payload": {"amount": 12.5}}

    A line may have every field of a job. Refused lines are reported on stderr with their numbers, and the others are
    scheduled. Exit code 2: some lines were refused.

    After an interruption, give the same command again. A line is not scheduled twice while its first job is alive: its
    key identifies it, or else the file's name, the line's number and its text.
    """
    path, name = (None, "stdin") if file == "-" else (Path(file), Path(file).name)
    console = stderr()
    bar = progress_bar()
    tally: Counter[str] = Counter()
    with session.client() as client, _opened(path) as source, bar:
        task = bar.add_task(name, total=path.stat().st_size if path else None)
        numbers = count(1)
        try:
            for chunk in _chunks(source):
                jobs: defaultdict[str, list[tuple[int, JobSpec]]] = defaultdict(list)
                refused = []
                for text, number in zip(chunk, numbers, strict=False):
                    try:
                        if text.strip():
                            its_topic, spec = _job(name, number, text, topic, delay)
                            jobs[its_topic].append((number, spec))
                    except InvalidInput as error:
                        refused.append((number, str(error)))
                for its_topic, found in jobs.items():
                    for first in range(0, len(found), TOGETHER):
                        refused += _schedule(client, its_topic, found[first : first + TOGETHER], tally)
                for number, why in sorted(refused):
                    said = one_line(f"line {number}: {why}")
                    console.print(said, style="yellow", markup=False, soft_wrap=True)
                tally["refused"] += len(refused)
                bar.advance(task, sum(map(len, chunk)))
        except (WheelqError, KeyboardInterrupt):
            done = counted(tally.total(), "line is", "lines are")
            console.print(f"{name}: {done} done; run the same command again to continue", markup=False)
            raise
    lines = {what: tally[what] for what in ("scheduled", "kept", "refused")}
    refusals = counted(lines["refused"], "line")
    session.answer(
        lines, f"{name}: {lines['scheduled']:,} scheduled, {lines['kept']:,} already existed, {refusals} refused"
    )
    if lines["refused"]:
        raise typer.Exit(UNUSABLE)


def _opened(path: Path | None) -> AbstractContextManager[BufferedReader]:
    try:
        return path.open("rb") if path else nullcontext(cast("BufferedReader", sys.stdin.buffer))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _chunks(source: BufferedReader) -> Iterator[list[bytes]]:
    """Yields whole lines, as soon as there are some. The last one is the same job once its line break is there."""
    rest: list[bytes] = []
    while data := source.read1(CHUNK_BYTES):
        *lines, last = data.split(b"\n")
        if lines:
            lines[0], rest = b"".join((*rest, lines[0])), []
            yield [line + b"\n" for line in lines]
        rest.append(last)
    if text := b"".join(rest):
        yield [text + b"\n"]


def _job(name: str, number: int, text: bytes, topic: str | None, delay: str | None) -> tuple[str, JobSpec]:
    """Returns the topic and job of a line; `topic` and `delay` are for one without. Raises: InvalidInput."""
    try:
        found = parse(text)
    except ValueError as error:
        raise InvalidInput("job", f"is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise InvalidInput("job", f"must be a JSON object, not {type(found).__name__}")
    if unknown := sorted(found.keys() - set(FIELDS)):
        raise InvalidInput(unknown[0], f"is not a field of a job; the fields are {', '.join(FIELDS)}")
    topic = found.pop("topic", None) or topic
    if topic is None:
        raise InvalidInput("topic", "missing: give it in the line, or with --topic")
    if found.get("delay") is None and found.get("at") is None:
        found["delay"] = delay
    for duration in ("delay", "spread", "expires", "timeout"):
        if isinstance(found.get(duration), str):
            found[duration] = parse_duration(found[duration], duration)
    if found.get("at") is not None:
        found["at"] = parse_at(str(found["at"]))
    found["priority"] = "normal" if found.get("priority") is None else str(found["priority"])
    if found.get("key") is None:
        found["key"] = blake2b(f"{name}\n{number}\n".encode(errors="replace") + text, digest_size=12).hexdigest()
    return check_topic(topic), JobSpec(**found)


def _schedule(
    client: Client, topic: str, jobs: list[tuple[int, JobSpec]], tally: Counter[str]
) -> Iterator[tuple[int, str]]:
    """Schedules the jobs of a topic; yields the numbers of those that the client refuses, and why."""
    while jobs:
        refused: dict[int, str] = {}
        try:
            receipts = dict(enumerate(client.schedule_many(topic, [spec for _, spec in jobs])))
        except InvalidJob as error:
            receipts, refused = dict(error.receipts), {error.place: str(error.__cause__)}
        except TopicFull as error:
            receipts, refused = dict(error.receipts), dict.fromkeys(error.refused, f"topic {topic!r} is full")
        tally.update("scheduled" if receipt.created else "kept" for receipt in receipts.values())
        yield from ((jobs[n][0], why) for n, why in refused.items())
        jobs = [job for n, job in enumerate(jobs) if n not in receipts and n not in refused]
