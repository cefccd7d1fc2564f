"""`/v1/topics/{topic}/groups/{group}`: pull, for consumers in any language."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Response
from pydantic import Field, WithJsonSchema

from wheelq.errors import InvalidInput, ServerError
from wheelq.model.checks import MOST_ATTEMPTS
from wheelq.protocol.calls.leases import LONGEST_MS
from wheelq.protocol.calls.outgoing import MOST_IN_A_CALL
from wheelq.protocol.calls.worker import Entry
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.leases import HANDLE_PATTERN, Delivered, Failure, Then
from wheelq.server.problems import Problem
from wheelq.server.routing import TAKES_MANY, H, Resource, StrictRequest, answer, caller_of, service_of, takes
from wheelq.server.schemas.jobs import FollowingJob, payload_fields
from wheelq.server.schemas.model import TOPIC, WHOLE, Answer, Model, mirrors
from wheelq.server.schemas.views import LONGEST_WAIT_S

routes = Resource("leases", "/v1/topics/{topic}/groups/{group}")
MOST = 100
LONGEST_S = LONGEST_MS // 1000
LONGEST_PAUSE_S = 10 * 366 * 86_400
GROUP_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

GROUP: dict[str, Any] = {
    "name": "group",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": GROUP_PATTERN, "examples": ["billing"]},
    "description": "The consumer group: each group gets every job, and within a group each job goes to one consumer.",
}
Handle = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{HANDLE_PATTERN}$"})]
Handles = Annotated[list[Handle], Field(min_length=1, max_length=500, description="The handles of leases.")]


class LeaseRequest(Model):
    """How many jobs, for how long."""

    count: Annotated[int, Field(ge=1, le=MOST, description="The most jobs to lease."), WHOLE] = 1
    lease: Annotated[float, Field(gt=0, le=LONGEST_S, description="The length of the lease in seconds.")] = 30
    wait: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT_S, description="How many seconds to wait for the first, if none is ready.")
    ] = 0


class HandlesRequest(Model):
    """Leases."""

    handles: Handles


class AckRequest(HandlesRequest):
    """Leases of jobs that are done."""

    result: Annotated[
        Any,
        Field(description="The result of each of the jobs; kept for the topic's keep_done_ms."),
    ] = None
    then: Annotated[
        list[FollowingJob],
        Field(
            default_factory=list,
            max_length=MOST,
            description="Jobs that follow each of the jobs, made in the same step as its acknowledgement. They need "
            "the scope `schedule` for their topics. A delay counts from the acknowledgement; without `id`, an id is "
            f"made that no other job has. One request makes at most {MOST_IN_A_CALL}.",
        ),
    ]


class ProgressRequest(HandlesRequest):
    """Leases of jobs, and how far these are."""

    fraction: Annotated[float, Field(ge=0, le=1, description="How far they are, 0 to 1.")]
    text: Annotated[str, Field(max_length=10_000, description="A few words; the first 500 characters are kept.")] = ""


class ExtendRequest(HandlesRequest):
    """Leases to extend."""

    lease: Annotated[float, Field(gt=0, le=LONGEST_S, description="The length of the lease in seconds from now.")] = 30


class ReleaseRequest(HandlesRequest):
    """Leases to give back."""

    pause: Annotated[float, Field(ge=0, le=LONGEST_S, description="Seconds until others may lease the jobs.")] = 0


class FailRequest(HandlesRequest):
    """Leases of jobs that failed."""

    error: Annotated[
        str, Field(min_length=1, max_length=10_000, description="The error. The first 500 characters are kept.")
    ]
    pause: Annotated[
        float | None,
        Field(ge=0, le=LONGEST_PAUSE_S, description="Seconds until the next attempt. Without it, a pause that grows."),
    ] = None
    bury: Annotated[bool, Field(description="Give the jobs up at once: they become dead jobs.")] = False
    max_attempts: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_ATTEMPTS,
            description="A job is buried after this many failed attempts, or after the `attempts` with which it was "
            "scheduled if these are fewer. Without it, after those `attempts`, else after 5.",
        ),
        WHOLE,
    ] = None


@mirrors(Entry, "entry_id", "record", "group")
class LeasedJob(Answer):
    """A job and its lease."""

    handle: str
    due: str
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]
    max_attempts: int | None = Field(description="The `attempts` with which the job was scheduled, if any.")
    timeout: float | None = Field(description="The seconds that this attempt may take, if the job says so.")
    deliveries: int = Field(description="How often it was leased; above 1: another consumer may have begun it.")


class LeasedJobs(Answer):
    """The leased jobs; empty when nothing was ready."""

    jobs: list[LeasedJob]


class Answered(Answer):
    """For each handle, in order: whether it was still leased under it. If not, nothing was done."""

    done: list[bool]


class Acked(Answered):
    """For each handle, in order: whether it was still leased under it. If not, nothing was done."""

    not_kept: str | None = Field(description="Why the result is not kept, although the jobs are done; null: it is.")


def check_group(group: str) -> str:
    """Returns the group's name if it is valid. Raises: InvalidInput."""
    if not re.match(GROUP_PATTERN, group) or group.endswith("\n"):
        raise InvalidInput("group", f"{group!r} is not a group name: use 1 to 64 letters, digits, '.', '_' or '-'")
    return group


def leased(found: list[Delivered]) -> dict[str, Any]:
    """Leases as an answer: see `LeasedJobs`."""
    return {"jobs": [_leased(item) for item in found]}


def _leased(item: Delivered) -> dict[str, Any]:
    record = item.record
    return {
        "handle": item.handle,
        **LeasedJob.shows(item.entry),
        **payload_fields(record.payload),
        "attempt": record.attempt,  # an entry counts no further than 255
        "headers": dict(record.headers),
        "max_attempts": record.max_attempts,
        "timeout": record.timeout,
    }


def _on(path: str, summary: str, asked: type[Model], answers: type[Answer] = Answered) -> Callable[[H], H]:
    """Makes a function the handler of a route that takes leases, or settles them."""
    told = {**takes(asked, TOPIC, GROUP), **(TAKES_MANY if asked is AckRequest else {})}
    return routes.on("POST", path, summary, Verb.CONSUME, answers, problems.TOPIC_NOT_FOUND, **told)


@_on("/lease", "Lease jobs that are ready", LeaseRequest, LeasedJobs)
async def lease(request: StrictRequest) -> Response:
    """Run a leased job and acknowledge it before the lease ends; otherwise another consumer gets it.

    With `wait` the answer comes as soon as a job is ready. A job that was leased too often, and neither
    acknowledged nor failed, is buried; one that has expired, or is later than its topic's grace, is dropped or buried
    as the topic's misfire says.
    """
    asked, (topic, group) = await request.read(LeaseRequest), _places(request)
    service = service_of(request)
    wait = min(asked.wait, service.settings.server.max_wait_ms / 1000)
    lease_ms = max(1, round(asked.lease * 1000))
    found = await service.leases.lease(topic, group, asked.count, lease_ms, wait, request.gone)
    if wait:
        try:
            await service.admit_again(request, Verb.CONSUME, topic)
        except (Problem, ServerError):
            await service.leases.hand_back(topic, group, found)
            raise
    return answer(leased(found))


@_on("/ack", "Acknowledge leased jobs", AckRequest, Acked)
async def ack(request: StrictRequest) -> Response:
    """The jobs are done, and this group does not get them again. A repeated request finds that they are no longer
    leased. A result that cannot be kept, because it is larger than the topic's result_max_bytes, is left out. What
    follows a job is made if and only if this request acknowledges it.
    """
    asked, (topic, group) = await request.read(AckRequest), _places(request)
    leases = service_of(request).leases
    then = [await _following(request, place, job) for place, job in enumerate(asked.then)]
    result, not_kept = await leases.pack(topic, asked.result)
    return answer({"done": await leases.ack(topic, group, asked.handles, result, then), "not_kept": not_kept})


async def _following(request: StrictRequest, place: int, job: FollowingJob) -> Then:
    """Returns a job that follows others, checked as in a request to schedule it. Raises: Problem, InvalidInput."""
    service, caller = service_of(request), caller_of(request)
    for verb in (Verb.SCHEDULE, *([Verb.CHANGE] if job.on_duplicate == "replace" else [])):
        caller.check_may(verb, job.topic, "then")
    try:
        spec = job.spec(job.id)
        service.intake.check_job(job.topic, spec, job.on_duplicate)
        await service.intake.admit(job.topic, job, job.on_duplicate, caller)
    except InvalidInput as error:
        error.field = f"then.{place}.{error.field}"
        raise
    return job.topic, spec, job.on_duplicate


@_on("/progress", "Say how far leased jobs are", ProgressRequest)
async def progress(request: StrictRequest) -> Response:
    """Looking a job up shows its latest progress. It does not extend the lease."""
    asked, (topic, group) = await request.read(ProgressRequest), _places(request)
    leases = service_of(request).leases
    return answer({"done": await leases.progress(topic, group, asked.handles, asked.fraction, asked.text)})


@_on("/extend", "Extend leases", ExtendRequest)
async def extend(request: StrictRequest) -> Response:
    """Extends leases of jobs that take longer, from now."""
    asked, (topic, group) = await request.read(ExtendRequest), _places(request)
    lease_ms = max(1, round(asked.lease * 1000))
    return answer({"done": await service_of(request).leases.extend(topic, group, asked.handles, lease_ms)})


@_on("/fail", "Say that leased jobs failed", FailRequest)
async def fail(request: StrictRequest) -> Response:
    """Each job gets another attempt after a pause, in this group only, or becomes a dead job with this error.

    A repeated request finds that they are no longer leased.
    """
    asked, (topic, group) = await request.read(FailRequest), _places(request)
    pause_ms = None if asked.pause is None else round(asked.pause * 1000)
    failure = Failure(asked.error, pause_ms, asked.bury, asked.max_attempts)
    return answer({"done": await service_of(request).leases.fail(topic, group, asked.handles, failure)})


@_on("/release", "Give leased jobs back", ReleaseRequest)
async def release(request: StrictRequest) -> Response:
    """Other consumers may have the jobs, at once or after a pause."""
    asked, (topic, group) = await request.read(ReleaseRequest), _places(request)
    pause_ms = round(asked.pause * 1000)
    return answer({"done": await service_of(request).leases.release(topic, group, asked.handles, pause_ms)})


def _places(request: StrictRequest) -> tuple[str, str]:
    return request.path_params["topic"], check_group(request.path_params["group"])
