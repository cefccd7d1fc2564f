"""Strict JSON for the HTTP server and callbacks, with bytes in users' values as base64.

Writing turns bytes into URL-safe base64, NaN and infinity, which JSON lacks, into null, and msgpack's timestamps, which
other programs store, into seconds; values may be of any depth. Reading refuses NaN, infinity, and numbers too large for
a float, like 1e400.
"""

from __future__ import annotations

import base64
import math
from functools import partial
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY = b"0" * 309


def as_json(value: Any) -> bytes:
    """Returns a value as JSON. Raises: PydanticSerializationError for a value that no payload can hold."""
    try:
        return _as_json(value)
    except PydanticSerializationError:  # most likely, it is nested deeper than pydantic writes: 250 levels
        return _deep_json(value)


def as_text(payload: Any) -> str:
    """Returns a payload as the classic API's content: text as it is, anything else as JSON."""
    if isinstance(payload, bytes):
        payload = base64.b64encode(payload).decode()  # as in payload_base64; as_json has the URL-safe alphabet
        return f'"{payload}"'
    return payload if isinstance(payload, str) else as_json(payload).decode()


_as_json = partial(to_json, bytes_mode="base64", inf_nan_mode="null", fallback=lambda value: value.to_unix())


def _deep_json(value: Any) -> bytes:
    """Returns a value of any depth as JSON, without recursion. A memoryview in `todo` is JSON already."""
    written: list[bytes | memoryview] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, (dict, list, tuple)) and item:
            is_map = isinstance(item, dict)
            parts = [(b"," + _as_json(key) + b":", item[key]) for key in item] if is_map else [(b",", x) for x in item]
            todo.append(memoryview(b"}" if is_map else b"]"))
            for before, inner in reversed(parts):
                todo += (inner, memoryview(before))
            todo[-1] = memoryview((b"{" if is_map else b"[") + parts[0][0][1:])
        else:
            written.append(item if type(item) is memoryview else _as_json(item))
    return b"".join(written)


def parse(text: bytes) -> Any:
    """Returns the value of a JSON text. Raises: ValueError."""
    found = from_json(text, allow_inf_nan=False)
    shape = text.translate(_SHAPE)  # few texts have a number this long; the values of all others need no check
    if (b"e000" in shape or b"e+000" in shape or _MANY in shape) and not _is_finite(found):
        raise ValueError("a number is out of range")
    return found


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list) else True
