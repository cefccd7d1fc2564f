"""All commands in one application, and the one place that turns errors into messages and exit codes.

A command's module is imported when the command runs or its own help is shown: `wheelq --help` imports none of them.
"""

from __future__ import annotations

import logging
import re
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from wheelq import __version__
from wheelq.errors import ConfigurationError, WheelqError

_PANELS = {
    "Try it": {
        "demo": "demo.command:demo",
        "init": "init:init",
        "up": "up:up",
        "guide": "shipped:guide",
    },
    "Schedule jobs and look after them": {
        "schedule": "jobs:schedule",
        "import": "importing:import_jobs",
        "cancel": "changes:cancel",
        "reschedule": "changes:reschedule",
        "run-now": "changes:run_now",
        "job": "jobs:job",
        "wait": "jobs:wait",
        "rerun": "jobs:rerun",
        "reshard": "jobs:reshard",
        "recurring": "recurring:app",
        "dead": "dead:app",
        "bundle": "bundles:app",
        "configure": "topics:configure",
        "pause": "topics:pause",
        "resume": "topics:resume",
    },
    "Run them": {
        "scheduler": "process:scheduler",
        "worker": "process:worker",
        "server": "serve:server",
        "callbacks": "serve:callbacks",
        "forward": "forward:forward",
        "courier": "outbox:courier",
        "secret": "serve:secret",
        "keys": "serve:keys",
    },
    "Look": {
        "topics": "topics:topics",
        "topic": "topics:topic",
        "group": "topics:group",
        "jobs": "jobs:jobs",
        "forecast": "topics:forecast",
        "stats": "stats:stats",
        "top": "top:top",
        "doctor": "stats:doctor",
        "check": "check:check_payloads",
        "health": "health:health",
        "config": "config:config",
        "script": "shipped:script",
        "outbox": "outbox:outbox",
    },
}
"""The commands below each heading of `wheelq --help`: module in wheelq.cli, and function or Typer in it."""


class LazyCommand(NamedTuple):
    """A command that is imported on demand."""

    panel: str
    """Its heading in `wheelq --help`."""
    module: str
    """Where it is in wheelq.cli."""
    attribute: str
    """The name of the function or Typer in the module."""

    @property
    def help(self) -> str:
        """The first paragraph of its help, read from the source, because importing every module takes a second."""
        source = Path(__file__).parent.joinpath(f"{self.module.replace('.', '/')}.py").read_text("utf-8")
        docstring = source.partition(f"\ndef {self.attribute}(")[2].partition('"""')[2]
        of_group = source.partition(f'\n{self.attribute} = typer.Typer(help="')[2]
        return " ".join(re.split('\n\n|"', docstring or of_group, maxsplit=1)[0].split())


COMMANDS = {
    name: LazyCommand(panel, *where.split(":"))
    for panel, commands in _PANELS.items()
    for name, where in commands.items()
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
        except OSError as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):  # the other end of a pipe reads no more
                raise
            from wheelq.cli import output

            output.say_aside(f"{error.filename or 'a file, or the output,'} cannot be used: {error.strerror or error}")
            raise typer.Exit(output.FAILED) from error


def load_command(name: str, command: LazyCommand) -> Any:
    """Returns the click command, with its module imported."""
    found = getattr(import_module(f"wheelq.cli.{command.module}"), command.attribute)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = MARKUP
        for one in found.registered_commands:
            one.callback = with_options(one.callback)
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(rich_markup_mode=MARKUP, add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, rich_help_panel=command.panel)(with_options(found))
    return typer.main.get_command(alone)


def with_options(command: Any) -> Any:
    """Returns the command with an option for each field of its parameters that are dataclasses, after its own.

    So options that many commands share are declared once: `options.Session`.
    """
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not shared:
        return command
    parameters = [
        each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
        for each in signature(command).parameters.values()
        if each.name not in shared
    ]
    for kind in shared.values():
        types = get_type_hints(kind, include_extras=True)
        parameters += [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=types[one.name])
            for one in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in shared.items()}
        command(**made, **given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


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
    env_file: Annotated[
        Path | None,
        typer.Option(
            "--env-file",
            envvar="WHEELQ_ENV_FILE",
            help="A .env file with environment variables. Variables that are already set keep their values.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
) -> None:
    if debug:
        logging.getLogger("wheelq").setLevel(logging.DEBUG)
    if env_file is not None:
        from dotenv import load_dotenv

        try:
            load_dotenv(env_file)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{env_file} is not UTF-8 text: {error}") from error
