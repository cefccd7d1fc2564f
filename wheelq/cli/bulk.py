"""cancel and reschedule with `--since` and `--until`: all waiting jobs of a topic that are due in a range."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from wheelq.base.clock import wall_ms
from wheelq.base.plural import counted
from wheelq.cli.output import say, say_json
from wheelq.cli.values import WHEN, parse_moment
from wheelq.errors import InvalidInput
from wheelq.model.bulk import BulkProgress

if TYPE_CHECKING:
    from wheelq.client import Client

Since = Annotated[
    str | None, typer.Option("--since", help=f"In place of an id: all jobs due then or later. {WHEN}.", metavar="TIME")
]
Until = Annotated[
    str | None, typer.Option("--until", help=f"In place of an id: all jobs due before. {WHEN}.", metavar="TIME")
]
Name = Annotated[str | None, typer.Option("--name", help="Continue an interrupted change, by the name in its message.")]
Report = Callable[[BulkProgress], None]
Change = Callable[[datetime | None, datetime | None, Report], BulkProgress]


def check_choice(id: str | None, since: str | None, until: str | None) -> None:
    """Check that a command has either an id or a range. Raises: InvalidInput."""
    if (id is None) == (since is None and until is None):
        raise InvalidInput("ID", "name one job, or all that are due in a range with --since, --until or both")


def change_range(
    client: Client,
    topic: str,
    since: str | None,
    until: str | None,
    ask: str | None,
    done: str,
    json: bool,
    change: Change,
) -> None:
    """Ask for confirmation, change the jobs of the range, show the progress, and print how many jobs were changed.

    `ask` is the first word of the question; None: do not ask. `done` says what happened to the jobs.
    """
    now_ms = wall_ms()
    begin, end = (None if text is None else parse_moment(text, now_ms) for text in (since, until))
    if ask is not None:
        waiting = client.count_due(topic, since=begin, until=end)
        jobs = counted(waiting, f"job that waits in {topic}", f"jobs that wait in {topic}")
        typer.confirm(f"{ask} {jobs} in this range?", abort=True, err=True)
    with _shown(done) as report:
        progress = change(begin, end, report)
    if json:
        say_json({"topic": topic, **progress._asdict()})
    else:
        say(f"{counted(progress.jobs, 'job')} of {topic} {done}")


@contextmanager
def _shown(done: str) -> Iterator[Report]:
    """Shows progress on a terminal, on stderr."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    with Console(stderr=True).status("") as status:
        yield lambda progress: status.update(f"{counted(progress.jobs, 'job')} {done} so far")
