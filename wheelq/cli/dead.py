"""dead list, show, replay, purge: commands for dead jobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType

from wheelq.base.clock import wall_ms
from wheelq.base.plural import counted
from wheelq.cli.options import Config, Json, Topic, Url, Wide, client_of
from wheelq.cli.output import NOT_FOUND, distance, moment, say, say_json, stdout, table_of
from wheelq.cli.values import WHEN, parse_range
from wheelq.client import Client
from wheelq.errors import InvalidInput
from wheelq.model.checks import PAGE_LIMIT
from wheelq.model.dead import DeadJob, ReplayOutcome, Where

app = typer.Typer(help="List, replay or remove dead jobs.", no_args_is_help=True)

Group = Annotated[str | None, typer.Option("--group", help="Only jobs that this group gave up.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only jobs given up for this reason: failed, given_up, deliveries …")
]
Id = Annotated[str | None, typer.Option("--id", help="Only jobs with this id.")]
Since = Annotated[str | None, typer.Option("--since", help=f"Only jobs buried then or later: {WHEN}.")]
Until = Annotated[str | None, typer.Option("--until", help=f"Only jobs buried before: {WHEN}.")]
DeadIds = Annotated[
    list[str] | None, typer.Argument(metavar="[DEAD_ID]...", help="Single dead jobs, by their ids from `dead list`.")
]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the topic.")]


@app.command("list")
def list_(
    topic: Topic,
    group: Group = None,
    reason: ReasonOption = None,
    id: Id = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue where the last list ended.")] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first, not the newest.")] = False,
    url: Url = None,
    config: Config = None,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """List dead jobs, the newest first. `dead show` prints their payload and traceback."""
    where = _where(group, reason, id, since, until)
    found: list[DeadJob] = []
    with client_of(url, config) as client:
        while len(found) < limit:
            page = client.dead.list(
                topic, **where, limit=min(PAGE_LIMIT, limit - len(found)), cursor=cursor, newest_first=not oldest
            )
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
    if json:
        say_json({"jobs": [asdict(job) for job in found], "cursor": cursor})
        return
    stdout(wide).print(_jobs(topic, found))
    if cursor is not None:
        say(f"more: --cursor {cursor}")


@app.command()
def show(
    topic: Topic,
    dead_id: Annotated[str, typer.Argument(help="The dead job's id from `dead list`.", show_default=False)],
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show a dead job in full. Exit code 3: it is not among the dead."""
    with client_of(url, config) as client:
        found = client.dead.show(topic, dead_id)
    if json:
        say_json(found)
    elif found is None:
        say(f"{dead_id} is not among the dead of {topic}")
    else:
        say(f"{topic}/{found.id} was given up by group {found.group or '-'} after attempt {found.attempt}")
        say(f"reason     {found.reason}")
        say(f"first due  {moment(found.first_due_ms)}")
        say(f"buried     {moment(found.buried_ms)}")
        if found.replays:
            say(f"replayed   {counted(found.replays, 'time')} before")
        say_json(found.payload)
        for name, value in found.headers.items():
            say(f"{name}={value}")
        say(found.traceback.rstrip() or found.error)
    if found is None:
        raise typer.Exit(NOT_FOUND)


@app.command()
def replay(
    topic: Topic,
    dead_ids: DeadIds = None,
    group: Group = None,
    reason: ReasonOption = None,
    id: Id = None,
    since: Since = None,
    until: Until = None,
    all: All = False,
    rate: Annotated[float | None, typer.Option("--rate", help="Jobs per second; default: all at once.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most.")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run dead jobs again, in the group that gave them up, from attempt 1.

    A job stays dead while a live job has its id. Exit code 3: a named job is not among the dead.
    """
    where = _where(group, reason, id, since, until)
    _check_choice(dead_ids, where, all)
    with client_of(url, config) as client:
        if dead_ids:
            _each(topic, {one: client.dead.replay_one(topic, one).value for one in dead_ids}, json)
            return
        done = client.dead.replay(topic, **where, all=all, rate=rate, limit=limit)
    if json:
        say_json(done._asdict())
    else:
        again = counted(done.replayed, f"job of {topic} runs again", f"jobs of {topic} run again")
        say(again + (f", {counted(done.kept, 'stays', 'stay')} dead" if done.kept else ""))


@app.command()
def purge(
    topic: Topic,
    dead_ids: DeadIds = None,
    group: Group = None,
    reason: ReasonOption = None,
    id: Id = None,
    since: Since = None,
    until: Until = None,
    all: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove dead jobs for good. Asks first, unless jobs are named. Exit code 3: a named job is not among the dead."""
    where = _where(group, reason, id, since, until)
    _check_choice(dead_ids, where, all)
    with client_of(url, config) as client:
        if dead_ids:
            _each(topic, {one: _purged(client, topic, one) for one in dead_ids}, json)
            return
        if not yes:
            typer.confirm(f"Remove {'all' if all else 'these'} dead jobs of {topic} for good?", abort=True, err=True)
        purged = client.dead.purge(topic, **where, all=all)
    if json:
        say_json({"purged": purged})
    else:
        say(f"{counted(purged, 'dead job')} of {topic} removed")


def _where(group: str | None, reason: str | None, id: str | None, since: str | None, until: str | None) -> Where:
    begin, end = parse_range(since, until, wall_ms())
    return Where(group=group, reason=reason, id=id, since=begin, until=end)


def _check_choice(dead_ids: list[str] | None, where: Where, all: bool) -> None:
    chosen = bool(dead_ids) + any(value is not None for value in where.values()) + all
    if chosen != 1:
        raise InvalidInput("DEAD_ID", "name single dead jobs, or give a filter (--group, --id, --since …), or --all")


def _purged(client: Client, topic: str, dead_id: str) -> str:
    return "purged" if client.dead.purge_one(topic, dead_id) else ReplayOutcome.NOT_FOUND.value


def _each(topic: str, outcomes: dict[str, str], json: bool) -> None:
    if json:
        say_json([{"topic": topic, "dead_id": dead_id, "outcome": outcome} for dead_id, outcome in outcomes.items()])
    else:
        for dead_id, outcome in outcomes.items():
            say(f"{dead_id} {_WORDS[outcome]}")
    if ReplayOutcome.NOT_FOUND.value in outcomes.values():
        raise typer.Exit(NOT_FOUND)


_WORDS = {
    "replayed": "runs again",
    "purged": "removed",
    "not_found": "is not among the dead: it runs again already, or was removed",
    "alive": "stays dead: a live job has its id",
    "no_record": "stays dead: there is nothing left of it to run",
}


def _jobs(topic: str, found: list[DeadJob]) -> RenderableType:
    if not found:
        return f"no such dead jobs of {topic}"
    return table_of(
        found,
        {
            "dead id": "dead_id",
            "job": "id",
            "group?": "group",
            "reason?": "reason",
            ">attempts?": "attempt",
            "buried": lambda job: distance(job.buried_ms),
            "error?~": "error",
        },
    )
