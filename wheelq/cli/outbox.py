"""outbox: shows what an outbox holds. courier: delivers from an outbox in a SQL database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheelq.base.plural import counted
from wheelq.cli.options import Session
from wheelq.cli.output import distance, moment, say, say_json, stdout
from wheelq.cli.output import table as table_
from wheelq.cli.process import Daemon, logger
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput, ServerError, Unavailable
from wheelq.producer.outbox.kept import Kept
from wheelq.producer.outbox.store import Outbox
from wheelq.settings import OutboxSettings, resolve_url

if TYPE_CHECKING:
    from sqlalchemy import Engine

SHOWN = 10
DATABASE = "WHEELQ_DATABASE"
_HELP = "SQLAlchemy's URL of the database: postgresql+psycopg://user:password@host/name."
Database = Annotated[str | None, typer.Option("--database", envvar=DATABASE, help=_HELP, show_default=False)]
Table = Annotated[str, typer.Option("--table", help="The outbox's table, perhaps with its schema: app.wheelq_outbox.")]
TABLE = "wheelq_outbox"


def outbox(
    session: Session,
    path: Annotated[
        Path | None, typer.Argument(help="The outbox file; else the settings'.", show_default=False)
    ] = None,
    deliver: Annotated[bool, typer.Option("--deliver", help="Deliver the waiting jobs first.")] = False,
    database: Database = None,
    table: Table = TABLE,
    retry: Annotated[bool, typer.Option("--retry", help="Take up again what was put aside in the database.")] = False,
) -> None:
    """Show the jobs that an outbox keeps until the server is back, and the jobs that it has set aside.

    The outbox is a producer's file; or, with --database, a table whose jobs `wheelq courier` delivers.
    """
    if database and path is None:
        if deliver:
            raise InvalidInput("deliver", "is for a file: name it; a table's calls are delivered by `wheelq courier`")
        _show_table(session, database, table, retry)
        return
    if retry:
        raise InvalidInput("retry", "is for a table: name its --database, and no file")
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


def _show_table(session: Session, database: str, table: str, retry: bool) -> None:
    from wheelq.sql.rows import Rows
    from wheelq.sql.table import Tables

    kept = Rows(engine_of(database), Tables(table))
    try:
        kept.check()
    except Unavailable as error:
        wrong = error.__cause__ if isinstance(error.__cause__, ConfigurationError) else None
        raise (wrong or ServerError(str(error))) from None  # not Unavailable, whose remedy is about Redis
    if retry:
        kept.retry()
    info, waits, aside = kept.info(), kept.shown(aside=False), kept.shown(aside=True)
    if session.json:
        say_json({**info._asdict(), "next": waits, "put_aside": aside})
        return
    waiting = counted(info.waiting, "call waits", "calls wait")
    say(f"{waiting}, the first for {info.oldest_s:.1f} s." if info.waiting else "Nothing waits.")
    console = stdout()
    for title, rows in (("Delivered next", waits), (f"Set aside: {info.aside:,}", aside)):
        shown = ((row["kind"], row["topic"], row["job_id"], row["due"], row["error"] or "") for row in rows)
        if rows:
            console.print(table_("CALL", "TOPIC", "ID", "DUE?", "WHY~", rows=shown, title=f"\n{title}"))


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
        console.print(table_("TOPIC", ">JOBS", rows=info.topics.items()))
        waits = ((job.topic, job.id, distance(job.due_ms, now_ms)) for job in next_jobs)
        console.print(table_("TOPIC", "ID", "DUE", rows=waits, title="\nDelivered next"))
    if rejected:
        refused = ((job.topic, job.id, distance(job.due_ms, now_ms), job.error) for job in rejected)
        console.print(table_("TOPIC", "ID", "DUE?", "WHY~", rows=refused, title=f"\nSet aside: {info.rejected:,}"))


def _job(job: Kept) -> dict[str, object]:
    return {name: value for name, value in job._asdict().items() if name not in ("record", "asked")}


def courier(
    daemon: Daemon,
    database: Database = None,
    table: Table = TABLE,
    create: Annotated[bool, typer.Option("--create", help="Make the tables unless they exist, and end.")] = False,
) -> None:
    """Deliver the jobs of an outbox in a SQL database until SIGINT or SIGTERM. Waits for servers that are away.

    Start as many as you like: one delivers, and the others stand by. --create needs no Redis, and may be repeated.
    """
    engine = engine_of(database)
    from wheelq.sql.courier import SqlCourier
    from wheelq.sql.outbox import SqlOutbox

    if create:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            SqlOutbox(engine, table=table).create()
        except SQLAlchemyError as error:
            raise ConfigurationError(f"the tables could not be made: {error}") from error
        say(f"the outbox {table} is there")
        return
    settings = daemon.begin()
    resolve_url(daemon.url, settings)
    made = SqlCourier.connect(daemon.url, engine, settings, table=table)

    async def run() -> None:
        logger.info("courier %s runs for %s", made.name, made.place)
        await made.run()

    daemon.run(settings, run, made.stop)
    logger.info("courier %s has stopped; it delivered %s", made.name, counted(made.delivered, "call"))


def engine_of(database: str | None) -> Engine:
    """Returns the engine for --database. Raises: ConfigurationError."""
    if not database:
        raise ConfigurationError(f"no database named: give --database, or set {DATABASE}")
    try:
        from wheelq.sql import courier
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    return courier.engine_of(database)
