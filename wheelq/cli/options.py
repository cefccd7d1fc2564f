"""Options and arguments that several commands have, and what they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wheelq.client import Client
from wheelq.inspector import Inspector
from wheelq.settings import Settings

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
LogLevel = Annotated[
    str, typer.Option("--log-level", help="debug, info, warning or error; to stderr.", metavar="LEVEL")
]
LogFormat = Annotated[
    str, typer.Option("--log-format", help="text, or json: one object per line, with the job.", metavar="FORMAT")
]
Topic = Annotated[str, typer.Argument(help="The topic's name.", show_default=False)]
JobId = Annotated[
    str, typer.Argument(help="The job's id: its key, or what schedule answered.", metavar="ID", show_default=False)
]
Delay = Annotated[
    str | None, typer.Option("--delay", help="How long from now: 30m, 90s, 1h30m, 500ms, 1d, or seconds.")
]
At = Annotated[
    str | None, typer.Option("--at", help="When, in ISO 8601 with a time zone: 2030-01-31T09:00+01:00, or …Z.")
]


def settings_of(config: Path | None) -> Settings:
    """The settings file's, or the defaults."""
    return Settings.load(config) if config else Settings()


def client_of(url: str | None, config: Path | None) -> Client:
    """A client as the options say."""
    return Client.connect(url, settings_of(config))


def inspector_of(url: str | None, config: Path | None) -> Inspector:
    """An inspector as the options say."""
    return Inspector.connect(url, settings_of(config))
