"""bundle show, cancel: commands for bundles of jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from wheelq.base.plural import counted
from wheelq.cli.options import Session, Yes
from wheelq.cli.output import NOT_FOUND, say, say_json

app = typer.Typer(help="Look at a bundle of jobs, or cancel it.", no_args_is_help=True)

BundleId = Annotated[str, typer.Argument(metavar="BUNDLE", help="The id of the bundle.", show_default=False)]


@app.command()
def show(session: Session, bundle: BundleId) -> None:
    """Show how many members of a bundle are done, dead, cancelled and left. Exit code 3: it is not known."""
    with session.client() as client:
        found = client.bundle(bundle)
    if session.json:
        say_json(found)
    elif found is None:
        say(f"{bundle} is not known: it never was, or it ended longer ago than is kept")
    else:
        when = "all are done" if found.when == "all_done" else "all have ended"
        say(f"{bundle} is {found.state}; when {when}, {found.follower_topic}/{found.follower_id} follows")
        for name in ("members", "done", "dead", "cancelled", "left"):
            say(f"{name:<10} {getattr(found, name):,}")
        for job in found.dead_jobs:
            say(f"dead       {job.topic}/{job.id}: {job.error or job.reason}")
    if found is None:
        raise typer.Exit(NOT_FOUND)


@app.command()
def cancel(session: Session, bundle: BundleId, yes: Yes = False) -> None:
    """Cancel a bundle: nothing follows it, and its members that wait are cancelled; running ones go on.

    Exit code 3: it is not known.
    """
    if not yes:
        typer.confirm(f"Cancel {bundle} and all of its members that wait?", abort=True, err=True)
    with session.client() as client:
        cancelled = client.cancel_bundle(bundle)
    session.answer({"bundle": bundle, "cancelled": cancelled}, f"{counted(cancelled, 'member')} cancelled")
