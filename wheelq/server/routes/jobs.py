"""`/v1/topics/{topic}/jobs`: schedule, look up, move, cancel and run jobs, one or all that are due in a range.

`/v1/bundles/{id}`: look up and cancel a bundle of jobs. Its id begins with the topic of its follower.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Request, Response

from wheelq.base.ids import make_id
from wheelq.errors import BundleNotFound, InvalidInput, ServerError
from wheelq.model.bundle import Bundle
from wheelq.model.checks import check_topic
from wheelq.model.job import JobSpec, OnDuplicate
from wheelq.model.state import JobInfo, JobState
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.idempotency import KEY_CHARS, Make, Outcomes, life_of
from wheelq.server.problems import Problem, problem_in
from wheelq.server.routing import TAKES_MANY, Resource, StrictRequest, answer, caller_of, location, service_of, takes
from wheelq.server.schemas import reading, views
from wheelq.server.schemas.jobs import (
    BulkAnswer,
    DueRangeBody,
    Made,
    ManyJobs,
    ManyMade,
    MoveRangeBody,
    NewJob,
    When,
    bulk_answer,
)
from wheelq.server.schemas.model import TOPIC, PartitionKey, PathId, Topic
from wheelq.server.schemas.views import (
    BundleName,
    BundleView,
    CancelledCount,
    DeadMember,
    ErrorText,
    From,
    JobCursor,
    JobList,
    JobView,
    Limit,
    Prefix,
    State,
    To,
    WaitForEnd,
)

ROUNDS = 10
"""The most rounds of one request: 5,000 jobs in each shard, which take some tens of milliseconds."""
routes = Resource("jobs", "/v1/topics/{topic}")
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARS, "pattern": "^[!-~]+$"},
    "description": "Any text of your own: a request repeated with it gets the first one's answer, and does nothing. "
    "After an unknown outcome it makes sure that the job exists; a job that has run meanwhile is known while the topic "
    "keeps it (keep_done_ms), and scheduled again otherwise.",
}
_LEFT = {
    "not_found": problems.JOB_NOT_FOUND,
    "running": problems.TOO_LATE,
    "changed": problems.CHANGED,
    "paused": problems.PAUSED,
    "held_back": problems.HELD_BACK,
}
"""The outcomes of `cancel`, `reschedule` and `run_now` that leave a job as it was."""
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^"?[0-9]{1,16}"?$',
        description="The job's ETag as seen before: the job is moved only if it still has that due time.",
    ),
]


@routes.on(
    "POST",
    "/jobs",
    "Schedule a job",
    Verb.SCHEDULE,
    {
        201: (Made, "The job is scheduled."),
        200: (Made, "A live job has this id; see created and replaced."),
        202: (Made, "Redis is away: the job is kept on this server's disk for now (in_outbox)."),
    },
    problems.DUPLICATE,
    problems.KEY_REUSED,
    problems.NOT_CONFIRMED,
    **takes(NewJob, TOPIC, _IDEMPOTENCY_KEY),
)
async def make_job(request: StrictRequest) -> Response:
    """The job runs when its time has come. A request repeated with the same `id` makes no second job while the first is
    alive.
    """
    service = service_of(request)
    topic, job = request.path_params["topic"], await request.read(NewJob)
    _check_replacing(request, topic, job.on_duplicate)
    await service.intake.admit(topic, job, job.on_duplicate, caller_of(request))

    async def make(id: str | None, known: Outcomes) -> dict[str, Any]:
        spec = job.spec(job.id or id, life_of(id))
        return Made.shows(await service.coalescing.schedule(topic, spec, job.on_duplicate))

    body = await _once(request, make)
    status = 202 if body["in_outbox"] else 201 if body["created"] and not body["replaced"] else 200
    headers = {"etag": f'"{body["due_ms"]}"'}
    if status == 201:
        headers |= location(request, "jobs", topic, body["id"], job.partition_key)
    return answer(body, status, headers)


@routes.on(
    "POST",
    "/bulk",
    "Schedule many jobs",
    Verb.SCHEDULE,
    {
        200: (ManyMade, "One outcome for each job, in order."),
        202: (ManyMade, "Redis is away: jobs are kept on this server's disk for now (in_outbox)."),
    },
    problems.KEY_REUSED,
    **takes(ManyJobs, TOPIC, _IDEMPOTENCY_KEY),
    **TAKES_MANY,
)
async def make_jobs(request: StrictRequest) -> Response:
    """Schedules up to 500 jobs. An invalid job does not stop the others."""
    topic, jobs = check_topic(request.path_params["topic"]), await request.read(ManyJobs)
    _check_replacing(request, topic, jobs.on_duplicate)

    body = await _once(request, partial(_make_each, request, topic, jobs), len(jobs.jobs))
    return answer(body, 202 if any(outcome.get("in_outbox") for outcome in body["outcomes"]) else 200)


async def _make_each(request: Request, topic: str, jobs: ManyJobs, stem: str | None, known: Outcomes) -> dict[str, Any]:
    """`stem` is the prefix for ids of jobs without one; None: the client makes their ids. `known` jobs are left out."""
    service = service_of(request)
    outcomes: dict[int, Any] = {}
    specs: defaultdict[OnDuplicate, dict[int, JobSpec]] = defaultdict(dict)
    for place, raw in enumerate(jobs.jobs):
        if place in known:
            continue
        try:
            job = reading.read(NewJob, raw)
            on_duplicate = job.on_duplicate if "on_duplicate" in job.model_fields_set else jobs.on_duplicate
            _check_replacing(request, topic, on_duplicate)
            await service.intake.admit(topic, job, on_duplicate, caller_of(request))
            specs[on_duplicate][place] = job.spec(job.id or (stem and f"{stem}-{place}"), life_of(stem, place))
        except (InvalidInput, Problem) as error:
            outcomes[place] = error
    for on_duplicate, alike in specs.items():
        found = await service.coalescing.schedule_each(topic, [*alike.values()], on_duplicate)
        outcomes.update(zip(alike, found, strict=True))
    base_path = service.settings.server.base_path
    made = known | {place: _outcome_view(outcome, base_path) for place, outcome in outcomes.items()}
    views = [made[place] for place in range(len(jobs.jobs))]
    failed = sum("problem" in view for view in views)
    return {"outcomes": views, "made": len(views) - failed, "failed": failed}


def _outcome_view(outcome: Any, base_path: str) -> dict[str, Any]:
    if isinstance(outcome, Exception):
        return {"problem": problem_in("POST", outcome).body(base_path)}
    return Made.shows(outcome)


def _check_replacing(request: Request, topic: str, on_duplicate: str) -> None:
    """To replace a waiting job is to change it. Raises: Problem, unless the caller may."""
    if on_duplicate == "replace":
        caller_of(request).check_may(Verb.CHANGE, topic, "on_duplicate", ', which on_duplicate "replace" needs')
        request.scope["wheelq.audit"].verb = Verb.CHANGE


async def _once(request: Request, make: Make, jobs: int = 0) -> dict[str, Any]:
    """Returns what `make` answers; for a request repeated with an Idempotency-Key, its first answer.

    With such a key, `make` gets a job id, the same each time; else None. `jobs`: see `Answers.once`.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return await make(None, {})
    if not 1 <= len(key) <= KEY_CHARS or not all("!" <= char <= "~" for char in key):
        raise InvalidInput("Idempotency-Key", f"must be 1 to {KEY_CHARS} visible ASCII characters")
    said = b"%b %b\n%b" % (request.method.encode(), request.scope["path"].encode(), await request.body())
    return await service_of(request).answers.once(caller_of(request).id, key, said, make_id(), make, jobs)


@routes.on("GET", "/jobs", "List jobs", Verb.READ, JobList, problems.TOPIC_NOT_FOUND)
async def list_jobs(
    request: Request,
    topic: Topic,
    state: State = None,
    since: From = None,
    until: To = None,
    error: ErrorText = None,
    prefix: Prefix = None,
    due_from: From = None,
    due_to: To = None,
    limit: Limit = 100,
    cursor: JobCursor = None,
) -> Response:
    """Lists the jobs in one `state`, from `since` to before `until`: see `at_ms`. Done and dead jobs come latest first.

    Without `state` it lists the waiting jobs, in order of due time; `due_from` and `due_to` are other names of `since`
    and `until`. With `prefix` a request looks at 5,000 jobs in each shard, and a page that has fewer than `limit` and a
    `cursor` stopped there. A job that stays in its state all the time is listed once.
    """
    client = service_of(request).client
    if prefix is None and not (state or since or until or error):
        page = await client.waiting(
            topic, due_from=views.at(due_from), due_to=views.at(due_to), limit=limit, cursor=cursor
        )
        return answer({"jobs": [views.waiting(job) for job in page.jobs], "cursor": page.cursor})
    wanted = JobState(state or JobState.WAITING)
    if error and wanted not in (JobState.RETRYING, JobState.DEAD):  # no other job has an error
        return answer({"jobs": [], "cursor": None})
    since, until = since or due_from, until or due_to
    found = await client.jobs(
        topic,
        state=wanted,
        since=views.at(since),
        until=views.at(until),
        error=error,
        prefix=prefix,
        limit=limit,
        cursor=cursor,
    )
    return answer({"jobs": [views.ListedView.shows(job) for job in found.jobs], "cursor": found.cursor})


@routes.on("GET", "/jobs/{id:path}", "Look a job up", Verb.READ, JobView, problems.JOB_NOT_FOUND)
async def get_job(
    request: Request, topic: Topic, id: PathId, partition_key: PartitionKey = None, wait: WaitForEnd = 0
) -> Response:
    """Returns the state of a job, overall and in each group: attempt, worker, times, last error, progress, result.

    A finished job is found for the topic's `keep_done_ms`, a dead job while it is kept, and a cancelled job never.
    With `wait` the answer comes as soon as all groups have finished the job, or one has given it up; after that
    time it shows the job as it is. The topic must keep finished jobs.
    """
    if wait:
        assert isinstance(request, StrictRequest)
        service = service_of(request)
        wait_s = min(wait, service.settings.server.max_wait_ms / 1000)
        await service.until_finished(topic, id, partition_key, wait_s, request.gone)
        await service.admit_again(request, Verb.READ, topic)
    return await _look(request, topic, id, partition_key)


_MOVED = {200: (JobView, "It has the new due time.")}
_PAST = (problems.JOB_NOT_FOUND, problems.TOO_LATE)
"""The problems of a change to a job that does not wait."""


@routes.on("PATCH", "/jobs/{id:path}", "Move a job to another time", Verb.CHANGE, _MOVED, *_PAST, problems.CHANGED)
async def move_job(
    request: Request, topic: Topic, id: PathId, when: When, partition_key: PartitionKey = None, if_match: IfMatch = None
) -> Response:
    """Only a waiting job can be moved. With If-Match, it is moved only if its due time has not changed meanwhile.

    A key without `read` is shown the new state and due time alone.
    """
    expected = int(if_match.strip('"')) if if_match is not None else None
    client = service_of(request).client
    outcome = await client.reschedule(topic, id, partition_key=partition_key, if_due_ms=expected, **when.due())
    _check(outcome)
    try:
        return await _look(request, topic, id, partition_key)
    except ServerError as error:
        raise Problem(
            problems.OUTCOME_UNKNOWN, "The job was moved, but could not be looked up then.", ids=(id,)
        ) from error


@routes.on("DELETE", "/jobs/{id:path}", "Cancel a job", Verb.CHANGE, {204: "It will never run."}, *_PAST)
async def cancel_job(request: Request, topic: Topic, id: PathId, partition_key: PartitionKey = None) -> Response:
    """Only a waiting job can be cancelled."""
    _check(await service_of(request).client.cancel(topic, id, partition_key=partition_key))
    return Response(status_code=204)


_READY = {204: "The job is ready for its consumers."}


@routes.on("POST", "/run/{id:path}", "Run a job now", Verb.CHANGE, _READY, *_PAST, problems.PAUSED, problems.HELD_BACK)
async def run_job(request: Request, topic: Topic, id: PathId, partition_key: PartitionKey = None) -> Response:
    """Runs a waiting job at once."""
    _check(await service_of(request).client.run_now(topic, id, partition_key=partition_key))
    return Response(status_code=204)


@routes.on("POST", "/jobs/cancel", "Cancel the jobs of a range", Verb.CHANGE, BulkAnswer, problems.TOPIC_NOT_FOUND)
async def cancel_due(request: Request, topic: Topic, which: DueRangeBody) -> Response:
    """Cancels waiting jobs by their due time, some thousands in one request; repeat it with the `cursor` until `done`.

    A job that is promoted meanwhile is not cancelled and not counted. Jobs that wait for a retry stay.
    """
    client = service_of(request).client
    return answer(bulk_answer(await client.cancel_due(topic, rounds=ROUNDS, **which.change(topic))))


@routes.on("POST", "/jobs/reschedule", "Move the jobs of a range", Verb.CHANGE, BulkAnswer, problems.TOPIC_NOT_FOUND)
async def reschedule_due(request: Request, topic: Topic, which: MoveRangeBody) -> Response:
    """Moves waiting jobs by their due time, some thousands in one request; repeat it with the `cursor` until `done`.

    Without the cursor, a repeated request moves the jobs in the range again.
    """
    client = service_of(request).client
    progress = await client.reschedule_due(topic, rounds=ROUNDS, **which.change(topic))
    return answer(bulk_answer(progress))


def _check(outcome: str) -> None:
    """Raises: Problem, if a job was left as it was."""
    if outcome in _LEFT:
        raise Problem(_LEFT[outcome])


async def _look(request: Request, topic: str, id: str, partition_key: str | None) -> Response:
    """Shows a job; to a caller that may change it and not read it, only its state and due time."""
    info = await service_of(request).client.get(topic, id, partition_key=partition_key)
    if info is None:
        raise Problem(problems.JOB_NOT_FOUND)
    headers = {"etag": f'"{info.due_ms}"'} if info.state is JobState.WAITING else None
    caller = caller_of(request)
    if info.bundle and not caller.may(Verb.READ, info.bundle.partition(":")[0]):
        info = replace(info, bundle=None)  # its name begins with the topic of what follows
    if not caller.may(Verb.READ, topic):
        info = JobInfo(info.id, info.topic, info.state, info.due_ms, None, {}, info.attempt, shard=info.shard)
    return answer(JobView.shows(info), headers=headers)


bundle_routes = Resource("bundles", "/v1/bundles")
_BUNDLE = "/{topic}:{name}"


async def _bundle(request: Request, topic: str, name: str) -> Bundle:
    found = await service_of(request).client.bundle(f"{topic}:{name}")
    if found is None:
        raise BundleNotFound(f"{topic}:{name}")
    return found


@bundle_routes.on("GET", _BUNDLE, "Look up a bundle", Verb.READ, BundleView, problems.BUNDLE_NOT_FOUND)
async def get_bundle(request: Request, topic: Topic, name: BundleName) -> Response:
    """Returns how many members are done, dead, cancelled and left; names only topics that the key may read."""
    found, caller = await _bundle(request, topic, name), caller_of(request)
    dead = [
        {name: getattr(job, name) for name in DeadMember.model_fields}
        for job in found.dead_jobs
        if caller.may(Verb.READ, job.topic)
    ]
    topics = [topic for topic in found.topics if caller.may(Verb.READ, topic)]
    return answer({**BundleView.shows(found), "topics": topics, "dead_jobs": dead})


@bundle_routes.on("DELETE", _BUNDLE, "Cancel a bundle", Verb.CHANGE, CancelledCount, problems.BUNDLE_NOT_FOUND)
async def cancel_bundle(request: Request, topic: Topic, name: BundleName) -> Response:
    """Nothing follows it, and its members that wait are cancelled. The key must be allowed to change them."""
    found, caller = await _bundle(request, topic, name), caller_of(request)
    if not all(caller.may(Verb.CHANGE, one) for one in found.topics):
        raise Problem(problems.NOT_ALLOWED, "It has members in a topic that the key may not change.")
    return answer({"cancelled": await service_of(request).client.cancel_bundle(found.id)})
