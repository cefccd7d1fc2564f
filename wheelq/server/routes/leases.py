"""`/v1/topics/{topic}/groups/{group}`: pull, for consumers in any language."""

from __future__ import annotations

from fastapi import Response

from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.failing import Failure
from wheelq.server.routing import StrictRequest, answer, needs, problems_of, router, service_of, takes
from wheelq.server.schemas.leases import (
    GROUP,
    AckRequest,
    Answered,
    ExtendRequest,
    FailRequest,
    LeasedJobs,
    LeaseRequest,
    ReleaseRequest,
    check_group,
    leased,
)
from wheelq.server.schemas.model import TOPIC

routes = router("leases")


@routes.post(
    "/topics/{topic}/groups/{group}/lease",
    summary="Lease jobs that are ready",
    response_class=Response,
    responses={200: {"model": LeasedJobs}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra={**needs(Verb.CONSUME), **takes(LeaseRequest, TOPIC, GROUP)},
)
async def lease(request: StrictRequest) -> Response:
    """Run a leased job and acknowledge it before the lease ends; otherwise another consumer gets it.

    With `wait` the answer comes as soon as a job is ready. A job that was leased too often without an answer is buried;
    one that has expired, or is later than its topic's grace, is dropped or buried as the topic's misfire says.
    """
    asked, (topic, group) = await request.read(LeaseRequest), _places(request)
    leases = service_of(request).leases
    wait = min(asked.wait, service_of(request).settings.server.max_wait_ms / 1000)
    found = await leases.lease(topic, group, asked.count, max(1, round(asked.lease * 1000)), wait, request.gone)
    return answer(leased(found))


@routes.post(
    "/topics/{topic}/groups/{group}/ack",
    summary="Acknowledge leased jobs",
    response_class=Response,
    responses={200: {"model": Answered}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra={**needs(Verb.CONSUME), **takes(AckRequest, TOPIC, GROUP)},
)
async def ack(request: StrictRequest) -> Response:
    """The jobs are done, and this group does not get them again. A repeated request finds that they are no longer
    leased.
    """
    asked, (topic, group) = await request.read(AckRequest), _places(request)
    return answer({"done": await service_of(request).leases.ack(topic, group, asked.handles)})


@routes.post(
    "/topics/{topic}/groups/{group}/extend",
    summary="Extend leases",
    response_class=Response,
    responses={200: {"model": Answered}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra={**needs(Verb.CONSUME), **takes(ExtendRequest, TOPIC, GROUP)},
)
async def extend(request: StrictRequest) -> Response:
    """Extends leases of jobs that take longer, from now."""
    asked, (topic, group) = await request.read(ExtendRequest), _places(request)
    lease_ms = max(1, round(asked.lease * 1000))
    return answer({"done": await service_of(request).leases.extend(topic, group, asked.handles, lease_ms)})


@routes.post(
    "/topics/{topic}/groups/{group}/fail",
    summary="Say that leased jobs failed",
    response_class=Response,
    responses={200: {"model": Answered}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra={**needs(Verb.CONSUME), **takes(FailRequest, TOPIC, GROUP)},
)
async def fail(request: StrictRequest) -> Response:
    """Each job gets another attempt after a pause, in this group only, or becomes a dead job with this error.

    A repeated request finds that they are no longer leased.
    """
    asked, (topic, group) = await request.read(FailRequest), _places(request)
    pause_ms = None if asked.pause is None else round(asked.pause * 1000)
    failure = Failure(asked.error, pause_ms, asked.bury, asked.max_attempts)
    return answer({"done": await service_of(request).leases.fail(topic, group, asked.handles, failure)})


@routes.post(
    "/topics/{topic}/groups/{group}/release",
    summary="Give leased jobs back",
    response_class=Response,
    responses={200: {"model": Answered}, **problems_of(problems.TOPIC_NOT_FOUND)},
    openapi_extra={**needs(Verb.CONSUME), **takes(ReleaseRequest, TOPIC, GROUP)},
)
async def release(request: StrictRequest) -> Response:
    """Other consumers may have the jobs, at once or after a pause."""
    asked, (topic, group) = await request.read(ReleaseRequest), _places(request)
    pause_ms = round(asked.pause * 1000)
    return answer({"done": await service_of(request).leases.release(topic, group, asked.handles, pause_ms)})


def _places(request: StrictRequest) -> tuple[str, str]:
    return request.path_params["topic"], check_group(request.path_params["group"])
