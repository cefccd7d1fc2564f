"""Options and arguments that several commands share, and the clients made from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheelq.cli.completion import complete_topic
from wheelq.settings import Settings, settings_in_force

if TYPE_CHECKING:
    from wheelq.admin import Inspector
    from wheelq.client import Client

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="WHEELQ_URL",
        help="The server: redis://host:port, rediss://… for TLS, unix:///path.",
        show_envvar=True,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="WHEELQ_CONFIG", help="Settings file (TOML).", metavar="FILE"),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for scripts.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show every column whole, however long the lines get.")]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error; to stderr.", metavar="LEVEL")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="text, or json: one object per line, with the job.", metavar="FORMAT")
]
Topic = Annotated[str, typer.Argument(help="The topic's name.", show_default=False, autocompletion=complete_topic)]
JobId = Annotated[
    str, typer.Argument(help="The job's id: its key, or what schedule printed.", metavar="ID", show_default=False)
]
MaybeId = Annotated[str | None, typer.Argument(help="The job's id.", metavar="[ID]", show_default=False)]
Delay = Annotated[
    str | None, typer.Option("--delay", help="How long from now: 30m, 90s, 1h30m, 500ms, 1d, or seconds.")
]
At = Annotated[
    str | None, typer.Option("--at", help="When, in ISO 8601 with a time zone: 2030-01-31T09:00+01:00, or …Z.")
]


def settings_of(config: Path | None) -> Settings:
    """Returns the settings in force: environment variables over `config` (else WHEELQ_CONFIG) over the defaults."""
    return settings_in_force(config)


def client_of(url: str | None, config: Path | None) -> Client:
    """Returns a client for these options."""
    from wheelq.client import Client  # on demand: --help needs no redis

    return Client.connect(url, settings_of(config))


def inspector_of(url: str | None, config: Path | None) -> Inspector:
    """Returns an inspector for these options."""
    from wheelq.admin import Inspector

    return Inspector.connect(url, settings_of(config))
