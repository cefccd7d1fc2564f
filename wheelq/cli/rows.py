"""From a file of CSV or JSON lines to rows that can be scheduled, one at a time, so that any size of file will do.

    topic · key (or id) · delay · at · payload · header.NAME      what they say; an empty cell says nothing
    any other column                                              a field of the payload

    orders.csv      key,delay,customer,amount          ──▶ key "order-42", 30 minutes,
                    order-42,30m,ann,12.50                 payload {"customer": "ann", "amount": "12.50"}

A row without a key gets an id made of the file's name, its line number and a hash of its text: the same line of the
same file has the same id every time, and a mended line a new one, which does not disturb its neighbours.

A broken line becomes a `Broken` with the reason, and reading goes on behind it. Bytes that are not UTF-8 come through
as lone surrogates, which the client refuses where they stand.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TextIO

from wheelq.arguments import check_topic
from wheelq.cli.values import parse_at, parse_delay, parse_json
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.job import JobSpec

Format = Literal["csv", "jsonl"]

SHOWN_NAME = 60  # characters of the file's name in a made-up id, which may have 256 bytes


class Record(NamedTuple):
    """A line of the file, read."""

    line: int
    text: str
    """Stable text of the line, for its id."""
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
    """What holds for rows that do not say it themselves."""

    topic: str | None
    delay: float | None


def read(stream: TextIO, format: Format) -> Iterator[Record | Broken]:
    """Every line that is not blank. Raises: ConfigurationError when a CSV file has no usable header."""
    return _read_csv(stream) if format == "csv" else _read_json(stream)


def _read_csv(stream: TextIO) -> Iterator[Record | Broken]:
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
        line = reader.line_num + 1  # a quoted cell may span lines: this is where the row begins
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Broken(line, f"not CSV: {error}")
            continue
        if len(cells) == len(header):
            yield Record(line, "\x1f".join(cells), dict(zip(header, cells, strict=True)))
        elif cells:
            yield Broken(line, f"{len(cells)} cells, but the header names {len(header)}")


def _read_json(stream: TextIO) -> Iterator[Record | Broken]:
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
            yield Record(line, text, values)
        else:
            yield Broken(line, f"must be a JSON object, not {type(values).__name__}")


def to_rows(records: Iterable[Record | Broken], name: str, defaults: Defaults) -> Iterator[Row | Broken]:
    """What each record asks for; `name` is the file's, for the ids of rows without a key."""
    for record in records:
        if isinstance(record, Broken):
            yield record
            continue
        try:
            yield _to_row(record, name, defaults)
        except InvalidInput as error:
            yield Broken(record.line, str(error))


def _to_row(record: Record, name: str, defaults: Defaults) -> Row:
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
    spec = JobSpec(
        _payload(values),
        delay=parse_delay(delay) if isinstance(delay, str) else delay,
        at=None if at is None else parse_at(str(at)),
        key=_made_id(name, record) if key is None else str(key) if isinstance(key, int) else key,
        headers=_headers(values) or None,
    )
    return Row(record.line, check_topic(topic), spec)


def _take(values: dict[str, Any], name: str) -> Any:
    """What a column says; None if it is not there or says nothing."""
    value = values.pop(name, None)
    return None if value == "" else value


def _made_id(name: str, record: Record) -> str:
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
