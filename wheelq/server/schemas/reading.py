"""Reads bodies: their size, media type and charset, and models from JSON, with errors that name field and remedy."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from wheelq.base.as_json import parse
from wheelq.errors import InvalidInput
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.server.schemas.model import NULL

M = TypeVar("M", bound=BaseModel)
FORM = "application/x-www-form-urlencoded"
MANY_VALUES = 1_000_000
MANY_NESTS = 250_000
_SHOWN = 3
_PLACES = ("body", "query", "path", "header", "cookie")


class BodyLimits(NamedTuple):
    """What a body may hold. Reading holds up all other requests, and takes as long as the values are many.

    8 MB in      values       nests       takes on one core
    long texts   500          500         14 ms
    numbers      4,000,000    1           90 ms
    empty lists  2,800,000    2,800,000   800 ms, and 180 MB
    """

    size: int
    """Bytes."""
    values: int
    """Values in lists and objects."""
    nests: int
    """Lists and objects."""

    @classmethod
    def of_a_job(cls, payload_max_bytes: int) -> BodyLimits:
        """The limits of a request about one job: whatever exceeds them would be refused after reading it, too.

        A packed byte takes up to six in JSON or a form. The headers may be as long as the payload, and there may be
        line breaks. A value takes a byte at least.
        """
        values = 2 * payload_max_bytes + 1_000
        return cls(65_536 + 16 * payload_max_bytes, values, values)

    def of_many(self, most_bytes: int) -> BodyLimits:
        """The limits of a request about many jobs: those of one, or these if they are higher."""
        return BodyLimits(most_bytes, max(self.values, MANY_VALUES), max(self.nests, MANY_NESTS))

    def parse(self, body: bytes) -> Any:
        """Returns the value of a JSON text. Raises: Problem; ValueError."""
        # Commas and brackets in texts count, too: to tell them apart would take as long as reading.
        if body.count(b",") > self.values or body.count(b"[") + body.count(b"{") > self.nests:
            what = f"The body has more than {self.values:,} values, or {self.nests:,} lists and objects."
            raise Problem(problems.TOO_LARGE, what, "body")
        return parse(body)


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
    told = [(_field(item), _problem(item)) for item in found[:_SHOWN]]
    field, problem = told[0]
    others = "".join(f"; {name}: {what}" for name, what in told[1:])
    return InvalidInput(field, problem + others)


def _field(item: Any) -> str:
    loc = (*item["loc"], item["ctx"]["name"]) if item["type"] == NULL else item["loc"]
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
