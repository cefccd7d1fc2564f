"""`/v1/topics/{topic}/jobs/cancel` and `…/reschedule`: all waiting jobs that are due in a range."""

from __future__ import annotations

from fastapi import Request, Response

from wheelq.server import problems
from wheelq.server.access.keys import Verb
from wheelq.server.routing import answer, needs, problems_of, router, service_of
from wheelq.server.schemas.bulk import BulkAnswer, DueRangeBody, MoveRangeBody, bulk_answer
from wheelq.server.schemas.model import Topic

ROUNDS = 10
"""The most rounds of one request: 5,000 jobs in each shard, which take some tens of milliseconds."""

routes = router("jobs")


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
    return answer(bulk_answer(await client.cancel_due(topic, rounds=ROUNDS, **which.span())))


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
    progress = await client.reschedule_due(topic, rounds=ROUNDS, **which.span(), **which.target())
    return answer(bulk_answer(progress))
