"""All commands in one application, and the one place that turns errors into messages and exit codes.

A command's module is imported when the command runs or its own help is shown: `wheelq --help` imports none of them.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from wheelq import __version__
from wheelq.cli.commands import COMMANDS, LazyCommand
from wheelq.errors import WheelqError


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
