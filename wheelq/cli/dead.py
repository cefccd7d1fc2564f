"""dead list, show, replay, purge: commands for dead jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import RenderableType

from wheelq.base.plural import counted
from wheelq.cli.options import Paging, Session, Topic, Wide, Yes
from wheelq.cli.output import NOT_FOUND, distance, moment, say, say_content, say_json, table_of
from wheelq.cli.values import WHEN, parse_range
from wheelq.errors import InvalidInput
from wheelq.model.dead import DeadJob, ReplayOutcome, Where

app = typer.Typer(help="List, replay or remove dead jobs.", no_args_is_help=True)

DeadIds = Annotated[
    list[str] | None, typer.Argument(metavar="[DEAD_ID]...", help="Single dead jobs, by their ids from `dead list`.")
]
All = Annotated[bool, typer.Option("--all", help="All dead jobs of the topic.")]


@dataclass(frozen=True, slots=True)
class Filter:
    """The options that choose dead jobs of a topic."""

    group: Annotated[str | None, typer.Option("--group", help="Only jobs that this group gave up.")] = None
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only jobs given up for this reason: failed, given_up, deliveries …")
    ] = None
    id: Annotated[str | None, typer.Option("--id", help="Only jobs with this id.")] = None
    since: Annotated[str | None, typer.Option("--since", help=f"Only jobs buried then or later: {WHEN}.")] = None
    until: Annotated[str | None, typer.Option("--until", help=f"Only jobs buried before: {WHEN}.")] = None

    def where(self, session: Session) -> Where:
        """Returns the filter as the client takes it. Raises: InvalidInput."""
        begin, end = parse_range(self.since, self.until, session.now_ms)
        return Where(group=self.group, reason=self.reason, id=self.id, since=begin, until=end)


@app.command("list")
def list_(
    session: Session,
    filter: Filter,
    paging: Paging,
    topic: Topic,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first, not the newest.")] = False,
    wide: Wide = False,
) -> None:
    """List dead jobs, the newest first. `dead show` prints their payload and traceback."""
    with session.client() as client:
        ask = partial(client.dead.list, topic, **filter.where(session), newest_first=not oldest)
        found, following = paging.read(lambda limit, cursor: ask(limit=limit, cursor=cursor))
    session.answer_page([asdict(job) for job in found], _jobs(topic, found, session.now_ms()), following, wide)


@app.command()
def show(
    session: Session,
    topic: Topic,
    dead_id: Annotated[str, typer.Argument(help="The dead job's id from `dead list`.", show_default=False)],
) -> None:
    """Show a dead job in full. Exit code 3: it is not among the dead."""
    with session.client() as client:
        found = client.dead.show(topic, dead_id)
    if session.json:
        say_json(found)
    elif found is None:
        say(f"{dead_id} is not among the dead of {topic}")
    else:
        say(f"{topic}/{found.id} was given up by group {found.group or '-'} after attempt {found.attempt}")
        now_ms = session.now_ms()
        say(f"reason     {found.reason}")
        say(f"first due  {moment(found.first_due_ms, now_ms)}")
        say(f"buried     {moment(found.buried_ms, now_ms)}")
        if found.replays:
            say(f"replayed   {counted(found.replays, 'time')} before")
        say_content(found.payload, found.headers)
        say(found.traceback.rstrip() or found.error)
    if found is None:
        raise typer.Exit(NOT_FOUND)


@app.command()
def replay(
    session: Session,
    filter: Filter,
    topic: Topic,
    dead_ids: DeadIds = None,
    all: All = False,
    rate: Annotated[float | None, typer.Option("--rate", help="Jobs per second; default: all at once.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most.")] = None,
) -> None:
    """Run dead jobs again, in the group that gave them up, from attempt 1.

    A job stays dead while a live job has its id. Exit code 3: a named job is not among the dead.
    """
    where = filter.where(session)
    _check_choice(dead_ids, where, all)
    with session.client() as client:
        if dead_ids:
            _each(session, topic, {one: client.dead.replay_one(topic, one).value for one in dead_ids})
            return
        done = client.dead.replay(topic, **where, all=all, rate=rate, limit=limit)
    again = counted(done.replayed, f"job of {topic} runs again", f"jobs of {topic} run again")
    stay = f", {counted(done.kept, 'stays', 'stay')} dead" if done.kept else ""
    session.answer(done._asdict(), again + stay)


@app.command()
def purge(
    session: Session, filter: Filter, topic: Topic, dead_ids: DeadIds = None, all: All = False, yes: Yes = False
) -> None:
    """Remove dead jobs for good. Asks first, unless jobs are named. Exit code 3: a named job is not among the dead."""
    where = filter.where(session)
    _check_choice(dead_ids, where, all)
    with session.client() as client:
        if dead_ids:
            words = {True: "purged", False: ReplayOutcome.NOT_FOUND.value}
            _each(session, topic, {one: words[client.dead.purge_one(topic, one)] for one in dead_ids})
            return
        if not yes:
            typer.confirm(f"Remove {'all' if all else 'these'} dead jobs of {topic} for good?", abort=True, err=True)
        purged = client.dead.purge(topic, **where, all=all)
    session.answer({"purged": purged}, f"{counted(purged, 'dead job')} of {topic} removed")


def _check_choice(dead_ids: list[str] | None, where: Where, all: bool) -> None:
    chosen = bool(dead_ids) + any(value is not None for value in where.values()) + all
    if chosen != 1:
        raise InvalidInput("DEAD_ID", "name single dead jobs, or give a filter (--group, --id, --since …), or --all")


def _each(session: Session, topic: str, outcomes: dict[str, str]) -> None:
    plain = [{"topic": topic, "dead_id": dead_id, "outcome": outcome} for dead_id, outcome in outcomes.items()]
    session.answer(plain, "\n".join(f"{dead_id} {_WORDS[outcome]}" for dead_id, outcome in outcomes.items()))
    if ReplayOutcome.NOT_FOUND.value in outcomes.values():
        raise typer.Exit(NOT_FOUND)


_WORDS = {
    "replayed": "runs again",
    "purged": "removed",
    "not_found": "is not among the dead: it runs again already, or was removed",
    "alive": "stays dead: a live job has its id",
    "no_record": "stays dead: there is nothing left of it to run",
}


def _jobs(topic: str, found: list[DeadJob], now_ms: int) -> RenderableType:
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
            "buried": lambda job: distance(job.buried_ms, now_ms),
            "error?~": "error",
        },
    )
