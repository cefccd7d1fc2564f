"""`/v1/topics/{topic}/recurring`: jobs that occur again and again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from pydantic import ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from wheelq.model.recurring import LONGEST_MS, NAME_BYTES_LIMIT, RecurringInfo, RecurringOutcome, RecurringReceipt
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.problems import Problem
from wheelq.server.routing import Resource, answer, location, service_of
from wheelq.server.schemas.jobs import JSON_SCHEMA, Headers, Made
from wheelq.server.schemas.model import (
    Answer,
    Attempts,
    Model,
    Moment,
    TimeLimit,
    Topic,
    besides,
    mirrors,
    moment,
    parse_at,
    text_schema,
)

routes = Resource("recurring", "/v1/topics/{topic}/recurring")
_DONE: dict[int, str] = {204: "Done."}
Name = Annotated[
    str,
    Path(),
    WithJsonSchema(
        text_schema(NAME_BYTES_LIMIT)
        | {
            "description": f"Its name in the topic: 1 to {NAME_BYTES_LIMIT} bytes of text without control characters.",
            "examples": ["nightly"],
        }
    ),
]
_LONGEST_S = LONGEST_MS / 1000


class RecurringRule(Model):
    """A recurring job and its rule: `cron` in a time zone, or `every` with a number of seconds."""

    cron: str | None = Field(
        default=None,
        pattern=r"^[ -~]{1,200}$",
        description="Five fields (six with seconds first), or a name like @daily.",
        examples=["0 2 * * *"],
    )
    every: float | None = Field(
        default=None, ge=1, le=_LONGEST_S, description="Seconds from one occurrence to the next."
    )
    tz: Annotated[str, Field(pattern=r"^[ -~]{1,64}$", description="IANA time zone of the cron expression.")] = "UTC"
    start: Moment | None = Field(default=None, description="No occurrence before this moment.")
    end: Moment | None = Field(default=None, description="No occurrence after this moment.")
    jitter: Annotated[float, Field(ge=0, le=_LONGEST_S, description="Each is delayed by up to this many seconds.")] = 0
    missed: Annotated[
        Literal["coalesce", "skip", "all"],
        Field(description="Which occurrences missed without a scheduler run: the last, none, or all."),
    ] = "coalesce"
    grace: float | None = Field(
        default=None, ge=0, le=_LONGEST_S, description="Missed occurrences later than this do not run."
    )
    payload: Annotated[Any, JSON_SCHEMA] = None
    headers: Headers | None = None
    attempts: Attempts = None
    timeout: TimeLimit = None

    model_config = ConfigDict(json_schema_extra=besides(oneOf=[{"required": ["cron"]}, {"required": ["every"]}]))

    @model_validator(mode="after")
    def _says_when(self) -> RecurringRule:
        if (self.cron is None) == (self.every is None):
            raise PydanticCustomError("when", "give either cron or every (seconds)")
        return self

    def said(self) -> dict[str, Any]:
        """Returns the arguments of `client.recurring.put`."""
        said = self.model_dump(exclude_unset=True)
        for name in ("start", "end"):
            if name in said:
                said[name] = parse_at(said[name])
        return said


@mirrors(RecurringReceipt)
class RecurringMade(Answer):
    """The outcome of a change."""

    outcome: str = Field(description="created, updated or unchanged.")


@mirrors(RecurringInfo, "rule", "priority", "is_paused")
class RecurringView(Answer):
    """A recurring job, with its next and last occurrence."""

    cron: str | None
    every_ms: int | None
    tz: str
    start: str | None
    end: str | None
    jitter: float
    missed: str
    grace: float | None
    max_attempts: int | None = Field(description="The `attempts` of its jobs, if any.")
    timeout: float | None = Field(description="The `timeout` of its jobs, if any.")
    paused: bool
    next: str | None
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]


class RecurringList(Answer):
    """All recurring jobs of a topic, by name."""

    recurring: list[RecurringView]


def view(info: RecurringInfo) -> dict[str, Any]:
    """See `RecurringView`."""
    rule = info.rule
    said = {
        "cron": rule.cron,
        "every_ms": rule.every_ms,
        "tz": rule.tz,
        "start": None if rule.start_ms is None else moment(rule.start_ms),
        "end": None if rule.end_ms is None else moment(rule.end_ms),
        "jitter": rule.jitter_ms / 1000,
        "missed": rule.missed,
        "grace": None if rule.grace_ms is None else rule.grace_ms / 1000,
        "paused": info.is_paused,
    }
    return RecurringView.shows(info) | said


@routes.on("GET", "", "List recurring jobs", Verb.READ, RecurringList)
async def list_recurring(request: Request, topic: Topic) -> Response:
    """Lists all recurring jobs of the topic, by name."""
    found = await service_of(request).client.recurring.list(topic)
    return answer({"recurring": [view(info) for info in found]})


@routes.on("GET", "/{name:path}", "Look a recurring job up", Verb.READ, RecurringView, problems.RECURRING_NOT_FOUND)
async def get_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Returns the recurring job with its next and last occurrence."""
    found = await service_of(request).client.recurring.get(topic, name)
    if found is None:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return answer(view(found))


@routes.on(
    "PUT", "/{name:path}", "Create or change a recurring job", Verb.MANAGE, {200: RecurringMade, 201: RecurringMade}
)
async def put_recurring(request: Request, topic: Topic, name: Name, rule: RecurringRule) -> Response:
    """Creates the recurring job, or changes it from now on. A repeated request changes nothing."""
    found = await service_of(request).client.recurring.put(topic, name, **rule.said())
    if found.outcome is not RecurringOutcome.CREATED:
        return answer(RecurringMade.shows(found))
    return answer(RecurringMade.shows(found), 201, location(request, "recurring", topic, name))


@routes.on("DELETE", "/{name:path}", "Remove a recurring job", Verb.MANAGE, _DONE, problems.RECURRING_NOT_FOUND)
async def remove_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Also removes its waiting occurrence."""
    return _done(await service_of(request).client.recurring.remove(topic, name))


@routes.on("POST", "/{name:path}/pause", "Pause a recurring job", Verb.MANAGE, _DONE, problems.RECURRING_NOT_FOUND)
async def pause_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """It does not occur until it is resumed."""
    return _done(await service_of(request).client.recurring.pause(topic, name))


@routes.on("POST", "/{name:path}/resume", "Resume a recurring job", Verb.MANAGE, _DONE, problems.RECURRING_NOT_FOUND)
async def resume_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """It occurs again from now on; occurrences missed during the pause do not run."""
    return _done(await service_of(request).client.recurring.resume(topic, name))


@routes.on(
    "POST",
    "/{name:path}/trigger",
    "Run a recurring job once, now",
    Verb.MANAGE,
    {201: Made},
    problems.RECURRING_NOT_FOUND,
)
async def trigger_recurring(request: Request, topic: Topic, name: Name) -> Response:
    """Runs it besides its occurrences, even while it is paused."""
    receipt = await service_of(request).client.recurring.trigger(topic, name)
    if receipt is None:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return answer(Made.shows(receipt), 201, location(request, "jobs", topic, receipt.id))


def _done(outcome: RecurringOutcome) -> Response:
    if outcome is RecurringOutcome.NOT_FOUND:
        raise Problem(problems.RECURRING_NOT_FOUND)
    return Response(status_code=204)
