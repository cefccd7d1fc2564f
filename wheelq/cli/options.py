"""Options and arguments that several commands share, how a shell completes them, and the clients made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from rich.live import Live

from wheelq.base.clock import wall_ms
from wheelq.cli.output import say, say_json, stdout
from wheelq.errors import ConfigurationError, ServerError, WheelqError
from wheelq.model.checks import PAGE_LIMIT
from wheelq.settings import ConnectionSettings, ServerSettings, Settings, settings_in_force
from wheelq.settings.declaration import declarations

if TYPE_CHECKING:
    from wheelq.admin import Inspector
    from wheelq.client import Client
    from wheelq.model.dead import DeadPage
    from wheelq.model.state import JobPage

T = TypeVar("T")

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
Attempts = Annotated[int | None, typer.Option("--attempts", help="How many attempts it gets, the first included.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="How long each attempt may take: 30s, 5m, or seconds.")]
MaxWait = Annotated[
    str | None,
    typer.Option("--max-wait", help="With --on-duplicate replace: put off at most this long after the first."),
]
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
Payload = Annotated[
    str | None, typer.Argument(help="JSON; '-' reads it from stdin. Default: null.", show_default=False)
]
Headers = Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; may be repeated.")]
Delay = Annotated[
    str | None, typer.Option("--delay", help="How long from now: 30m, 90s, 1h30m, 500ms, 1d, or seconds.")
]
At = Annotated[
    str | None,
    typer.Option("--at", help="When: 2030-01-31T09:00+01:00, or …Z (ISO 8601), +30m from now, or Unix seconds."),
]


@dataclass(frozen=True, slots=True)
class Paging:
    """The options of commands that list jobs."""

    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue where the last list ended.")] = None

    def read(
        self, ask: Callable[[int, str | None], DeadPage | JobPage], most: int | None = None
    ) -> tuple[list[Any], str | None]:
        """Returns jobs, and where the next list continues. `ask` is called with a limit and a cursor for each page.

        `most`: how many pages are read; None: as many as it takes.
        """
        found: list[Any] = []
        cursor = self.cursor
        for _ in count() if most is None else range(most):
            if len(found) >= self.limit:
                break
            page = ask(min(PAGE_LIMIT, self.limit - len(found)), cursor)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
        return found, cursor


@dataclass(frozen=True, slots=True)
class Session:
    """The options of commands that talk to a server, and what follows from them: settings, clients, the answer.

    A command takes it as a parameter; `app` makes an option of each field.
    """

    url: Url = None
    config: Config = None
    json: Json = False

    @property
    def settings(self) -> Settings:
        """The settings in force: environment variables over --config (else WHEELQ_CONFIG) over the defaults."""
        return settings_in_force(self.config)

    def client(self) -> Client:
        from wheelq.client import Client  # on demand: --help needs no redis

        return Client.connect(self.url, self.settings)

    def inspector(self) -> Inspector:
        from wheelq.admin import Inspector

        return Inspector.connect(self.url, self.settings)

    def now_ms(self) -> int:
        """Returns the server's time, by which jobs are due; this machine's if no server is named, or none answers."""
        try:
            with self.inspector() as inspector:
                return inspector.server_ms()
        except (ConfigurationError, ServerError):
            return wall_ms()

    def answer(self, plain: object, shown: RenderableType, wide: bool = False) -> None:
        """Print the answer: `plain` as JSON, or else `shown`, a text or a table (`wide`: of any width)."""
        if self.json:
            say_json(plain)
        elif isinstance(shown, str):
            say(shown)
        else:
            stdout(wide).print(shown)

    def answer_page(self, plain: list[dict[str, Any]], shown: RenderableType, cursor: str | None, wide: bool) -> None:
        """Print a list of jobs, and with which cursor the next one continues."""
        self.answer({"jobs": plain, "cursor": cursor}, shown, wide)
        if cursor is not None and not self.json:
            say(f"more: --cursor {cursor}")

    def watch(self, looks: Iterable[T], shown: Callable[[T], RenderableType]) -> None:
        """Show each look in the place of the one before, until an interrupt.

        Print them one below the other if this is no terminal, and as lines of JSON if that is wanted.
        """
        console = stdout()
        try:
            if self.json or not console.is_terminal:
                for look in looks:
                    say_json(look) if self.json else console.print(shown(look))
                return
            with Live(console=console, auto_refresh=False, screen=True) as live:
                for look in looks:
                    live.update(shown(look), refresh=True)
        except KeyboardInterrupt:
            return
