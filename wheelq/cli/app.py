"""All commands in one application, and the one place where errors become words and exit codes."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wheelq import __version__
from wheelq.cli import (
    after,
    bench,
    control,
    dead,
    importing,
    look,
    outbox,
    output,
    produce,
    recurring,
    run,
    scripts,
    serve,
)
from wheelq.cli.callbacks import callbacks, secret
from wheelq.cli.demo import demo
from wheelq.errors import WheelqError


class Commands(TyperGroup):
    """Shows every WheelqError as a sentence, unless the traceback was asked for."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WheelqError as error:
            if ctx.params.get("debug"):
                raise
            output.complain(error)
            raise typer.Exit(output.exit_code(error)) from error


app = typer.Typer(
    cls=Commands,
    help="Runs jobs at the moment they are due: durable in Redis, exact to a few milliseconds, never early.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # joins the lines of a docstring's paragraph
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wheelq {__version__}")
        raise typer.Exit


@app.callback()
def _wheelq(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="WHEELQ_DEBUG", help="Show tracebacks and debug messages.")
    ] = False,
) -> None:
    if debug:
        logging.getLogger("wheelq").setLevel(logging.DEBUG)


_TRY = "Try it"
_PRODUCE = "Schedule jobs and look after them"
_RUN = "Run them"
_LOOK = "Look"

app.command(rich_help_panel=_TRY)(demo)
app.command(rich_help_panel=_TRY)(run.up)
app.command(rich_help_panel=_TRY)(bench.bench)
app.command(rich_help_panel=_PRODUCE)(produce.schedule)
app.command("import", rich_help_panel=_PRODUCE)(importing.import_file)
app.command(rich_help_panel=_PRODUCE)(produce.cancel)
app.command(rich_help_panel=_PRODUCE)(produce.reschedule)
app.command("run-now", rich_help_panel=_PRODUCE)(produce.run_now)
app.command(rich_help_panel=_PRODUCE)(produce.job)
app.command(rich_help_panel=_PRODUCE)(after.wait)
app.command(rich_help_panel=_PRODUCE)(after.replay)
app.command(rich_help_panel=_PRODUCE)(produce.reshard)
app.add_typer(recurring.app, name="recurring", rich_help_panel=_PRODUCE)
app.add_typer(dead.app, name="dead", rich_help_panel=_PRODUCE)
app.command(rich_help_panel=_PRODUCE)(control.configure)
app.command(rich_help_panel=_PRODUCE)(control.pause)
app.command(rich_help_panel=_PRODUCE)(control.resume)
app.command(rich_help_panel=_RUN)(run.scheduler)
app.command(rich_help_panel=_RUN)(run.worker)
app.command(rich_help_panel=_RUN)(serve.server)
app.command(rich_help_panel=_RUN)(callbacks)
app.command(rich_help_panel=_RUN)(secret)
app.add_typer(serve.keys, name="keys", rich_help_panel=_RUN)
app.command(rich_help_panel=_LOOK)(look.topics)
app.command(rich_help_panel=_LOOK)(control.forecast)
app.command(rich_help_panel=_LOOK)(look.stats)
app.command(rich_help_panel=_LOOK)(look.doctor)
app.command(rich_help_panel=_LOOK)(scripts.script)
app.command(rich_help_panel=_LOOK)(outbox.outbox)
