"""The base of all models: strict types, no unknown fields, and schemas that say exactly what is accepted."""

from __future__ import annotations

import ast
import base64
import inspect
import re
import sys
from calendar import isleap
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_origin, get_type_hints

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from wheelq.base.clock import wall_ms
from wheelq.model.checks import ID_BYTES_LIMIT, LONGEST_RUN_MS, MOST_ATTEMPTS, TOPIC_PATTERN
from wheelq.model.job import from_ms
from wheelq.settings import ClientSettings

A = TypeVar("A", bound="Answer")
NOT_CONTROL = r"^[^\x00-\x1f\x7f]+$"


def besides(**schema: Any) -> dict[str, Any]:
    """What must hold as well. Generators of clients make types of every `oneOf` and `anyOf` that they see; they skip
    `then`, which validators obey.
    """
    return {"if": {}, "then": schema}


def text_schema(limit: int) -> dict[str, Any]:
    """The schema of a text without control characters, of at most this many bytes."""
    return {
        "type": "string",
        "minLength": 1,
        # The limit is in bytes of UTF-8; a character takes one to four.
        **besides(
            anyOf=[{"maxLength": limit // 4, "pattern": NOT_CONTROL}, {"maxLength": limit, "pattern": r"^[ -~]+$"}]
        ),
    }


ID_SCHEMA = {
    **text_schema(ID_BYTES_LIMIT),
    "description": f"A job's id: 1 to {ID_BYTES_LIMIT} bytes of text without control characters.",
    "examples": ["order-42"],
}
KEY_SCHEMA = {**ID_SCHEMA, "description": "Chooses the shard instead of the id.", "examples": ["customer-7"]}
PathId = Annotated[str, Path(), WithJsonSchema(ID_SCHEMA)]
_TOPIC_PATTERN = f"^{TOPIC_PATTERN.pattern}$"
Topic = Annotated[str, Path(pattern=_TOPIC_PATTERN, description="The topic's name.", examples=["orders"])]
TOPIC: dict[str, Any] = {
    "name": "topic",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": _TOPIC_PATTERN, "examples": ["orders"]},
    "description": "The topic's name.",
}
"""The same for the document, if a handler reads the request itself."""
PartitionKey = Annotated[
    str | None,
    Query(description="The partition_key with which the job was scheduled, if any."),
    WithJsonSchema(KEY_SCHEMA),
]

_YEARS = range(1971, from_ms(wall_ms() + ClientSettings().max_delay_ms).year)
_DAY = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = f"(?:{'|'.join(map(str, _YEARS))})-{_DAY}|(?:{'|'.join(str(year) for year in _YEARS if isleap(year))})-02-29"
AT_PATTERN = (
    rf"^(?:{_DATE})[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?"
    r"(?:[Zz]|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])$"
)
"""RFC 3339, for the document: the years in which a job can be due for sure. What is accepted, `_moment` says."""
_AT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Attempts = Annotated[
    int | None,
    Field(
        ge=1,
        le=MOST_ATTEMPTS,
        description="How many attempts each job gets, the first included; fewer, if its consumer states so.",
    ),
    WHOLE,
]
TimeLimit = Annotated[
    float | None,
    Field(
        gt=0,
        le=LONGEST_RUN_MS / 1000,
        description="How many seconds each attempt may take; fewer, if its consumer states so.",
    ),
]
"""Makes a field take integers as JSON has them, including 5.0. It comes last, so that the limits stay in the schema."""


def _moment(text: str) -> str:
    """Checks that the text is a moment. How far away a job may be due, the client checks (`max_delay_ms`)."""
    try:
        if _AT.fullmatch(text) and 1970 < parse_at(text).year < 9999:  # such that it is a moment in any time zone
            return text
    except ValueError:
        pass
    raise PydanticCustomError(
        "moment", "must be a moment with a time zone (RFC 3339) after 1970, as in 2030-01-31T09:00:00+01:00"
    )


Moment = Annotated[str, AfterValidator(_moment), WithJsonSchema({"type": "string", "pattern": AT_PATTERN})]
"""The text of a moment, with an error in words; the pattern is for the document."""


NULL = "null"
"""The type of the error about a null. Its location is the model; its context has the name of the field."""
MAY_BE_NULL = ("payload", "result")
"""Fields that hold a value of the caller's."""


class Model(BaseModel):
    """The base of every model of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _nothing_is_null(self) -> Model:
        """Refuses null: a field may only be left out, so that there is one way to say "none"."""
        for name in self.model_fields_set:
            if getattr(self, name) is None and name not in MAY_BE_NULL:
                raise PydanticCustomError(NULL, "must not be null; leave it out", {"name": name})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Documents a field that may be left out without null, which is refused."""
        found = handler(core)
        for told in handler.resolve_ref_schema(found).get("properties", {}).values():
            without_null(told)
        return found


class Answer(BaseModel):
    """The base of every model of an answer."""

    model_config = ConfigDict(extra="forbid")
    mirrored: ClassVar[tuple[str, ...]] = ()
    """The fields that are those of a class of the library: see `mirrors`."""
    moments: ClassVar[tuple[str, ...]] = ()
    """The fields that show a mirrored moment in RFC 3339."""

    @classmethod
    def shows(cls, source: Any) -> dict[str, Any]:
        """Returns the mirrored fields of an object, with what it holds as its own model shows it: bytes are in base64,
        and beside each moment in milliseconds is the same in RFC 3339.
        """
        found: dict[str, Any] = {}
        for name in cls.mirrored:
            value = getattr(source, name)
            if isinstance(value, bytes):
                found[f"{name}_base64"] = base64.b64encode(value).decode()
            else:
                found[name] = value if isinstance(value, _PLAIN) else _shown(value)
        for name in cls.moments:
            ms = found[f"{name}_ms"]
            found[name] = None if ms is None else moment(ms)
        return found


_PLAIN = (str, int, float, NoneType)
_MODELS: dict[type, type[Answer]] = {}
"""The models by the classes that they mirror."""


def _shown(value: Any) -> Any:
    if (model := _MODELS.get(type(value))) is not None:
        return model.shows(value)
    if isinstance(value, Mapping):
        return {key: _shown(one) if type(one) in _MODELS else one for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(one) if type(one) in _MODELS else one for one in value]
    return value


def mirrors(source: type, *left_out: str) -> Callable[[type[A]], type[A]]:
    """Gives a model the fields of a dataclass or named tuple with their docstrings, except those left out.

    The fields that the model itself declares come after them, or replace them.
    """

    def fill(model: type[A]) -> type[A]:
        meanings = _docstrings(source.__module__)
        kinds = {name: kind for name, kind in get_type_hints(source).items() if get_origin(kind) is not ClassVar}
        names = [name for name in kinds if name not in left_out]
        fields: dict[str, Any] = {
            name: (kinds[name], Field(description=meanings.get((source.__name__, name)))) for name in names
        }
        fields |= {name: (own.annotation, own) for name, own in model.model_fields.items()}
        told: dict[str, Any] = {"__doc__": model.__doc__, "__module__": model.__module__}
        made = cast(type[A], create_model(model.__name__, __base__=Answer, **told, **fields))
        made.mirrored = tuple(names)
        made.moments = tuple(name for name in fields if f"{name}_ms" in names)
        _MODELS[source] = made
        return made

    return fill


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Returns the docstrings of fields, by class and field, in words for JSON; none where no sources are installed."""
    try:
        body = ast.parse(inspect.getsource(sys.modules[module])).body
    except OSError:
        return {}
    meanings = {}
    for found in body:
        for field, text in pairwise(found.body if isinstance(found, ast.ClassDef) else ()):
            match found, field, text:
                case (
                    ast.ClassDef(name=of),
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as meaning)),
                ):
                    meanings[of, name] = " ".join(meaning.split()).replace("None", "null")
    return meanings


@lru_cache(maxsize=4_096)  # jobs that are scheduled together are often due together
def moment(ms: int) -> str:
    """Milliseconds since the epoch in RFC 3339, UTC."""
    return from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def without_null(schema: dict[str, Any]) -> None:
    """Takes null out of the schema of a field or parameter that may be left out but not be null."""
    match schema.get("anyOf"):
        case [kind, {"type": "null"}]:
            del schema["anyOf"]
            schema |= kind


def parse_at(text: str) -> datetime:
    """Parses a moment. Raises: ValueError."""
    return datetime.fromisoformat(text.upper())
