"""What a classic request says, and what its content asks for. Pure.

Bodies are JSON or forms; numbers may be texts, as in forms they always are. Of a form's field that is given twice the
last counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json, to_json

from wheelq.errors import InvalidInput
from wheelq.job import from_ms
from wheelq.server import problems
from wheelq.server.problems import Problem

FORM = "application/x-www-form-urlencoded"
FIELDS = 50
LATEST_S = 253_402_300_799  # the last second of the year 9999, which a datetime can hold
TASK_IDS = 10**18


@dataclass(frozen=True, slots=True)
class Callback:
    """What a v2 content asks for: to be called back with its other fields."""

    service: str
    path: str
    body: Mapping[str, Any]


def parse(kind: str, body: bytes) -> dict[str, Any]:
    """The parameters of a request. Raises: Problem."""
    try:
        if kind.partition(";")[0].strip().lower() == FORM:
            text = body.decode()
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS, errors="strict"))
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Problem(problems.BAD_REQUEST, f"It is neither JSON nor a form: {error}.") from error
    if not isinstance(found, dict):
        raise Problem(problems.BAD_REQUEST, "It must be an object.")
    return found


def topic_of(said: Mapping[str, Any]) -> str:
    """The topic. Raises: InvalidInput."""
    topic = said.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InvalidInput("topic", "missing: a text")
    return topic


def moment_of(said: Mapping[str, Any]) -> datetime:
    """When the task is due. Raises: InvalidInput."""
    seconds = _whole(said, "timing_moment", LATEST_S)
    if seconds is None:
        raise InvalidInput("timing_moment", "missing: unix seconds")
    return from_ms(seconds * 1000)


def task_id_of(said: Mapping[str, Any]) -> int | None:
    """The task's id, if one was named. Raises: InvalidInput."""
    return _whole(said, "task_id", TASK_IDS)


def content_of(said: Mapping[str, Any]) -> str:
    """The content, as it is kept: a text; an object that was not put into a text is, here. Raises: InvalidInput."""
    content = said.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, (dict, list)):
        return to_json(content).decode()
    raise InvalidInput("content", "missing: a text that holds JSON")


def callback_of(content: str) -> Callback | None:
    """What a content asks for; None: to be kept (v1), because it is no object with `sn` and `url`."""
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    service, path = found.pop("sn", None), found.pop("url", None)
    if not (isinstance(service, str) and isinstance(path, str) and service and path):
        return None
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
