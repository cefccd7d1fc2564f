"""schedule, job, jobs, wait: jobs one by one, and their lists; and reshard, rerun."""

from __future__ import annotations

import sys
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from wheelq.base.plural import counted
from wheelq.cli.options import (
    At,
    Attempts,
    Delay,
    Headers,
    JobId,
    MaxWait,
    Paging,
    Payload,
    Session,
    Timeout,
    Topic,
    Wide,
)
from wheelq.cli.output import NOT_FOUND, distance, moment, receipt_fields, say, say_aside, say_content, say_json, table
from wheelq.cli.values import WHEN, parse_due, parse_headers, parse_json, parse_moment, parse_range
from wheelq.errors import ServerError
from wheelq.model.durations import parse_duration, span
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.state import TIME_OF, JobInfo, JobState, ListedJob

if TYPE_CHECKING:
    from wheelq.client import Client

_COLUMNS: dict[JobState, tuple[str, ...]] = {
    JobState.WAITING: (),
    JobState.RETRYING: ("group?", ">attempt?", "error?~"),
    JobState.READY: ("group?", ">attempt?"),
    JobState.RUNNING: ("group?", ">attempt?", "worker?"),
    JobState.DONE: (">attempt?", "worker?"),
    JobState.DEAD: ("group?", ">attempt?", "error?~"),
}

SEARCHES = 20
"""How many pages `jobs --prefix` reads, of 5,000 jobs in each shard."""
StateOption = Annotated[JobState, typer.Option("--state", "-s", help="The state the jobs are in.")]
Since = Annotated[
    str | None, typer.Option("--since", help=f"Only jobs due, promoted, ended or buried then or later: {WHEN}.")
]
Until = Annotated[str | None, typer.Option("--until", help=f"Only jobs before: {WHEN}.")]


def schedule(
    session: Session,
    topic: Topic,
    payload: Payload = None,
    delay: Delay = None,
    at: At = None,
    key: Annotated[str | None, typer.Option("--key", help="The job's id; made up if not given.")] = None,
    header: Headers = None,
    on_duplicate: Annotated[
        OnDuplicate, typer.Option("--on-duplicate", help="What to do if a live job has this key.")
    ] = "keep",
    attempts: Attempts = None,
    timeout: Timeout = None,
    max_wait: MaxWait = None,
    text: Annotated[bool, typer.Option("--text", help="The payload is plain text, not JSON.")] = False,
) -> None:
    """Schedule one job.

    wheelq schedule orders '{"id": 42}' --delay 30m --key order-42
    """
    written = sys.stdin.read() if payload == "-" else payload
    seconds, instant = parse_due(delay, at)
    with session.client() as client:
        note = _note_if_new(session, client, topic)
        receipt = client.schedule(
            topic,
            written if text or written is None else parse_json(written, "; --text takes it as it is"),
            delay=seconds,
            at=instant,
            key=key,
            headers=parse_headers(header or ()),
            on_duplicate=on_duplicate,
            attempts=attempts,
            timeout=None if timeout is None else parse_duration(timeout, "timeout"),
            max_wait=None if max_wait is None else parse_duration(max_wait, "max_wait"),
        )
    if note is not None:
        say_aside(note)
    due = moment(receipt.due_ms, session.now_ms())
    session.answer(receipt_fields(receipt), f"{topic}/{receipt.id} {_happened(receipt)}, due {due}")


def _note_if_new(session: Session, client: Client, topic: str) -> str | None:
    """Returns a note about a topic that does not exist yet; None if it exists, or if that cannot be known."""
    try:
        known = [info.name for info in client.topics()]
    except ServerError:  # the server is away, which the schedule call reports; or this user may only schedule
        return None
    if topic in known:
        return None
    near = " or ".join(get_close_matches(topic, known))
    said = f"topic {topic} is new" + (f": did you mean {near}?" if near else "")
    return said if known else said + _other_prefixes(session)


def _other_prefixes(session: Session) -> str:
    """Returns what to add where no topic is known, and programs with another prefix use the server."""
    with session.inspector() as inspector:
        try:
            others = ", ".join(inspector.other_prefixes())
        except ServerError:
            return ""
    return (
        f", and the first of its prefix; in use on this server: the prefix {others} (WHEELQ_PREFIX)" if others else ""
    )


def job(session: Session, topic: Topic, id: JobId) -> None:
    """Show a job and its state. Exit code 3: no such job is known."""
    with session.client() as client:
        found = client.get(topic, id)
    if session.json:
        say_json(found and {**{one.name: getattr(found, one.name) for one in fields(found)}, "due": found.due})
    elif found is None:
        say(f"{topic}/{id} is finished or unknown; keep_done_ms keeps it: wheelq configure {topic} --keep-done 1d")
    else:
        _tell(found, session.now_ms())
        say_content(found.payload, found.headers)
    if found is None:
        raise typer.Exit(NOT_FOUND)


def reshard(
    session: Session,
    topic: Topic,
    shards: Annotated[int, typer.Argument(help="The new number of shards.", show_default=False)],
) -> None:
    """Change a topic's number of shards, up or down, while jobs wait and run.

    Waiting jobs stay in their shards until they have run, and can be looked up there; new jobs use the new number.
    """
    with session.client() as client:
        info = client.set_shards(topic, shards)
    session.answer(
        info, f"{topic} has {counted(info.shards, 'shard')}; {counted(info.waiting, 'job waits', 'jobs wait')}"
    )


def _happened(receipt: Receipt) -> str:
    if receipt.replaced:
        return "took the new payload and time"
    return "scheduled" if receipt.created else "was there already and is unchanged"


def _tell(found: JobInfo, now_ms: int) -> None:
    """Print a job as lines of text; groups only if there are several."""
    say(f"{found.topic}/{found.id} is {found.state.value}, due {moment(found.due_ms, now_ms)}, attempt {found.attempt}")
    if found.max_attempts is not None:
        say(f"at most {counted(found.max_attempts, 'attempt')}, or fewer if its handler says so")
    if found.timeout is not None:
        say(f"at most {span(found.timeout * 1000)} for each attempt, or less if its handler says so")
    for what, ms in (("started", found.started_ms), ("finished", found.finished_ms)):
        if ms is not None:
            say(f"{what} {moment(ms, now_ms)}")
    if found.progress is not None:
        say(f"progress: {found.progress.fraction:.0%} {found.progress.text}")
    limit = f"partition key {found.partition_key} is at a limit of the topic" if found.is_held_back else None
    told = ("held back", limit), ("worker", found.worker), ("second job of its key", found.second_id)
    for what, text in (*told, ("last error", found.last_error)):
        if text is not None:
            say(f"{what}: {text}")
    for attempt in found.attempts:
        said = attempt.error or "succeeded"
        say(
            f"attempt at {moment(attempt.started_ms, now_ms)}, {span(attempt.duration_ms)}, on {attempt.worker}: {said}"
        )
    if len(found.groups) > 1:
        for name, group in found.groups.items():
            say(f"group {name}: {group.state.value}")
    if found.result is not None:
        say(f"result: {found.result!r}")


def jobs(
    session: Session,
    paging: Paging,
    topic: Topic,
    state: StateOption = JobState.WAITING,
    since: Since = None,
    until: Until = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Only retrying or dead jobs whose last error contains this.")
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only jobs whose id begins with this.")] = None,
    wide: Wide = False,
) -> None:
    """List the jobs of a topic in one state; done and dead ones the latest first.

    wheelq jobs orders --state retrying --error Timeout

    With --prefix it looks at 100,000 jobs in each shard, and says so if it stops there.
    """
    begin, end = parse_range(since, until, session.now_ms)
    with session.client() as client:
        ask = partial(client.jobs, topic, state=state, since=begin, until=end, error=error, prefix=prefix)
        most = SEARCHES if prefix else None
        found, following = paging.read(lambda limit, cursor: ask(limit=limit, cursor=cursor), most)
    plain = [{**job._asdict(), "at": job.at} for job in found]
    session.answer_page(plain, _table(topic, state, found, session.now_ms()), following, wide)
    if prefix and following and len(found) < paging.limit:
        say_aside("stopped early: there are more jobs to look at, from --cursor on")


def _table(topic: str, state: JobState, found: list[ListedJob], now_ms: int) -> RenderableType:
    if not found:
        return f"no {state} jobs in {topic}"
    columns = _COLUMNS[state]
    names = [column.strip(">?~") for column in columns]
    rows = (
        (
            job.id,
            distance(job.at_ms, now_ms),
            *("-" if (value := getattr(job, name)) is None else value for name in names),
        )
        for job in found
    )
    return table("id", TIME_OF[state], *columns, rows=rows)


def wait(
    session: Session,
    topic: Topic,
    id: JobId,
    timeout: Annotated[str | None, typer.Option(help="How long to wait: 30s, 5m. Default: for ever.")] = None,
    group: Annotated[str | None, typer.Option(help="Wait for this group only.")] = None,
) -> None:
    """Wait until a job is done and print its result as JSON. The topic must keep finished jobs: keep_done_ms.

    Exit code 1: it was given up, or not done in time; 3: it is not known.
    """
    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    with session.client() as client:
        say_json(client.wait(topic, id, timeout=seconds, group=group))


def rerun(
    session: Session,
    topic: Topic,
    group: Annotated[str, typer.Option(help="The group that runs them again.")],
    since: Annotated[str, typer.Option(help="Start of the period: 2h (ago), 3d, or a time with its zone.")],
    until: Annotated[str | None, typer.Option(help="End of the period. Default: now.")] = None,
    rate: Annotated[float | None, typer.Option(help="The most jobs per second.")] = None,
    name: Annotated[str | None, typer.Option(help="The name of an interrupted rerun, to continue it.")] = None,
) -> None:
    """Run again, in one group, the jobs promoted between two times that the topic's retention still keeps.

    wheelq rerun orders --group billing --since 2h
    """
    begin = parse_moment(since, session.now_ms, "since")
    end = None if until is None else parse_moment(until, session.now_ms, "until")
    with session.client() as client:
        done = client.rerun(topic, group=group, since=begin, until=end, rate=rate, name=name)
    again = counted(done.jobs, "job runs", "jobs run")
    text = f"{again} again in {group}; {done.left_out:,} left out, because it has not finished them yet"
    session.answer(done._asdict(), text)
