"""outbox: shows and delivers the jobs that a producer kept while the server was away."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from wheelq.base.plural import counted
from wheelq.cli.options import Session
from wheelq.cli.output import distance, moment, say, say_json, stdout, table
from wheelq.client import Client
from wheelq.errors import ConfigurationError
from wheelq.producer.outbox.kept import Kept
from wheelq.producer.outbox.store import Outbox
from wheelq.settings import OutboxSettings

SHOWN = 10


def outbox(
    session: Session,
    path: Annotated[
        Path | None, typer.Argument(help="The outbox file; else the settings'.", show_default=False)
    ] = None,
    deliver: Annotated[bool, typer.Option("--deliver", help="Deliver the waiting jobs first.")] = False,
) -> None:
    """Show the jobs that an outbox keeps until the server is back, and the jobs that it has set aside."""
    settings = session.settings.outbox
    file = Path(path or settings.path or "")
    if not (path or settings.path):
        raise ConfigurationError("no outbox named: give its path, or set path in the settings file's [outbox] table")
    if not file.is_file():
        raise ConfigurationError(f"there is no outbox at {file}")
    if deliver:
        with Client.connect(session.url, session.settings, outbox=file) as client:
            client.deliver_outbox()
    kept = Outbox(OutboxSettings(path=str(file)))
    _show(session, kept)
    kept.close()


def _show(session: Session, kept: Outbox) -> None:
    info, next_jobs, rejected = kept.info(), kept.jobs(SHOWN), kept.rejected(SHOWN)
    if session.json:
        aside = [job._asdict() for job in rejected]
        say_json({**asdict(info), "next": [_job(job) for job in next_jobs], "put_aside": aside})
        return
    now_ms = session.now_ms()
    if info.oldest_kept_ms is None:
        say("Nothing waits.")
    else:
        waiting = counted(info.jobs, "job waits", "jobs wait")
        say(f"{waiting} ({info.bytes:,} bytes), the first since {moment(info.oldest_kept_ms, now_ms)}.")
    console = stdout()
    if info.topics:
        console.print(table("TOPIC", ">JOBS", rows=info.topics.items()))
        waits = ((job.topic, job.id, distance(job.due_ms, now_ms)) for job in next_jobs)
        console.print(table("TOPIC", "ID", "DUE", rows=waits, title="\nDelivered next"))
    if rejected:
        refused = ((job.topic, job.id, distance(job.due_ms, now_ms), job.error) for job in rejected)
        console.print(table("TOPIC", "ID", "DUE?", "WHY~", rows=refused, title=f"\nSet aside: {info.rejected:,}"))


def _job(job: Kept) -> dict[str, object]:
    return {name: value for name, value in job._asdict().items() if name not in ("record", "asked")}
