"""The stored record of a job: a short head that scripts may read, and a msgpack body that they never open.

| bytes   | head                                                                                              |
|---------|---------------------------------------------------------------------------------------------------|
| 1       | version: 2. An entry id begins with a digit, so the first byte tells a waiting job from a promoted one |
| 6       | when it was scheduled: ms since the epoch by the server's clock. The producer sends zeros, and the |
|         | script writes the time                                                                            |
| 1       | attempt; 255 is 255 or more, see option `a`                                                       |
| 1       | flags: 1 parts follow the life, 2 options follow the payload                                      |
| 8       | life: random bytes that tell this job from every other with its id                                |
| (2 + n) | parts: the length of all, then for each: name (1 byte), length (2), value                         |

Numbers are big-endian. A reader skips the parts it does not know, and a retry keeps them.

| part | value                                                                                                |
|------|------------------------------------------------------------------------------------------------------|
| `k`  | partition key: jobs that have one can be kept in order                                               |
| `d`  | how long after the call that made it repeated calls may put it off: ms                               |
| `a`  | how many attempts it gets                                                                            |
| `l`  | how long one attempt may take: ms                                                                    |
| `b`  | the bundle it belongs to                                                                             |
| `o`  | where its death is told of: a topic, or a service and a path                                         |

The body is the packed payload and, if the flag says so, a map of options:

| option   | meaning                                                                                 |
|----------|-----------------------------------------------------------------------------------------|
| `h`      | headers: map of strings                                                                 |
| `a`      | the attempt, if it is above 255, the most that the byte can hold                        |
| `e`      | the error of the last failed attempt, at most 500 characters                            |
| `f`      | when the job was first due, in a retry: due_ms                                          |
| `m`      | when a worker first found that the payload does not fit its handler: ms since the epoch |
| `r`      | how often it was replayed                                                               |
| `t`      | the last ten attempts: start (ms since the epoch), duration (ms), worker, error or nil  |
| `x`, `X` | expiry: ms after it was first due; or ms since the epoch                                |
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgpack

from wheelq.base.ids import random_bits
from wheelq.errors import InvalidInput, PayloadTooLarge
from wheelq.model.convert import plain
from wheelq.model.job import Payload
from wheelq.model.state import Attempt
from wheelq.protocol import attempts

VERSION = 2
LIFE_BYTES = 8
NO_LIFE = bytes(LIFE_BYTES)
"""In the record of a recurring job: the script gives each occurrence a life of its own."""
_ATTEMPT_AT, _FLAGS_AT, _LIFE_AT = 7, 8, 9
_HEAD = _LIFE_AT + LIFE_BYTES
LIFE = slice(_LIFE_AT, _HEAD)
"""Where a record has its life."""
_HAS_PARTS, _HAS_OPTIONS = 1, 2
_KINDS: Mapping[str, type] = {"a": int, "e": str, "f": int, "m": int, "r": int, "x": int, "X": int}
_NUMBERS: Mapping[str, int] = {"a": 2**31, "f": 2**53, "m": 2**53, "r": 2**31, "x": 2**53, "X": 2**53}
_OF_RUNS = frozenset("aefmrt")
"""Options that runs write, not the producer."""
LAST_ERROR_CHARS = 500
MOST_IN_A_BYTE = 255
LAST_MS = 2**53
"""The last due time: scores hold whole milliseconds exactly up to here."""
_NEW = bytes((VERSION, 0, 0, 0, 0, 0, 0, 1))
"""The first bytes of a record that is not stored yet: no time, first attempt."""
_PLAIN = _NEW + b"\0"
_ONE_ITEM, _TWO_ITEMS = b"\x91", b"\x92"  # msgpack: array of one, array of two
_MAY_BE_FOREIGN = re.compile(rb"[\xc4-\xc9\xd4-\xd8]").search
"""Finds bytes that begin an extension type, or a value of bytes, perhaps a map's key. Text may hold them too."""
_SCALARS = (str, bytes, int, float, bool, type(None))
_PLAIN_KINDS = (*_SCALARS, dict, list, tuple)
Pack = Callable[[Any], bytes]


def attempt_of(record: bytes) -> int:
    """Returns the attempt in the head of a record: 255 means 255 or more."""
    return record[_ATTEMPT_AT]


class Parts(NamedTuple):
    """What the head of a record may hold besides its fixed bytes; None: it does not."""

    partition_key: str | None = None
    max_wait_ms: int | None = None
    """How long after the call that made it repeated calls with its id may put it off."""
    max_attempts: int | None = None
    limit_ms: int | None = None
    """How long one attempt may take."""
    bundle: str | None = None
    on_dead: str | None = None


NO_PARTS = Parts()
_NAMES = dict(zip(b"kdalbo", Parts._fields, strict=True))
_TEXTS = frozenset(b"kbo")


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
    scheduled_ms: int = 0
    """When it was scheduled, by the server's clock; 0 before it is stored."""
    life: bytes = NO_LIFE
    mismatched_ms: int | None = None
    """When its payload was first found not to fit, by the server's clock; None: it fitted when it last ran."""
    max_attempts: int | None = None
    """How many attempts its producer gives it; None: its handler decides alone."""
    limit_ms: int | None = None
    """How long each may take; None: its handler decides alone."""
    on_dead: str | None = None
    """Where its death is told of; None: where its topic says."""

    @property
    def timeout(self) -> float | None:
        """`limit_ms` in seconds."""
        return None if self.limit_ms is None else self.limit_ms / 1000

    @property
    def has_run(self) -> bool:
        """Whether a run of the job has ended before."""
        return self.attempt > 1 or self.first_due_ms is not None or self.replays > 0

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
    parts: Parts = NO_PARTS,
    expiry: tuple[str, int] | None = None,
    life: bytes | None = None,
    pack: Pack = msgpack.packb,
) -> bytes:
    """Returns the record of a new job.

    `expiry` is an option and its ms. `life` None: a new one. `pack` is a `packer()`, for many jobs. Raises:
    PayloadTooLarge; InvalidInput, which names the path of a value that msgpack cannot hold or would not return
    unchanged.
    """
    packed = _pack_payload(payload, pack)
    if len(packed) > limit_bytes:
        raise PayloadTooLarge(len(packed), limit_bytes)
    if not headers and expiry is None and parts is NO_PARTS:
        return _PLAIN + (life or random_bits(64).to_bytes(LIFE_BYTES, "big")) + packed
    options: dict[str, Any] = {}
    if headers:
        options["h"] = checked_headers(headers, limit_bytes)
    if expiry is not None:
        options[expiry[0]] = expiry[1]
    head_parts = _pack_parts(parts)
    flags = bool(head_parts) * _HAS_PARTS | bool(options) * _HAS_OPTIONS
    more = msgpack.packb(options) if options else b""
    return b"".join((_NEW, bytes((flags,)), life or make_life(), head_parts, packed, more))


def make_life() -> bytes:
    """Returns random bytes, which tell a job from every other with its id."""
    return random_bits(64).to_bytes(LIFE_BYTES, "big")


def life_named(name: str) -> bytes:
    """Returns the life of the job of a call with a name of its own: always the same."""
    return hashlib.sha256(name.encode()).digest()[:LIFE_BYTES]


def life_of(record: bytes) -> bytes:
    """Returns the life in a record."""
    return record[LIFE]


def with_life(record: bytes, life: bytes) -> bytes:
    """Returns the record with another life."""
    return record[:_LIFE_AT] + life + record[_HEAD:]


def is_debounced(record: bytes) -> bool:
    """Whether repeated calls may put the job off. Raises: UnreadableRecord."""
    return bool(record[_FLAGS_AT] & _HAS_PARTS) and parts_of(record).max_wait_ms is not None


def asked_at(record: bytes, ms: int) -> bytes:
    """Returns a debounced job's record with when its call was made, by the server's clock; any other as it is."""
    if not is_debounced(record):
        return record
    return record[:1] + ms.to_bytes(_ATTEMPT_AT - 1, "big") + record[_ATTEMPT_AT:]


def parts_of(record: bytes) -> Parts:
    """Returns the parts of the head. Raises: UnreadableRecord."""
    return _read_parts(record[_HEAD + 2 : _body_at(record)])


def decode(record: bytes) -> Record:
    """Unpacks a record. Raises: UnreadableRecord."""
    body_at = _body_at(record)
    payload, options = _items(record, body_at)
    attempt, scheduled_ms = record[_ATTEMPT_AT], int.from_bytes(record[1:_ATTEMPT_AT], "big")
    life = record[_LIFE_AT:_HEAD]
    key, _, most, limit_ms, _, on_dead = _read_parts(record[_HEAD + 2 : body_at]) if body_at > _HEAD else NO_PARTS
    if record[_FLAGS_AT] & _HAS_OPTIONS:
        return Record(
            options.get("a", attempt),
            payload,
            options.get("h", {}),
            options.get("e"),
            options.get("f"),
            options.get("r", 0),
            key,
            options.get("x"),
            options.get("X"),
            attempts.read(options["t"]) if "t" in options else (),
            scheduled_ms,
            life,
            options.get("m"),
            most,
            limit_ms,
            on_dead,
        )
    return _plain_record(
        (attempt, payload, {}, None, None, 0, key, None, None, (), scheduled_ms, life, None, most, limit_ms, on_dead)
    )


def again(
    record: bytes,
    due_ms: int,
    error: str | None,
    *,
    counts: bool,
    attempt: Attempt | None = None,
    mismatched_ms: int | None = None,
) -> bytes:
    """Returns the record of a job's next run after the one that was due at `due_ms`.

    `counts`: the next run is another attempt, not the same one again. `error` and `attempt` describe the last run.
    `mismatched_ms`: its payload did not fit, for the first time at this moment. Raises: UnreadableRecord.
    """
    before = decode(record)
    changes: dict[str, Any] = {"f": before.first_due_ms or due_ms, "m": mismatched_ms}
    if attempt is not None:
        changes["t"] = attempts.added(before.attempts, attempt)
    if error is not None:
        changes["e"] = error[:LAST_ERROR_CHARS]
    return _changed(record, before.attempt + counts, changes)


def attempted(record: bytes, attempt: Attempt) -> bytes:
    """Returns the record with one more attempt. Raises: UnreadableRecord."""
    before = decode(record)
    return _changed(record, before.attempt, {"t": attempts.added(before.attempts, attempt), "m": None})


def replayed(record: bytes) -> bytes:
    """Returns the record of a dead job for its replay; it no longer expires. Raises: UnreadableRecord."""
    return _changed(record, 1, {"r": decode(record).replays + 1, "m": None, "x": None, "X": None})


def original(record: bytes) -> bytes:
    """Returns the record of a retried job as its producer made it. Raises: UnreadableRecord."""
    return _changed(record, 1, dict.fromkeys(_OF_RUNS))


def _items(record: bytes, body_at: int) -> tuple[Payload, Mapping[str, Any]]:
    """Returns the payload and the options. Raises: UnreadableRecord."""
    try:
        if not record[_FLAGS_AT] & _HAS_OPTIONS:
            return msgpack.unpackb(record[body_at:]), {}
        payload, options = msgpack.unpackb(_TWO_ITEMS + record[body_at:])
    except Exception as error:  # msgpack raises a dozen types for bytes that are not msgpack
        raise UnreadableRecord(f"not msgpack: {error}") from error
    if type(options) is not dict or type(options.get("h", {})) is not dict:
        raise UnreadableRecord("the options of a record must be a map, and so must its headers")
    _check_options(options)
    return payload, options


def _body_at(record: bytes) -> int:
    """Returns where the payload begins. Raises: UnreadableRecord."""
    if len(record) <= _HEAD or record[0] != VERSION:
        raise UnreadableRecord(f"record version {record[:1]!r} is not known to this release")
    if not record[_FLAGS_AT] & _HAS_PARTS:
        return _HEAD
    return _HEAD + 2 + int.from_bytes(record[_HEAD : _HEAD + 2], "big")


@lru_cache(maxsize=64)  # the jobs of a bundle have the same
def _pack_parts(parts: Parts) -> bytes:
    packed = b""
    for name, value in zip(_NAMES, parts, strict=True):
        if value is not None:
            raw = (
                value.encode() if isinstance(value, str) else value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")
            )
            packed += bytes((name,)) + len(raw).to_bytes(2, "big") + raw
    return len(packed).to_bytes(2, "big") + packed if packed else b""


@lru_cache(maxsize=64)  # for the same reason
def _read_parts(packed: bytes) -> Parts:
    found: dict[str, Any] = {}
    at = 0
    while at < len(packed):
        name, begin = packed[at], at + 3
        at = begin + int.from_bytes(packed[at + 1 : begin], "big")
        if at > len(packed):
            raise UnreadableRecord("a part in the head of a record is not whole")
        if name in _TEXTS:
            try:
                found[_NAMES[name]] = packed[begin:at].decode()
            except UnicodeDecodeError as error:
                raise UnreadableRecord(f"a part in the head of a record is not text: {error}") from error
        elif name in _NAMES:
            found[_NAMES[name]] = number = int.from_bytes(packed[begin:at], "big")
            if number > LAST_MS:
                raise UnreadableRecord("a number in the head of a record is too large")
    return Parts(**found)


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
    """Returns the record with another attempt and these options (None removes one). What is unknown stays."""
    body_at = _body_at(record)
    payload, before = _items(record, body_at)
    options = {name: value for name, value in {**before, **changes}.items() if value is not None}
    options.pop("a", None)
    if attempt > MOST_IN_A_BYTE:
        options["a"] = attempt
    flags = record[_FLAGS_AT] & ~_HAS_OPTIONS | bool(options) * _HAS_OPTIONS
    head = record[:_ATTEMPT_AT] + bytes((min(attempt, MOST_IN_A_BYTE), flags)) + record[_LIFE_AT:body_at]
    body: bytes = msgpack.packb(payload) + (msgpack.packb(options) if options else b"")
    return head + body


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
            # An accepted payload must be readable, in every language: this finds integer map keys, nesting beyond
            # msgpack's limit, and what only msgpack has.
            msgpack.unpackb(_ONE_ITEM + packed, **(_FOREIGN_REFUSED if _MAY_BE_FOREIGN(packed) else {}))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        path, problem = find_offender(payload)
        raise InvalidInput(path, problem or f"cannot be packed by msgpack: {error}") from error
    return packed


def _refuse_foreign(items: Any) -> None:
    """Raises: TypeError, if a list or map holds a value or a key that other languages do not have."""
    is_map = type(items) is dict
    values = items.values() if is_map else items
    if not _FOREIGN.isdisjoint(map(type, values)) or (is_map and bytes in map(type, items)):
        raise TypeError("a value that only msgpack has")


_FOREIGN = frozenset((msgpack.ExtType, msgpack.Timestamp))
_FOREIGN_REFUSED: Mapping[str, Any] = {"list_hook": _refuse_foreign, "object_hook": _refuse_foreign}


def find_offender(payload: Payload) -> tuple[str, str | None]:
    """Returns the path to an item that msgpack cannot hold, and what is wrong with it. Does not recurse."""
    todo: list[tuple[Any, Any, int]] = [(None, payload, 0)]  # 100,000 paths as text would take gigabytes: see _path
    while todo:
        steps, item, depth = todo.pop()
        if depth > 1_000:
            return _path(steps)[:60] + "…", "is nested too deeply: the limit is 1,000 levels"
        if type(item) not in _PLAIN_KINDS:
            with suppress(TypeError):
                item = plain(item)
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    told = f"map keys must be strings, not {type(key).__name__}; write {str(key)!r}"
                    return f"{_path(steps)}[{key!r}]", told
        elif type(item) in _FOREIGN or not isinstance(item, (list, tuple)):
            if (problem := _scalar_problem(item)) is not None:
                return _path(steps), problem
            continue
        for step, value in item.items() if isinstance(item, dict) else enumerate(item):
            if type(value) not in _SCALARS:
                todo.append(((steps, step), value, depth + 1))
            elif (problem := _scalar_problem(value)) is not None:
                return _path((steps, step)), problem
    return "payload", None


def _path(steps: Any) -> str:
    """Returns the path of a chain of steps: (those before it, last step), or None."""
    parts = []
    while steps is not None:
        steps, step = steps
        parts.append(f".{step}" if isinstance(step, str) else f"[{step}]")
    return "payload" + "".join(reversed(parts))


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
    if type(item) in _FOREIGN:
        return f"is a msgpack {type(item).__name__}, which a payload cannot hold"
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
