"""What all models share: strict types, no unknown fields, and schemas that say exactly what is accepted."""

from __future__ import annotations

import re
from calendar import isleap
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from wheelq.arguments import ID_BYTES_LIMIT, TOPIC_PATTERN
from wheelq.clock import wall_ms
from wheelq.job import from_ms

NOT_CONTROL = r"^[^\x00-\x1f\x7f]+$"
ID_SCHEMA: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    # The limit is in bytes of UTF-8, of which a character has one to four.
    "anyOf": [
        {"maxLength": ID_BYTES_LIMIT // 4, "pattern": NOT_CONTROL},
        {"maxLength": ID_BYTES_LIMIT, "pattern": r"^[ -~]+$"},
    ],
    "description": f"A job's id: 1 to {ID_BYTES_LIMIT} bytes of text without control characters.",
    "examples": ["order-42"],
}
KEY_SCHEMA = {**ID_SCHEMA, "description": "Chooses the shard in place of the id.", "examples": ["customer-7"]}
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
"""The same for the document, where a handler reads the request by itself."""
PartitionKey = Annotated[
    str | None,
    Query(description="The partition_key that the job was made with, if any."),
    WithJsonSchema(KEY_SCHEMA),
]

_YEARS = range(1971, from_ms(wall_ms()).year + 9)
_DAY = r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE = f"(?:{'|'.join(map(str, _YEARS))})-{_DAY}|(?:{'|'.join(str(year) for year in _YEARS if isleap(year))})-02-29"
AT_PATTERN = (
    rf"^(?:{_DATE})[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?"
    r"(?:[Zz]|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])$"
)
"""RFC 3339, as far as it can mean a due time: the document can then say exactly what is accepted."""
_AT = re.compile(AT_PATTERN)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Makes a field take integers as JSON has them: 5.0 is one too. Stands last, so that the limits are still told."""


def _moment(text: str) -> str:
    if not _AT.fullmatch(text):
        raise PydanticCustomError(
            "moment",
            "must be a moment with a time zone (RFC 3339), as in 2030-01-31T09:00:00+01:00, from {first} to {last}",
            {"first": _YEARS[0], "last": _YEARS[-1]},
        )
    return text


MOMENT = AfterValidator(_moment)
"""Makes a field take a text that is one, and say in words what it takes: the pattern is for the document."""


class Model(BaseModel):
    """The base of every model that a request is read into."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _nothing_is_null(self) -> Model:
        """Fields may be left out, not null: so there is one way to say "no such thing"."""
        for name in self.model_fields_set:
            if getattr(self, name) is None and name != "payload":
                raise ValueError(f"{name} must not be null; leave it out")
        return self


class Answer(BaseModel):
    """The base of every model that an answer is described by."""

    model_config = ConfigDict(extra="forbid")


def optional(schema: dict[str, Any]) -> Any:
    """Marks a field that may be left out but not be null: shown in the document as `schema` alone."""
    return WithJsonSchema(schema)


def parse_at(text: str) -> datetime:
    """The moment that a text means. Raises: ValueError."""
    return datetime.fromisoformat(text.upper())
