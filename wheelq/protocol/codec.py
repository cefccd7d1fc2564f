"""What is stored for a job: a version byte, an attempt byte, and a msgpack array.

    \\x01  \\x01  [payload]                      the usual job
    \\x01  \\x03  [payload, {"h": {...}, "n": …}]   third attempt, with headers and a producer's nonce
    version attempt

Scripts read the two bytes and pass the rest through, so that Lua never unpacks anything: the record of a retry is made
here, by the worker. The first byte of a record is below 0x20 and that of an entry id is a digit, so one look tells a
waiting job from a promoted one.

| key of the options map | meaning                                                                              |
|------------------------|--------------------------------------------------------------------------------------|
| `h`                    | headers: map of strings                                                              |
| `n`                    | nonce: tells a producer's repeated call with a given key from another's call; when   |
|                        | the call was made (6 bytes, ms since the epoch) and 6 random bytes                   |
| `p`                    | partition key: jobs that have one can be kept in order                               |
| `a`                    | the attempt, where it is more than the 255 that the byte can say                     |
| `e`                    | what the last failed attempt said, at most 500 characters                            |
| `f`                    | when the job was first due, in a retry: due_ms                                       |
| `r`                    | how often it was called back from the dead                                           |
| `x`, `X`               | it may start until so many ms after it was first due; until then (ms since the epoch) |
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgpack

from wheelq.clock import wall_ms
from wheelq.errors import InvalidInput, PayloadTooLarge
from wheelq.job import Payload

VERSION = 1
_MS_BYTES, _RANDOM_BYTES = 6, 6
NONCE_BYTES = _MS_BYTES + _RANDOM_BYTES
_OF_RUNS = frozenset("aefr")
"""Options that are written by runs, not by the producer."""
LAST_ERROR_CHARS = 500
MOST_IN_A_BYTE = 255
_FIRST_ATTEMPT = bytes((VERSION, 1))
_ONE_ITEM, _TWO_ITEMS = b"\x91", b"\x92"  # msgpack: array of one, array of two
_SCALARS = (str, bytes, int, float, bool, type(None))


class Record(NamedTuple):
    """A stored job, unpacked."""

    attempt: int
    payload: Payload
    headers: Mapping[str, str]
    last_error: str | None = None
    """What the last failed attempt said."""
    first_due_ms: int | None = None
    """When the job was first due; None: it was never put off by a failure."""
    replays: int = 0
    """How often it was called back from the dead."""
    partition_key: str | None = None
    expires_after_ms: int | None = None
    """So long after it was first due it may still start."""
    expires_at_ms: int | None = None
    """Until then it may still start."""

    def expires_ms(self, due_ms: int) -> float:
        """When it is too late to start it, now that it is due at `due_ms`; infinity: never."""
        if self.expires_at_ms is not None:
            return self.expires_at_ms
        if self.expires_after_ms is not None:
            return (self.first_due_ms or due_ms) + self.expires_after_ms
        return float("inf")


class UnreadableRecord(ValueError):
    """The bytes are no record of a version known here."""


def encode(
    payload: Payload,
    headers: Mapping[str, str] | None,
    limit_bytes: int,
    with_nonce: bool,
    partition_key: str | None = None,
    expiry: tuple[str, int] | None = None,
    nonce: bytes | None = None,
) -> bytes:
    """The record of a new job; `with_nonce` two equal calls make different records. `expiry` is an option, and its ms.

    `nonce` stands in place of a new one: for a call that is made again.

    Raises: PayloadTooLarge; InvalidInput naming the offending path when msgpack cannot hold the payload, or could not
    give it back as it was.
    """
    packed = _pack_payload(payload)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes)
    if not headers and not with_nonce and partition_key is None and expiry is None:
        return _FIRST_ATTEMPT + _ONE_ITEM + packed
    options: dict[str, Any] = {}
    if headers:
        options["h"] = _checked_headers(headers, limit_bytes)
    if with_nonce:
        options["n"] = nonce or wall_ms().to_bytes(_MS_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
    if partition_key is not None:
        options["p"] = partition_key
    if expiry is not None:
        options[expiry[0]] = expiry[1]
    return b"".join((_FIRST_ATTEMPT, _TWO_ITEMS, packed, msgpack.packb(options)))


def nonce_of(name: str, at_ms: int) -> bytes:
    """The nonce of a call that has a name of its own: always the same."""
    return at_ms.to_bytes(_MS_BYTES, "big") + hashlib.sha256(name.encode()).digest()[:_RANDOM_BYTES]


def decode(record: bytes) -> Record:
    """A record, unpacked. Raises: UnreadableRecord."""
    items = _items(record)
    if len(items) == 1:
        return Record(record[1], items[0], {})
    options = items[1]
    return Record(
        options.get("a", record[1]),
        items[0],
        options.get("h", {}),
        options.get("e"),
        options.get("f"),
        options.get("r", 0),
        options.get("p"),
        options.get("x"),
        options.get("X"),
    )


def again(record: bytes, due_ms: int, error: str | None, *, counts: bool) -> bytes:
    """The record of a job's next run after the one that was due at `due_ms`.

    `counts`: it is another attempt; otherwise the same one once more. `error` is what to remember of the last one.
    Raises: UnreadableRecord.
    """
    before = decode(record)
    changes: dict[str, Any] = {"f": before.first_due_ms or due_ms}
    if error is not None:
        changes["e"] = error[:LAST_ERROR_CHARS]
    return _changed(record, before.attempt + counts, changes)


def replayed(record: bytes) -> bytes:
    """The record of a dead job that begins anew, with a note that it does; it expires no more.

    Raises: UnreadableRecord.
    """
    return _changed(record, 1, {"r": decode(record).replays + 1, "x": None, "X": None})


def original(record: bytes) -> bytes:
    """The record of a retried job as its producer made it. Raises: UnreadableRecord."""
    payload, *rest = _items(record)
    if rest:
        rest[0] = {name: value for name, value in rest[0].items() if name not in _OF_RUNS}
    packed: bytes = msgpack.packb([payload, *rest] if any(rest) else [payload])
    return _FIRST_ATTEMPT + packed


def made_ms(record: bytes) -> int | None:
    """When the schedule call was made, by the producer's clock; known of jobs with a given key."""
    _, options, *_ = (*_items(record), {})
    nonce = options.get("n")
    is_dated = type(nonce) is bytes and len(nonce) == _MS_BYTES + _RANDOM_BYTES
    return int.from_bytes(nonce[:_MS_BYTES], "big") if is_dated else None


def _items(record: bytes) -> list[Any]:
    """Payload, and a map of options where there is one. Raises: UnreadableRecord."""
    if len(record) < 3 or record[0] != VERSION:
        raise UnreadableRecord(f"record version {record[:1]!r} is not known to this release")
    try:
        items = msgpack.unpackb(memoryview(record)[2:])
    except Exception as error:  # msgpack raises a dozen types for bytes that are not msgpack
        raise UnreadableRecord(f"not msgpack: {error}") from error
    if type(items) is not list or not items:
        raise UnreadableRecord("a record holds an array of at least one item")
    if len(items) > 1 and (type(items[1]) is not dict or type(items[1].get("h", {})) is not dict):
        raise UnreadableRecord("the second item of a record is a map, and so are its headers")
    return items


def _changed(record: bytes, attempt: int, changes: Mapping[str, Any]) -> bytes:
    """The record with another attempt and these options (None: without); what a newer release keeps in it stays."""
    items = _items(record)
    options = {**(items[1] if len(items) > 1 else {}), **changes}
    options = {name: value for name, value in options.items() if value is not None}
    options.pop("a", None)
    if attempt > MOST_IN_A_BYTE:
        options["a"] = attempt
    packed: bytes = msgpack.packb([items[0], options, *items[2:]])
    return bytes((VERSION, min(attempt, MOST_IN_A_BYTE))) + packed


def encode_result(result: Payload, limit_bytes: int) -> bytes:
    """What a handler returned, as kept. Raises: PayloadTooLarge, InvalidInput."""
    packed = _pack_payload(result)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes)
    return packed


def _pack_payload(payload: Payload) -> bytes:
    try:
        packed: bytes = msgpack.packb(payload)
        if type(payload) not in _SCALARS:
            # What is accepted must be readable: this finds integer map keys and nesting beyond msgpack's limit.
            msgpack.unpackb(_ONE_ITEM + packed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        path, problem = _find_offender(payload)
        raise InvalidInput(path, problem or f"cannot be packed by msgpack: {error}") from error
    return packed


def _find_offender(payload: Payload) -> tuple[str, str | None]:
    """The path to the first item that msgpack cannot hold, and what is wrong with it; walks without recursion."""
    todo: list[tuple[str, Any, int]] = [("payload", payload, 0)]
    while todo:
        path, item, depth = todo.pop()
        if depth > 1_000:
            return path[:60] + "…", "is nested too deeply: the limit is 1,000 levels"
        if isinstance(item, dict):
            for key, value in item.items():
                if not isinstance(key, str):
                    return f"{path}[{key!r}]", f"map keys must be strings, not {type(key).__name__}; write {str(key)!r}"
                todo.append((f"{path}.{key}", value, depth + 1))
        elif isinstance(item, (list, tuple)):
            todo.extend((f"{path}[{n}]", value, depth + 1) for n, value in enumerate(item))
        elif (problem := _scalar_problem(item)) is not None:
            return path, problem
    return "payload", None


def _scalar_problem(item: Any) -> str | None:
    if isinstance(item, bool) or item is None or isinstance(item, (float, bytes, bytearray, memoryview)):
        return None
    if isinstance(item, int):
        return None if -(2**63) <= item < 2**64 else f"{item} does not fit into 64 bits; send it as a string"
    if isinstance(item, str):
        try:
            item.encode()
        except UnicodeEncodeError as error:
            return f"is not valid Unicode text ({error.reason})"
        return None
    return (
        f"a {type(item).__qualname__} cannot be sent; use None, bool, int, float, str, bytes, "
        "and lists and string-keyed dicts of these (a datetime as .isoformat(), a set as a list)"
    )


def _checked_headers(headers: Mapping[str, str], limit_bytes: int) -> dict[str, str]:
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise InvalidInput("headers", "names and values must be strings")
    for problem in (_scalar_problem(text) for pair in headers.items() for text in pair):
        if problem is not None:
            raise InvalidInput("headers", problem)
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > limit_bytes:
        raise InvalidInput("headers", f"{size:,} characters, the limit is {limit_bytes:,}")
    return dict(headers)


def due_ms(score: bytes) -> int:
    """The due time in a member's score, which has a fraction for priorities other than normal."""
    return round(float(score)) if b"." in score else int(score)
