"""cancel, reschedule, run-now: change a waiting job, or with `--since` and `--until` all that are due in a range."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wheelq.base.plural import counted
from wheelq.cli.options import At, Delay, JobId, MaybeId, Session, Topic, Yes
from wheelq.cli.output import NOT_FOUND, TOO_LATE
from wheelq.cli.values import WHEN, parse_due, parse_range
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration
from wheelq.model.job import BulkProgress, CancelOutcome, RescheduleOutcome, RunNowOutcome

if TYPE_CHECKING:
    from wheelq.client import Client

Report = Callable[[BulkProgress], None]
Change = Callable[..., BulkProgress]
Outcome = CancelOutcome | RescheduleOutcome | RunNowOutcome

_WORDS = {
    "cancelled": "cancelled: it will not run",
    "rescheduled": "rescheduled",
    "promoted": "is with the workers now",
    "cancelling": "runs: its worker was asked to cancel it",
    "paused": "is due now, and runs when its topic is resumed",
    "held_back": "is due now, and goes before the others of its key, which is at its limit",
    "running": "is with the workers already, or waits for a retry: too late",
    "not_found": "not found: no live job has this id",
}
_EXIT_CODES = {"not_found": NOT_FOUND, "running": TOO_LATE}


@dataclass(frozen=True, slots=True)
class Due:
    """The options that choose all jobs of a topic that are due in a range, in place of a single one."""

    since: Annotated[
        str | None,
        typer.Option("--since", help=f"In place of an id: all jobs due then or later. {WHEN}.", metavar="TIME"),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help=f"In place of an id: all jobs due before. {WHEN}.", metavar="TIME")
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", help="Continue an interrupted change, by the name in its message.")
    ] = None
    yes: Yes = False

    def check_choice(self, id: str | None) -> None:
        """Check that a command has either an id or a range. Raises: InvalidInput."""
        if (id is None) == (self.since is None and self.until is None):
            raise InvalidInput("ID", "name one job, or all that are due in a range with --since, --until or both")

    def change(self, session: Session, client: Client, topic: str, ask: str, done: str, change: Change) -> None:
        """Ask for confirmation, change the jobs of the range, show the progress, and print how many jobs were changed.

        `ask` is the first word of the question, `done` says what happened to the jobs.
        """
        begin, end = parse_range(self.since, self.until, session.now_ms)
        if not self.yes:
            waiting = client.count_due(topic, since=begin, until=end)
            jobs = counted(waiting, f"job that waits in {topic}", f"jobs that wait in {topic}")
            most = "up to " if client.topic(topic).retrying else ""  # they are counted, and stay
            typer.confirm(f"{ask} {most}{jobs} in this range?", abort=True, err=True)
        with _shown(done) as report:
            progress = change(since=begin, until=end, name=self.name, progress=report)
        session.answer({"topic": topic, **progress._asdict()}, f"{counted(progress.jobs, 'job')} of {topic} {done}")


def cancel(
    session: Session,
    due: Due,
    topic: Topic,
    id: MaybeId = None,
    running: Annotated[bool, typer.Option("--running", help="If it runs now, ask its worker to cancel it.")] = False,
) -> None:
    """Cancel a waiting job, or all that are due in a range. Asks first for a range.

    wheelq cancel orders order-42

    wheelq cancel orders --since 2030-01-31T09:00Z --until 2030-01-31T12:00Z

    Exit code 3: no such job; 4: too late, it is with the workers.
    """
    due.check_choice(id)
    if running and id is None:
        raise InvalidInput("--running", "is for one job: a range has waiting jobs only")
    with session.client() as client:
        if id is not None:
            _answer(session, topic, id, client.cancel(topic, id, running=running))
            return
        due.change(session, client, topic, "Cancel", "cancelled", partial(client.cancel_due, topic))


def reschedule(
    session: Session,
    due: Due,
    topic: Topic,
    id: MaybeId = None,
    delay: Delay = None,
    at: At = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Move each job of a range by this: 30m later, or -30m earlier.")
    ] = None,
) -> None:
    """Give a waiting job a new due time, or move all that are due in a range. Asks first for a range.

    wheelq reschedule orders order-42 --delay 30m

    wheelq reschedule orders --until +2h --by 1d

    Exit code 3: no such job; 4: too late, it is with the workers.
    """
    due.check_choice(id)
    shift = None if by is None else parse_duration(by, "by")
    if id is not None and shift is not None:
        raise InvalidInput("--by", "moves the jobs of a range: give --delay or --at for a single job")
    seconds, instant = (None, None) if shift is not None and delay is None and at is None else parse_due(delay, at)
    with session.client() as client:
        if id is not None:
            _answer(session, topic, id, client.reschedule(topic, id, delay=seconds, at=instant))
            return
        move = partial(client.reschedule_due, topic, by=shift, delay=seconds, at=instant)
        due.change(session, client, topic, "Move", "moved", move)


def run_now(session: Session, topic: Topic, id: JobId) -> None:
    """Run a waiting job now. Exit code 3: no such job; 4: it is with the workers already."""
    with session.client() as client:
        _answer(session, topic, id, client.run_now(topic, id))


@contextmanager
def _shown(done: str) -> Iterator[Report]:
    """Shows progress on a terminal, on stderr."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    with Console(stderr=True).status("") as status:
        yield lambda progress: status.update(f"{counted(progress.jobs, 'job')} {done} so far")


def _answer(session: Session, topic: str, id: str, outcome: Outcome) -> None:
    session.answer({"topic": topic, "id": id, "outcome": outcome.value}, f"{topic}/{id} {_WORDS[outcome.value]}")
    if outcome.value in _EXIT_CODES:
        raise typer.Exit(_EXIT_CODES[outcome.value])
