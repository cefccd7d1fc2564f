"""Checks the parts of a record that callers provide: explains what is wrong with a payload, and refuses bad headers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from wheelq.errors import InvalidInput
from wheelq.model.convert import plain
from wheelq.model.job import Payload


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
