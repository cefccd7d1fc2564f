"""All commands in one application, and the one place that turns errors into messages and exit codes.

A command's module is imported when the command runs or its own help is shown: `wheelq --help` imports none of them.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from wheelq import __version__
from wheelq.errors import WheelqError

_TRY = "Try it"
_PRODUCE = "Schedule jobs and look after them"
_RUN = "Run them"
_LOOK = "Look"


class LazyCommand(NamedTuple):
    """A command that is imported on demand."""

    panel: str
    """Its heading in `wheelq --help`."""
    where: str
    """Module of wheelq.cli, and the name of the function or Typer in it."""
    help: str
    """The first paragraph of its help, as `wheelq --help` shows it."""


COMMANDS = {
    "demo": LazyCommand(
        _TRY,
        "demo.command:demo",
        "See it work: 3,000 orders scheduled, cancelled, moved, run, and checked, in half a minute.",
    ),
    "init": LazyCommand(
        _TRY, "init:init", "Write a starter: shop.py with two tasks, and test_shop.py. Nothing is overwritten."
    ),
    "up": LazyCommand(
        _TRY,
        "up:up",
        "Run everything: a server of its own, a scheduler and a worker, each in a process. Needs no Redis.",
    ),
    "bench": LazyCommand(
        _TRY,
        "bench:bench",
        "Measure a server: jobs scheduled per second, how late they start, jobs drained per second.",
    ),
    "guide": LazyCommand(
        _TRY,
        "shipped:guide",
        "Show a page of the guide. Without a name, list the pages.",
    ),
    "schedule": LazyCommand(
        _PRODUCE,
        "jobs:schedule",
        "Schedule one job.",
    ),
    "import": LazyCommand(
        _PRODUCE,
        "importing:import_file",
        "Schedule every line of a file.",
    ),
    "cancel": LazyCommand(
        _PRODUCE, "changes:cancel", "Cancel a waiting job, or all that are due in a range. Asks first for a range."
    ),
    "reschedule": LazyCommand(
        _PRODUCE,
        "changes:reschedule",
        "Give a waiting job a new due time, or move all that are due in a range. Asks first for a range.",
    ),
    "run-now": LazyCommand(
        _PRODUCE,
        "changes:run_now",
        "Run a waiting job now. Exit code 3: no such job; 4: it is with the workers already.",
    ),
    "job": LazyCommand(
        _PRODUCE,
        "jobs:job",
        "Show a job and its state. Exit code 3: no such job is known.",
    ),
    "wait": LazyCommand(
        _PRODUCE,
        "jobs:wait",
        "Wait until a job is done and print its result as JSON. Exit code 1: it was given up, or not done in time.",
    ),
    "rerun": LazyCommand(
        _PRODUCE,
        "jobs:rerun",
        "Run again, in one group, the jobs promoted between two times that the topic's retention still keeps.",
    ),
    "reshard": LazyCommand(
        _PRODUCE, "jobs:reshard", "Change a topic's number of shards, up or down, while jobs wait and run."
    ),
    "recurring": LazyCommand(
        _PRODUCE,
        "recurring:app",
        "Manage recurring jobs, by cron or at an interval.",
    ),
    "dead": LazyCommand(
        _PRODUCE,
        "dead:app",
        "List, replay or remove dead jobs.",
    ),
    "configure": LazyCommand(
        _PRODUCE, "topics:configure", "Change settings of a live topic, or create a new topic with them."
    ),
    "pause": LazyCommand(
        _PRODUCE,
        "topics:pause",
        "Pause a topic: nothing is promoted or started until it is resumed. Jobs can still be scheduled, and wait.",
    ),
    "resume": LazyCommand(
        _PRODUCE, "topics:resume", "Resume a paused topic. Jobs that fell due meanwhile run at once, earliest first."
    ),
    "scheduler": LazyCommand(
        _RUN,
        "process:scheduler",
        "Run a scheduler node until SIGINT or SIGTERM. Start as many as you like: each shard has one leader.",
    ),
    "worker": LazyCommand(
        _RUN,
        "process:worker",
        "Run a worker until SIGINT or SIGTERM; running handlers may finish then. Waits for a server that is away.",
    ),
    "server": LazyCommand(
        _RUN,
        "serve:server",
        "Run the delay service over HTTP until SIGINT or SIGTERM; requests in flight may finish then.",
    ),
    "callbacks": LazyCommand(
        _RUN,
        "serve:callbacks",
        "Call the receivers of due jobs until SIGINT or SIGTERM; requests in flight may finish then.",
    ),
    "secret": LazyCommand(
        _RUN,
        "serve:secret",
        "Make a secret for signing callbacks (Standard Webhooks), for the register and the receiver.",
    ),
    "keys": LazyCommand(
        _RUN,
        "serve:keys",
        "API keys of the HTTP server: make, list, rotate, revoke.",
    ),
    "topics": LazyCommand(
        _LOOK,
        "topics:topics",
        "Show every topic with its job counts.",
    ),
    "topic": LazyCommand(
        _LOOK,
        "topics:topic",
        "List and remove topics.",
    ),
    "group": LazyCommand(
        _LOOK,
        "topics:group",
        "List and remove the consumer groups of a topic.",
    ),
    "jobs": LazyCommand(
        _LOOK,
        "jobs:jobs",
        "List the jobs of a topic in one state; done and dead ones the latest first.",
    ),
    "forecast": LazyCommand(
        _LOOK, "topics:forecast", "Show how many jobs fall due in the next second, minute, hour and so on."
    ),
    "stats": LazyCommand(
        _LOOK,
        "stats:stats",
        "Show topics, scheduler nodes and workers.",
    ),
    "top": LazyCommand(
        _LOOK,
        "top:top",
        "Show live rates and lateness per scheduler and handler, the fullest topics, and the next due jobs.",
    ),
    "doctor": LazyCommand(
        _LOOK,
        "stats:doctor",
        "Check the server and its jobs, and say what is wrong and what can be lost.",
    ),
    "health": LazyCommand(
        _LOOK,
        "health:health",
        "Ask a wheelq process whether it is healthy. Exit code 1: it is not, or it does not answer.",
    ),
    "config": LazyCommand(
        _LOOK,
        "config:config",
        "Show every setting in force and where it comes from: option, environment variable, file or default.",
    ),
    "script": LazyCommand(
        _LOOK, "shipped:script", "Print a complete Lua script for EVAL or SCRIPT LOAD, for programs in other languages."
    ),
    "outbox": LazyCommand(
        _LOOK,
        "outbox:outbox",
        "Show the jobs that an outbox keeps until the server is back, and the jobs that it has set aside.",
    ),
}
"""Every command, in the order of `wheelq --help`."""


class Commands(TyperGroup):
    """Imports commands on demand; shows every WheelqError as a message, or with `--debug` as a traceback."""

    _lists_commands = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # for "did you mean"

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = COMMANDS.get(cmd_name)
        if command is None:
            return None
        if self._lists_commands:
            return TyperCommand(cmd_name, help=command.help, rich_help_panel=command.panel)
        return load_command(cmd_name, command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._lists_commands = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists_commands = False

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WheelqError as error:
            if ctx.params.get("debug"):
                raise
            from wheelq.cli import output

            output.complain(error)
            raise typer.Exit(output.exit_code(error)) from error


def load_command(name: str, command: LazyCommand) -> Any:
    """Returns the click command, with its module imported."""
    module, _, attribute = command.where.partition(":")
    found = getattr(import_module(f"wheelq.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = MARKUP
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(rich_markup_mode=MARKUP, add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, rich_help_panel=command.panel)(found)
    return typer.main.get_command(alone)


MARKUP: Any = "markdown"  # joins the lines of a docstring's paragraph

app = typer.Typer(
    cls=Commands,
    help="Runs jobs at the moment they are due: durable in Redis, exact to a few milliseconds, never early.",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
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
