"""Parses a classic request and its content. Pure.

Bodies are JSON or forms; numbers may be text, as they always are in forms. If a form has a field twice, the last one
counts. A body that begins with `{` is JSON, whatever its type says, because `curl -d` calls everything a form. Text is
UTF-8 unless the type names another charset.

A content that begins with `{` must be JSON. If it names a service (`sn`) or a path (`url`), it must name both (v2), so
that a callback with a mistake is not silently kept. Any other text is kept (v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import to_json

from wheelq.base import as_json
from wheelq.errors import InvalidInput
from wheelq.model.job import from_ms
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.server.schemas.reading import charset_of, is_form

FIELDS = 50
LATEST_S = 253_402_300_799  # the last second of the year 9999, which a datetime can hold
TASK_IDS = 10**18
CHARSETS = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252", "gb2312", "gbk", "gb18030", "big5"})
"""The charsets that a request may be in. Python knows more, some of which take very long to decode."""


@dataclass(frozen=True, slots=True)
class Callback:
    """The callback that a v2 content asks for, with its other fields as payload."""

    service: str
    path: str
    body: Mapping[str, Any]


def parse(kind: str, body: bytes) -> dict[str, Any]:
    """Returns the parameters of a request. Raises: Problem."""
    charset = charset_of(kind)
    if charset not in CHARSETS:
        raise Problem(problems.UNSUPPORTED, f"Its charset is not known here: {kind[:100]!r}.")
    try:
        text = body.decode(charset)
        if is_form(kind) and not text.lstrip().startswith("{"):
            return dict(
                parse_qsl(text, keep_blank_values=True, encoding=charset, max_num_fields=FIELDS, errors="strict")
            )
        found = as_json.parse(text.encode())
    except ValueError as error:
        raise Problem(problems.BAD_REQUEST, f"It is neither JSON nor a form: {error}.") from error
    if not isinstance(found, dict):
        raise Problem(problems.BAD_REQUEST, "It must be an object.")
    return found


def topic_of(said: Mapping[str, Any]) -> str:
    """Returns the topic. Raises: InvalidInput."""
    topic = said.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InvalidInput("topic", "missing: a text")
    return topic


def moment_of(said: Mapping[str, Any]) -> datetime:
    """Returns when the task is due. Raises: InvalidInput."""
    seconds = _whole(said, "timing_moment", LATEST_S)
    if seconds is None:
        raise InvalidInput("timing_moment", "missing: unix seconds")
    return from_ms(seconds * 1000)


def task_id_of(said: Mapping[str, Any]) -> int | None:
    """Returns the task's id, if given. Raises: InvalidInput."""
    return _whole(said, "task_id", TASK_IDS)


def content_of(said: Mapping[str, Any]) -> str:
    """Returns the content as text; an object is converted to JSON text. Raises: InvalidInput."""
    content = said.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, (dict, list)):
        return to_json(content).decode()
    raise InvalidInput("content", "missing: a text that holds JSON")


def callback_of(content: str) -> Callback | None:
    """Returns the callback of a content; None: it is only kept (v1). Raises: InvalidInput, if it is a malformed v2."""
    if not content.lstrip().startswith("{"):
        return None
    try:
        found = as_json.parse(content.encode())
    except ValueError as error:
        raise InvalidInput("content", f"begins with {{ but is not JSON: {error}") from error
    if "sn" not in found and "url" not in found:
        return None
    service, path = found.pop("sn", None), found.pop("url", None)
    for name, value in (("sn", service), ("url", path)):
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"content.{name}", "must be non-empty text, because sn or url is given")
    return Callback(service, path, found)


def _whole(said: Mapping[str, Any], field: str, most: int) -> int | None:
    value = said.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidInput(field, f"must be a whole number from 0 to {most}")
    return value
