"""Turns the lines of a CSV or JSON lines file into jobs, one at a time, so that a file may have any size.

    topic · key (or id) · delay · at · payload · header.NAME      the job's fields; an empty cell counts as missing
    any other column                                              a field of the payload

    orders.csv      key,delay,customer,amount          ──▶ key "order-42", 30 minutes,
                    order-42,30m,ann,12.50                 payload {"customer": "ann", "amount": "12.50"}

A row without a key gets an id made of the file's name, its line number and a hash of its text: the same line of the
same file always has the same id, and a corrected line has a new one, without affecting other lines.

A broken line becomes a `Broken` with the reason, and reading goes on after it. Bytes that are not UTF-8 are read as
lone surrogates, which the client refuses in the affected job only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TextIO

from wheelq.cli.values import parse_at, parse_json
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import check_topic
from wheelq.model.durations import parse_duration
from wheelq.model.job import JobSpec

Format = Literal["csv", "jsonl"]

SHOWN_NAME = 60  # characters of the file's name in a generated id, which may have 256 bytes


class InputRecord(NamedTuple):
    """A line of the file, read."""

    line: int
    text: str
    """The line as stable text, for its id."""
    values: dict[str, Any]


class Broken(NamedTuple):
    """A line that cannot be scheduled."""

    line: int
    reason: str


class Row(NamedTuple):
    """A line that can be scheduled."""

    line: int
    topic: str
    spec: JobSpec


class Defaults(NamedTuple):
    """The values for rows without their own."""

    topic: str | None
    delay: float | None


def read(stream: TextIO, format: Format) -> Iterator[InputRecord | Broken]:
    """Yields every line that is not blank. Raises: ConfigurationError if a CSV file has no usable header."""
    return _read_csv(stream) if format == "csv" else _read_json(stream)


def _read_csv(stream: TextIO) -> Iterator[InputRecord | Broken]:
    reader = csv.reader(stream, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise ConfigurationError(f"line 1: the header is not CSV: {error}") from error
    doubled = sorted({name for name in header if header.count(name) > 1})
    if not header or doubled or "" in header:
        what = f"it has {', '.join(doubled)} twice" if doubled else "every column needs a name"
        raise ConfigurationError(f"line 1: the first line must name the columns: {what}")
    while True:
        line = reader.line_num + 1  # the row's first line: a quoted cell may span several
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Broken(line, f"not CSV: {error}")
            continue
        if len(cells) == len(header):
            yield InputRecord(line, "\x1f".join(cells), dict(zip(header, cells, strict=True)))
        elif cells:
            yield Broken(line, f"{len(cells)} cells, but the header names {len(header)}")


def _read_json(stream: TextIO) -> Iterator[InputRecord | Broken]:
    for line, text in enumerate(stream, 1):
        text = text.strip()
        if not text:
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield Broken(line, f"not JSON: {error}")
            continue
        if isinstance(values, dict):
            yield InputRecord(line, text, values)
        else:
            yield Broken(line, f"must be a JSON object, not {type(values).__name__}")


def to_rows(records: Iterable[InputRecord | Broken], name: str, defaults: Defaults) -> Iterator[Row | Broken]:
    """Yields the job of each record; `name` is the file's, for the ids of rows without a key."""
    for record in records:
        if isinstance(record, Broken):
            yield record
            continue
        try:
            yield _to_row(record, name, defaults)
        except InvalidInput as error:
            yield Broken(record.line, str(error))


def _to_row(record: InputRecord, name: str, defaults: Defaults) -> Row:
    values = record.values
    topic = _take(values, "topic") or defaults.topic
    if topic is None:
        raise InvalidInput("topic", "missing: add a column topic, or give --topic")
    key = _take(values, "key")
    if key is None:
        key = _take(values, "id")
    at, delay = _take(values, "at"), _take(values, "delay")
    if at is None and delay is None:
        delay = defaults.delay
        if delay is None:
            raise InvalidInput("delay", "missing: add a column delay or at, or give --delay")
    spec = JobSpec(
        _payload(values),
        delay=parse_duration(delay, "delay") if isinstance(delay, str) else delay,
        at=None if at is None else parse_at(str(at)),
        key=_made_id(name, record) if key is None else str(key) if isinstance(key, int) else key,
        headers=_headers(values) or None,
    )
    return Row(record.line, check_topic(topic), spec)


def _take(values: dict[str, Any], name: str) -> Any:
    """Removes a column and returns its value; None if it is missing or empty."""
    value = values.pop(name, None)
    return None if value == "" else value


def _made_id(name: str, record: InputRecord) -> str:
    digest = blake2b(record.text.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return f"{name[-SHOWN_NAME:]}:{record.line}:{digest}"


def _headers(values: dict[str, Any]) -> dict[str, str]:
    prefix = "header."
    found = {name: value for name, value in values.items() if name.startswith(prefix) and value not in ("", None)}
    return {name.removeprefix(prefix): str(value) for name, value in found.items()}


def _payload(values: dict[str, Any]) -> Any:
    fields = {name: value for name, value in values.items() if name != "payload" and not name.startswith("header.")}
    if "payload" not in values:
        return fields or None
    payload = values["payload"]
    if isinstance(payload, str):
        payload = parse_json(payload) if payload else None
    if all(value == "" for value in fields.values()):
        return payload
    if payload is not None and not isinstance(payload, dict):
        raise InvalidInput("payload", f"must be a JSON object to take in the columns {', '.join(fields)}")
    return {**(payload or {}), **fields}
