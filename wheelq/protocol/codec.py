"""The stored record of a job: a version byte, an attempt byte, and a msgpack array.

    \\x01  \\x01  [payload]                      the usual job
    \\x01  \\x03  [payload, {"h": {...}, "n": …}]   third attempt, with headers and a producer's nonce
    version attempt

Scripts read the two bytes and pass the rest through, so Lua never unpacks anything: the worker makes the record of a
retry here. A record begins with a byte below 0x20, and an entry id with a digit, so the first byte tells a waiting job
from a promoted one.

| key of the options map | meaning                                                                              |
|------------------------|--------------------------------------------------------------------------------------|
| `h`                    | headers: map of strings                                                              |
| `n`                    | nonce: tells a producer's repeated call with a given key from another call; holds    |
|                        | the time of the call (6 bytes, ms since the epoch) and 6 random bytes                |
| `p`                    | partition key: jobs that have one can be kept in order                               |
| `a`                    | the attempt, if it is above 255, the most that the byte can hold                     |
| `e`                    | the error of the last failed attempt, at most 500 characters                         |
| `f`                    | when the job was first due, in a retry: due_ms                                       |
| `r`                    | how often it was replayed                                                            |
| `t`                    | the last ten attempts: start (ms since the epoch), duration (ms), worker, error or nil  |
| `x`, `X`               | expiry: ms after it was first due; or ms since the epoch                             |
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgpack

from wheelq.base.clock import wall_ms
from wheelq.errors import InvalidInput, PayloadTooLarge
from wheelq.model.convert import plain
from wheelq.model.job import Payload
from wheelq.model.state import Attempt
from wheelq.protocol import attempts

VERSION = 1
_MS_BYTES, _RANDOM_BYTES = 6, 6
NONCE_BYTES = _MS_BYTES + _RANDOM_BYTES
_KINDS: Mapping[str, type] = {"a": int, "e": str, "f": int, "p": str, "r": int, "x": int, "X": int}
_NUMBERS: Mapping[str, int] = {"a": 2**31, "f": 2**53, "r": 2**31, "x": 2**53, "X": 2**53}
_OF_RUNS = frozenset("aefrt")
"""Options that runs write, not the producer."""
LAST_ERROR_CHARS = 500
MOST_IN_A_BYTE = 255
LAST_MS = 2**53
"""The last due time: scores hold whole milliseconds exactly up to here."""
_FIRST_ATTEMPT = bytes((VERSION, 1))
_ONE_ITEM, _TWO_ITEMS = b"\x91", b"\x92"  # msgpack: array of one, array of two
_SCALARS = (str, bytes, int, float, bool, type(None))
Pack = Callable[[Any], bytes]


class Record(NamedTuple):
    """A stored job, unpacked."""

    attempt: int
    payload: Payload
    headers: Mapping[str, str]
    last_error: str | None = None
    """The error of the last failed attempt."""
    first_due_ms: int | None = None
    """When the job was first due; None if it has not been retried."""
    replays: int = 0
    """How often it was replayed."""
    partition_key: str | None = None
    expires_after_ms: int | None = None
    """It may start up to this long after it was first due."""
    expires_at_ms: int | None = None
    """It may start until this moment."""
    attempts: tuple[Attempt, ...] = ()
    """The last attempts that ended, oldest first."""

    def expires_ms(self, due_ms: int) -> float:
        """When it becomes too late to start the run that is due at `due_ms`; infinity: never."""
        if self.expires_at_ms is not None:
            return self.expires_at_ms
        if self.expires_after_ms is not None:
            return (self.first_due_ms or due_ms) + self.expires_after_ms
        return float("inf")


_plain_record = partial(tuple.__new__, Record)
"""Makes a record from all its fields. Called for every job, so it takes a third of the time of `Record(...)`."""


class UnreadableRecord(ValueError):
    """The bytes are not a record of a known version."""


def encode(
    payload: Payload,
    headers: Mapping[str, str] | None,
    limit_bytes: int,
    with_nonce: bool,
    partition_key: str | None = None,
    expiry: tuple[str, int] | None = None,
    nonce: bytes | None = None,
    pack: Pack = msgpack.packb,
) -> bytes:
    """Returns the record of a new job.

    `with_nonce`, two equal calls make different records; a repeated call passes its `nonce` instead. `expiry` is an
    option and its ms. `pack` is a `packer()`, for many jobs. Raises: PayloadTooLarge; InvalidInput, which names the
    path of a value that msgpack cannot hold or would not return unchanged.
    """
    packed = _pack_payload(payload, pack)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes)
    if not headers and not with_nonce and partition_key is None and expiry is None:
        return _FIRST_ATTEMPT + _ONE_ITEM + packed
    options: dict[str, Any] = {}
    if headers:
        options["h"] = checked_headers(headers, limit_bytes)
    if with_nonce:
        options["n"] = nonce or wall_ms().to_bytes(_MS_BYTES, "big") + secrets.token_bytes(_RANDOM_BYTES)
    if partition_key is not None:
        options["p"] = partition_key
    if expiry is not None:
        options[expiry[0]] = expiry[1]
    return b"".join((_FIRST_ATTEMPT, _TWO_ITEMS, packed, msgpack.packb(options)))


def nonce_of(name: str, at_ms: int) -> bytes:
    """Returns the nonce of a call with a name of its own: always the same."""
    return at_ms.to_bytes(_MS_BYTES, "big") + hashlib.sha256(name.encode()).digest()[:_RANDOM_BYTES]


def decode(record: bytes) -> Record:
    """Unpacks a record. Raises: UnreadableRecord."""
    items = _items(record)
    if len(items) == 1:
        return _plain_record((record[1], items[0], {}, None, None, 0, None, None, None, ()))
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
        attempts.read(options["t"]) if "t" in options else (),
    )


def again(record: bytes, due_ms: int, error: str | None, *, counts: bool, attempt: Attempt | None = None) -> bytes:
    """Returns the record of a job's next run after the one that was due at `due_ms`.

    `counts`: the next run is another attempt, not the same one again. `error` and `attempt` describe the last run.
    Raises: UnreadableRecord.
    """
    before = decode(record)
    changes: dict[str, Any] = {"f": before.first_due_ms or due_ms}
    if attempt is not None:
        changes["t"] = attempts.added(before.attempts, attempt)
    if error is not None:
        changes["e"] = error[:LAST_ERROR_CHARS]
    return _changed(record, before.attempt + counts, changes)


def attempted(record: bytes, attempt: Attempt) -> bytes:
    """Returns the record with one more attempt. Raises: UnreadableRecord."""
    before = decode(record)
    return _changed(record, before.attempt, {"t": attempts.added(before.attempts, attempt)})


def replayed(record: bytes) -> bytes:
    """Returns the record of a dead job for its replay; it no longer expires. Raises: UnreadableRecord."""
    return _changed(record, 1, {"r": decode(record).replays + 1, "x": None, "X": None})


def original(record: bytes) -> bytes:
    """Returns the record of a retried job as its producer made it. Raises: UnreadableRecord."""
    payload, *rest = _items(record)
    if rest:
        rest[0] = {name: value for name, value in rest[0].items() if name not in _OF_RUNS}
    packed: bytes = msgpack.packb([payload, *rest] if any(rest) else [payload])
    return _FIRST_ATTEMPT + packed


def made_ms(record: bytes) -> int | None:
    """When the schedule call was made, by the producer's clock; known only for jobs with a given key."""
    _, options, *_ = (*_items(record), {})
    nonce = options.get("n")
    is_dated = type(nonce) is bytes and len(nonce) == _MS_BYTES + _RANDOM_BYTES
    return int.from_bytes(nonce[:_MS_BYTES], "big") if is_dated else None


def _items(record: bytes) -> list[Any]:
    """Returns the payload, and the map of options if there is one. Raises: UnreadableRecord."""
    if len(record) < 3 or record[0] != VERSION:
        raise UnreadableRecord(f"record version {record[:1]!r} is not known to this release")
    try:
        items = msgpack.unpackb(record[2:])
    except Exception as error:  # msgpack raises a dozen types for bytes that are not msgpack
        raise UnreadableRecord(f"not msgpack: {error}") from error
    if type(items) is not list or not items:
        raise UnreadableRecord("a record must hold an array of at least one item")
    if len(items) > 1 and (type(items[1]) is not dict or type(items[1].get("h", {})) is not dict):
        raise UnreadableRecord("the second item of a record must be a map, and so must its headers")
    if len(items) > 1:
        _check_options(items[1])
    return items


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises: UnreadableRecord, if another program gave an option an invalid value."""
    for name in options.keys() & _KINDS.keys():
        value = options[name]
        is_wrong = type(value) is not _KINDS[name]
        if is_wrong or (type(value) is int and not 0 <= value < _NUMBERS[name]):
            raise UnreadableRecord(f"option {name} of a record cannot be {value!r:.60}")
    if not all(type(text) is str for text in options.get("h", {}).values()):
        raise UnreadableRecord("the headers of a record must be text")


def _changed(record: bytes, attempt: int, changes: Mapping[str, Any]) -> bytes:
    """Returns the record with another attempt and these options (None removes one). Unknown options stay."""
    items = _items(record)
    options = {**(items[1] if len(items) > 1 else {}), **changes}
    options = {name: value for name, value in options.items() if value is not None}
    options.pop("a", None)
    if attempt > MOST_IN_A_BYTE:
        options["a"] = attempt
    packed: bytes = msgpack.packb([items[0], options, *items[2:]])
    return bytes((VERSION, min(attempt, MOST_IN_A_BYTE))) + packed


def encode_result(result: Payload, limit_bytes: int) -> bytes:
    """Packs what a handler returned. Raises: PayloadTooLarge, InvalidInput."""
    packed = _pack_payload(result)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes, "result_max_bytes")
    return packed


def packer() -> Pack:
    """Returns a function that packs as `msgpack.packb` does, in a third of the time. For one thread."""
    pack: Pack = msgpack.Packer().pack
    return pack


def _pack_payload(payload: Payload, pack: Pack = msgpack.packb) -> bytes:
    try:
        try:
            packed = pack(payload)
        except TypeError:  # a value in it must be converted first
            packed = msgpack.packb(payload, default=plain)
        if type(payload) not in _SCALARS:
            # An accepted payload must be readable: this finds integer map keys and nesting beyond msgpack's limit.
            msgpack.unpackb(_ONE_ITEM + packed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        path, problem = find_offender(payload)
        raise InvalidInput(path, problem or f"cannot be packed by msgpack: {error}") from error
    return packed


def due_ms(score: bytes) -> int:
    """Returns the due time in a member's score, which has a fraction for priorities other than normal.

    Another program may have stored any score, even infinity, so the result is limited to 0 to 2^53.
    """
    if score.isdigit() and len(score) < 16:
        return int(score)
    return round(min(max(float(score), 0.0), LAST_MS))


def find_offender(payload: Payload) -> tuple[str, str | None]:
    """Returns the path to the first item that msgpack cannot hold, and what is wrong with it. Does not recurse."""
    todo: list[tuple[str, Any, int]] = [("payload", payload, 0)]
    while todo:
        path, item, depth = todo.pop()
        if depth > 1_000:
            return path[:60] + "…", "is nested too deeply: the limit is 1,000 levels"
        with suppress(TypeError):
            item = plain(item)
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
        "lists and string-keyed dicts of these, dataclasses, models, UUIDs, dates and enums (a set as a list)"
    )


def checked_headers(headers: Mapping[str, str], limit_bytes: int) -> dict[str, str]:
    """Returns the headers if they are valid. Raises: InvalidInput."""
    if not isinstance(headers, Mapping):
        raise InvalidInput("headers", f"must be a mapping of names to values, not {type(headers).__name__}")
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise InvalidInput("headers", "names and values must be strings")
    for problem in (_scalar_problem(text) for pair in headers.items() for text in pair):
        if problem is not None:
            raise InvalidInput("headers", problem)
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > limit_bytes:
        raise InvalidInput("headers", f"{size:,} characters, the limit is {limit_bytes:,}")
    return dict(headers)
