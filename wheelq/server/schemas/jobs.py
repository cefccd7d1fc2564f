"""Jobs: scheduled and moved."""

from __future__ import annotations

import base64
import sys
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from wheelq.base.ids import make_id
from wheelq.callbacks.target import HEADER, Target
from wheelq.errors import InvalidInput
from wheelq.model.checks import C1_PATTERN, DOTS_PATTERN, TOPIC_PATTERN, check_new_id
from wheelq.model.job import BulkProgress, JobSpec, Receipt, from_ms
from wheelq.model.recurring import LAST_MS
from wheelq.producer.preparation import IdempotentSpec
from wheelq.server.schemas.model import (
    ID_SCHEMA,
    KEY_SCHEMA,
    WHOLE,
    Answer,
    Attempts,
    Model,
    Moment,
    TimeLimit,
    besides,
    mirrors,
    parse_at,
)
from wheelq.settings import ClientSettings

BULK = 500
"""The most jobs in one bulk request, which is the limit of the schedule script."""
_UP_TO_LIMIT: dict[str, Any] = {"maximum": ClientSettings().max_delay_ms / 1000}
"""The default of the limit, for the document; the client checks it."""

JSON_VALUE: dict[str, Any] = {
    "description": "Any JSON value; integers of at most 64 bits.",
    **besides(
        anyOf=[
            {"type": ["null", "boolean", "string"]},
            {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
            {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max},
            {"type": "array", "items": {}},
            {"type": "object", "additionalProperties": {}},
        ]
    ),
}
"""The document's schema of payloads."""
ANY_JSON = "x-any-json"
JSON_SCHEMA = WithJsonSchema({ANY_JSON: True, "examples": [{"id": 42}]})
"""Marks a payload. The document replaces it by the reference, which pydantic could not resolve."""
TARGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The receiver to call when the job is due: a registered service and a path under its URL, or a URL "
    "that is allowed here. The payload is POSTed there, signed (Standard Webhooks), and retried until it is accepted.",
    "oneOf": [
        {
            "properties": {"service": {"type": "string"}, "path": {"type": "string"}},
            "required": ["service"],
            "additionalProperties": False,
        },
        {"properties": {"url": {"type": "string"}}, "required": ["url"], "additionalProperties": False},
    ],
    "examples": [{"service": "billing", "path": "/orders/expired"}],
}
_ONE_TIME: Any = [{"required": [name]} for name in ("delay", "at", "due_ms")]
_ANY_END: Any = [{"required": ["since"]}, {"required": ["until"]}]
_ONE_TARGET: Any = [{"required": ["by"]}, *_ONE_TIME]
_CURSOR_PATTERN = r"^[0-9A-Z]{26}\.[0-9a-f]{12}$"


NEW_ID_SCHEMA = {
    **ID_SCHEMA,
    "not": {"pattern": f"{DOTS_PATTERN}|{C1_PATTERN}"},
    "description": f"{ID_SCHEMA['description']} Not . or .., alone or between slashes: clients take them out of paths.",
}


def _without_target(headers: dict[str, str]) -> dict[str, str]:
    if any(name.lower() == HEADER for name in headers):
        raise PydanticCustomError("target", f"must not contain {HEADER}: name the receiver of a job in its `target`")
    return headers


Headers = Annotated[
    dict[str, str],
    AfterValidator(_without_target),
    Field(description=f"Text values that travel beside the payload. Not {HEADER}: see `target`."),
]


class Times(Model):
    """The ways to say when: in some seconds, at a moment, or at a millisecond."""

    delay: float | None = Field(
        default=None,
        ge=0,
        json_schema_extra=_UP_TO_LIMIT,
        description="Seconds from now, by the server's clock; 0: at once.",
        examples=[1800],
    )
    at: Moment | None = Field(
        default=None,
        description="A moment with a time zone (RFC 3339), as far away as `due_ms`; at once if it has passed.",
        examples=["2030-01-31T09:00:00+01:00"],
    )
    due_ms: Annotated[int | None, WHOLE] = Field(
        default=None,
        ge=0,
        le=LAST_MS,
        description="A moment in milliseconds since the Unix epoch, at most `max_delay_ms` from now (ten years by "
        "default); at once if it has passed.",
        examples=[1_896_000_000_000],
    )

    def due(self) -> dict[str, Any]:
        """Returns `delay` or `at` as an argument of the client's methods."""
        if self.delay is not None:
            return {"delay": self.delay}
        return {"at": from_ms(self.due_ms) if self.due_ms is not None else parse_at(self.at or "")}


class When(Times):
    """When a job is due: exactly one of `delay`, `at` and `due_ms`."""

    model_config = ConfigDict(json_schema_extra=besides(oneOf=_ONE_TIME))

    @model_validator(mode="after")
    def _says_when(self) -> When:
        if (self.delay is not None) + (self.at is not None) + (self.due_ms is not None) != 1:
            raise PydanticCustomError("when", "give exactly one of delay (seconds), at (RFC 3339) and due_ms")
        return self


class NewJob(When):
    """A job to schedule: its payload and time."""

    model_config = ConfigDict(
        json_schema_extra={**besides(oneOf=_ONE_TIME), "not": {"required": ["payload", "payload_base64"]}}
    )

    id: Annotated[str, Field(min_length=1), WithJsonSchema(NEW_ID_SCHEMA)] | None = None
    payload: Annotated[Any, JSON_SCHEMA] = None
    payload_base64: str | None = Field(
        default=None,
        description="The payload, if it is bytes: base64, in place of `payload`.",
        json_schema_extra={"pattern": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    )
    headers: Headers | None = None
    partition_key: Annotated[str, WithJsonSchema(KEY_SCHEMA)] | None = None
    target: Annotated[dict[str, str], WithJsonSchema(TARGET_SCHEMA)] | None = None
    priority: Annotated[
        Literal["high", "normal", "low"], Field(description="The order among jobs due in the same millisecond.")
    ] = "normal"
    spread: float | None = Field(
        default=None,
        ge=0,
        json_schema_extra=_UP_TO_LIMIT,
        description="The due time is delayed by up to this many seconds, evenly over all ids.",
    )
    expires: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_UP_TO_LIMIT,
        description="Seconds after its due time by which it must have started; else it never runs.",
    )
    attempts: Attempts = None
    timeout: TimeLimit = None
    on_dead: str | None = Field(
        default=None,
        description="If the job dies, a job in this topic tells of it, or a registered service: NAME:/path.",
    )
    max_wait: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_UP_TO_LIMIT,
        description='With `id` and `on_duplicate` "replace": each request moves the job to its new time, but never '
        "beyond this many seconds after the request that made it. If the job is promoted already, one more is made "
        "under the id ID~second, which the answer names.",
    )
    on_duplicate: Literal["keep", "replace", "raise"] = Field(
        default="keep",
        description="If a live job has the id: keep it, replace it while it waits (which needs the scope `change`, "
        "too), or refuse.",
    )

    @model_validator(mode="after")
    def _has_one_payload(self) -> NewJob:
        if {"payload", "payload_base64"} <= self.model_fields_set:
            raise PydanticCustomError("payload", "give payload or payload_base64, not both")
        return self

    def spec(self, id: str | None, life: bytes | None = None) -> JobSpec:
        """Returns the job as the client takes it. If `id` or `life` is None, the client makes it."""
        if self.id is not None:
            check_new_id(self.id, "id")
        payload = self.payload
        if self.payload_base64 is not None:
            try:
                payload = base64.b64decode(self.payload_base64, validate=True)
            except ValueError as error:
                raise InvalidInput("payload_base64", f"is not base64: {error}") from error
        headers = self.headers
        if self.target is not None:
            headers = {**(headers or {}), HEADER: Target.read(self.target).header()}
        return IdempotentSpec(
            payload,
            key=id,
            headers=headers,
            partition_key=self.partition_key,
            priority=self.priority,
            spread=self.spread,
            expires=self.expires,
            attempts=self.attempts,
            timeout=self.timeout,
            on_dead=self.on_dead,
            max_wait=self.max_wait,
            life=life,
            **self.due(),
        )


class FollowingJob(NewJob):
    """A job that follows an acknowledged one: its topic, and the rest as in the request to schedule it."""

    topic: Annotated[str, Field(pattern=f"^{TOPIC_PATTERN.pattern}$", description="Its topic.", examples=["emails"])]
    on_duplicate: Annotated[
        Literal["keep", "replace"],
        Field(
            description="If a live job has the id: keep it, or replace it while it waits (which needs the scope "
            "`change`, too)."
        ),
    ] = "keep"


class ManyJobs(Model):
    """Jobs to schedule together. Each is checked separately: an invalid one does not stop the others."""

    jobs: list[Any] = Field(
        min_length=1,
        max_length=BULK,
        description="Each as in the single request; the problem of an invalid job is its outcome.",
    )
    on_duplicate: Literal["keep", "replace", "raise"] = Field(
        default="keep", description="As in the single request, for each job that says nothing else itself."
    )


class DueRangeBody(Model):
    """Selects the jobs due from `since` to before `until`; one of both must be given."""

    model_config = ConfigDict(json_schema_extra=besides(anyOf=_ANY_END))

    since: Moment | None = Field(default=None, description="Only jobs due at this moment or later.")
    until: Moment | None = Field(default=None, description="Only jobs due before this moment.")
    cursor: str | None = Field(
        default=None,
        pattern=_CURSOR_PATTERN,
        description="The cursor of the previous answer, which belongs to its request: leave all else unchanged.",
    )

    @model_validator(mode="after")
    def _has_an_end(self) -> DueRangeBody:
        if self.since is None and self.until is None:
            raise PydanticCustomError("range", "give since, until or both")
        return self

    def span(self) -> dict[str, Any]:
        """Returns the range as arguments of the client's methods."""
        since, until = (None if text is None else parse_at(text) for text in (self.since, self.until))
        return {"since": since, "until": until}

    def target(self) -> dict[str, Any]:
        """Returns the new time as an argument of the client's method; empty if there is none."""
        return {}

    def change(self, topic: str) -> dict[str, Any]:
        """Returns the range, the target and the name of the change, as arguments of the client's methods.

        Raises: InvalidInput if the cursor belongs to another topic, range or target.
        """
        asked = {**self.span(), **self.target()}
        shown = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in asked.items()}
        digest = blake2b(repr((topic, shown)).encode(), digest_size=6).hexdigest()
        name = self.cursor or f"{make_id()}.{digest}"
        if not name.endswith(f".{digest}"):
            raise InvalidInput("cursor", "belongs to another change: topic, range and new time must stay the same")
        return {**asked, "name": name}


class MoveRangeBody(DueRangeBody, Times):
    """Selects jobs, and has exactly one of `by`, `delay`, `at` and `due_ms`."""

    model_config = ConfigDict(json_schema_extra=besides(anyOf=_ANY_END, oneOf=_ONE_TARGET))

    by: float | None = Field(
        default=None,
        description="Seconds by which each job moves; negative: to an earlier time, but not before now.",
        examples=[3600],
        json_schema_extra={**_UP_TO_LIMIT, "minimum": -_UP_TO_LIMIT["maximum"], "not": {"const": 0}},
    )

    @model_validator(mode="after")
    def _says_where_to(self) -> MoveRangeBody:
        if sum(value is not None for value in (self.by, self.delay, self.at, self.due_ms)) != 1:
            raise PydanticCustomError(
                "move", "give exactly one of by (seconds), delay (seconds), at (RFC 3339) and due_ms"
            )
        return self

    def target(self) -> dict[str, Any]:
        """Returns the new time as an argument of the client's method."""
        return self.due() if self.by is None else {"by": self.by}


class BulkAnswer(Answer):
    """The progress of a change."""

    jobs: int = Field(description="Jobs changed so far by all requests of this change.")
    done: bool = Field(description="Whether that was all; if not, repeat the request with the cursor.")
    cursor: str = Field(description="Names this change for a day: a repeated request with it changes no job twice.")


def bulk_answer(progress: BulkProgress) -> dict[str, Any]:
    """See `BulkAnswer`."""
    return {"jobs": progress.jobs, "done": progress.is_done, "cursor": progress.name}


@mirrors(Receipt, "topic", "read_result", "life", "bundle")
class Made(Answer):
    """The outcome of scheduling a job."""

    due: str


class ManyMade(Answer):
    """One outcome for each job, in order: `Made`, or `problem` and perhaps `id`."""

    outcomes: list[dict[str, Any]]
    made: int
    failed: int


def payload_fields(payload: Any) -> dict[str, Any]:
    """`payload`, or `payload_base64` where it is bytes."""
    if isinstance(payload, bytes):
        return {"payload_base64": base64.b64encode(payload).decode()}
    return {"payload": payload}
