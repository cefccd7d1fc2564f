"""jobs: lists a topic's jobs in one state."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType

from wheelq.base.clock import wall_ms
from wheelq.cli.options import Config, Json, Topic, Url, Wide, client_of
from wheelq.cli.output import distance, say, say_json, stdout, table
from wheelq.cli.values import WHEN, parse_moment
from wheelq.model.checks import PAGE_LIMIT
from wheelq.model.state import JobState, ListedJob

_AT = {
    JobState.WAITING: "due",
    JobState.RETRYING: "due",
    JobState.READY: "promoted",
    JobState.RUNNING: "promoted",
    JobState.DONE: "ended",
    JobState.DEAD: "buried",
}
_COLUMNS: dict[JobState, tuple[str, ...]] = {
    JobState.WAITING: (),
    JobState.RETRYING: ("group?", ">attempt?", "error?~"),
    JobState.READY: ("group?", ">attempt?"),
    JobState.RUNNING: ("group?", ">attempt?", "worker?"),
    JobState.DONE: (">attempt?", "worker?"),
    JobState.DEAD: ("group?", ">attempt?", "error?~"),
}

StateOption = Annotated[JobState, typer.Option("--state", "-s", help="The state the jobs are in.")]
Since = Annotated[
    str | None, typer.Option("--since", help=f"Only jobs due, promoted, ended or buried then or later: {WHEN}.")
]
Until = Annotated[str | None, typer.Option("--until", help=f"Only jobs before: {WHEN}.")]


def jobs(
    topic: Topic,
    state: StateOption = JobState.WAITING,
    since: Since = None,
    until: Until = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Only retrying or dead jobs whose last error contains this.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue where the last list ended.")] = None,
    url: Url = None,
    config: Config = None,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """List the jobs of a topic in one state; done and dead ones the latest first.

    wheelq jobs orders --state retrying --error Timeout
    """
    now_ms = wall_ms()
    begin, end = (None if text is None else parse_moment(text, now_ms) for text in (since, until))
    found: list[ListedJob] = []
    with client_of(url, config) as client:
        while len(found) < limit:
            most = min(PAGE_LIMIT, limit - len(found))
            page = client.jobs(topic, state=state, since=begin, until=end, error=error, limit=most, cursor=cursor)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
    if json:
        say_json({"jobs": [{**job._asdict(), "at": job.at} for job in found], "cursor": cursor})
        return
    stdout(wide).print(_table(topic, state, found))
    if cursor is not None:
        say(f"more: --cursor {cursor}")


def _table(topic: str, state: JobState, found: list[ListedJob]) -> RenderableType:
    if not found:
        return f"no {state} jobs in {topic}"
    columns = _COLUMNS[state]
    names = [column.strip(">?~") for column in columns]
    rows = (
        (job.id, distance(job.at_ms), *("-" if (value := getattr(job, name)) is None else value for name in names))
        for job in found
    )
    return table("id", _AT[state], *columns, rows=rows)
