"""`/topics/{topic}/jobs`: the jobs of a topic by state, time and error, a page at a time.

`/topics/{topic}/bulk`: cancel or reschedule the waiting jobs that are due in a range. The first page says how many jobs
wait in the range, and asks for confirmation. Each POST then does a bounded part, and its page continues with the next:
by itself with JavaScript, by a button without. The change has a name in Redis, so a repeated step changes no job twice,
even if another server process gets it.

`/topics/{topic}/job?id=…`: one job, its way so far, and what can be done with it. `/schedule`: a new one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from starlette.responses import Response

from wheelq.base.ids import make_id
from wheelq.base.plural import counted
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration
from wheelq.model.job import CancelOutcome, RescheduleOutcome, RunNowOutcome, from_ms
from wheelq.model.state import TIME_OF, GroupInfo, JobInfo, JobState, least_far
from wheelq.server import problems
from wheelq.server.access import Verb
from wheelq.server.dashboard.visit import Form, Visit, does, moment_of, payload_of, shows, when_of
from wheelq.server.problems import NOT_ALLOWED, Problem

PER_PAGE = 50
STATES = ("waiting", "ready", "running", "retrying", "done", "dead")
WITH_ERROR = ("retrying", "dead")

ROUNDS = 10
"""How many rounds one step takes: each changes up to 500 jobs in every shard."""
TOO_LATE = "Too late: the job is ready for its consumers, with them already, or waits for a retry."
EPOCH = from_ms(0)
ACTIONS = ("cancel", "reschedule")
KEPT = ("action", "since", "until", "by", "delay", "at", "name", "count")
"""The fields that lead from one step to the next."""
PRIORITIES = ("normal", "high", "low")
FIELDS = ("topic", "payload", "delay", "at", "id", "partition_key", "priority", "expires", "attempts", "timeout")
"""The fields of the form for a new job."""


async def find(visit: Visit) -> Response:
    """Choose a topic, or go to a job by its id."""
    query = visit.query
    topic, id = query.typed("topic"), query.typed("id")
    if topic is not None and id is not None:
        if not visit.may(Verb.READ, topic):
            raise Problem(NOT_ALLOWED)
        return visit.back(f"/topics/{topic}/job", id=id, partition_key=query.typed("partition_key"))
    if topic is not None:
        return visit.back(f"/topics/{topic}/jobs")
    seen = await visit.service.snapshot.now()
    return visit.page("find.html", topics=visit.readable(seen))


async def jobs(visit: Visit) -> Response:
    """One page of the jobs in one state."""
    service, name, query = visit.service, visit.topic, visit.query
    settings = await service.client.settings_of(name)
    asked = query.text("state", "waiting")
    state = asked if asked in STATES else "waiting"
    found = await service.client.jobs(
        name,
        state=state,
        since=moment_of(query, "since"),
        until=moment_of(query, "until"),
        error=query.typed("error") if state in WITH_ERROR else None,
        prefix=query.typed("prefix"),
        limit=PER_PAGE,
        cursor=query.get("cursor"),
    )
    return visit.page(
        "jobs.html",
        topic=name,
        state=state,
        states=STATES,
        at=TIME_OF[JobState(state)],
        now_ms=await visit.now_ms(),
        jobs=found.jobs,
        cursor=found.cursor,
        since=query.text("since"),
        until=query.text("until"),
        error=query.text("error"),
        prefix=query.text("prefix"),
        has_error=state in WITH_ERROR,
        has_runs=state != "waiting",
        keeps_done=settings.keep_done_ms > 0,
    )


async def confirm(visit: Visit) -> Response:
    """Ask whether all of them are meant, and say how many they are."""
    return _confirmation(visit, visit.query, await _count(visit, visit.query))


async def _count(visit: Visit, asked: Form) -> int:
    since, until = _range(asked)
    return await visit.service.client.count_due(visit.topic, since=since, until=until)


def _confirmation(visit: Visit, asked: Form, count: int, asked_about: int | None = None) -> Response:
    """`asked_about` is the number that the viewer has confirmed before there were more."""
    return visit.page(
        "bulk_confirm.html",
        topic=visit.topic,
        action=asked.one_of("action", *ACTIONS),
        count=count,
        asked=asked_about,
        values={field: asked.text(field) for field in ("since", "until", "by", "delay", "at")},
        name=make_id(),
    )


async def act(visit: Visit) -> Response:
    """Do one step, and lead on to the next, or back to the jobs. Ask again if there are more than were confirmed."""
    form, client = visit.form, visit.service.client
    action, name = form.one_of("action", *ACTIONS), form.needed("name")
    confirmed = form.whole("count") or 0
    if not form.get("begun") and (count := await _count(visit, form)) > confirmed:
        visit.only_asks = True
        return _confirmation(visit, form, count, confirmed)
    since, until = _range(form)
    if since is None and until is None:
        since = EPOCH  # the client asks for a range; here the viewer has seen the number, and meant all of them
    bounds: dict[str, Any] = {"since": since, "until": until, "name": name, "rounds": ROUNDS}
    if action == "cancel":
        found = await client.cancel_due(visit.topic, **bounds)
    else:
        by = form.typed("by")
        to = when_of(form) if by is None else {"by": parse_duration(by, "by")}
        found = await client.reschedule_due(visit.topic, **bounds, **to)
    if found.is_done:
        done = "cancelled" if action == "cancel" else "rescheduled"
        return visit.back(f"/topics/{visit.topic}/jobs", f"{counted(found.jobs, 'job')} {done}.")
    count, kept = max(found.jobs, confirmed), {**form.some(*KEPT), "begun": "yes"}
    return visit.page(
        "bulk_step.html", topic=visit.topic, action=action, done=found.jobs, count=count, form_values=kept
    )


def _range(form: Form) -> tuple[datetime | None, datetime | None]:
    return moment_of(form, "since"), moment_of(form, "until")


class JobMoment(NamedTuple):
    """One moment on a job's way."""

    at_ms: int
    what: str
    detail: str = ""
    kind: str = ""
    """The class that colours it: "good", "bad" or ""."""


class GroupDelays(NamedTuple):
    """How long a group's last attempt waited and ran, in ms; None if that is not known."""

    wait_ms: int | None
    """From the promotion, or when the attempt was due again, until it started."""
    run_ms: int | None
    """From its start until the job was done or given up."""


class JobDelay(NamedTuple):
    """One part of a job's way, in ms."""

    what: str
    ms: int
    note: str


async def form(visit: Visit) -> Response:
    return await _form_page(visit, visit.query)


async def schedule(visit: Visit) -> Response:
    """Schedule the job, and show it; a form with a mistake is shown again, with an explanation."""
    asked = visit.form
    topic = asked.needed("topic").strip()
    visit.caller.check_may(Verb.SCHEDULE, topic)
    try:
        receipt = await visit.service.client.schedule(topic, **_arguments(asked))
    except InvalidInput as error:
        return await _form_page(visit, asked, f"{error.field}: {error.problem}", 422)
    key = asked.typed("partition_key")
    if not receipt.created:
        note = "A live job has this id already: nothing was changed."
    else:
        note = "It is kept on this server's disk until Redis is back." if receipt.in_outbox else "The job is scheduled."
    if not visit.may(Verb.READ, topic):
        return visit.back("/schedule", f"{note} Its id is {receipt.id}.")
    return visit.back(f"/topics/{topic}/job", note, id=receipt.id, partition_key=key)


async def job(visit: Visit) -> Response:
    """Where the job stands, in each group."""
    id = visit.query.needed("id")
    info = await _get(visit, id, visit.query.get("partition_key"))
    now_ms = await visit.now_ms()
    may_read_bundle = visit.may(Verb.READ, (info.bundle or "").partition(":")[0])
    return visit.page(
        "job.html",
        topic=visit.topic,
        job=info,
        now_ms=now_ms,
        steps=_steps(info, now_ms),
        delays=_delays(info),
        bundle=await visit.service.client.bundle(info.bundle) if info.bundle and may_read_bundle else None,
        may_read_bundle=may_read_bundle,
        delays_of={name: _delays_of(info, group) for name, group in info.groups.items()},
        partition_key=visit.query.text("partition_key"),
        can_change=info.state is JobState.WAITING and visit.may(Verb.CHANGE, visit.topic),
        can_stop=info.state is JobState.RUNNING and visit.may(Verb.CHANGE, visit.topic),
        can_rerun=info.state is JobState.DONE and visit.may(Verb.MANAGE, visit.topic),
        shows_payloads=visit.shows_payloads,
    )


async def cancel(visit: Visit) -> Response:
    """Cancel it; one that runs is asked to stop."""
    id, key = visit.form.needed("id"), visit.form.get("partition_key")
    running = visit.form.get("running") is not None
    outcome = await visit.service.client.cancel(visit.topic, id, partition_key=key, running=running)
    if outcome is CancelOutcome.CANCELLED:
        return visit.back(f"/topics/{visit.topic}/jobs", f"Job {id} is cancelled and will never run.")
    said = {CancelOutcome.RUNNING: TOO_LATE, CancelOutcome.CANCELLING: "Its worker was asked to cancel it."}
    return _to_job(visit, id, key, said.get(outcome))


async def reschedule(visit: Visit) -> Response:
    """Give a waiting job another due time, unless its due time has changed since the page was made."""
    id, key = visit.form.needed("id"), visit.form.get("partition_key")
    expected = visit.form.whole("if_due_ms")
    outcome = await visit.service.client.reschedule(
        visit.topic, id, partition_key=key, if_due_ms=expected, **when_of(visit.form)
    )
    said = {
        RescheduleOutcome.RESCHEDULED: "The job has its new due time.",
        RescheduleOutcome.RUNNING: TOO_LATE,
        RescheduleOutcome.CHANGED: "Nothing was changed: the job has another due time by now.",
    }
    return _to_job(visit, id, key, said.get(outcome))


async def run_now(visit: Visit) -> Response:
    id, key = visit.form.needed("id"), visit.form.get("partition_key")
    outcome = await visit.service.client.run_now(visit.topic, id, partition_key=key)
    said = {
        RunNowOutcome.PROMOTED: "The job is ready for its workers.",
        RunNowOutcome.PAUSED: "The topic is paused: the job is due now, and runs when the topic is resumed.",
        RunNowOutcome.HELD_BACK: "Its key is at its limit: the job is due now, and goes before the others of its key.",
        RunNowOutcome.RUNNING: TOO_LATE,
    }
    return _to_job(visit, id, key, said.get(outcome))


async def rerun(visit: Visit) -> Response:
    """Schedule a finished job once more, with what is known of it, under an id of its own.

    Its priority, and an expiry that was a date, are not known.
    """
    id, key = visit.form.needed("id"), visit.form.get("partition_key")
    info = await _get(visit, id, key)
    if info.state is not JobState.DONE:
        raise InvalidInput("id", "is not the id of a finished job")
    visit.service.intake.check_on_dead(info.on_dead, visit.caller)
    receipt = await visit.service.client.schedule(
        visit.topic,
        info.payload,
        delay=timedelta(0),
        headers=info.headers or None,
        partition_key=info.partition_key,
        attempts=info.max_attempts,
        timeout=info.timeout,
        expires=info.expires,
        on_dead=info.on_dead,
    )
    return _to_job(visit, receipt.id, info.partition_key, f"This is a new job like {id}, due now.")


def _arguments(asked: Form) -> dict[str, Any]:
    expires, timeout = asked.typed("expires"), asked.typed("timeout")
    return {
        "payload": payload_of(asked),
        "key": asked.typed("id"),
        "partition_key": asked.typed("partition_key"),
        "priority": asked.text("priority", "normal"),
        "expires": None if expires is None else parse_duration(expires, "expires"),
        "attempts": asked.whole("attempts"),
        "timeout": None if timeout is None else parse_duration(timeout, "timeout"),
        **when_of(asked),
    }


async def _form_page(visit: Visit, asked: Form, problem: str = "", status: int = 200) -> Response:
    seen = await visit.service.snapshot.now()
    return visit.page(
        "schedule.html",
        status,
        topics=[info.name for info in visit.readable(seen) if visit.may(Verb.SCHEDULE, info.name)],
        values={field: asked.text(field) for field in FIELDS},
        priorities=PRIORITIES,
        problem=problem,
    )


def _to_job(visit: Visit, id: str, key: str | None, note: str | None) -> Response:
    """Returns a redirect to a job's page. Raises: Problem, without a note: there is no such job."""
    if note is None:
        raise Problem(problems.JOB_NOT_FOUND)
    return visit.back(f"/topics/{visit.topic}/job", note, id=id, partition_key=key)


async def _get(visit: Visit, id: str, partition_key: str | None) -> JobInfo:
    info = await visit.service.client.get(visit.topic, id, partition_key=partition_key)
    if info is None:
        what = "It was never scheduled, was cancelled, or has finished: the topic's keep_done_ms keeps finished jobs."
        raise Problem(problems.JOB_NOT_FOUND, what)
    return info


def _steps(info: JobInfo, now_ms: int) -> list[JobMoment]:
    """Returns the known moments of the job's life, in order."""
    steps = []
    if info.scheduled_ms:
        steps.append(JobMoment(info.scheduled_ms, "Scheduled", ""))
    first_due = "Due" if info.state is not JobState.RETRYING else "Next attempt due"
    waits = "" if info.due_ms <= now_ms else "it waits until then"
    if info.is_held_back:
        waits = f"held back: partition key {info.partition_key} is at a limit of the topic"
    steps.append(JobMoment(info.due_ms, first_due, waits))
    if info.promoted_ms:
        steps.append(JobMoment(info.promoted_ms, "Promoted", "ready for every group"))
    for name, group in info.groups.items():
        for number, attempt in enumerate(group.attempts, 1):
            detail = f"{name}, on {attempt.worker}, took {attempt.duration_ms:,} ms"
            kind = "bad" if attempt.error else "good"
            text = f"{detail}: {attempt.error}" if attempt.error else detail
            steps.append(JobMoment(attempt.started_ms, f"Attempt {number + _before(group)}", text, kind))
        if group.finished_ms and group.state is JobState.DEAD:
            steps.append(JobMoment(group.finished_ms, f"Given up by {name}", group.reason or "", "bad"))
        elif group.finished_ms and not group.attempts:
            steps.append(JobMoment(group.finished_ms, f"Done in {name}", group.worker or "", "good"))
    return sorted(steps, key=lambda step: step.at_ms)


def _delays(info: JobInfo) -> list[JobDelay]:
    """Returns the parts of the job's way that are over; of several groups, in the one that is least far."""
    found = []
    if info.promoted_ms is not None and info.promoted_ms >= info.due_ms:
        found.append(JobDelay("Due → promoted", info.promoted_ms - info.due_ms, ""))
    if info.groups:
        group = least_far(info.groups)
        name = next(name for name, one in info.groups.items() if one is group) if len(info.groups) > 1 else ""
        wait_ms, run_ms = _delays_of(info, group)
        since = "Promoted" if (group.attempt or 1) == 1 else "Due again"
        ends = ((f"{since} → started", wait_ms), (f"Started → {group.state}", run_ms))
        found += [JobDelay(what, ms, f"in {name}" if name else "") for what, ms in ends if ms is not None]
    return found


def _delays_of(info: JobInfo, group: GroupInfo) -> GroupDelays:
    ran = group.attempts[-1].started_ms if group.is_finished and group.attempts else None
    started = group.started_ms or ran
    since = info.promoted_ms if (group.attempt or 1) == 1 else group.due_ms
    # starts are by the clock of a worker, as it estimates the server's
    waited = None if started is None or since is None else max(0, started - since)
    return GroupDelays(
        waited, None if started is None or group.finished_ms is None else max(0, group.finished_ms - started)
    )


def _before(group: GroupInfo) -> int:
    """Returns how many attempts came before those in the record, which keeps the last ten."""
    ended = (group.attempt or 0) - (0 if group.is_finished else 1)
    return max(0, ended - len(group.attempts))


PLACES = (
    shows("/jobs", find),
    shows("/topics/{topic}/jobs", jobs),
    shows("/topics/{topic}/bulk", confirm, Verb.CHANGE),
    does("/topics/{topic}/bulk", act, Verb.CHANGE),
    shows("/schedule", form, Verb.SCHEDULE),
    does("/schedule", schedule, Verb.SCHEDULE),
    shows("/topics/{topic}/job", job),
    does("/topics/{topic}/job/cancel", cancel, Verb.CHANGE),
    does("/topics/{topic}/job/reschedule", reschedule, Verb.CHANGE),
    does("/topics/{topic}/job/run", run_now, Verb.CHANGE),
    does("/topics/{topic}/job/rerun", rerun, Verb.MANAGE),
)
