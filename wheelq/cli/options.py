"""Options and arguments that several commands share, how a shell completes them, and the clients made from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wheelq.errors import WheelqError
from wheelq.settings import ConnectionSettings, ServerSettings, Settings, settings_in_force
from wheelq.settings.declaration import declarations

if TYPE_CHECKING:
    from wheelq.admin import Inspector
    from wheelq.client import Client

UP_PORT = 7379
"""The port of the server that `wheelq up` starts: not 6379, where this machine's own Redis may listen."""
COMPLETION_MS = 500
"""How long the server may take to complete a topic."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the topics whose names begin with `incomplete`, for a shell: `wheelq --install-completion` sets it up.

    If the server does not answer soon, nothing is completed, without a message.
    """
    from wheelq.protocol.calls import registry  # on demand: --help needs no redis
    from wheelq.protocol.keys import Keys
    from wheelq.transport import Transport, server_address

    try:
        settings = settings_in_force(ctx.params.get("config"))
        limits = ConnectionSettings(connect_timeout_ms=COMPLETION_MS, reply_timeout_ms=COMPLETION_MS)
        client = replace(settings.client, replicated_timeout_ms=COMPLETION_MS // 2)  # must be less than that of replies
        hasty = replace(settings, connection=limits, client=client)
        transport = Transport(server_address(ctx.params.get("url"), hasty))
        try:
            found = transport.send(registry.topics(Keys(settings.prefix)))
        finally:
            transport.close()
    except (WheelqError, OSError):
        return []
    return sorted(name for name in {*found.settings, *found.unreadable} if name.startswith(incomplete))


def overrides(owner: type[Settings | ServerSettings], name: str, metavar: str | None = None) -> Any:
    """Returns the option that overrides a setting for this process, with its declared meaning."""
    one = declarations(owner)[name]
    help = f"{one.brief}. Default: the setting, {one.default}."
    return typer.Option(f"--{name.replace('_', '-')}", help=help, metavar=metavar)


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
LogLevel = Annotated[str | None, overrides(Settings, "log_level", "LEVEL")]
LogFormat = Annotated[str | None, overrides(Settings, "log_format", "FORMAT")]
Topic = Annotated[str, typer.Argument(help="The topic's name.", show_default=False, autocompletion=complete_topic)]
JobId = Annotated[
    str, typer.Argument(help="The job's id: its key, or what schedule printed.", metavar="ID", show_default=False)
]
MaybeId = Annotated[str | None, typer.Argument(help="The job's id.", metavar="[ID]", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Remove it despite live workers, waiting or recurring jobs.")]
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
