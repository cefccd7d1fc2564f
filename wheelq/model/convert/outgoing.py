"""Typed values → payloads: `plain`, which msgpack calls for whatever it cannot pack itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from wheelq.model.convert.incoming import struct_to_plain

_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    UUID: str,
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: timedelta.total_seconds,
}


def plain(value: Any) -> Any:
    """Returns a value as a payload may hold it, one level deep: what it contains may have to be converted too.

    Raises: TypeError, if no payload can hold it.
    """
    kind = type(value)
    if is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in fields(kind) if field.init}
    if hasattr(kind, "__struct_fields__"):
        return struct_to_plain(value, plain)
    if hasattr(kind, "__pydantic_validator__"):
        return value.model_dump(by_alias=True, round_trip=True)
    if isinstance(value, Enum):
        return value.value
    for known, convert in _PLAIN.items():
        if isinstance(value, known):
            return convert(value)
    raise TypeError(f"a {kind.__qualname__} cannot be sent")
