"""Strict JSON for the HTTP server and callbacks, with bytes in users' values as base64.

Writing turns bytes into URL-safe base64, and NaN and infinity, which JSON lacks, into null. Reading refuses NaN,
infinity, and numbers too large for a float, like 1e400.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic_core import from_json, to_json

_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY = b"0" * 309


def as_json(value: Any) -> bytes:
    """Returns a value as JSON. Raises: PydanticSerializationError for a value that no payload can hold."""
    return to_json(value, bytes_mode="base64", inf_nan_mode="null")


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
