"""Reads bodies: their size, media type and charset, and models from JSON, with errors that name field and remedy."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from wheelq.errors import InvalidInput
from wheelq.server import problems

M = TypeVar("M", bound=BaseModel)
FORM = "application/x-www-form-urlencoded"
_SHOWN = 3
_PLACES = ("body", "query", "path", "header", "cookie")


async def body_of(request: Request, most_bytes: int) -> bytes:
    """Returns the body. Raises: Problem, if it is longer: before it is read if it says its length, else on the way."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most_bytes:
        raise problems.too_large(most_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most_bytes:
            raise problems.too_large(most_bytes)
    return bytes(body)


def read(model: type[M], raw: Any) -> M:
    """Returns a model from parsed JSON. Raises: InvalidInput."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False)) from error


def invalid(found: Sequence[Any]) -> InvalidInput:
    """Returns the error for pydantic's findings: the first wrong fields, each with its remedy."""
    told = [(_field(item["loc"]), _problem(item)) for item in found[:_SHOWN]]
    field, problem = told[0]
    others = "".join(f"; {name}: {what}" for name, what in told[1:])
    return InvalidInput(field, problem + others)


def _field(loc: Sequence[Any]) -> str:
    named = [str(part) for part in (loc[1:] if loc and loc[0] in _PLACES else loc)]
    return ".".join(named) or "body"


def _problem(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "is not known here"
    message: str = item["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def is_json(kind: str) -> bool:
    """Whether a media type is JSON, or a kind of JSON."""
    kind = _essence(kind)
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def is_form(kind: str) -> bool:
    """Whether a media type is a URL-encoded form."""
    return _essence(kind) == FORM


def charset_of(kind: str) -> str:
    """Returns the charset of a media type under Python's name for it; "utf-8" if it names none, "" if unknown."""
    for parameter in kind.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                return codecs.lookup(value.strip().strip("\"'")).name
            except (LookupError, ValueError):
                return ""
    return "utf-8"


def _essence(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()
