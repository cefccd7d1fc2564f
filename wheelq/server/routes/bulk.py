"""`/v1/topics/{topic}/jobs/cancel` and `…/reschedule`: all waiting jobs that are due in a range."""

from __future__ import annotations

import re
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from wheelq.base.ids import make_id
from wheelq.errors import InvalidInput
from wheelq.model.job import BulkProgress, from_ms
from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.routing import answer, needs, problems_of, router, service_of
from wheelq.server.schemas.jobs import AT_SCHEMA, DELAY_SCHEMA, DUE_MS_SCHEMA, LATEST_MS, MAX_S
from wheelq.server.schemas.model import AT_PATTERN, MOMENT, WHOLE, Answer, Model, Topic, optional, parse_at

ROUNDS = 10
"""The most rounds of one request: 5,000 jobs in each shard, which take some tens of milliseconds."""

routes = router("jobs")
_EXAMPLE: dict[str, Any] = {"since": "2030-01-31T09:00:00Z", "until": "2030-01-31T12:00:00Z"}
_ANSWER: dict[str, Any] = {"jobs": 10_000, "done": False, "cursor": "01KAQ2V5T6X8Z9B3C4D5E6F7G8.3f9a0c41d27e"}
_ANY_END: Any = [{"required": ["since"]}, {"required": ["until"]}]
_ONE_TARGET: Any = [{"required": [name]} for name in ("by", "delay", "at", "due_ms")]
_CURSOR_PATTERN = "^[!-~]{1,64}$"
_BOUND = re.compile(r"[0-9A-Z]{26}\.([0-9a-f]{12})")
_CURSOR = {
    "type": "string",
    "pattern": _CURSOR_PATTERN,
    "description": "The cursor of the previous answer, which belongs to its request: leave all else unchanged.",
}
_BY = {
    "type": "number",
    "minimum": -MAX_S,
    "maximum": MAX_S,
    "not": {"const": 0},
    "description": "Seconds by which each job moves; negative: to an earlier time, but not before now.",
    "examples": [3600],
}


def _edge(description: str) -> Any:
    return optional({"type": "string", "pattern": AT_PATTERN, "description": description})


class DueRangeBody(Model):
    """Selects the jobs due from `since` to before `until`; one of both must be given."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _ANY_END, "examples": [_EXAMPLE]})

    since: Annotated[Annotated[str, MOMENT] | None, _edge("Only jobs due at this moment or later.")] = None
    until: Annotated[Annotated[str, MOMENT] | None, _edge("Only jobs due before this moment.")] = None
    cursor: Annotated[str | None, optional(_CURSOR)] = Field(default=None, pattern=_CURSOR_PATTERN)

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

        Raises: InvalidInput if the cursor belongs to another topic, range or target. Cursors that former releases made
        do not say to what they belong, and are taken as they are.
        """
        asked = {**self.span(), **self.target()}
        shown = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in asked.items()}
        digest = blake2b(repr((topic, shown)).encode(), digest_size=6).hexdigest()
        name = self.cursor or f"{make_id()}.{digest}"
        bound = _BOUND.fullmatch(name)
        if bound and bound[1] != digest:
            raise InvalidInput("cursor", "belongs to another change: topic, range and new time must stay the same")
        return {**asked, "name": name}


class MoveRangeBody(DueRangeBody):
    """Selects jobs, and has exactly one of `by`, `delay`, `at` and `due_ms`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": _ANY_END,
            "oneOf": _ONE_TARGET,
            "examples": [{**_EXAMPLE, "by": 3600}],
        }
    )

    by: Annotated[float | None, optional(_BY)] = Field(default=None, ge=-MAX_S, le=MAX_S)
    delay: Annotated[float | None, optional(DELAY_SCHEMA)] = Field(default=None, ge=0, le=MAX_S)
    at: Annotated[Annotated[str, MOMENT] | None, optional(AT_SCHEMA)] = None
    due_ms: Annotated[int | None, WHOLE, optional(DUE_MS_SCHEMA)] = Field(default=None, ge=0, le=LATEST_MS)

    @model_validator(mode="after")
    def _says_where_to(self) -> MoveRangeBody:
        if sum(value is not None for value in (self.by, self.delay, self.at, self.due_ms)) != 1:
            raise PydanticCustomError(
                "move", "give exactly one of by (seconds), delay (seconds), at (RFC 3339) and due_ms"
            )
        return self

    def target(self) -> dict[str, Any]:
        """Returns the new time as an argument of the client's method."""
        if self.by is not None:
            return {"by": self.by}
        if self.delay is not None:
            return {"delay": self.delay}
        return {"at": from_ms(self.due_ms) if self.due_ms is not None else parse_at(self.at or "")}


class BulkAnswer(Answer):
    """The progress of a change."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ANSWER]})

    jobs: int = Field(description="Jobs changed so far by all requests of this change.")
    done: bool = Field(description="Whether that was all; if not, repeat the request with the cursor.")
    cursor: str = Field(description="Names this change for a day: a repeated request with it changes no job twice.")


def bulk_answer(progress: BulkProgress) -> dict[str, Any]:
    """See `BulkAnswer`."""
    return {"jobs": progress.jobs, "done": progress.is_done, "cursor": progress.name}


@routes.post(
    "/topics/{topic}/jobs/cancel",
    summary="Cancel the jobs of a range",
    response_class=Response,
    responses={200: {"model": BulkAnswer}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra=needs(Verb.CHANGE),
)
async def cancel_due(request: Request, topic: Topic, which: DueRangeBody) -> Response:
    """Cancels waiting jobs by their due time, some thousands in one request; repeat it with the `cursor` until `done`.

    A job that is promoted meanwhile is not cancelled and not counted. Jobs that wait for a retry stay.
    """
    client = service_of(request).client
    return answer(bulk_answer(await client.cancel_due(topic, rounds=ROUNDS, **which.change(topic))))


@routes.post(
    "/topics/{topic}/jobs/reschedule",
    summary="Move the jobs of a range",
    response_class=Response,
    responses={200: {"model": BulkAnswer}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra=needs(Verb.CHANGE),
)
async def reschedule_due(request: Request, topic: Topic, which: MoveRangeBody) -> Response:
    """Moves waiting jobs by their due time, some thousands in one request; repeat it with the `cursor` until `done`.

    Without the cursor, a repeated request moves the jobs in the range again.
    """
    client = service_of(request).client
    progress = await client.reschedule_due(topic, rounds=ROUNDS, **which.change(topic))
    return answer(bulk_answer(progress))
