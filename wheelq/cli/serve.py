"""wheelq server, wheelq keys: the delay service over HTTP, and who may use it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from wheelq.cli import run
from wheelq.cli.callbacks import needs_extra
from wheelq.cli.lifeline import hold
from wheelq.cli.options import Config, Json, LogFormat, LogLevel, Url, settings_of
from wheelq.cli.output import NOT_FOUND, say, say_json, stdout, table
from wheelq.cli.values import parse_delay
from wheelq.clock import wall_ms
from wheelq.job import from_ms
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access.keys import ApiKey, new_key
from wheelq.settings import resolve_url
from wheelq.transport import Address, Transport

logger = logging.getLogger("wheelq")

keys = typer.Typer(help="API keys of the HTTP server: make, list, rotate, revoke.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="The key's id, as wheelq keys list shows it.", show_default=False)]


def server(
    host: Annotated[str | None, typer.Option("--host", help="Where to listen; 127.0.0.1 if nothing says else.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="At which port; 7380 if nothing says else.")] = None,
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    lifeline: run.Lifeline = None,
) -> None:
    """Run the delay service over HTTP until SIGINT or SIGTERM, when requests under way may finish.

    Settings are those of [server] in --config; WHEELQ_SERVER_PORT=8080 and the like come before it. Its manual is at
    /docs. Start as many as you like: they share everything through Redis.
    """
    hold(lifeline)
    run.log_to_stderr(log_level, log_format)
    needs_extra("wheelq server", "fastapi", "uvicorn", "httptools", "httpx", "pydantic", "standardwebhooks")
    from wheelq.server.environment import with_environment  # these need the extra
    from wheelq.server.run import HttpServer

    found = HttpServer.connect(url, with_environment(settings_of(config), host=host, port=port))
    if found.is_open_to_all:
        logger.warning("anyone who can connect may do anything: access is open, and not only to this machine")
    run.run_until_signal(found.listen, found.stop)
    logger.info("server has stopped")


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What you call it: whose it is, what for.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            help="VERB:TOPIC, as often as needed; verbs read, schedule, change, consume, manage; * is any: "
            "schedule:orders.*",
            show_default=False,
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", help="How long it lives: 90d, 12h; else for ever.")
    ] = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Make a key, and show its token: it is stored nowhere, and never shown again."""
    now_ms = wall_ms()
    expires_ms = now_ms + round(parse_delay(expires) * 1000) if expires else 0
    key, token = new_key(name, tuple(scope), now_ms, expires_ms)
    with _transport(url, config) as (transport, names):
        transport.send(calls.put_api_key(names, key.id, key.stored()))
    say(token)


@keys.command("list")
def list_keys(url: Url = None, config: Config = None, as_json: Json = False) -> None:
    """Show every key: id, name, scopes and times; no secrets, for they are not kept."""
    with _transport(url, config) as (transport, names):
        stored = transport.send(calls.api_keys(names))
    found = sorted((ApiKey.read(id, what) for id, what in stored.items()), key=lambda key: key.created_ms)
    if as_json:
        say_json([_shown(key) for key in found])
    else:
        rows = [[value or "never" for value in _shown(key).values()] for key in found]
        stdout().print(table("id", "name", "scopes", "created", "expires", rows=rows))


@keys.command("rotate")
def rotate(
    id: Id,
    keep: Annotated[str, typer.Option("--keep", help="How long the present secret works on.")] = "24h",
    url: Url = None,
    config: Config = None,
) -> None:
    """Give a key a new secret, and show its token; the present one works on for a while."""
    with _transport(url, config) as (transport, names):
        stored = transport.send(calls.api_keys(names)).get(id)
        if stored is None:
            raise _missing(id)
        key, token = ApiKey.read(id, stored).rotated(wall_ms(), round(parse_delay(keep) * 1000))
        transport.send(calls.put_api_key(names, id, key.stored()))
    say(token)


@keys.command("revoke")
def revoke(id: Id, url: Url = None, config: Config = None) -> None:
    """Take a key away; every server knows within seconds (keys_ms)."""
    with _transport(url, config) as (transport, names):
        if not transport.send(calls.drop_api_key(names, id)):
            raise _missing(id)
    say(f"key {id} is revoked")


@contextmanager
def _transport(url: str | None, config: Path | None) -> Iterator[tuple[Transport, Keys]]:
    settings = settings_of(config)
    transport = Transport(Address(resolve_url(url, settings), settings.connection))
    try:
        yield transport, Keys(settings.prefix)
    finally:
        transport.close()


def _missing(id: str) -> typer.Exit:
    typer.echo(f"there is no key {id}: wheelq keys list shows them", err=True)
    return typer.Exit(NOT_FOUND)


def _shown(key: ApiKey) -> dict[str, str | None]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": " ".join(key.scopes),
        "created": from_ms(key.created_ms).isoformat(timespec="seconds"),
        "expires": from_ms(key.expires_ms).isoformat(timespec="seconds") if key.expires_ms else None,
    }
